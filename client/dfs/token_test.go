package dfs

import (
	"errors"
	"io"
	"testing"

	"github.com/gohops/hops/metadata"
)

// expire makes all tokens that were given so far worthless.
func (c *cluster) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
}

// refusals is how many requests were refused since it was called last.
func (c *cluster) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.refused
	c.refused = 0
	return n
}

// A token that has expired is asked for again, once, and no datanode is blamed for it.
func TestExpiredTokensAreRenewed(t *testing.T) {
	c, client := newCluster(t, 3)
	patient(client) // no request beside the one that is refused
	c.expire()
	data := pattern(200_000)
	if err := client.WriteFile(t.Context(), "/f", data, false); err != nil {
		t.Fatal(err)
	}
	r, err := client.Open(t.Context(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	asked := c.count("getBlockLocations")
	for name, read := range map[string]func() ([]byte, error){
		"Read":   func() ([]byte, error) { return io.ReadAll(r) },
		"ReadAt": func() ([]byte, error) { b := make([]byte, len(data)); _, err := r.ReadAt(b, 0); return b, err },
	} {
		c.expire()
		got, err := read()
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%s: %v", name, err)
		}
		sameBytes(t, name, got, data)
		asked++
		if n := c.count("getBlockLocations"); n != asked || c.refusals() != 1 {
			t.Errorf("%s: asked %d times, want %d", name, n, asked)
		}
		if len(r.bad) > 0 {
			t.Errorf("%s: datanodes are blamed: %v", name, r.bad)
		}
	}
}

// Tokens that are refused for ever end in an error, not in asking for ever.
func TestRefusedTokensEndInAnError(t *testing.T) {
	c, client := newCluster(t, 2)
	patient(client)
	data := pattern(1000)
	if err := client.WriteFile(t.Context(), "/f", data, false); err != nil {
		t.Fatal(err)
	}
	r, err := client.Open(t.Context(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.mu.Lock()
	c.epoch, c.strict = 1, true
	c.mu.Unlock()
	if _, err := io.ReadAll(r); metadata.KindOf(err) != metadata.ErrIO {
		t.Errorf("reading: %v", err)
	}
	if n := c.refusals(); n > 2*(readRounds+1)+2 {
		t.Errorf("%d requests", n)
	}
}

// A small block waits with its token until it ends.
func TestSmallBlockWhoseTokenExpiredIsWrittenIntoAnother(t *testing.T) {
	c, client := keeping(t, 3)
	c.expire()
	data := pattern(3000)
	w := create(t, client, "/f")
	write(t, w, data)
	c.expire()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/f"), data)
	if got := c.replicas("/f"); len(got) != 1 || got[0] != 3 || c.refusals() != 1 {
		t.Errorf("replicas %v", got)
	}
}

func TestChecksumRenewsItsToken(t *testing.T) {
	c, client := newCluster(t, 1)
	data := pattern(3000)
	if err := client.WriteFile(t.Context(), "/f", data, false); err != nil {
		t.Fatal(err)
	}
	want, err := client.Checksum(t.Context(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.epoch, c.stale = 1, 1 // the first answer holds an old token
	c.mu.Unlock()
	got, err := client.Checksum(t.Context(), "/f")
	if err != nil || string(got.Bytes) != string(want.Bytes) || c.refusals() != 1 {
		t.Errorf("checksum %v, %v, want %v", got, err, want)
	}
}
