package raftstoretest_test

import (
	"encoding/binary"
	"io"
	"testing"

	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/metadata/raftstore/raftstoretest"
)

// counter is the smallest state machine: it counts commands.
type counter struct{ state }

type state struct{ Index, N uint64 }

func (c *counter) Apply(index uint64, commands [][]byte) []any {
	if index <= c.Index {
		return nil
	}
	c.Index = index
	results := make([]any, len(commands))
	for i := range commands {
		c.N++
		results[i] = c.N
	}
	return results
}

func (c *counter) AppliedIndex() uint64 { return c.Index }

func (c *counter) Freeze() (raftstore.Snapshot, error) { return &frozen{c.state}, nil }

func (c *counter) Restore(r io.Reader) error { return binary.Read(r, binary.LittleEndian, &c.state) }

type frozen struct{ state }

func (f *frozen) Index() uint64 { return f.state.Index }

func (f *frozen) WriteTo(w io.Writer) (int64, error) {
	return int64(binary.Size(f.state)), binary.Write(w, binary.LittleEndian, f.state)
}

func (f *frozen) Release() {}

func TestSingleKeepsItsStateOverARestart(t *testing.T) {
	dir := t.TempDir()
	for want := uint64(1); want <= 3; want++ {
		g := raftstoretest.SingleIn(t, dir, &counter{})
		got, err := g.Propose(t.Context(), []byte("x"))
		if err != nil || got != want {
			t.Fatalf("got %v, %v, want %d", got, err, want)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
