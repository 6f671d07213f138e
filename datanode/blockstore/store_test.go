package blockstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

type harness struct {
	*Store
	t       testing.TB
	mu      sync.Mutex
	changes []datanode.Change
}

// open opens a store on fsys with the given volumes, default one.
func open(t testing.TB, fsys vfs.FS, volumes ...string) *harness {
	t.Helper()
	h, err := tryOpen(t, fsys, volumes...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func tryOpen(t testing.TB, fsys vfs.FS, volumes ...string) (*harness, error) {
	h := &harness{t: t}
	if len(volumes) == 0 {
		volumes = []string{"/v"}
	}
	cfg := Config{FS: fsys, Reserve: -1, Logger: slog.New(slog.DiscardHandler), OnChange: func(c datanode.Change) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.changes = append(h.changes, c)
	}}
	for _, p := range volumes {
		v := VolumeConfig{Path: p}
		if strings.HasPrefix(p, "/ssd") {
			v.Type = datanode.SSD
		}
		if strings.HasPrefix(p, "/ram") {
			v.Type = datanode.RAMDisk
		}
		cfg.Volumes = append(cfg.Volumes, v)
	}
	s, err := Open(cfg)
	h.Store = s
	return h, err
}

func (h *harness) kinds(id metadata.BlockID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, c := range h.changes {
		if c.Block.ID == id {
			out = append(out, c.Kind.String())
		}
	}
	return strings.Join(out, " ")
}

func sumsOf(data []byte) []byte { return sumsBy(datanode.DefaultChecksum, data) }

func sumsBy(c datanode.Checksum, data []byte) []byte {
	var out []byte
	for len(data) > 0 {
		n := min(chunk, len(data))
		out = binary.BigEndian.AppendUint32(out, crc32.Checksum(data[:n], tableOf(c)))
		data = data[n:]
	}
	return out
}

func pattern(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func block(id, gen, length int64) metadata.Block {
	return metadata.Block{ID: metadata.BlockID(id), Generation: metadata.Generation(gen), Length: length}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want %v", err, kind)
	}
}

// put writes a finalized block.
func (h *harness) put(id, gen int64, data []byte) {
	h.t.Helper()
	w := must[datanode.Writer](h.t)(h.Create(block(id, gen, 0), datanode.CreateOptions{}))
	check(h.t, w.Write(0, data, sumsOf(data)))
	w.Acked(int64(len(data)))
	must[datanode.Replica](h.t)(w.Finalize())
}

// content reads what a reader may see and compares all checksums.
func (h *harness) content(id int64) []byte {
	h.t.Helper()
	rd := must[datanode.Reader](h.t)(h.Store.Open(block(id, 0, 0)))
	defer rd.Close()
	n := rd.Replica().Visible
	p := make([]byte, n)
	if n > 0 {
		if _, err := rd.ReadAt(p, 0); err != nil {
			h.t.Fatal(err)
		}
	}
	sums := must[[]byte](h.t)(rd.Sums(nil, 0, n))
	if !bytes.Equal(sums, sumsBy(rd.Checksum(), p)) {
		h.t.Fatalf("block %d: checksums of %d bytes do not match the data", id, n)
	}
	return p
}

func (h *harness) wantContent(id int64, want []byte) {
	h.t.Helper()
	if got := h.content(id); !bytes.Equal(got, want) {
		h.t.Fatalf("block %d has %d bytes, want %d; equal up to %d", id, len(got), len(want), commonPrefix(got, want))
	}
}

// What the writer of a block wants stays with it through everything that happens to it, and a header that is damaged is damage.
func TestChecksumsOfEachKind(t *testing.T) {
	disk := mem.New(1 << 40)
	h := open(t, disk, "/v", "/w")
	data := pattern(3000)
	for i, want := range append(wantedOf, datanode.Checksum{Type: datanode.CRC32, BytesPer: 1 << 20}, datanode.Checksum{Type: datanode.CRC32C, BytesPer: 1}) {
		id := int64(i + 1)
		b := block(id, 1, 0)
		w := must[datanode.Writer](t)(h.Create(b, datanode.CreateOptions{Checksum: want}))
		check(t, w.Write(0, data[:700], sumsBy(want, data[:700])))
		other := datanode.Checksum{Type: datanode.CRC32C + datanode.CRC32 - want.Stored(), BytesPer: 512}
		if want.Stored() != other.Stored() {
			wantKind(t, w.Write(700, data[700:800], sumsBy(other, data[700:800])), metadata.ErrCorrupt)
		}
		w.Acked(700)
		check(t, w.Close())
		w = must[datanode.Writer](t)(h.Resume(b, 2, 0, 700))
		check(t, w.Write(512, data[512:1300], sumsBy(want, data[512:1300])))
		must[datanode.Replica](t)(w.Finalize())
		b = block(id, 2, 1300)
		w = must[datanode.Writer](t)(h.Append(b, 3, false))
		check(t, w.Write(1300, data[1300:], nil))
		b = must[datanode.Replica](t)(w.Finalize()).Block
		must[datanode.Replica](t)(h.InitRecovery(b, 4))
		b = must[datanode.Replica](t)(h.UpdateReplica(b, 4, 2000)).Block
		h.wantContent(id, data[:2000])
		check(t, h.Verify(t.Context(), b.ID, datanode.VerifyOptions{}))
		rd := must[datanode.Reader](t)(h.Store.Open(b))
		if got := rd.Checksum(); got != want {
			t.Errorf("%v became %v", want, got)
		}
		rd.Close()
	}
	check(t, h.Shutdown())
	h = open(t, disk, "/v", "/w")
	rd := must[datanode.Reader](t)(h.Store.Open(block(2, 0, 0)))
	if got := rd.Checksum(); got != wantedOf[1] {
		t.Errorf("%v became %v with a start", wantedOf[1], got)
	}
	check(t, rd.Close())
	v := h.get(2).vol
	b := must[datanode.Replica](t)(h.one(2)).Block
	f := must[vfs.File](t)(disk.OpenFile(v.sumsPath(2, b.Generation, sufMeta), os.O_RDWR, 0))
	must[int](t)(f.WriteAt([]byte{2}, 8)) // says CRC32C
	wantKind(t, h.Verify(t.Context(), 2, datanode.VerifyOptions{}), metadata.ErrCorrupt)
	for _, bad := range []datanode.Checksum{{Type: 3, BytesPer: 512}, {Type: datanode.CRC32}, {Type: datanode.CRC32, BytesPer: 1 << 30}} {
		_, err := h.Create(block(77, 1, 0), datanode.CreateOptions{Checksum: bad})
		wantKind(t, err, metadata.ErrInvalidArgument)
	}
}

func (h *harness) one(id metadata.BlockID) (datanode.Replica, error) {
	r, ok := h.Replica(id)
	if !ok {
		return r, metadata.ErrReplicaNotFound
	}
	return r, nil
}

func commonPrefix(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestWriteReadOnOSAndMemory(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"os": vfs.OS, "mem": mem.New(1 << 30)} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "deep", "volume")
			h := open(t, fsys, dir)
			data := pattern(200_000)
			h.put(1<<30+1, 1001, data)
			h.put(1<<30+2, 1002, nil)
			h.wantContent(1<<30+1, data)
			h.wantContent(1<<30+2, nil)
			if k := h.kinds(1<<30 + 1); k != "RECEIVING RECEIVED" {
				t.Errorf("announced %s", k)
			}
			id := h.Identity()
			check(t, h.Shutdown())
			h = open(t, fsys, dir)
			h.wantContent(1<<30+1, data)
			if h.Identity() != id {
				t.Errorf("identity %+v after restart, was %+v", h.Identity(), id)
			}
			v := h.Volumes()[0]
			if want := int64(200_000) + sumsSize(200_000) + headerSize; v.Used != want || v.Replicas != 2 {
				t.Errorf("volume %+v, want %d bytes used by 2 replicas", v, want)
			}
			check(t, h.Delete(block(1<<30+1, 1001, 0)))
			if _, err := h.Store.Open(block(1<<30+1, 1001, 0)); !errors.Is(err, metadata.ErrReplicaNotFound) {
				t.Errorf("open after delete: %v", err)
			}
			check(t, h.Delete(block(1<<30+2, 1002, 0)))
			if v := h.Volumes()[0]; v.Used != 0 || v.Replicas != 0 {
				t.Errorf("volume %+v after deleting all", v)
			}
			check(t, h.Shutdown())
		})
	}
}

// The cases of hdfs-wire.md 4.7: packets as clients send them after hflush and append.
func TestPartialChunks(t *testing.T) {
	data := pattern(3000)
	type packet struct{ from, to int }
	for _, c := range []struct {
		name    string
		packets []packet
		reject  error // of the last packet
	}{
		{"aligned", []packet{{0, 1024}, {1024, 2048}}, nil},
		{"Java resends the chunk after hflush", []packet{{0, 700}, {512, 1536}, {1536, 1600}}, nil},
		{"resend of more than the chunk", []packet{{0, 700}, {0, 1100}}, nil},
		{"resend within one chunk", []packet{{0, 100}, {0, 300}, {0, 512}, {512, 513}}, nil},
		{"append inside a chunk", []packet{{0, 700}, {700, 1024}, {1024, 3000}}, nil},
		{"append inside a chunk, several", []packet{{0, 10}, {10, 20}, {20, 400}, {400, 512}, {512, 3000}}, nil},
		{"only known bytes", []packet{{0, 700}, {512, 700}, {0, 512}}, nil},
		{"a gap", []packet{{0, 512}, {1024, 1536}}, metadata.ErrInvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, withSums := range []bool{true, false} {
				h := open(t, mem.New(1<<20))
				w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{}))
				end := 0
				for i, p := range c.packets {
					var sums []byte
					if withSums {
						sums = sumsOf(data[p.from:p.to])
					}
					err := w.Write(int64(p.from), data[p.from:p.to], sums)
					if i == len(c.packets)-1 && c.reject != nil {
						wantKind(t, err, c.reject)
						break
					}
					check(t, err)
					end = max(end, p.to)
					w.Acked(int64(end))
					h.wantContent(7, data[:end])
				}
				must[datanode.Replica](t)(w.Finalize())
				h.wantContent(7, data[:end])
				check(t, h.Verify(context.Background(), 7, datanode.VerifyOptions{}))
			}
		})
	}
}

func TestWrongChecksumsStoreNothing(t *testing.T) {
	h := open(t, mem.New(1<<20))
	data := pattern(1300)
	w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, data[:700], sumsOf(data[:700])))
	bad := sumsOf(data[512:1300])
	bad[5] ^= 1
	wantKind(t, w.Write(512, data[512:1300], bad), metadata.ErrCorrupt)
	other := append([]byte{data[512] ^ 1}, data[513:1300]...)
	wantKind(t, w.Write(512, other, sumsOf(other)), metadata.ErrCorrupt)
	wantKind(t, w.Write(512, data[512:1300], bad[:4]), metadata.ErrInvalidArgument)
	across := data[700:1100]
	wantKind(t, w.Write(700, across, sumsOf(across)), metadata.ErrInvalidArgument)
	check(t, w.Write(512, data[512:1300], sumsOf(data[512:1300])))
	must[datanode.Replica](t)(w.Finalize())
	h.wantContent(7, data)
}

func TestReadersSeeAcknowledgedBytesOnly(t *testing.T) {
	h := open(t, mem.New(1<<20))
	data := pattern(2000)
	w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, data[:300], sumsOf(data[:300])))
	check(t, w.Write(0, data[:1300], sumsOf(data[:1300])))
	h.wantContent(7, nil)
	w.Acked(300)
	h.wantContent(7, data[:300]) // although the checksum on disk is of 512 bytes by now
	rd := must[datanode.Reader](t)(h.Store.Open(block(7, 1, 0)))
	defer rd.Close()
	w.Acked(1300)
	must[datanode.Replica](t)(w.Finalize())
	aw := must[datanode.Writer](t)(h.Append(block(7, 1, 1300), 2, false))
	check(t, aw.Write(1300, data[1300:1500], sumsOf(data[1300:1500])))
	aw.Acked(1500)
	h.wantContent(7, data[:1500])
	if s := must[[]byte](t)(rd.Sums(nil, 0, 300)); !bytes.Equal(s, sumsOf(data[:300])) {
		t.Error("a reader from before sees another checksum")
	}
}

func TestWaitReturnsWhenBytesAreAcknowledged(t *testing.T) {
	h := open(t, mem.New(1<<20))
	w := must[datanode.Writer](t)(h.Create(block(7, 1, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(100), nil))
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Wait(context.Background(), 7, 100)
	}()
	select {
	case <-done:
		t.Fatal("returned before")
	case <-time.After(5 * time.Millisecond):
	}
	w.Acked(100)
	<-done
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.Wait(ctx, 7, 200)
	go must[datanode.Replica](t)(w.Finalize())
	h.Wait(context.Background(), 7, 200) // cannot grow any more
}

func TestAppendResumeAndCloseCheckGenerationsAndLengths(t *testing.T) {
	data := pattern(1000)
	h := open(t, mem.New(1<<20))
	h.put(7, 10, data)
	for _, b := range []metadata.Block{block(7, 9, 1000), block(7, 11, 1000), block(7, 10, 999)} {
		_, err := h.Append(b, 12, false)
		wantKind(t, err, metadata.ErrInvalidArgument)
	}
	_, err := h.Append(block(8, 1, 0), 12, false)
	wantKind(t, err, metadata.ErrReplicaNotFound)
	w := must[datanode.Writer](t)(h.Append(block(7, 10, 1000), 12, false))
	_, err = h.Append(block(7, 12, 1000), 13, false)
	wantKind(t, err, metadata.ErrInvalidArgument)
	w2 := must[datanode.Writer](t)(h.Append(block(7, 10, 1000), 13, true))
	<-w.Lost()
	if err := w.Write(1000, []byte("x"), nil); err == nil {
		t.Error("a writer that lost its replica can write")
	}
	if _, err := w.Finalize(); err == nil {
		t.Error("a writer that lost its replica can finalize")
	}
	check(t, w.Close())
	check(t, w2.Write(1000, data[:100], nil))
	check(t, w2.Write(1100, data[:100], nil))
	w2.Acked(1100)
	check(t, w2.Close())
	for _, c := range []struct{ min, max int64 }{{1101, 2000}, {0, 1199}} {
		_, err = h.Resume(block(7, 12, 0), 14, c.min, c.max)
		wantKind(t, err, metadata.ErrInvalidArgument)
	}
	_, err = h.Resume(block(7, 14, 0), 15, 0, 2000)
	wantKind(t, err, metadata.ErrInvalidArgument)
	w3 := must[datanode.Writer](t)(h.Resume(block(7, 10, 0), 14, 1100, 1200))
	if r := w3.Replica(); r.Block != block(7, 14, 1100) {
		t.Errorf("resumed as %v", r)
	}
	check(t, w3.Write(1100, data[:10], nil))
	_, err = h.Close(block(7, 14, 1110), 15)
	wantKind(t, err, metadata.ErrInvalidArgument) // not acknowledged
	w3.Acked(1110)
	r := must[datanode.Replica](t)(h.Close(block(7, 14, 1110), 15))
	<-w3.Lost()
	if r.Block != block(7, 15, 1110) || r.State != datanode.Finalized {
		t.Errorf("closed as %v", r)
	}
	r = must[datanode.Replica](t)(h.Close(block(7, 15, 1110), 16))
	if r.Block.Generation != 16 {
		t.Errorf("closed again as %v", r)
	}
	h.wantContent(7, append(append(append([]byte{}, data...), data[:100]...), data[:10]...))
	if k := h.kinds(7); k != "RECEIVING RECEIVED RECEIVING RECEIVING RECEIVING RECEIVED RECEIVED" {
		t.Errorf("announced %s", k)
	}
}

func TestTemporaryReplicasAreInvisible(t *testing.T) {
	fsys := mem.New(1 << 20)
	h := open(t, fsys)
	data := pattern(1000)
	create := func(id int64) datanode.Writer {
		w := must[datanode.Writer](t)(h.Create(block(id, 1, 0), datanode.CreateOptions{Temporary: true}))
		check(t, w.Write(0, data, nil))
		return w
	}
	w := create(1)
	_, err := h.Store.Open(block(1, 1, 0))
	wantKind(t, err, metadata.ErrReplicaNotFound)
	_, err = h.InitRecovery(block(1, 1, 0), 5)
	wantKind(t, err, metadata.ErrReplicaNotFound)
	check(t, w.Close())
	if _, ok := h.Replica(1); ok || h.kinds(1) != "" {
		t.Errorf("a temporary replica is left, announced %q", h.kinds(1))
	}
	must[datanode.Replica](t)(create(2).Finalize())
	h.wantContent(2, data)
	must[datanode.Replica](t)(create(3).Promote())
	h.wantContent(3, data)
	w = must[datanode.Writer](t)(h.Resume(block(3, 1, 0), 2, 1000, 1000))
	check(t, w.Write(1000, data, nil))
	create(4)
	check(t, h.Shutdown())
	h = open(t, fsys)
	if _, ok := h.Replica(4); ok {
		t.Error("a temporary replica survived the restart")
	}
	if r, _ := h.Replica(3); r.State != datanode.RWR || r.Block != block(3, 2, 2000) {
		t.Errorf("open replica is %v after restart", r)
	}
}

// HDFS-265, block recovery, one replica's part.
func TestRecoveryFencesCutsAndRestamps(t *testing.T) {
	fsys := mem.New(1 << 20)
	h := open(t, fsys)
	data := pattern(3000)
	w := must[datanode.Writer](t)(h.Create(block(7, 10, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, data[:2000], nil))
	w.Acked(1000)
	_, err := h.InitRecovery(block(7, 10, 0), 10)
	wantKind(t, err, metadata.ErrRecoveryInProgress)
	_, err = h.InitRecovery(block(7, 11, 0), 12)
	wantKind(t, err, metadata.ErrReplicaNotFound) // stale
	r := must[datanode.Replica](t)(h.InitRecovery(block(7, 10, 0), 20))
	<-w.Lost()
	if r.State != datanode.RBW || r.Block != block(7, 10, 2000) {
		t.Errorf("offered %v", r)
	}
	_, err = h.InitRecovery(block(7, 10, 0), 20)
	wantKind(t, err, metadata.ErrRecoveryInProgress)
	_, err = h.Resume(block(7, 10, 0), 30, 0, 3000)
	wantKind(t, err, metadata.ErrRecoveryInProgress)
	must[datanode.Replica](t)(h.InitRecovery(block(7, 10, 0), 21))
	_, err = h.UpdateReplica(block(7, 10, 0), 20, 1500)
	wantKind(t, err, metadata.ErrRecoveryInProgress)
	_, err = h.UpdateReplica(block(7, 10, 0), 21, 2001)
	wantKind(t, err, metadata.ErrInvalidArgument)
	r = must[datanode.Replica](t)(h.UpdateReplica(block(7, 10, 0), 21, 1500))
	if r.State != datanode.Finalized || r.Block != block(7, 21, 1500) {
		t.Errorf("became %v", r)
	}
	h.wantContent(7, data[:1500])
	check(t, h.Verify(context.Background(), 7, datanode.VerifyOptions{}))

	// A finalized replica, cut too.
	must[datanode.Replica](t)(h.InitRecovery(block(7, 21, 0), 22))
	must[datanode.Replica](t)(h.UpdateReplica(block(7, 21, 0), 22, 1500))
	must[datanode.Replica](t)(h.InitRecovery(block(7, 21, 0), 23))
	must[datanode.Replica](t)(h.UpdateReplica(block(7, 21, 0), 23, 700))
	h.wantContent(7, data[:700])

	// And one that was open when the datanode stopped.
	w = must[datanode.Writer](t)(h.Append(block(7, 23, 700), 24, false))
	check(t, w.Write(700, data[700:900], nil))
	check(t, h.Shutdown())
	h = open(t, fsys)
	r = must[datanode.Replica](t)(h.InitRecovery(block(7, 23, 0), 30))
	if r.State != datanode.RWR || r.Block != block(7, 24, 900) {
		t.Errorf("offered %v after restart", r)
	}
	must[datanode.Replica](t)(h.UpdateReplica(block(7, 23, 0), 30, 800))
	h.wantContent(7, data[:800])
}

func TestDeleteStopsTheWriterAndSparesNewerGenerations(t *testing.T) {
	h := open(t, mem.New(1<<20))
	w := must[datanode.Writer](t)(h.Create(block(7, 10, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(100), nil))
	wantKind(t, h.Delete(block(7, 9, 0)), metadata.ErrInvalidArgument)
	check(t, h.Delete(block(7, 10, 0)))
	<-w.Lost()
	if w.Write(100, pattern(1), nil) == nil || w.Sync() == nil {
		t.Error("the writer of a deleted replica goes on")
	}
	check(t, w.Close())
	check(t, h.Delete(block(7, 10, 0)))
	h.put(7, 11, pattern(10))
}

func TestCreateOfAnExistingBlockFails(t *testing.T) {
	h := open(t, mem.New(1<<20))
	h.put(7, 10, pattern(10))
	_, err := h.Create(block(7, 11, 0), datanode.CreateOptions{})
	wantKind(t, err, metadata.ErrExist)
	h.wantContent(7, pattern(10))
}

func TestReserveRefusesNewReplicasBeforeTheDiskIsFull(t *testing.T) {
	fsys := mem.New(100_000)
	s, err := Open(Config{FS: fsys, Volumes: []VolumeConfig{{Path: "/v"}}, Reserve: 40_000, Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	h := &harness{Store: s, t: t}
	h.put(1, 1, pattern(20_000))
	_, err = h.Create(block(2, 1, 0), datanode.CreateOptions{Expect: 60_000})
	wantKind(t, err, metadata.ErrNoSpace)
	w := must[datanode.Writer](t)(h.Create(block(2, 1, 0), datanode.CreateOptions{Expect: 30_000}))
	_, err = h.Create(block(3, 1, 0), datanode.CreateOptions{Expect: 20_000})
	wantKind(t, err, metadata.ErrNoSpace) // announced bytes count
	check(t, w.Write(0, pattern(50_000), nil))
	_, err = h.Append(block(1, 1, 20_000), 2, false)
	wantKind(t, err, metadata.ErrNoSpace)
	err = w.Write(50_000, pattern(50_000), nil)
	wantKind(t, err, metadata.ErrNoSpace)
	if v := h.Volumes()[0]; v.Failed != nil {
		t.Errorf("a full disk failed the volume: %v", v.Failed)
	}
	h.wantContent(1, pattern(20_000))
	w.Acked(50_000)
	must[datanode.Replica](t)(w.Finalize())
	h.wantContent(2, pattern(50_000))

	check(t, h.Delete(block(2, 1, 0)))
	for id := int64(5); id < 15; id++ { // what an abandoned writer announced is free again
		w := must[datanode.Writer](t)(h.Create(block(id, 1, 0), datanode.CreateOptions{Expect: 30_000}))
		check(t, w.Close())
	}
	if n := h.all()[0].expected.Load(); n != 0 {
		t.Errorf("%d bytes are still expected", n)
	}
}

// Files that nobody wrote are in the directories: the store starts, serves what is good, and never panics.
func TestForeignAndDamagedFiles(t *testing.T) {
	for seed := range uint64(200) {
		fsys := mem.New(1 << 20)
		h := open(t, fsys)
		h.put(1, 5, pattern(40_000))
		check(t, h.Shutdown())
		r := rand.New(rand.NewPCG(seed, 1))
		dir := "/v/blocks/00/00/"
		names := []string{
			"blk_2", "blk_2_7.rbw", "blk_3", "blk_3_7.meta", "blk_4_7.meta", "blk_5", "blk_6", "blk_6_8.tmp", "blk_x", "blk_", "blk_7_.rbw",
			"blk_1_4.rbw", "blk_1_6.xyz", "blk_9223372036854775808", "blk_70000", "blk_70000_1.meta", "notes.txt", "blk_02", "blk_1_05.meta",
			"blk_8", "blk_8_7_1000.unsynced", "blk_1_4_40000.unsynced",
		}
		for _, name := range names {
			if r.IntN(3) == 0 {
				continue
			}
			f := must[vfs.File](t)(fsys.OpenFile(dir+name, os.O_RDWR|os.O_CREATE, 0))
			b := make([]byte, r.IntN(3000))
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			if r.IntN(2) == 0 {
				b = append(encodeHeader(2, datanode.DefaultChecksum), b...)
			}
			_, err := f.WriteAt(b, 0)
			check(t, err)
		}
		h = open(t, fsys)
		h.wantContent(1, pattern(40_000))
		for _, id := range []metadata.BlockID{2, 3, 4, 5, 6, 7, 8, 70000} {
			rep, ok := h.Replica(id)
			switch {
			case ok && rep.State == datanode.Finalized:
				if h.Verify(context.Background(), id, datanode.VerifyOptions{}) == nil && rep.Block.Length > 0 {
					t.Fatalf("seed %d: garbage is taken for %v", seed, rep)
				}
			case ok:
				must[datanode.Replica](t)(h.InitRecovery(rep.Block, 100))
				must[datanode.Replica](t)(h.UpdateReplica(rep.Block, 100, rep.Block.Length))
				h.content(int64(id))
			}
		}
		check(t, h.Shutdown())
	}
}

func TestFailedVolumeLeavesAndTheOthersServe(t *testing.T) {
	disk := faulty.New(mem.New(1 << 20))
	h := open(t, disk, "/a", "/b")
	var failed []string
	h.cfg.OnVolumeFailed = func(v datanode.VolumeStatus) { failed = append(failed, v.Path) }
	on := map[string][]int64{}
	for id := int64(1); id <= 6; id++ {
		h.put(id, 1, pattern(1000))
		r, _ := h.Replica(metadata.BlockID(id))
		for _, v := range h.Volumes() {
			if v.ID == r.Volume {
				on[v.Path] = append(on[v.Path], id)
			}
		}
	}
	if len(on["/a"]) != 3 || len(on["/b"]) != 3 {
		t.Fatalf("replicas are spread as %v", on)
	}
	w := must[datanode.Writer](t)(h.Append(block(on["/a"][0], 1, 1000), 2, false))
	disk.Set(faulty.Nth(1, "", "/a/", true, syscall.EIO))
	wantKind(t, w.Write(1000, pattern(1000), nil), metadata.ErrIO)
	if len(failed) != 1 || failed[0] != "/a" {
		t.Fatalf("failed volumes %v", failed)
	}
	check(t, w.Close())
	if _, ok := h.Replica(metadata.BlockID(on["/a"][1])); ok {
		t.Error("a replica of the failed volume is offered")
	}
	for _, id := range on["/b"] {
		h.wantContent(id, pattern(1000))
	}
	for id := int64(10); id < 14; id++ {
		h.put(id, 1, pattern(10))
	}
	h.put(on["/a"][0], 3, pattern(10)) // its place is free again
}

func TestReadErrorOfAWorkingDiskMarksTheReplicaCorrupt(t *testing.T) {
	for file, size := range map[string]int{"blk_7": 40_000, ".pack": 1000} {
		disk := faulty.New(mem.New(1 << 20))
		h := open(t, disk)
		h.put(7, 1, pattern(size))
		disk.Set(faulty.Nth(1, "read", file, true, syscall.EIO))
		wantKind(t, h.Verify(context.Background(), 7, datanode.VerifyOptions{}), metadata.ErrCorrupt)
		disk.Set(nil)
		if k := h.kinds(7); k != "RECEIVING RECEIVED CORRUPT" {
			t.Errorf("announced %s", k)
		}
		if c := h.Corrupt(); len(c) != 1 || h.Volumes()[0].Failed != nil {
			t.Errorf("corrupt %v, volume %v", c, h.Volumes()[0])
		}
	}
}

// What this process has not enough of, files or memory, says nothing of a replica: it is there afterwards as it was, and nobody hears that it is damaged.
func TestAProcessThatIsShortOfFilesFindsNoDamage(t *testing.T) {
	const big, packed = 7, 8
	all := func(op faulty.Op) bool { return op.Call != "stat" }
	probe := func(op faulty.Op) bool { return strings.HasSuffix(op.Name, probeFile) }
	for name, c := range map[string]struct {
		id    metadata.BlockID
		cause syscall.Errno
		fails func(op faulty.Op) bool
		// probed: it is the disk that does not read, and only asking whether it works that fails so.
		probed bool
	}{
		"open, of the process":   {big, syscall.EMFILE, func(op faulty.Op) bool { return op.Call == "open" }, false},
		"open, of the machine":   {big, syscall.ENFILE, func(op faulty.Op) bool { return op.Call == "open" }, false},
		"everything, of memory":  {big, syscall.ENOMEM, all, false},
		"a record, of memory":    {packed, syscall.ENOMEM, all, false},
		"checksums, of files":    {big, syscall.EMFILE, func(op faulty.Op) bool { return op.Call == "open" && strings.HasSuffix(op.Name, ".meta") }, false},
		"the probe":              {big, syscall.EMFILE, probe, true},
		"the probe for a record": {packed, syscall.ENOMEM, probe, true},
	} {
		t.Run(name, func(t *testing.T) {
			disk := faulty.New(mem.New(1 << 22))
			h := open(t, disk)
			h.put(big, 1, pattern(40_000))
			h.put(packed, 1, pattern(1000))
			rd := must[datanode.Reader](t)(h.Store.Open(block(int64(c.id), 1, 0)))
			defer rd.Close()
			disk.Set(func(op faulty.Op) error {
				switch {
				case c.fails(op):
					return c.cause
				case c.probed && (op.Call == "read" || op.Call == "size"):
					return syscall.EIO
				}
				return nil
			})
			calls := map[string]func() error{
				"open": func() error {
					rd, err := h.Store.Open(block(int64(c.id), 1, 0))
					if err == nil {
						_, err = rd.ReadAt(make([]byte, 100), 0)
						rd.Close()
					}
					return err
				},
				"verify": func() error { return h.Verify(t.Context(), c.id, datanode.VerifyOptions{Tell: true}) },
				"sizes":  func() error { return h.CheckSizes(c.id) },
			}
			for what, call := range calls {
				if err := call(); !errors.Is(err, metadata.ErrIO) || errors.Is(err, metadata.ErrCorrupt) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if h.Confirm(block(int64(c.id), 1, 40_000)) {
				t.Error("it is confirmed")
			}
			if c.id == big && (c.probed || c.cause == syscall.ENOMEM) { // who has it open
				_, err := rd.ReadAt(make([]byte, 100), 0)
				if !errors.Is(err, metadata.ErrIO) || errors.Is(err, metadata.ErrCorrupt) {
					t.Errorf("read: %v", err)
				}
			}
			disk.Set(nil)
			if k := h.kinds(c.id); k != "RECEIVING RECEIVED" || len(h.Corrupt()) > 0 {
				t.Errorf("announced %s, corrupt are %v", k, h.Corrupt())
			}
			check(t, h.all()[0].err())
			check(t, h.Verify(t.Context(), c.id, datanode.VerifyOptions{}))
			h.wantContent(int64(c.id), pattern(map[metadata.BlockID]int{big: 40_000, packed: 1000}[c.id]))
		})
	}
}

// A replica whose file cannot be looked for just now has not vanished, nor is it damaged.
func TestWhatCannotBeLookedForHasNotVanished(t *testing.T) {
	disk := faulty.New(mem.New(1 << 22))
	h := open(t, disk)
	h.put(7, 1, pattern(40_000))
	for _, call := range []string{"stat", "open"} {
		disk.Set(func(op faulty.Op) error {
			switch {
			case op.Call == "open" && strings.HasSuffix(op.Name, dataName(7)):
				return syscall.ENOENT
			case op.Call == "stat" && strings.HasSuffix(op.Name, dataName(7)) && call != "stat":
				return syscall.ENOENT
			case op.Call == call:
				return syscall.ENOMEM
			}
			return nil
		})
		_, err := h.Store.Open(block(7, 1, 0))
		wantKind(t, err, metadata.ErrIO)
	}
	disk.Set(nil)
	if k := h.kinds(7); k != "RECEIVING RECEIVED" {
		t.Errorf("announced %s", k)
	}
	h.wantContent(7, pattern(40_000))
}

// What is to be kept in the trash is not removed because it cannot be read for want of memory.
func TestTheTrashLosesNothingForWantOfMemory(t *testing.T) {
	disk := faulty.New(mem.New(1 << 22))
	h := open(t, disk)
	h.put(7, 1, pattern(1000))
	h.put(8, 1, pattern(40_000))
	disk.Set(faulty.Nth(1, "read", packExt, true, syscall.ENOMEM))
	wantKind(t, h.Discard(block(7, 1, 0)), metadata.ErrIO)
	disk.Set(faulty.Nth(1, "rename", lostData, true, syscall.ENOMEM))
	wantKind(t, h.Discard(block(8, 1, 0)), metadata.ErrIO)
	disk.Set(nil)
	for _, id := range []metadata.BlockID{7, 8} { // else what comes later under its name would be taken for it
		if !h.Store.all()[0].hasStray(id, 1) {
			t.Errorf("block %d is not known to be there", id)
		}
	}
	check(t, h.Shutdown())
	h = open(t, disk)
	h.wantContent(7, pattern(1000))
	h.wantContent(8, pattern(40_000))
}

func TestBitFlipsAreFound(t *testing.T) {
	dir := t.TempDir()
	h := open(t, vfs.OS, dir)
	data := pattern(70_000)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 60 {
		id := int64(100 + i)
		h.put(id, 1, data)
		v := h.Store.all()[0]
		name := v.dataPath(metadata.BlockID(id))
		if i%2 == 1 {
			name = v.sumsPath(metadata.BlockID(id), 1, sufMeta)
		}
		b := must[[]byte](t)(os.ReadFile(name))
		from := 0
		if i%2 == 1 {
			from = headerSize
		}
		b[from+r.IntN(len(b)-from)] ^= 1 << r.IntN(8)
		check(t, os.WriteFile(name, b, 0o600))
		wantKind(t, h.Verify(context.Background(), metadata.BlockID(id), datanode.VerifyOptions{}), metadata.ErrCorrupt)
		if k := h.kinds(metadata.BlockID(id)); k != "RECEIVING RECEIVED CORRUPT" {
			t.Errorf("announced %s", k)
		}
	}
	if n := len(h.Corrupt()); n != 60 {
		t.Errorf("%d corrupt replicas listed", n)
	}
}

func TestVolumesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, dir string) []string
		want    error
		text    string
	}{
		{"in use", func(t *testing.T, dir string) []string {
			h := open(t, vfs.OS, dir+"/v")
			t.Cleanup(func() { _ = h.Shutdown() })
			return []string{dir + "/v"}
		}, datanode.ErrVolumeInUse, "another datanode runs on it"},
		{"not a volume", func(t *testing.T, dir string) []string {
			check(t, os.WriteFile(dir+"/thesis.tex", nil, 0o600))
			return []string{dir}
		}, datanode.ErrVolumeVersion, "thesis.tex"},
		{"other layout", func(t *testing.T, dir string) []string {
			s := "layoutVersion=9\ndatanodeUuid=a\nstorageUuid=b\n"
			check(t, os.WriteFile(dir+"/VERSION", append([]byte(s), "crc32c="+hex8(crcOf([]byte(s)))+"\n"...), 0o600))
			return []string{dir}
		}, datanode.ErrVolumeVersion, `layout version is "9", this program reads 4`},
		{"damaged identity", func(t *testing.T, dir string) []string {
			check(t, os.WriteFile(dir+"/VERSION", []byte("layoutVersion=1\ncrc32c=00000000\n"), 0o600))
			return []string{dir}
		}, datanode.ErrVolumeVersion, "does not match its checksum"},
		{"of two datanodes", func(t *testing.T, dir string) []string {
			check(t, open(t, vfs.OS, dir+"/a").Shutdown())
			check(t, open(t, vfs.OS, dir+"/b").Shutdown())
			return []string{dir + "/a", dir + "/b"}
		}, datanode.ErrVolumeOwner, "of datanode"},
		{"a file", func(t *testing.T, dir string) []string {
			check(t, os.WriteFile(dir+"/f", nil, 0o600))
			return []string{dir + "/f"}
		}, nil, "is not a directory"},
		{"listed twice", func(t *testing.T, dir string) []string { return []string{dir, dir + "/."} }, metadata.ErrInvalidArgument, "listed twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := tryOpen(t, vfs.OS, c.prepare(t, t.TempDir())...)
			if err == nil {
				_ = h.Shutdown()
				t.Fatal("opened")
			}
			if c.want != nil {
				wantKind(t, err, c.want)
			}
			if !strings.Contains(err.Error(), c.text) || strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("error is %q, want one line with %q", err, c.text)
			}
		})
	}
}

func hex8(v uint32) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 8)
	for i := range b {
		b[i] = digits[v>>(28-4*i)&15]
	}
	return string(b)
}

func TestUnreadableVolumeSaysWhatToDo(t *testing.T) {
	disk := faulty.New(mem.New(1 << 20))
	disk.Set(faulty.Nth(1, "lock", "", true, os.ErrPermission))
	_, err := tryOpen(t, disk)
	if err == nil || !strings.Contains(err.Error(), "must own the directory") {
		t.Errorf("error is %v", err)
	}
}

func TestJoinKeepsTheCluster(t *testing.T) {
	fsys := mem.New(1 << 20)
	h := open(t, fsys, "/a")
	check(t, h.Join("lab", "BP-1"))
	check(t, h.Join("lab", "BP-1"))
	wantKind(t, h.Join("other", "BP-2"), datanode.ErrVolumeOwner)
	check(t, h.Shutdown())
	h = open(t, fsys, "/a", "/new") // a volume is added
	if id := h.Identity(); id.Cluster != "lab" || id.BlockPool != "BP-1" {
		t.Errorf("identity %+v after restart", id)
	}
	wantKind(t, h.Join("other", "BP-2"), datanode.ErrVolumeOwner)
}

func TestFsyncsAreGrouped(t *testing.T) {
	gate := make(chan struct{})
	disk := faulty.New(mem.New(64 << 20))
	h := open(t, disk)
	h.put(1, 1, pattern(10))
	v := h.Store.all()[0]
	var once sync.Once
	disk.Set(func(op faulty.Op) error {
		if op.Call == "sync" {
			once.Do(func() { <-gate })
		}
		return nil
	})
	batches, commits := v.batches.Load(), v.commits.Load()
	const n = 32
	var ready, wg sync.WaitGroup
	ready.Add(n)
	for i := range n {
		wg.Go(func() {
			w := must[datanode.Writer](t)(h.Create(block(int64(512+i), 1, 0), datanode.CreateOptions{}))
			check(t, w.Write(0, pattern(1000), nil))
			ready.Done()
			must[datanode.Replica](t)(w.Finalize())
		})
	}
	ready.Wait()
	for { // until all are in the batch that waits at the gate, or in the queue behind it
		v.queueMu.Lock()
		k := len(v.queue)
		v.queueMu.Unlock()
		if v.commits.Load()-commits+int64(k) == n {
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(gate)
	wg.Wait()
	if got := v.batches.Load() - batches; got > 2 {
		t.Errorf("%d closes took %d batches", n, got)
	}
}
