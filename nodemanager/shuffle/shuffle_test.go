package shuffle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/token"
	rm "github.com/gohops/hops/resourcemanager"
)

var (
	app   = rm.ApplicationID{Cluster: 1_790_000_000_000, Sequence: 7}
	other = rm.ApplicationID{Cluster: 1_790_000_000_000, Sequence: 8}
)

const (
	port   = 13562
	first  = "attempt_1790000000000_0007_m_000000_0"
	second = "attempt_1790000000000_0007_m_000001_1"
)

func jobToken(password string) []byte {
	return token.Token{Identifier: []byte("\x16job_1790000000000_0007"), Password: []byte(password), Kind: "mapreduce.job", Service: "job_1790000000000_0007"}.Writable()
}

// mapOutput writes what a map leaves: its parts one after the other, and their index.
func mapOutput(t *testing.T, dir, attempt string, parts ...string) {
	t.Helper()
	at := filepath.Join(dir, "output", attempt)
	var index, data []byte
	for _, p := range parts {
		index = binary.BigEndian.AppendUint64(index, uint64(len(data)))
		index = binary.BigEndian.AppendUint64(index, uint64(len(p))+100) // unpacked
		index = binary.BigEndian.AppendUint64(index, uint64(len(p)))
		data = append(data, p...)
	}
	index = binary.BigEndian.AppendUint64(index, uint64(crc32.ChecksumIEEE(index)))
	if err := errors.Join(os.MkdirAll(at, 0o755), os.WriteFile(filepath.Join(at, dataFile), data, 0o644), os.WriteFile(filepath.Join(at, indexFile), index, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// register takes a token of ann's with which a container starts.
func register(k *Keys, app rm.ApplicationID, data []byte) error {
	settle, err := k.Register(app, "ann", data)
	if err == nil {
		settle(true)
	}
	return err
}

// scene is a handler with the directory of app.
func scene(t *testing.T) (h *Handler, dir string) {
	t.Helper()
	apps := t.TempDir()
	dir = filepath.Join(apps, app.String())
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(apps, other.String()), 0o700)); err != nil {
		t.Fatal(err)
	}
	keys, err := Open(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(register(keys, app, jobToken("secret")), register(keys, other, jobToken("another"))); err != nil {
		t.Fatal(err)
	}
	return &Handler{Keys: keys, Port: port, Logger: slog.New(slog.DiscardHandler), Root: func(id rm.ApplicationID) (*os.Root, error) {
		return os.OpenRoot(filepath.Join(apps, id.String()))
	}}, dir
}

func ask(h *Handler, target, password string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	r.Header.Set("name", "mapreduce")
	r.Header.Set("version", "1.0.0")
	r.Header.Set("UrlHash", sign([]byte(password), fmt.Sprint(port)+target))
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(recorder{w}, r)
	return w
}

// recorder has no time to lose.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetWriteDeadline(time.Time) error { return nil }

// The hashes are those that openssl makes: printf %s TEXT | openssl dgst -sha1 -hmac secret -binary | base64.
func TestAReduceGetsItsPartsAsFromHadoop(t *testing.T) {
	h, dir := scene(t)
	mapOutput(t, dir, first, "zero", "one of the first")
	mapOutput(t, dir, second, "zero", strings.Repeat("x", 3*step+17))
	target := "/mapOutput?job=job_1790000000000_0007&reduce=1&map=" + first + "," + second
	w := ask(h, target, "secret", func(r *http.Request) {
		if got := r.Header.Get("UrlHash"); got != "jdAl2wp6/BqpPx66HG0TbDeaSOA=" {
			t.Errorf("UrlHash %s", got)
		}
	})
	if w.Code != 200 || w.Header().Get("name") != "mapreduce" || w.Header().Get("version") != "1.0.0" || w.Header().Get("ReplyHash") != "fLWfFAcD5qoEDZeaCX2gPCYrzac=" {
		t.Fatalf("%d %v %.200s", w.Code, w.Header(), w.Body)
	}
	var want bytes.Buffer
	want.WriteString("\x25" + first + "\x10\x74\x01one of the first")          // 16 bytes, 116 unpacked, reduce 1
	want.WriteString("\x25" + second + "\x8d\x30\x00\x11\x8d\x30\x00\x75\x01") // 0x300011 and 0x300075
	want.WriteString(strings.Repeat("x", 3*step+17))
	if !bytes.Equal(w.Body.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes %.120q\nwant %d %.120q", w.Body.Len(), w.Body, want.Len(), &want)
	}
	if got := w.Header().Get("Content-Length"); got != fmt.Sprint(want.Len()) {
		t.Errorf("Content-Length %s", got)
	}
}

func TestNobodyReadsWhatIsNotTheirJobs(t *testing.T) {
	h, dir := scene(t)
	mapOutput(t, dir, first, "zero")
	secret := filepath.Join(t.TempDir(), "secret")
	mapOutput(t, filepath.Join(filepath.Dir(dir), other.String()), "attempt_x", "of another")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, "output", name) }
	mapOutput(t, dir, "attempt_link", "zero")
	mapOutput(t, dir, "attempt_pipe", "zero")
	mapOutput(t, dir, "attempt_short", "zero", "one")
	mapOutput(t, dir, "attempt_damaged", "zero")
	mapOutput(t, dir, "attempt_torn", "zero")
	if err := errors.Join(
		os.Remove(in("attempt_link/file.out")), os.Symlink(secret, in("attempt_link/file.out")),
		os.Symlink("../../"+other.String()+"/output/attempt_x", in("attempt_far")),
		os.Remove(in("attempt_pipe/file.out")), unix.Mkfifo(in("attempt_pipe/file.out"), 0o600),
		os.Truncate(in("attempt_short/file.out"), 3), os.Truncate(in("attempt_torn/file.out.index"), 31),
		os.WriteFile(in("attempt_damaged/file.out.index"), make([]byte, 31+1), 0o600), os.WriteFile(in("attempt_damaged/file.out.index"), bytes.Repeat([]byte{1}, 32), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	const job = "/mapOutput?job=job_1790000000000_0007&reduce=0&map="
	for name, c := range map[string]struct {
		target, password string
		change           func(*http.Request)
		code             int
	}{
		"good":                     {target: job + first, password: "secret", code: 200},
		"the token of another job": {target: job + first, password: "another", code: 401},
		"no hash":                  {target: job + first, change: func(r *http.Request) { r.Header.Del("UrlHash") }, code: 401},
		"the hash of another request": {target: job + first, password: "secret", change: func(r *http.Request) {
			r.Header.Set("UrlHash", sign([]byte("secret"), fmt.Sprint(port)+job+second))
		}, code: 401},
		"a job that nobody knows":   {target: "/mapOutput?job=job_1790000000000_0009&reduce=0&map=" + first, password: "secret", code: 401},
		"an empty key":              {target: "/mapOutput?job=job_1790000000000_0009&reduce=0&map=" + first, password: "", code: 401},
		"another version":           {target: job + first, password: "secret", change: func(r *http.Request) { r.Header.Set("version", "2.0.0") }, code: 400},
		"another method":            {target: job + first, password: "secret", change: func(r *http.Request) { r.Method = "POST" }, code: 405},
		"another path":              {target: "/other?job=job_1790000000000_0007&reduce=0&map=" + first, password: "secret", code: 404},
		"a path for a map":          {target: job + "../../" + other.String() + "/output/attempt_x", password: "secret", code: 400},
		"a dot for a map":           {target: job + ".", password: "secret", code: 400},
		"no map":                    {target: job, password: "secret", code: 400},
		"too many maps":             {target: job + strings.Repeat("a,", maxMaps) + "a", password: "secret", code: 400},
		"two jobs":                  {target: job + first + "&job=job_1790000000000_0008", password: "secret", code: 400},
		"a negative reduce":         {target: "/mapOutput?job=job_1790000000000_0007&reduce=-1&map=" + first, password: "secret", code: 400},
		"a reduce that is not":      {target: "/mapOutput?job=job_1790000000000_0007&reduce=1&map=" + first, password: "secret", code: 500},
		"a map that is not":         {target: job + second, password: "secret", code: 404},
		"a link out":                {target: job + "attempt_link", password: "secret", code: 500},
		"a link to another job":     {target: job + "attempt_far", password: "secret", code: 500},
		"a pipe":                    {target: job + "attempt_pipe", password: "secret", code: 500},
		"a file that is too short":  {target: job + "attempt_short", password: "secret", code: 500},
		"an index without its sum":  {target: job + "attempt_damaged", password: "secret", code: 500},
		"an index that is cut":      {target: job + "attempt_torn", password: "secret", code: 500},
		"one good and one that isn": {target: job + first + ",attempt_torn", password: "secret", code: 500},
	} {
		change := c.change
		if change == nil {
			change = func(*http.Request) {}
		}
		w := ask(h, c.target, c.password, change)
		if w.Code != c.code || c.code != 200 && (strings.Contains(w.Body.String(), "zero") || w.Header().Get("ReplyHash") != "") {
			t.Errorf("%s: %d %.200s", name, w.Code, w.Body)
		}
	}
}

// What was announced and is no longer there ends the connection: a reduce must not take what comes for all of it.
func TestAnAnswerThatBreaksIsNotTakenForWhole(t *testing.T) {
	h, dir := scene(t)
	mapOutput(t, dir, first, strings.Repeat("x", 4*step))
	file := filepath.Join(dir, "output", first, dataFile)
	root, err := h.Root(app)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	p, err := find(root, first, 0)
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	err = p.write(io.Discard, root, func() error {
		if steps++; steps == 3 {
			return os.Truncate(file, step)
		}
		return nil
	})
	if err == nil {
		t.Error("a file that was cut meanwhile is served as a whole")
	}
}

func TestKeysOutliveTheNodeManagerAndEndWithTheirApplications(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	open := func() *Keys {
		t.Helper()
		k, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := open()
	if err := errors.Join(register(k, app, jobToken("one")), register(k, app, jobToken("two")), register(k, other, jobToken("x"))); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"nothing": nil, "noise": []byte("noise"), "no password": jobToken(""), "a long one": jobToken(strings.Repeat("x", maxPassword+1))} {
		if err := register(k, other, bad); !errors.Is(err, ErrForm) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if info, err := os.Stat(k.file(app)); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "application_1_0001.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	k = open()
	if got := k.Applications(); len(got) != 2 || got[0] != app || got[1] != other {
		t.Errorf("%v", got)
	}
	for password, want := range map[string]bool{"one": false, "two": true} {
		if got, _ := k.enter(app, func(p []byte) bool { return string(p) == password }); (got != nil) != want {
			t.Errorf("%s: %v", password, got)
		}
	}
	if !k.End(app) || k.End(app) || k.Has(app) || !k.Has(other) {
		t.Error("one has ended")
	}
	k.Clean(app)
	k.Clean(other) // which has not
	if k = open(); k.Has(app) || !k.Has(other) {
		t.Error("one had ended")
	}
}

// A disk that hangs while a token is written keeps neither the node's reports nor its orders.
func TestADiskThatHangsKeepsNobody(t *testing.T) {
	k, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := register(k, app, jobToken("one")); err != nil {
		t.Fatal(err)
	}
	pipe := k.file(other) + ".tmp" // who writes it waits until somebody reads
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- register(k, other, jobToken("x")) }()
	for k.writing.TryLock() {
		k.writing.Unlock()
		time.Sleep(time.Millisecond)
	}
	if got := k.Applications(); len(got) != 1 || !k.Has(app) || k.Has(other) || !k.End(app) {
		t.Errorf("%v", got)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	<-done // with an error or without: a pipe is no file
}

func TestOneJobDoesNotTakeThePlacesOfAll(t *testing.T) {
	h, dir := scene(t)
	mapOutput(t, dir, first, "zero")
	for range maxBusy {
		h.Keys.enter(app, func([]byte) bool { return true })
	}
	target := "/mapOutput?job=job_1790000000000_0007&reduce=0&map=" + first
	if w := ask(h, target, "secret"); w.Code != 429 || w.Header().Get("Retry-After") != "1000" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w := ask(h, target, "guess"); w.Code != 401 {
		t.Errorf("who has no token: %d", w.Code)
	}
	h.Keys.leave(app)
	if w := ask(h, target, "secret"); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
	if w := ask(h, target, "secret"); w.Code != 200 { // the request before has left
		t.Errorf("%d", w.Code)
	}
	k := h.Keys
	for i := int64(100); register(k, rm.ApplicationID{Cluster: 1, Sequence: i}, jobToken("x")) == nil; i++ {
		if i > 100+MaxApplications {
			t.Fatal("keys have no limit")
		}
	}
	if err := register(k, app, jobToken("newer")); err != nil { // who is there stays
		t.Error(err)
	}
}

// Whatever one user has here, there is room for the next one's, also after a start of the node manager.
func TestOneUserDoesNotTakeThePlacesOfAll(t *testing.T) {
	dir := t.TempDir()
	k, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(user string, series int64) (n int) {
		t.Helper()
		for ; n <= MaxApplications; n++ {
			settle, err := k.Register(rm.ApplicationID{Cluster: series, Sequence: int64(n + 1)}, user, jobToken("x"))
			if errors.Is(err, ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			settle(true)
		}
		return n
	}
	if n := fill("mallory", 1); n < MaxApplications/2-1 || n > MaxApplications/2 {
		t.Errorf("one user has outputs of %d applications here", n)
	}
	if k, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	if n := fill("mallory", 2); n != 0 {
		t.Errorf("after a start there is room for %d more", n)
	}
	if n := fill("ann", 3); n < MaxApplications/4-1 || n > MaxApplications/4 {
		t.Errorf("the next one has outputs of %d applications", n)
	}
}

// A token that came with a launch which was refused takes no place, unless another launch counts on it.
func TestTheKeyOfARefusedLaunchIsGivenBack(t *testing.T) {
	k, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	take := func(password string) func(bool) {
		t.Helper()
		settle, err := k.Register(app, "ann", jobToken(password))
		if err != nil {
			t.Fatal(err)
		}
		return settle
	}
	take("one")(false)
	if _, err := os.Stat(k.file(app)); k.Has(app) || err == nil {
		t.Errorf("it is kept: %v, its file: %v", k.Has(app), err)
	}
	first, second := take("one"), take("one")
	first(false)
	if !k.Has(app) {
		t.Error("another launch counts on it")
	}
	second(true)
	take("two")(false)
	if _, err := os.Stat(k.file(app)); !k.Has(app) || err != nil {
		t.Errorf("a container runs with it: %v", err)
	}
	last := take("two")
	k.End(app)
	last(true)
	if k.Has(app) {
		t.Error("it has ended")
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("/mapOutput?job=job_1790000000000_0007&reduce=1&map=" + first + "," + second)
	f.Add("/mapOutput?job=job_1_1&reduce=0&map=..")
	f.Fuzz(func(t *testing.T, target string) {
		r, err := http.NewRequest("GET", target, nil)
		if err != nil {
			return
		}
		r.Header.Set("name", name)
		r.Header.Set("version", version)
		q, err := parse(r)
		if err != nil {
			return
		}
		if q.reduce < 0 || q.reduce >= maxReduces || len(q.maps) == 0 || len(q.maps) > maxMaps {
			t.Errorf("%+v", q)
		}
		for _, m := range q.maps {
			if m == "" || strings.ContainsAny(m, "./\\\x00") {
				t.Errorf("%q", m)
			}
		}
	})
}
