package blockstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// pieces cuts data, which begins at off, at the given offsets of the block.
func pieces(off int64, data []byte, cuts ...int64) []datanode.Piece {
	var out []datanode.Piece
	start := off
	for _, cut := range append(cuts, off+int64(len(data))) {
		p := data[start-off : cut-off]
		out = append(out, datanode.Piece{Off: start, Data: p, Sums: sumsOf(p)})
		start = cut
	}
	return out
}

func TestPiecesAreStoredAsIfWrittenOneByOne(t *testing.T) {
	h := open(t, vfs.OS, t.TempDir())
	data := pattern(300_000)
	w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{}))
	write := func(p []datanode.Piece) {
		t.Helper()
		if n, err := w.WriteAll(p); n != len(p) || err != nil {
			t.Fatalf("%d of %d pieces, %v", n, len(p), err)
		}
	}
	write(pieces(0, data[:100_000], 512, 65_536, 98_304))      // ends inside a chunk
	write(pieces(100_000, data[100_000:200_000], 100_352))     // which the first piece fills
	write(pieces(199_680, data[199_680:220_000], 204_800))     // the last chunk comes again from its start
	write(pieces(0, data[:230_000], 65_536, 131_072, 215_040)) // most is here already
	w.Acked(65_536)
	if v := w.Replica(); v.Visible != 65_536 || v.Block.Length != 230_000 {
		t.Errorf("%+v", v)
	}
	p := pieces(230_000, data[230_000:], 230_400, 250_880, 299_520)
	p[2].Sums = nil // verified by other means
	write(p)
	w.Acked(300_000)
	must[datanode.Replica](t)(w.Finalize())
	h.wantContent(7, data)
}

func TestABadPieceLeavesThoseBeforeIt(t *testing.T) {
	h := open(t, vfs.OS, t.TempDir())
	data := pattern(200_000)
	w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{}))
	p := pieces(0, data, 51_200, 102_400, 153_600)
	p[2].Sums = sumsOf(data[:51_200])
	if n, err := w.WriteAll(p); n != 2 || !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("%d pieces, %v", n, err)
	}
	p = pieces(102_400, data[102_400:], 153_600)
	p[1].Off += 512
	if n, err := w.WriteAll(p); n != 1 || !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Fatalf("with a gap: %d pieces, %v", n, err)
	}
	w.Acked(153_600)
	must[datanode.Replica](t)(w.Finalize())
	h.wantContent(7, data[:153_600])
}

// What a full disk took of some pieces is neither counted nor in the way of the next try.
func TestPiecesOnAFullDisk(t *testing.T) {
	disk := faulty.New(mem.New(1 << 30))
	h := open(t, disk, "/v")
	data := pattern(200_000)
	w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{}))
	if _, err := w.WriteAll(pieces(0, data[:102_400], 51_200)); err != nil {
		t.Fatal(err)
	}
	disk.Set(func(op faulty.Op) error {
		if op.Call == "write" && strings.HasSuffix(op.Name, ".rbw") { // the data is there by then
			return syscall.ENOSPC
		}
		return nil
	})
	n, err := w.WriteAll(pieces(102_400, data[102_400:], 153_600))
	if wantKind(t, err, metadata.ErrNoSpace); n != 0 {
		t.Errorf("%d pieces", n)
	}
	if v := w.Replica(); v.Block.Length != 102_400 {
		t.Errorf("%+v", v)
	}
	disk.Set(nil)
	if _, err := w.WriteAll(pieces(102_400, data[102_400:], 153_600)); err != nil {
		t.Fatal(err)
	}
	w.Acked(200_000)
	must[datanode.Replica](t)(w.Finalize())
	h.wantContent(7, data)
}

// Room that was asked for ahead of a writer that stops early goes back to the disk.
func TestUnusedRoomIsGivenBack(t *testing.T) {
	for name, end := range map[string]func(datanode.Writer) error{
		"finalize": func(w datanode.Writer) error { _, err := w.Finalize(); return err },
		"close":    func(w datanode.Writer) error { return w.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			h := open(t, vfs.OS, dir)
			data := pattern(allocateFrom + 200_000)
			w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{Expect: 128 << 20}))
			for off := 0; off < len(data); off += 65_536 {
				p := data[off:min(off+65_536, len(data))]
				check(t, w.Write(int64(off), p, sumsOf(p)))
			}
			if w.(*writer).allocated <= int64(len(data)) {
				t.Error("no room was asked for")
			}
			w.Acked(int64(len(data)))
			check(t, end(w))
			h.wantContent(7, data)
			info, err := os.Stat(filepath.Join(dir, "blocks", "00", "00", "blk_7"))
			check(t, err)
			if used := info.Sys().(*syscall.Stat_t).Blocks * 512; info.Size() != int64(len(data)) || used > info.Size()+1<<20 {
				t.Errorf("%d bytes take %d on the disk", info.Size(), used)
			}
		})
	}
}
