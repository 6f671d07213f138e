package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// coded starts a cluster with a directory whose files are coded.
func coded(t *testing.T, c Config) (k *Cluster, fs *dfs.Client, ctx context.Context) {
	t.Helper()
	k = Start(t, c)
	fs = k.Client("").FS()
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience) // of the whole test
	t.Cleanup(cancel)
	for _, err := range []error{
		fs.SwitchErasurePolicy(ctx, "RS-3-2-1024k", true), fs.SwitchErasurePolicy(ctx, "XOR-2-1-1024k", true), fs.Mkdirs(ctx, "/ec", 0o755, true), fs.SetErasurePolicy(ctx, "/ec", "RS-3-2-1024k"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return k, fs, ctx
}

func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
	return data
}

// What is flushed to a file with a policy can be read at once, whatever was written before: nothing, less than a stripe, more than one, whole groups. When the
// file is closed it has groups only, and an append goes on behind them.
func TestFlushInACodedDirectory(t *testing.T) {
	_, fs, ctx := coded(t, Config{Datanodes: 5})
	const block = 1 << 20 // a group has 3 MiB
	data := noise(20 << 20)
	read := func(path string) []byte {
		t.Helper()
		got, err := fs.ReadFile(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for name, steps := range map[string][]int{
		"small":  {200, 200, 1, 70_000},
		"stripe": {3<<20 - 1, 2},
		"long":   {4<<20 + 5, 300, 2 << 20, 5 << 20, 1},
		"whole":  {3 << 20, 0, 3 << 20, 5},
		"end":    {1, 1 << 20, 1<<20 - 1, 1},
	} {
		path := "/ec/" + name
		w, err := fs.Create(ctx, path, dfs.CreateOptions{BlockSize: block})
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		write := func(w *dfs.Writer, n int, flush bool) {
			t.Helper()
			if _, err := w.Write(data[at : at+n]); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			at += n
			if !flush {
				return
			}
			if err := w.Hflush(ctx); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if got := read(path); !bytes.Equal(got, data[:at]) {
				t.Fatalf("%s: %d bytes can be read of %d that were flushed, or others", path, len(got), at)
			}
		}
		for i, n := range steps {
			write(w, n, true)
			if i == 1 {
				if err := w.Hsync(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		write(w, 1234, false)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		whole(t, ctx, fs, path)
		if got := read(path); !bytes.Equal(got, data[:at]) {
			t.Fatalf("%s: %d bytes after the end, or others, of %d", path, len(got), at)
		}
		for range 2 {
			w, err = fs.Append(ctx, path)
			if err != nil {
				t.Fatal(err)
			}
			write(w, 777, true)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			whole(t, ctx, fs, path)
		}
		if got := read(path); !bytes.Equal(got, data[:at]) {
			t.Fatalf("%s: %d bytes after appends, or others, of %d", path, len(got), at)
		}
	}
}

// whole checks that a file has groups only.
func whole(t *testing.T, ctx context.Context, fs *dfs.Client, path string) {
	t.Helper()
	blocks, err := fs.BlockLocations(ctx, path, 0, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if !b.Block.ID.Striped() {
			t.Errorf("%s has a replicated block at %d", path, b.Offset)
		}
	}
}

// A file is converted while it is read, back and forth; what is open, and what was converted before, is left alone, and quotas and rights hold.
func TestFilesAreConverted(t *testing.T) {
	k, fs, ctx := coded(t, Config{Datanodes: 5})
	data := noise(9<<20 + 321)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w, err := fs.Create(ctx, "/f", dfs.CreateOptions{BlockSize: 1 << 20})
	must(err)
	_, err = w.Write(data)
	must(err)
	must(w.Close())
	must(fs.SetPermission(ctx, "/f", 0o666))
	before, err := fs.Stat(ctx, "/f")
	must(err)
	sum, err := fs.ChecksumOf(ctx, "/f", dfs.CompositeCRC)
	must(err)
	r, err := fs.Open(ctx, "/f")
	must(err)
	defer r.Close()
	half := make([]byte, 1<<20+7)
	_, err = io.ReadFull(r, half)
	must(err)
	got := half
	stranger := k.Client("stranger").FS()
	if err := stranger.Convert(ctx, "/f", dfs.ConvertOptions{Policy: "RS-10-4-1024k"}); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("a policy that is not enabled: %v", err)
	}
	must(stranger.Convert(ctx, "/f", dfs.ConvertOptions{Policy: "RS-3-2-1024k"})) // who may read and write it
	whole(t, ctx, fs, "/f")
	for _, form := range []string{"XOR-2-1-1024k", namenode.ReplicationPolicy, "RS-3-2-1024k"} {
		must(fs.Convert(ctx, "/f", dfs.ConvertOptions{Policy: form}))
		part := make([]byte, 1<<20)
		_, err = io.ReadFull(r, part)
		must(err)
		got = append(got, part...)
		if again, err := fs.ChecksumOf(ctx, "/f", dfs.CompositeCRC); err != nil || fmt.Sprint(again) != fmt.Sprint(sum) {
			t.Errorf("as %s the checksum is %v, and was %v (%v)", form, again, sum, err)
		}
	}
	rest, err := io.ReadAll(r)
	must(err)
	if !bytes.Equal(append(got, rest...), data) {
		t.Error("who had the file open reads other bytes")
	}
	after, err := fs.Stat(ctx, "/f")
	must(err)
	if after.ID != before.ID || after.MTime != before.MTime || after.Owner != before.Owner || after.Mode != before.Mode || after.Length != before.Length || after.Erasure == 0 {
		t.Errorf("converted: %+v, was %+v", after, before)
	}

	// What can be known of a file's form stays: here and back its checksums are of the kind that its writer chose. How often it was replicated is not known.
	w, err = fs.Create(ctx, "/other", dfs.CreateOptions{BlockSize: 1 << 20, Replication: 2, Checksum: dfs.ChecksumOption{Type: "CRC32", BytesPer: 1024}})
	must(err)
	_, err = w.Write(data[:1<<20+5])
	must(err)
	must(w.Close())
	kind := func() string {
		t.Helper()
		sum, err := fs.Checksum(ctx, "/other")
		must(err)
		return sum.Algorithm
	}
	was := kind()
	must(fs.Convert(ctx, "/other", dfs.ConvertOptions{Policy: "RS-3-2-1024k"}))
	if got := kind(); !strings.HasSuffix(got, "-1024CRC32") {
		t.Errorf("coded its checksum is %s", got)
	}
	defaults, err := fs.ServerDefaults(ctx)
	must(err)
	for asked, want := range map[int]int{2: 2, 0: defaults.Replication} {
		must(fs.Convert(ctx, "/other", dfs.ConvertOptions{Policy: namenode.ReplicationPolicy, Replication: asked}))
		if st, err := fs.Stat(ctx, "/other"); err != nil || int(st.Replication) != want || kind() != was {
			t.Errorf("%d replicas of %d, checksum %s, was %s, %v", st.Replication, want, kind(), was, err)
		}
		must(fs.Convert(ctx, "/other", dfs.ConvertOptions{Policy: "RS-3-2-1024k"}))
	}

	var other sync.Once
	err = fs.Convert(ctx, "/other", dfs.ConvertOptions{Policy: "XOR-2-1-1024k", Copied: func(int64) {
		other.Do(func() { must(fs.Convert(ctx, "/other", dfs.ConvertOptions{Policy: namenode.ReplicationPolicy})) })
	}})
	if !errors.Is(err, metadata.ErrBeingCreated) || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("two at the same time: the first one hears %v", err)
	}
	if st, err := fs.Stat(ctx, "/other"); err != nil || st.Erasure != 0 {
		t.Errorf("two at the same time: %+v, %v", st, err)
	}
	open, err := fs.Create(ctx, "/open", dfs.CreateOptions{})
	must(err)
	if err := fs.Convert(ctx, "/open", dfs.ConvertOptions{Policy: "RS-3-2-1024k"}); !errors.Is(err, metadata.ErrBeingCreated) {
		t.Errorf("a file that is open: %v", err)
	}
	open.Abort()
	must(fs.WriteFile(ctx, "/private", data[:100], false))
	must(fs.SetPermission(ctx, "/private", 0o644))
	if err := stranger.Convert(ctx, "/private", dfs.ConvertOptions{Policy: "RS-3-2-1024k"}); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("who may not write it: %v", err)
	}
	must(fs.Mkdirs(ctx, "/small", 0o755, true))
	must(fs.RenameStrict(ctx, "/f", "/small/f"))
	must(fs.SetQuota(ctx, "/small", metadata.QuotaKeep, 20<<20))
	refused := func(what string, copied func(int64)) {
		t.Helper()
		if err := fs.Convert(ctx, "/small/f", dfs.ConvertOptions{Policy: namenode.ReplicationPolicy, Copied: copied}); !errors.Is(err, metadata.ErrSpaceQuota) {
			t.Errorf("%s: %v", what, err)
		}
		if left, err := fs.List(ctx, "/system/rewrites"); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %v, %v", what, left, err)
		}
	}
	refused("a quota that is too small", func(int64) { t.Error("it is copied all the same") })
	must(fs.SetQuota(ctx, "/small", metadata.QuotaKeep, 40<<20))
	var less sync.Once
	refused("a quota that becomes too small", func(int64) { less.Do(func() { must(fs.SetQuota(ctx, "/small", metadata.QuotaKeep, 20<<20)) }) })
	whole(t, ctx, fs, "/small/f")
}

// Several writers append 200 bytes at a time and flush; who follows them sees each at once. One of them is given up: what it had flushed is sealed by a
// datanode, without anybody asking.
func TestWritersFlushBesideEachOther(t *testing.T) {
	k, fs, ctx := coded(t, Config{Datanodes: 5})
	const writers, rounds = 6, 12
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			data := noise(200 * rounds)
			path := fmt.Sprintf("/ec/log%d", i)
			w, err := fs.Create(ctx, path, dfs.CreateOptions{BlockSize: 1 << 20})
			for n := 200; err == nil && n <= len(data); n += 200 {
				if n == len(data)/2 { // as programs that open their log again
					if err = w.Close(); err == nil {
						w, err = fs.Append(ctx, path)
					}
				}
				if err == nil {
					_, err = w.Write(data[n-200 : n])
				}
				if err == nil {
					err = w.Hflush(ctx)
				}
				var got []byte
				if err == nil {
					got, err = fs.ReadFile(ctx, path)
				}
				if err == nil && !bytes.Equal(got, data[:n]) {
					err = fmt.Errorf("%d bytes are seen of %d", len(got), n)
				}
			}
			switch {
			case err != nil:
			case i == 0:
				w.Abort()
			default:
				err = w.Close()
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
		})
	}
	all.Wait()
	k.Await("all files have groups only", func(ctx context.Context) error {
		for i := range writers {
			path := fmt.Sprintf("/ec/log%d", i)
			blocks, err := fs.BlockLocations(ctx, path, 0, 1<<40)
			if err != nil {
				return err
			}
			for _, b := range blocks {
				if !b.Block.ID.Striped() {
					return fmt.Errorf("%s has %v", path, b.Block)
				}
			}
		}
		return nil
	})
	for i := range writers {
		if got, err := fs.ReadFile(ctx, fmt.Sprintf("/ec/log%d", i)); err != nil || !bytes.Equal(got, noise(200*rounds)) {
			t.Errorf("log%d: %d bytes, or others, %v", i, len(got), err)
		}
	}
	if left, err := fs.List(ctx, "/system/rewrites"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Any two datanodes may go: what was flushed can be read, groups and open end.
func TestOpenEndOutlivesWhatGroupsDo(t *testing.T) {
	k, fs, ctx := coded(t, Config{Datanodes: 5})
	data := noise(4<<20 + 99)
	for one := 1; one <= 5; one++ {
		for two := one + 1; two <= 5; two++ {
			path := fmt.Sprintf("/ec/%d%d", one, two)
			w, err := fs.Create(ctx, path, dfs.CreateOptions{BlockSize: 2 << 20})
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range [][]byte{data[:4<<20], data[4<<20:]} {
				if _, err = w.Write(part); err == nil {
					err = w.Hsync(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			k.Await("the namenode knows all groups", func(ctx context.Context) error { return k.grouped(ctx, fs, path) })
			k.Stop(fmt.Sprintf("dn%d", one))
			k.Stop(fmt.Sprintf("dn%d", two))
			got, err := k.Client("").FS().ReadFile(ctx, path)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("without datanodes %d and %d %d bytes are read, or others: %v", one, two, len(got), err)
			}
			k.Start(fmt.Sprintf("dn%d", one))
			k.Start(fmt.Sprintf("dn%d", two))
			w.Abort()
			k.Await("five datanodes", func(ctx context.Context) error {
				live, err := fs.Datanodes(ctx, dfs.LiveDatanodes)
				if err == nil && len(live) != 5 {
					err = fmt.Errorf("%d are live", len(live))
				}
				return err
			})
			if testing.Short() {
				return
			}
		}
	}
}

// The namenode that leads changes between any two steps of a writer; nothing is lost, and nothing is left.
func TestOpenEndThroughFailovers(t *testing.T) {
	k, fs, ctx := coded(t, Config{Namenodes: 3, Datanodes: 5})
	data := noise(6 << 20)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(fs.Mkdirs(ctx, "/plain", 0o755, true))
	at := 0
	w, err := fs.Create(ctx, "/ec/f", dfs.CreateOptions{BlockSize: 1 << 20})
	must(err)
	for _, n := range []int{100, 1 << 20, 1<<20 - 1, 2 << 20, 5} {
		k.HandOver(fs)
		_, err = w.Write(data[at : at+n])
		must(err)
		at += n
		k.HandOver(fs)
		must(w.Hflush(ctx))
		got, err := fs.ReadFile(ctx, "/ec/f")
		must(err)
		if !bytes.Equal(got, data[:at]) {
			t.Fatalf("%d bytes are seen of %d, or others", len(got), at)
		}
	}
	for _, do := range []func() error{ // the first one seals it
		w.Close, func() error { return fs.Convert(ctx, "/ec/f", dfs.ConvertOptions{Policy: "XOR-2-1-1024k"}) },
	} {
		ended := make(chan error, 1)
		go func() { ended <- do() }()
		k.HandOver(fs)
		must(<-ended)
	}
	whole(t, ctx, fs, "/ec/f")
	got, err := fs.ReadFile(ctx, "/ec/f")
	must(err)
	if !bytes.Equal(got, data[:at]) {
		t.Fatalf("%d bytes in the end, or others", len(got))
	}
}

// WebHDFS clients that write by APPEND, as fsspec does, can write to a coded directory. What a writer that died had flushed, several stripes of it, is sealed and
// outlives the loss of two datanodes then.
func TestAppendOverHTTPAndSealingOfStripes(t *testing.T) {
	k, fs, ctx := coded(t, Config{Datanodes: 5})
	base := "http://" + k.Server("nn1").Namenodes[0].HTTP + "/webhdfs/v1"
	data := noise(7<<20 + 13)
	ask := func(method, path string, body []byte) {
		t.Helper()
		for range 2 { // to the namenode, and to the datanode that it names
			r, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			switch {
			case answer.StatusCode == http.StatusTemporaryRedirect:
				path = answer.Header.Get("Location")
			case answer.StatusCode >= 300:
				t.Fatalf("%s %s: %s %s", method, path, answer.Status, text)
			}
		}
	}
	me := "&user.name=" + fs.User()
	const first = 100_000 // more than namenodes keep
	ask(http.MethodPut, base+"/ec/web?op=CREATE&blocksize=1048576"+me, data[:first])
	for at := first; at < first+300; at += 100 {
		ask(http.MethodPost, base+"/ec/web?op=APPEND"+me, data[at:at+100])
	}
	if got, err := fs.ReadFile(ctx, "/ec/web"); err != nil || !bytes.Equal(got, data[:first+300]) {
		t.Errorf("over HTTP %d bytes, or others, %v", len(got), err)
	}
	whole(t, ctx, fs, "/ec/web")

	w, err := fs.Create(ctx, "/ec/left", dfs.CreateOptions{BlockSize: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{data[:5], data[5:]} {
		if _, err = w.Write(part); err == nil {
			err = w.Hflush(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.Abort()
	k.Await("the end is sealed", func(ctx context.Context) error {
		blocks, err := fs.BlockLocations(ctx, "/ec/left", 0, 1<<40)
		if err == nil && (len(blocks) != 1 || !blocks[0].Block.ID.Striped() || len(blocks[0].Datanodes) != 5) {
			err = fmt.Errorf("%+v", blocks)
		}
		return err
	})
	k.Stop("dn2")
	k.Stop("dn4")
	if got, err := fs.ReadFile(ctx, "/ec/left"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, or others, %v", len(got), err)
	}
}

// What begins as an empty file, or as one that the namenodes keep, becomes coded when it grows, like any other file of its directory: no replicated block is left. Snapshots go on to have
// the few bytes, quotas count groups, and a file that was to be replicated stays so.
func TestSmallFilesOfACodedDirectoryGrow(t *testing.T) {
	k, fs, ctx := coded(t, Config{Datanodes: 5, SmallFiles: true})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	data := noise(9 << 20)
	const block = 1 << 20 // a group has 3 MiB
	store := func(path string, n int, policy string) metadata.FileStatus {
		t.Helper()
		w, err := fs.Create(ctx, path, dfs.CreateOptions{BlockSize: block, Late: true, Policy: policy})
		must(err)
		_, err = w.Write(data[:n])
		must(err)
		must(w.Close())
		st, err := fs.Stat(ctx, path)
		must(err)
		return st
	}
	// grow appends, in steps, up to a length.
	grow := func(path string, at int, steps ...int) {
		t.Helper()
		for _, to := range steps {
			w, err := fs.Append(ctx, path)
			must(err)
			_, err = w.Write(data[at:to])
			must(err)
			must(w.Hflush(ctx))
			got, err := fs.ReadFile(ctx, path)
			if err != nil || !bytes.Equal(got, data[:to]) {
				t.Fatalf("%s: %d bytes of %d that were flushed, or others: %v", path, len(got), to, err)
			}
			must(w.Close())
			if got, err = fs.ReadFile(ctx, path); err != nil || !bytes.Equal(got, data[:to]) {
				t.Fatalf("%s: %d bytes of %d, or others: %v", path, len(got), to, err)
			}
			at = to
		}
	}
	policy := func(path string) string {
		t.Helper()
		p, err := fs.ErasurePolicy(ctx, path)
		must(err)
		if p == nil {
			return ""
		}
		return p.Name
	}
	const rs = "RS-3-2-1024k"
	must(fs.AllowSnapshot(ctx, "/ec", true))

	if st := store("/ec/touched", 0, ""); st.Erasure == 0 || policy("/ec/touched") != rs {
		t.Errorf("an empty file has the policy %q: %+v", policy("/ec/touched"), st)
	}
	few := store("/ec/few", 700, "") // its bytes are in its record
	store("/ec/more", 50_000, "")
	for _, path := range []string{"/ec/few", "/ec/more"} { // also behind the empty one, by the same client
		if blocks, err := fs.BlockLocations(ctx, path, 0, 1<<40); err != nil || len(blocks) != 1 || blocks[0].Block.ID.Striped() || policy(path) != "" {
			t.Errorf("%s is not kept by namenodes: %v, policy %q, %v", path, blocks, policy(path), err)
		}
	}
	_, err := fs.CreateSnapshot(ctx, "/ec", "before")
	must(err)
	grow("/ec/touched", 0, 100, 200, 70_000, 8<<20)
	grow("/ec/few", 700, 710, 4<<20, 8<<20+5)
	grow("/ec/more", 50_000, 9<<20)
	for _, path := range []string{"/ec/touched", "/ec/few", "/ec/more"} {
		whole(t, ctx, fs, path)
		if got := policy(path); got != rs {
			t.Errorf("%s has the policy %q", path, got)
		}
	}
	if now, err := fs.Stat(ctx, "/ec/few"); err != nil || now.ID != few.ID || now.Owner != few.Owner || now.Mode != few.Mode {
		t.Errorf("grown: %+v, was %+v: %v", now, few, err)
	}
	for name, n := range map[string]int{"touched": 0, "few": 700, "more": 50_000} {
		if got, err := fs.ReadFile(ctx, "/ec/.snapshot/before/"+name); err != nil || !bytes.Equal(got, data[:n]) {
			t.Errorf("the snapshot has %d bytes of %s, or others: %v", len(got), name, err)
		}
	}
	must(fs.DeleteSnapshot(ctx, "/ec", "before"))
	for _, path := range []string{"/ec/touched", "/ec/few", "/ec/more"} {
		_, err := fs.Delete(ctx, path, false)
		must(err)
	}

	// Two who append at once: one of them does, and the file is coded.
	store("/ec/both", 5000, "")
	var both sync.WaitGroup
	var done [2]error
	for i := range done {
		both.Go(func() {
			w, err := k.Client("").FS().Append(ctx, "/ec/both")
			if err == nil {
				if _, err = w.Write(data[5000:6000]); err == nil {
					err = w.Close()
				}
			}
			done[i] = err
		})
	}
	both.Wait()
	if done[0] != nil && done[1] != nil {
		t.Errorf("nobody could append: %v", done)
	}
	whole(t, ctx, fs, "/ec/both")
	if got := policy("/ec/both"); got != rs {
		t.Errorf("appended to by two it has the policy %q", got)
	}
	_, err = fs.Delete(ctx, "/ec/both", false)
	must(err)

	// Quotas: what a coded file takes. Where there is no room for that, the file is not coded.
	k.Await("what was deleted is gone", func(ctx context.Context) error {
		u, err := fs.ContentSummary(ctx, "/ec")
		if err == nil && u.SpaceConsumed != 0 {
			err = fmt.Errorf("%+v", u)
		}
		return err
	})
	must(fs.SetQuota(ctx, "/ec", metadata.QuotaKeep, 100<<20))
	store("/ec/counted", 1000, "")
	grow("/ec/counted", 1000, 3<<20)
	if u, err := fs.QuotaUsage(ctx, "/ec"); err != nil || u.Space != 3<<20+2*(1000+1<<20) {
		t.Errorf("%+v is used, %v", u, err)
	}
	must(fs.SetQuota(ctx, "/ec", metadata.QuotaKeep, metadata.QuotaUnset))

	// Who wants a replicated file has one.
	if st := store("/ec/replicated", 500, namenode.ReplicationPolicy); st.Erasure != 0 {
		t.Errorf("%+v", st)
	}
	grow("/ec/replicated", 500, 600, 2<<20)
	if got := policy("/ec/replicated"); got != "" {
		t.Errorf("a file that was to be replicated has the policy %q", got)
	}
	// With too few datanodes for a group the file goes on as it was.
	must(fs.SwitchErasurePolicy(ctx, "RS-6-3-1024k", true))
	must(fs.Mkdirs(ctx, "/wide", 0o755, true))
	must(fs.SetErasurePolicy(ctx, "/wide", "RS-6-3-1024k"))
	store("/wide/f", 500, "")
	grow("/wide/f", 500, 600, 2<<20)
	if got := policy("/wide/f"); got != "" {
		t.Errorf("where there are too few datanodes for a group it has the policy %q", got)
	}
	if left, err := fs.List(ctx, "/system/rewrites"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
