package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// ordinary is a client that makes and reads files as Hadoop's do.
func (k *Cluster) ordinary() *dfs.Client { return k.reader(dfs.Config{NoSmallFiles: true}) }

func (k *Cluster) reader(config dfs.Config) *dfs.Client {
	k.t.Helper()
	config.Namenodes, config.User, config.Logger = k.namenodes(), cmp.Or(config.User, k.self()), slog.New(slog.DiscardHandler)
	c, err := dfs.New(config)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { c.Close() })
	return c
}

func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func TestSmallFilesLookLikeOthers(t *testing.T) {
	for name, properties := range map[string]map[string]string{
		"plain": nil, "encrypted": {"dfs.encrypt.data.transfer": "true"}, "protected": {"dfs.data.transfer.protection": "integrity"},
	} {
		t.Run(name, func(t *testing.T) {
			k := Start(t, Config{Properties: properties, SmallFiles: true})
			ctx, cancel := context.WithTimeout(context.Background(), 4*Patience) // of the whole test
			defer cancel()
			var protection []sasl.Quality
			if name == "protected" {
				protection = []sasl.Quality{sasl.Integrity}
			}
			fast, plain := k.reader(dfs.Config{Protection: protection}), k.reader(dfs.Config{Protection: protection, NoSmallFiles: true})
			for _, n := range []int{0, 1, 511, 513, 1024, 1025, 5000, metadata.MaxBody} {
				small, large := fmt.Sprintf("/tmp/small%d", n), fmt.Sprintf("/tmp/large%d", n)
				if err := fast.WriteFile(ctx, small, content(n), false); err != nil {
					t.Fatal(err)
				}
				if err := plain.WriteFile(ctx, large, content(n), false); err != nil {
					t.Fatal(err)
				}
				for _, c := range []*dfs.Client{fast, plain} {
					for _, file := range []string{small, large} {
						if got, err := c.ReadFile(ctx, file); err != nil || !bytes.Equal(got, content(n)) {
							t.Fatalf("%s: %d bytes, %v", file, len(got), err)
						}
					}
				}
				for _, mode := range []dfs.ChecksumMode{dfs.MD5MD5CRC, dfs.CompositeCRC} {
					a, err := plain.ChecksumOf(ctx, small, mode)
					if err != nil {
						t.Fatal(err)
					}
					b, err := fast.ChecksumOf(ctx, large, mode)
					if err != nil || !bytes.Equal(a.Bytes, b.Bytes) || a.Algorithm != b.Algorithm {
						t.Errorf("%d bytes: the checksum is %v, of the same bytes on datanodes %v (%v)", n, a, b, err)
					}
				}
				at, err := plain.BlockLocations(ctx, small, 0, 1<<20)
				if err != nil || len(at) != min(n, 1) {
					t.Fatalf("%d bytes are at %v, %v", n, at, err)
				}
				for _, b := range at {
					if b.Length != int64(n) || len(b.Datanodes) != 1 || !namenode.IsDoor(namenode.NodeID(b.Datanodes[0].UUID)) {
						t.Errorf("%d bytes are at %+v", n, b)
					}
				}
				if n > 2 { // a part, with a chunk's edges inside
					r, err := plain.Open(ctx, small)
					if err != nil {
						t.Fatal(err)
					}
					got := make([]byte, n-2)
					if _, err := r.ReadAt(got, 1); err != nil || !bytes.Equal(got, content(n)[1:n-1]) {
						t.Errorf("a part of %d bytes: %v", n, err)
					}
					r.Close()
				}
			}
			if name != "plain" {
				return
			}
			k.throughHTTP(ctx, "/tmp/small5000", content(5000))
			// Hadoop's clients append to them, and what they see of it is one file.
			w, err := plain.Append(ctx, "/tmp/small5000")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte("more")); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			want := append(content(5000), "more"...)
			for _, c := range []*dfs.Client{fast, plain} {
				if got, err := c.ReadFile(ctx, "/tmp/small5000"); err != nil || !bytes.Equal(got, want) {
					t.Errorf("after an append: %d bytes, %v", len(got), err)
				}
			}
			k.throughHTTP(ctx, "/tmp/small5000", want)
			many, err := fast.ReadMany(ctx, []string{"/tmp/small0", "/tmp/small1", "/tmp/large5000", "/tmp/none", "/tmp/small65536"}, 0)
			if err != nil || many.Errors[0] != nil || many.Errors[3] == nil || len(many.Data[0]) != 0 || !bytes.Equal(many.Data[1], content(1)) ||
				!bytes.Equal(many.Data[2], content(5000)) || !bytes.Equal(many.Data[4], content(metadata.MaxBody)) {
				t.Errorf("many: %v, %v", many.Errors, err)
			}
			// A directory may say that its files are ordinary ones.
			if err := fast.Mkdirs(ctx, "/tmp/off", 0o755, true); err != nil {
				t.Fatal(err)
			}
			if err := fast.SetSmallFilePolicy(ctx, "/tmp/off", namenode.SmallFilesOff); err != nil {
				t.Fatal(err)
			}
			if err := fast.WriteFile(ctx, "/tmp/off/f", content(10), false); err != nil {
				t.Fatal(err)
			}
			at, err := plain.BlockLocations(ctx, "/tmp/off/f", 0, 10)
			if err != nil || len(at) != 1 || namenode.IsDoor(namenode.NodeID(at[0].Datanodes[0].UUID)) {
				t.Errorf("it is at %+v, %v", at, err)
			}
			if policy, own, err := fast.SmallFilePolicy(ctx, "/tmp/off"); policy != namenode.SmallFilesOff || !own || err != nil {
				t.Errorf("the policy is %v, own %v, %v", policy, own, err)
			}
		})
	}
}

// What was written to datanodes is kept by the namenodes when somebody says so. Nothing but its blocks changes, and who has it open reads on.
func TestFilesOnDatanodesAreKept(t *testing.T) {
	k := Start(t, Config{SmallFiles: true})
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	defer cancel()
	fast, plain := k.reader(dfs.Config{}), k.ordinary()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(fast.Mkdirs(ctx, "/tmp/d", 0o755, true))
	must(fast.AllowSnapshot(ctx, "/tmp/d", true))
	for _, n := range []int{1, 1024, 5000, metadata.MaxBody} {
		name := fmt.Sprintf("/tmp/d/%d", n)
		must(plain.WriteFile(ctx, name, content(n), false))
		before, err := plain.Stat(ctx, name)
		must(err)
		sum, err := plain.ChecksumOf(ctx, name, dfs.MD5MD5CRC)
		must(err)
		open, err := plain.Open(ctx, name)
		must(err)
		defer open.Close()
		snapshot := fmt.Sprint("s", n)
		_, err = fast.CreateSnapshot(ctx, "/tmp/d", snapshot)
		must(err)
		for i := range 2 { // it is kept once
			if kept, err := fast.Keep(ctx, name); err != nil || kept != (i == 0) {
				t.Fatal(name, kept, err)
			}
		}
		if after, err := plain.Stat(ctx, name); err != nil || !reflect.DeepEqual(after, before) {
			t.Errorf("%+v, %v; before %+v", after, err, before)
		}
		if again, err := plain.ChecksumOf(ctx, name, dfs.MD5MD5CRC); err != nil || !bytes.Equal(again.Bytes, sum.Bytes) {
			t.Errorf("%s: the checksum is %v (%v), and was %v", name, again, err, sum)
		}
		at, err := plain.BlockLocations(ctx, name, 0, 1<<20)
		if err != nil || len(at) != 1 || !namenode.IsDoor(namenode.NodeID(at[0].Datanodes[0].UUID)) {
			t.Errorf("%s is at %+v, %v", name, at, err)
		}
		for _, c := range []*dfs.Client{fast, plain} {
			for _, path := range []string{name, "/tmp/d/.snapshot/" + snapshot + name[len("/tmp/d"):]} {
				if got, err := c.ReadFile(ctx, path); err != nil || !bytes.Equal(got, content(n)) {
					t.Errorf("%s: %d bytes, %v", path, len(got), err)
				}
			}
		}
		must(fast.DeleteSnapshot(ctx, "/tmp/d", snapshot))
		if got, err := io.ReadAll(open); err != nil || !bytes.Equal(got, content(n)) {
			t.Errorf("%s, opened before: %d bytes, %v", name, len(got), err)
		}
	}
	k.throughHTTP(ctx, "/tmp/d/5000", content(5000))

	must(plain.WriteFile(ctx, "/tmp/d/more", content(metadata.MaxBody+1), false))
	must(plain.WriteFile(ctx, "/tmp/d/empty", nil, false))
	w, err := plain.Create(ctx, "/tmp/d/open", dfs.CreateOptions{})
	must(err)
	_, err = w.Write(content(10))
	must(err)
	must(w.Hflush(ctx))
	for name, want := range map[string]*metadata.Kind{
		"/tmp/d/more": metadata.ErrUnsupported, "/tmp/d/empty": metadata.ErrUnsupported, "/tmp/d/open": metadata.ErrBeingCreated, "/tmp/d": metadata.ErrNotExist, "/tmp/none": metadata.ErrNotExist,
	} {
		if kept, err := fast.Keep(ctx, name); kept || !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", name, kept, err)
		}
	}
	must(w.Close())
	must(fast.SetSmallFilePolicy(ctx, "/tmp/d", namenode.SmallFilesOff))
	if kept, err := fast.Keep(ctx, "/tmp/d/open"); kept || !errors.Is(err, metadata.ErrUnsupported) {
		t.Errorf("where small files are off: %v, %v", kept, err)
	}
}

// throughHTTP reads a file and its end through WebHDFS.
func (k *Cluster) throughHTTP(ctx context.Context, name string, want []byte) {
	k.t.Helper()
	root := "http://" + k.shared.Namenodes[0].HTTP + "/webhdfs/v1" + name + "?user.name=" + k.self()
	for query, want := range map[string][]byte{"&op=OPEN": want, "&op=OPEN&offset=4000&length=2000": want[4000:min(6000, len(want))]} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, root+query, nil)
		if err != nil {
			k.t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			k.t.Fatal(err)
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
			k.t.Errorf("%s: %s, %d bytes, %v", query, answer.Status, len(got), err)
		}
	}
	// A small body is made small.
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, strings.Replace(root, name, name+".put", 1)+"&op=CREATE&overwrite=true", bytes.NewReader(want))
	if err != nil {
		k.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		k.t.Fatal(err)
	}
	answer.Body.Close()
	at, err := k.ordinary().BlockLocations(ctx, name+".put", 0, 1)
	if err != nil || answer.StatusCode != http.StatusCreated || len(at) != 1 || !namenode.IsDoor(namenode.NodeID(at[0].Datanodes[0].UUID)) {
		k.t.Errorf("%s, at %+v, %v", answer.Status, at, err)
	}
}

func TestSmallFilesOutliveTheLeader(t *testing.T) {
	k := Start(t, Config{Namenodes: 3, Datanodes: 1, SmallFiles: true})
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience) // of the whole test
	defer cancel()
	fast, plain := k.Client("").FS(), k.ordinary()
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("/tmp/f%d", i))
		err := fast.WriteFile(ctx, names[i], content(200*i), false)
		if err == nil { // as many doors as replicas are named
			_, err = fast.SetReplication(ctx, names[i], 3)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	k.Await("the doors of all", func(ctx context.Context) error {
		at, err := plain.BlockLocations(ctx, names[1], 0, 1)
		if err == nil && (len(at) != 1 || len(at[0].Datanodes) != 3) {
			err = fmt.Errorf("they are %+v", at)
		}
		return err
	})
	open, err := plain.Open(ctx, names[19])
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	k.Stop(k.Leader())
	if got, err := io.ReadAll(open); err != nil || !bytes.Equal(got, content(200*19)) { // at the next door
		t.Errorf("a reader that was open: %d bytes, %v", len(got), err)
	}
	for i, name := range names {
		for _, c := range []*dfs.Client{fast, plain} {
			if got, err := c.ReadFile(ctx, name); err != nil || !bytes.Equal(got, content(200*i)) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	}
}

// From another machine a small file is read by TLS, of a machine that is a namenode.
func TestSmallFilesOfOtherMachines(t *testing.T) {
	k := Start(t, Config{Apart: true, SmallFiles: true})
	ann := k.Dialer("ann")
	fast := k.FS("ann", ann)
	if err := fast.WriteFile(t.Context(), "/tmp/f", content(3000), false); err != nil {
		t.Fatal(err)
	}
	plain := k.reader(dfs.Config{User: "ann", NoSmallFiles: true, Dial: func(ctx context.Context, role, addr string) (net.Conn, error) {
		return ann.Dial(ctx, addr, authority.Role(role))
	}})
	for _, c := range []*dfs.Client{fast, plain} {
		if got, err := c.ReadFile(t.Context(), "/tmp/f"); err != nil || !bytes.Equal(got, content(3000)) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	at, err := plain.BlockLocations(t.Context(), "/tmp/f", 0, 1)
	if err != nil || len(at) != 1 || !namenode.IsDoor(namenode.NodeID(at[0].Datanodes[0].UUID)) {
		t.Errorf("it is at %+v, %v", at, err)
	}
}
