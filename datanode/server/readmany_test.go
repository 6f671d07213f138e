package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/batchread"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// pieceOf asks for a part of a block with a token that is good.
func pieceOf(d *Server, id, gen int64, offset int64, length int) batchread.Piece {
	b := metadata.Block{ID: metadata.BlockID(id), Generation: metadata.Generation(gen)}
	return batchread.Piece{Block: b, Offset: offset, Length: length, Token: d.trust.Sign("BP-lab", b.ID, security.ReadBlock)}
}

func readMany(t *testing.T, d *Server, pool string, pieces ...batchread.Piece) (*http.Response, []byte) {
	t.Helper()
	r := batchread.NewRequest(pool)
	for _, p := range pieces {
		r.Add(p)
	}
	resp, text := ask(t, d, "POST", "/?op=READMANY&user.name=ann", bytes.NewReader(r.Encode()))
	return resp, []byte(text)
}

func TestReadMany(t *testing.T) {
	d, _ := doorCluster(t)
	contents := map[int64]string{}
	var pieces []batchread.Piece
	for i := range int64(40) { // packed ones and ones with files of their own
		contents[i] = strings.Repeat(fmt.Sprintf("block %d ", i), int(1+i*i*i))
		put(t, d, 100+i, 1001, contents[i])
		pieces = append(pieces, pieceOf(d, 100+i, 1001, 0, len(contents[i])))
	}
	resp, body := readMany(t, d, "BP-lab", pieces...)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != batchread.ContentType || resp.ContentLength != int64(len(body)) {
		t.Fatalf("%d %v %.200s", resp.StatusCode, resp.Header, body)
	}
	got, problems, err := batchread.ParseAnswer(body)
	if err != nil || len(problems) != 0 || len(got) != len(pieces) {
		t.Fatalf("%d pieces, %v, %v", len(got), problems, err)
	}
	for i, g := range got {
		if string(g) != contents[int64(i)] {
			t.Errorf("piece %d has %d bytes, want %d, or others", i, len(g), len(contents[int64(i)]))
		}
	}
	// Parts of blocks, at places where no checksum begins.
	whole := contents[39]
	var parts []batchread.Piece
	places := [][2]int{{0, 1}, {511, 2}, {512, 512}, {513, 1}, {1000, 5000}, {len(whole) - 1, 1}, {len(whole) - 700, 700}}
	for _, p := range places {
		parts = append(parts, pieceOf(d, 139, 1001, int64(p[0]), p[1]))
	}
	_, body = readMany(t, d, "BP-lab", parts...)
	if got, _, err = batchread.ParseAnswer(body); err != nil {
		t.Fatal(err)
	}
	for i, p := range places {
		if string(got[i]) != whole[p[0]:p[0]+p[1]] {
			t.Errorf("%d bytes at %d: %d bytes that are others", p[1], p[0], len(got[i]))
		}
	}
}

// gate lets a body be read when it is open.
type gate struct {
	io.Reader
	open <-chan struct{}
}

func (g *gate) Read(p []byte) (int, error) {
	<-g.open
	return g.Reader.Read(p)
}

// Requests that together hold all that a user may have for them are answered, one after the other if need be: none waits for what others give back only when they have been answered.
func TestManyRequestsDoNotWaitForEachOther(t *testing.T) {
	d, _ := doorCluster(t)
	put(t, d, 1, 1001, "data")
	q := batchread.NewRequest("BP-lab")
	for range 1000 {
		q.Add(pieceOf(d, 1, 1001, 0, 4))
	}
	body := q.Encode()
	const requests = 8
	total := int64(requests * len(body))
	d.requests, d.answers = security.NewBudget(security.BudgetConfig{Total: total, Patience: time.Hour}), security.NewBudget(security.BudgetConfig{Total: total, Patience: time.Hour})
	open := make(chan struct{})
	let := sync.OnceFunc(func() { close(open) })
	defer let()
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	results := make(chan error, requests)
	for range requests {
		go func() {
			r, err := http.NewRequestWithContext(ctx, "POST", "http://"+d.cfg.HTTP.Addr().String()+webhdfsPrefix+"/?op=READMANY&user.name=ann", &gate{bytes.NewReader(body), open})
			if err != nil {
				results <- err
				return
			}
			r.ContentLength = int64(len(body))
			tr := &http.Transport{DisableKeepAlives: true}
			defer tr.CloseIdleConnections()
			resp, err := tr.RoundTrip(r)
			if err == nil {
				defer resp.Body.Close()
				var answer []byte
				if answer, err = io.ReadAll(resp.Body); err == nil && resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("%s: %.200s", resp.Status, answer)
				}
			}
			results <- err
		}()
	}
	within(t, "all requests are on their way", func() bool { return d.requests.Used()+d.answers.Used() == total })
	let()
	for range requests {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	within(t, "all is given back", func() bool { return d.requests.Used()+d.answers.Used() == 0 })
}

func TestReadManyTellsOfEachPiece(t *testing.T) {
	dir := t.TempDir()
	d, _ := doorClusterIn(t, dir)
	put(t, d, 1, 1001, "good")
	put(t, d, 2, 1001, "short")
	put(t, d, 3, 1001, strings.Repeat("packed and damaged ", 50))
	put(t, d, 4, 1001, strings.Repeat("damaged ", 100_000))
	putOpen(t, d, 5, 1001, "being written")
	damage(t, dir, "packed and damaged ")
	damage(t, dir, "damaged damaged ")
	resp, body := readMany(t, d, "BP-lab",
		pieceOf(d, 1, 1001, 0, 4), pieceOf(d, 2, 1001, 0, 6), pieceOf(d, 3, 1001, 0, 950), pieceOf(d, 4, 1001, 0, 800_000), pieceOf(d, 5, 1001, 0, 13),
		pieceOf(d, 6, 1001, 0, 1), pieceOf(d, 1, 1002, 0, 4), pieceOf(d, 1, 1000, 1, 3))
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	got, problems, err := batchread.ParseAnswer(body)
	if err != nil {
		t.Fatal(err)
	}
	if string(got[0]) != "good" || string(got[4]) != "being written" || string(got[7]) != "ood" {
		t.Errorf("the good pieces are %q %q %q", got[0], got[4], got[7])
	}
	want := []batchread.Problem{
		{Index: 1, Exception: "HadoopIllegalArgumentException", Message: "but the replica has 5 bytes"},
		{Index: 2, Exception: "ChecksumException"},
		{Index: 3, Exception: "ChecksumException"},
		{Index: 5, Exception: "ReplicaNotFoundException"},
		{Index: 6, Exception: "HadoopIllegalArgumentException", Message: "gen stamp"},
	}
	if len(problems) != len(want) {
		t.Fatalf("problems %+v", problems)
	}
	for i, p := range problems {
		if p.Index != want[i].Index || p.Exception != want[i].Exception || !strings.Contains(p.Message, want[i].Message) {
			t.Errorf("problem %+v, want %+v", p, want[i])
		}
	}
	// What does not match its checksums is looked at, and told the namenode.
	within(t, "the damaged replica is found out", func() bool {
		for _, r := range d.store.Corrupt() {
			if r.Block.ID == 3 || r.Block.ID == 4 {
				return true
			}
		}
		return false
	})
}

// damage turns a byte of the file that holds the text, behind the store's back.
func damage(t *testing.T, dir, text string) {
	t.Helper()
	found := false
	check(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if at := bytes.Index(b, []byte(text)); err == nil && at >= 0 {
			found = true
			b[at] ^= 1
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(b[at:at+1], int64(at))
			return err
		}
		return nil
	}))
	if !found {
		t.Fatalf("no file below %s holds %q", dir, text)
	}
}

func TestReadManyRefuses(t *testing.T) {
	d, _ := doorCluster(t)
	put(t, d, 1, 1001, "secret")
	put(t, d, 2, 1001, "other")
	good := pieceOf(d, 1, 1001, 0, 6)
	foreign := good
	foreign.Token = pieceOf(d, 2, 1001, 0, 5).Token
	forged := good
	forged.Token.Password = bytes.Repeat([]byte{1}, len(good.Token.Password))
	writing := good
	writing.Token = d.trust.Sign("BP-lab", 1, security.WriteBlock)
	expired := good
	expired.Token = d.trust.keys.Load().Sign(security.BlockGrant{User: "ann", Pool: "BP-lab", Block: 1, Modes: security.ReadBlock}, time.Now().Add(-time.Minute))
	none := good
	none.Token = security.Token{}
	for name, p := range map[string]batchread.Piece{"another block's": foreign, "forged": forged, "for writing": writing, "expired": expired, "none": none} {
		resp, body := readMany(t, d, "BP-lab", pieceOf(d, 2, 1001, 0, 5), p)
		if resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), `"exception":"InvalidToken"`) || strings.Contains(string(body), "secret") {
			t.Errorf("a token that is %s: %d %s", name, resp.StatusCode, body)
		}
	}
	if resp, body := readMany(t, d, "BP-elsewhere", good); resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "is not served here") {
		t.Errorf("another pool: %d %s", resp.StatusCode, body)
	}
	for _, c := range []struct{ query, body, text string }{
		{"?op=READMANY&user.name=ann", "", "not a request of this version"},
		{"?op=READMANY&user.name=ann", "HRQ9 and so on", "not a request of this version"},
		{"?op=READMANY&user.name=ann", strings.Repeat("x", batchread.MaxRequest+1), "more than"},
		{"?op=READMANY", "", "a request without user.name may read, and nothing else"},
	} {
		if resp, text := ask(t, d, "POST", "/"+c.query, strings.NewReader(c.body)); resp.StatusCode < 400 || !strings.Contains(text, c.text) {
			t.Errorf("%s %.20q: %d %s, want %q", c.query, c.body, resp.StatusCode, text, c.text)
		}
	}
	if resp, _ := ask(t, d, "GET", "/?op=READMANY&user.name=ann", nil); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("GET: %d", resp.StatusCode)
	}
}
