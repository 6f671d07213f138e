package blockstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/mem"
)

// A VERSION file is refused, or names a datanode and a storage, which come back from the file that is made of them.
func FuzzIdentity(f *testing.F) {
	id := Identity{Datanode: "d", Storage: "DS-1", Cluster: "c", BlockPool: "BP-1"}
	text, _, _ := strings.Cut(string(id.encode()), "crc32c=")
	f.Add([]byte(text))
	f.Add([]byte("layoutVersion=4\ndatanodeUuid=a\nstorageUuid=b\n"))
	f.Add([]byte("layoutVersion=1\ndatanodeUuid=a\nstorageUuid=b\n"))
	f.Add([]byte("layoutVersion=99999999999999999999\n\n=\ncrc32c=00000000\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, _, err := decodeIdentity(text); err != nil && !errors.Is(err, datanode.ErrVolumeVersion) {
			t.Error(err)
		}
		id, layout, err := decodeIdentity(fmt.Appendf(text, "crc32c=%08x\n", crcOf(text)))
		if err != nil {
			if !errors.Is(err, datanode.ErrVolumeVersion) {
				t.Error(err)
			}
			return
		}
		again, _, err := decodeIdentity(id.encode())
		if layout < 1 || layout > unsyncedLayout || err != nil || again != id {
			t.Errorf("layout %d, %+v, written out %+v, %v", layout, id, again, err)
		}
	})
}

// The names of block files mean one block each.
func FuzzFileName(f *testing.F) {
	for _, name := range []string{"blk_1", "blk_1073741825_1001.meta", "blk_-5_1.rbw", "blk_01", "blk_1_1.", "blk_1_+1.tmp", "blk_1_2_700.unsynced", "blk_1_2_-7.unsynced", "blk_1_2_7.meta", "blk_9223372036854775808"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		id, sums, ok := parseName(name)
		if !ok {
			return
		}
		want := dataName(id)
		switch sums.suffix {
		case 0:
		case sufUnsynced:
			want = unsyncedName(id, sums.gen, sums.length)
		default:
			want = sumsName(id, sums.gen, sums.suffix)
		}
		if name != want {
			t.Errorf("%q is taken for %q", name, want)
		}
	})
}

// fuzzedFiles are what a volume has of one block in files, and of others in a pack.
type fuzzedFiles struct{ data, sums, pack []byte }

func readBack(t testing.TB, fsys vfs.FS, name string) []byte {
	f := must[vfs.File](t)(fsys.OpenFile(name, os.O_RDONLY, 0))
	defer f.Close()
	b := make([]byte, must[int64](t)(f.Size()))
	_, err := f.ReadAt(b, 0)
	check(t, err)
	return b
}

func writeOut(t testing.TB, fsys vfs.FS, name string, content []byte) {
	f := must[vfs.File](t)(fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600))
	_, err := f.WriteAt(content, 0)
	check(t, errors.Join(err, f.Close()))
}

// seal makes the checksums of headers right again: what a faulty program would have written, not a faulty disk.
func (files fuzzedFiles) seal() {
	put := func(b []byte, at, sum int) { binary.BigEndian.PutUint32(b[at:], crcOf(b[:sum])) }
	if b := files.sums; len(b) >= headerSize {
		put(b, 28, 28)
		put(b[tailA:], 20, 20)
		put(b[tailA+tailSize:], 20, 20)
	}
	if p := files.pack; len(p) >= packAlign {
		put(p, 24, 24)
		for off := packAlign; off+recordHead <= len(p); off += packAlign {
			r := p[off:min(off+512, len(p))]
			if n := int64(binary.BigEndian.Uint32(r[24:])); n <= packLimit && recordHead+4*chunksOf(n) <= int64(len(r)) {
				binary.BigEndian.PutUint32(r[36:], crcOf(r[recordHead:recordHead+4*chunksOf(n)]))
			}
			binary.BigEndian.PutUint32(r[40:], extend(crcOf(p[8:24]), r[:40]))
		}
	}
}

// Whatever a volume's files hold, the datanode starts; and what it serves matches its checksums, or is found corrupt.
func FuzzVolume(f *testing.F) {
	const first = 5000
	fsys := mem.New(1 << 24)
	h := open(f, fsys)
	for id := int64(1); id <= 3; id++ {
		h.put(id, 1, pattern(int(id)*700))
	}
	w := must[datanode.Writer](f)(h.Create(block(9, 1, 0), datanode.CreateOptions{}))
	check(f, w.Write(0, pattern(first)[:chunk], sumsOf(pattern(chunk))))
	check(f, w.Write(chunk, pattern(first)[chunk:], sumsOf(pattern(first)[chunk:]))) // it leaves the pack with this
	v := h.all()[0]
	whole := fuzzedFiles{
		data: readBack(f, fsys, v.dataPath(9)), sums: readBack(f, fsys, v.sumsPath(9, 1, sufRBW)), pack: readBack(f, fsys, v.packPath(1)),
	}
	version := readBack(f, fsys, "/v/"+versionFile)
	tailed := bytes.Clone(whole.sums)
	copy(tailed[tailA:], tail{length: first - 10, crc: crcOf(pattern(first)[first/chunk*chunk : first-10]), seq: 2}.encode())
	for _, sealed := range []bool{false, true} {
		for _, final := range []bool{false, true} {
			f.Add(whole.data, whole.sums, whole.pack, final, sealed)
			f.Add(whole.data[:first-5], tailed, whole.pack[:packAlign+900], final, sealed)
			f.Add([]byte{}, whole.sums[:headerSize], whole.pack[:packAlign], final, sealed)
		}
	}
	f.Fuzz(func(t *testing.T, data, sums, pack []byte, final, sealed bool) {
		if len(data)+len(sums)+len(pack) > 1<<18 {
			return
		}
		files := fuzzedFiles{bytes.Clone(data), bytes.Clone(sums), bytes.Clone(pack)}
		if sealed {
			files.seal()
		}
		suf := sufRBW
		if final {
			suf = sufMeta
		}
		fsys := mem.New(1 << 24)
		check(t, mkdirAll(fsys, v.dirOf(9)))
		check(t, mkdirAll(fsys, "/v/"+packsDir))
		writeOut(t, fsys, "/v/"+versionFile, version)
		writeOut(t, fsys, v.dataPath(9), files.data)
		writeOut(t, fsys, v.sumsPath(9, 1, suf), files.sums)
		writeOut(t, fsys, v.packPath(1), files.pack)
		for range 2 { // the second time after what the first has repaired
			h := open(t, fsys)
			var all []datanode.Replica
			h.Each(h.all()[0].id.Storage, func(r datanode.Replica) bool { all = append(all, r); return true })
			for _, r := range all {
				id := r.Block.ID
				if r.Block.Length < 0 || id == 9 && r.Block.Length > int64(len(data)) {
					t.Errorf("replica %v of %d bytes", r, len(data))
				}
				if h.Verify(context.Background(), id, datanode.VerifyOptions{}) == nil {
					if got := h.content(int64(id)); int64(len(got)) != r.Visible {
						t.Errorf("%d bytes of replica %v", len(got), r)
					}
				}
			}
			check(t, h.Shutdown())
		}
	})
}
