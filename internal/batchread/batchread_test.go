package batchread

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

var update = flag.Bool("update", false, "write the golden messages")

func piece(id, length int) Piece {
	return Piece{
		Block: metadata.Block{ID: metadata.BlockID(id), Generation: 1001}, Offset: 512, Length: length,
		Token: security.Token{Identifier: []byte("identifier"), Password: []byte("password")},
	}
}

// The messages as Python reads them, too (client/python/tests/test_data.py).
func TestWire(t *testing.T) {
	first, second := NewRequest("BP-1"), NewRequest("BP-1")
	first.Add(piece(-7, 5))
	first.Add(piece(1<<40, 100))
	second.Add(piece(9, 3))
	plan := Plan{
		Names: 5, Empty: []int{4}, Large: [][2]int64{{6, 1 << 40}}, Problems: []Problem{{1, "FileNotFoundException", "File does not exist: /ä"}},
		Groups: []*Group{
			{URL: "http://h:1/webhdfs/v1/?op=READMANY&user.name=ann", Datanode: "127.0.0.1:9", Files: []uint32{0, 3}, Request: first},
			{URL: "http://h:2/webhdfs/v1/?op=READMANY&user.name=ann", Datanode: "127.0.0.1:8", Files: []uint32{2}, Request: second},
		},
	}
	p, err := plan.Encode()
	if err != nil {
		t.Fatal(err)
	}
	a := NewAnswer(nil, 3)
	a.Take(copy(a.Room(5), "first"))
	a.Fail("ReplicaNotFoundException", "no replica")
	a.Take(copy(a.Room(9), "third one"))
	answer, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	n := int(p[4]) | int(p[5])<<8
	got := map[string]any{"plan": hex.EncodeToString(p), "plan_head": json.RawMessage(p[8 : 8+n]), "request": hex.EncodeToString(first.Encode()), "answer": hex.EncodeToString(answer)}
	text, err := json.MarshalIndent(got, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	const golden = "testdata/wire.json"
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != string(text) {
		t.Errorf("the messages are not those of %s (%v): %s", golden, err, text)
	}

	pool, pieces, err := ParseRequest(first.Encode())
	if err != nil || pool != "BP-1" || len(pieces) != 2 || pieces[0].Block.ID != -7 || pieces[1].Length != 100 || pieces[1].Offset != 512 || string(pieces[1].Token.Password) != "password" {
		t.Errorf("request %q %+v, %v", pool, pieces, err)
	}
	parts, problems, err := ParseAnswer(answer)
	if err != nil || len(parts) != 3 || string(parts[0]) != "first" || parts[1] != nil || string(parts[2]) != "third one" || len(problems) != 1 || problems[0] != (Problem{1, "ReplicaNotFoundException", "no replica"}) {
		t.Errorf("answer %q, %v, %v", parts, problems, err)
	}
}

func TestBrokenMessages(t *testing.T) {
	r := NewRequest("BP-1")
	r.Add(piece(1, 5))
	r.Add(piece(2, 5))
	whole := r.Encode()
	a := NewAnswer(nil, 2)
	a.Take(copy(a.Room(5), "first"))
	a.Fail("IOException", "no")
	answer, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		if _, _, err := ParseRequest(whole[:i]); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("a request of %d bytes: %v", i, err)
		}
	}
	if _, _, err := ParseRequest(append(whole[:len(whole):len(whole)], 0)); err == nil {
		t.Error("a byte too many is taken")
	}
	for i := range answer {
		if _, _, err := ParseAnswer(answer[:i]); err == nil {
			t.Errorf("an answer of %d bytes is taken", i)
		}
		bad := []byte(string(answer))
		bad[i] ^= 4
		if _, _, err := ParseAnswer(bad); err == nil {
			t.Errorf("an answer with byte %d damaged is taken", i)
		}
	}
}

func TestLimits(t *testing.T) {
	r := NewRequest("BP-1")
	if !r.Fits(MaxBytes) || r.Fits(MaxBytes+1) {
		t.Error("a piece of the most bytes does not fit, or a larger one does")
	}
	for r.Fits(1) {
		r.Add(piece(r.Count, 1))
	}
	if b := r.Encode(); r.Count != MaxNames || len(b) > MaxRequest {
		t.Errorf("%d pieces in %d bytes", r.Count, len(b))
	} else if _, pieces, err := ParseRequest(b); err != nil || len(pieces) != MaxNames {
		t.Errorf("the largest request: %v", err)
	}
	big := NewRequest("BP-1")
	big.Add(piece(1, MaxBytes))
	big.Add(piece(2, 1))
	if _, _, err := ParseRequest(big.Encode()); err == nil || !strings.Contains(err.Error(), "is the most") {
		t.Errorf("more bytes than allowed: %v", err)
	}
	none := NewRequest("BP-1")
	if _, _, err := ParseRequest(none.Encode()); err == nil {
		t.Error("a request of nothing is taken")
	}
}

// Any pieces come back as they were put in.
func TestAnswersOfAnyPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var buf []byte
	for range 200 {
		n := rng.IntN(20)
		want := make([]string, n)
		a := NewAnswer(buf, n)
		for i := range want {
			if rng.IntN(4) == 0 {
				want[i] = "-"
				a.Fail("E", "m")
				continue
			}
			room := a.Room(rng.IntN(3000))
			for j := range room {
				room[j] = byte(rng.Uint32())
			}
			k := len(room) - rng.IntN(len(room)+1)
			want[i] = "+" + string(room[:k])
			a.Take(k)
		}
		out, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		pieces, _, err := ParseAnswer(out)
		if err != nil || len(pieces) != n {
			t.Fatalf("%d pieces, want %d: %v", len(pieces), n, err)
		}
		for i, p := range pieces {
			if (p == nil) != (want[i] == "-") || p != nil && "+"+string(p) != want[i] {
				t.Fatalf("piece %d differs", i)
			}
		}
		buf = out[:0]
	}
}

func FuzzParse(f *testing.F) {
	r := NewRequest("BP-1")
	r.Add(piece(1, 5))
	f.Add(r.Encode())
	a := NewAnswer(nil, 1)
	a.Take(copy(a.Room(1), "x"))
	out, _ := a.Encode()
	f.Add(out)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, pieces, err := ParseRequest(b); err == nil && (len(pieces) == 0 || len(pieces) > MaxNames) {
			t.Errorf("%d pieces", len(pieces))
		}
		_, _, _ = ParseAnswer(b)
	})
}
