package kerberos

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/sasl"
)

// recording is an exchange of a real client, MIT's library or Java's, with an acceptor whose subkey was 00 01 02 … and whose first
// number was 1000: encryption type, time in seconds since 1970, quality, keytab; then what the client sent, a line each.
type recording struct {
	enctype  string
	at       time.Time
	quality  sasl.Quality
	acceptor *Acceptor
	sent     [][]byte
}

func recordings(t testing.TB) map[string]*recording {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.exchange")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d recordings, %v", len(paths), err)
	}
	out := map[string]*recording{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		seconds, err := strconv.ParseInt(lines[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		r := &recording{enctype: lines[0], at: time.Unix(seconds, 0), quality: sasl.Quality(lines[2])}
		keytab := filepath.Join(t.TempDir(), "keytab")
		if err := os.WriteFile(keytab, unhex(t, lines[3]), 0o400); err != nil {
			t.Fatal(err)
		}
		for _, line := range lines[4:] {
			r.sent = append(r.sent, unhex(t, line))
		}
		service := principal(t, "nn/"+r.enctype+".localhost@HOPS.TEST")
		if r.acceptor, err = NewAcceptor(Config{Keytab: keytab, Principals: []Principal{service}, Now: func() time.Time { return r.at }}); err != nil {
			t.Fatal(err)
		}
		r.acceptor.draw = func(like key) (key, uint32) {
			k := like.randomKey()
			for i := range k.value {
				k.value[i] = byte(i)
			}
			return k, 1000
		}
		out[filepath.Base(path)] = r
	}
	return out
}

// begin takes the steps of the client and returns the messages that followed.
func (r *recording) begin(t testing.TB) (sasl.Mechanism, [][]byte) {
	m := r.acceptor.Exchange(sasl.Authentication, sasl.Integrity, sasl.Privacy)
	for i, token := range r.sent {
		_, done, err := m.Step(bytes.Clone(token))
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if done {
			return m, r.sent[i+1:]
		}
	}
	t.Fatal("the exchange has no end")
	return nil, nil
}

func TestRecordedClients(t *testing.T) {
	for name, r := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			m, messages := r.begin(t)
			if m.Identity().Name != "alice" || (m.Layer() == nil) != (r.quality == sasl.Authentication) {
				t.Fatalf("it is %+v with the layer %v", m.Identity(), m.Layer())
			}
			for i, size := range []int{0, 1, 15, 16, 17, 1000, 300} {
				want := bytes.Repeat([]byte{byte(size)}, size)
				got, err := messages[i], error(nil)
				if m.Layer() != nil {
					got, err = m.Layer().Unwrap(bytes.Clone(got))
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("the message of %d bytes is %x, %v", size, got, err)
				}
			}
		})
	}
}
