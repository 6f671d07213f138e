package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// isSmall says whether the namenodes have the bytes of a file.
func isSmall(ctx context.Context, c *dfs.Client, path string) (bool, error) {
	at, err := c.BlockLocations(ctx, path, 0, 1)
	return err == nil && len(at) == 1 && len(at[0].Datanodes) > 0 && namenode.IsDoor(namenode.NodeID(at[0].Datanodes[0].UUID)), err
}

func (k *Cluster) awaitSmall(c *dfs.Client, path string) {
	k.t.Helper()
	k.Await(path+" is kept by the namenodes", func(ctx context.Context) error {
		if small, err := isSmall(ctx, c, path); err != nil || !small {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
}

// What Hadoop's clients write becomes small files without being asked, where small files are on: nothing but the place of the bytes changes, and who has such a file open reads on when
// no datanode is left that has it. What is longer, open, has other checksums, is in a snapshot, or where small files are off, stays where it is.
func TestFilesBecomeSmallByThemselves(t *testing.T) {
	k := Start(t, Config{Datanodes: 3, SmallFiles: true, SmallFileDelay: time.Second})
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	defer cancel()
	fast, plain := k.reader(dfs.Config{}), k.ordinary()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"/tmp/d", "/tmp/off", "/tmp/snapshots"} {
		must(fast.Mkdirs(ctx, dir, 0o755, true))
	}
	must(fast.SetSmallFilePolicy(ctx, "/tmp/off", namenode.SmallFilesOff))
	must(fast.AllowSnapshot(ctx, "/tmp/snapshots", true))
	write := func(name string, data []byte, o dfs.CreateOptions) {
		t.Helper()
		w, err := plain.Create(ctx, name, o)
		must(err)
		_, err = w.Write(data)
		must(err)
		must(w.Close())
	}
	type before struct {
		data   []byte
		status metadata.FileStatus
		sum    dfs.FileChecksum
		open   *dfs.Reader
	}
	was := map[string]*before{}
	note := func(name string, data []byte, o dfs.CreateOptions) {
		t.Helper()
		write(name, data, o)
		b := &before{data: data}
		var err error
		b.status, err = plain.Stat(ctx, name)
		must(err)
		b.sum, err = plain.ChecksumOf(ctx, name, dfs.MD5MD5CRC)
		must(err)
		b.open, err = plain.Open(ctx, name)
		must(err)
		t.Cleanup(func() { b.open.Close() })
		was[name] = b
	}
	for _, n := range []int{1, 1024, 1025, 5000, metadata.MaxBody} {
		note(fmt.Sprintf("/tmp/d/%d", n), content(n), dfs.CreateOptions{})
	}
	must(plain.SetXAttr(ctx, "/tmp/d/5000", metadata.XAttr{Namespace: metadata.XAttrUser, Name: "a", Value: []byte("b")}, dfs.XAttrCreate))
	was["/tmp/d/5000"].status, _ = plain.Stat(ctx, "/tmp/d/5000")
	note("/tmp/d/once", content(3000), dfs.CreateOptions{Replication: 1})
	half := make([]byte, 2000)
	_, err := io.ReadFull(was["/tmp/d/5000"].open, half)
	must(err)

	stay := map[string]int{"/tmp/d/longer": metadata.MaxBody + 1, "/tmp/d/crc32": 3000, "/tmp/off/f": 3000, "/tmp/snapshots/f": 3000}
	for name, n := range stay {
		o := dfs.CreateOptions{}
		if name == "/tmp/d/crc32" {
			o.Checksum = dfs.ChecksumOption{Type: "CRC32"}
		}
		write(name, content(n), o)
	}
	_, err = fast.CreateSnapshot(ctx, "/tmp/snapshots", "s")
	must(err)
	w, err := plain.Create(ctx, "/tmp/d/open", dfs.CreateOptions{})
	must(err)
	_, err = w.Write(content(10))
	must(err)
	must(w.Hflush(ctx))
	note("/tmp/d/last", content(100), dfs.CreateOptions{}) // behind all of them in the feed

	for name := range was {
		k.awaitSmall(plain, name)
	}
	for name, b := range was {
		if after, err := plain.Stat(ctx, name); err != nil || !reflect.DeepEqual(after, b.status) {
			t.Errorf("%s: %+v, %v; before %+v", name, after, err, b.status)
		}
		if sum, err := plain.ChecksumOf(ctx, name, dfs.MD5MD5CRC); err != nil || !reflect.DeepEqual(sum, b.sum) {
			t.Errorf("%s: the checksum is %v (%v), and was %v", name, sum, err, b.sum)
		}
		for _, c := range []*dfs.Client{fast, plain} {
			if got, err := c.ReadFile(ctx, name); err != nil || !bytes.Equal(got, b.data) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	}
	if x, err := plain.XAttrs(ctx, "/tmp/d/5000"); err != nil || len(x) != 1 {
		t.Errorf("its attributes are %v, %v", x, err)
	}
	for name := range stay {
		if small, err := isSmall(ctx, plain, name); err != nil || small {
			t.Errorf("%s became a small file, or %v", name, err)
		}
	}
	must(w.Close())
	k.awaitSmall(plain, "/tmp/d/open")

	// Who has opened them reads on, though no datanode is left.
	for i := range 3 {
		k.Stop(fmt.Sprintf("dn%d", i+1))
	}
	for name, b := range was {
		want := b.data
		if name == "/tmp/d/5000" {
			want = want[len(half):]
		}
		if got, err := io.ReadAll(b.open); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s, opened before: %d bytes, %v", name, len(got), err)
		}
	}
}

// The leader and a datanode end while files are written, and some of them are appended to, replaced, renamed and deleted when it is their turn: all that is left has its bytes, and what
// is closed and short is small in the end.
func TestFilesBecomeSmallMeanwhile(t *testing.T) {
	k := Start(t, Config{Namenodes: 3, Datanodes: 2, SmallFiles: true, SmallFileDelay: time.Second})
	ctx, cancel := context.WithTimeout(context.Background(), 6*Patience)
	defer cancel()
	plain := k.ordinary()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	data := func(i int) []byte { return content(1 + i*97) }
	name := func(i int) string { return fmt.Sprintf("/tmp/f%d", i) }
	write := func(i int) {
		t.Helper()
		k.Await(name(i)+" is written", func(ctx context.Context) error { return plain.WriteFile(ctx, name(i), data(i), true) })
	}
	for i := range 30 {
		write(i)
	}
	must(plain.WriteFile(ctx, "/tmp/appended", nil, false))
	var appended []byte
	more := func() {
		t.Helper()
		w, err := plain.Append(ctx, "/tmp/appended")
		must(err)
		_, err = w.Write(content(50))
		must(err)
		must(w.Close())
		appended = append(appended, content(50)...)
	}
	more()
	for range 6 { // about when it is kept
		time.Sleep(1030 * time.Millisecond)
		more()
		if got, err := plain.ReadFile(ctx, "/tmp/appended"); err != nil || !bytes.Equal(got, appended) {
			t.Fatalf("%d bytes, %v, want %d", len(got), err, len(appended))
		}
	}
	leader := k.Leader()
	k.Stop(leader)
	for i := 30; i < 45; i++ {
		write(i)
	}
	k.Start(leader)
	k.Stop("dn2")
	for i := 45; i < 60; i++ {
		write(i)
	}
	must(plain.RenameStrict(ctx, name(50), "/tmp/renamed"))
	_, err := plain.Delete(ctx, name(51), false)
	must(err)
	must(plain.WriteFile(ctx, name(52), []byte("another"), true))
	k.Start("dn2")
	for i := range 60 {
		path, want := name(i), data(i)
		switch i {
		case 50:
			path = "/tmp/renamed"
		case 51:
			continue
		case 52:
			want = []byte("another")
		}
		k.awaitSmall(plain, path)
		if got, err := plain.ReadFile(ctx, path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
	}
	if got, err := plain.ReadFile(ctx, "/tmp/appended"); err != nil || !bytes.Equal(got, appended) {
		t.Errorf("what was appended to: %d bytes, %v, want %d", len(got), err, len(appended))
	}
}
