package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore/journal"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// bareDisk is the operating system's disk, which does not say what is in memory, and gives nothing while it is silent.
type bareDisk struct {
	journal.FileSystem
	silent *atomic.Pointer[chan struct{}]
}

func (d bareDisk) Open(path string) (journal.File, error) {
	f, err := d.FileSystem.Open(path)
	return bareFile{f, d.silent}, err
}

func (d bareDisk) Create(path string) (journal.File, error) {
	f, err := d.FileSystem.Create(path)
	return bareFile{f, d.silent}, err
}

type bareFile struct {
	journal.File
	silent *atomic.Pointer[chan struct{}]
}

func (f bareFile) ReadAt(b []byte, at int64) (int, error) {
	if gate := f.silent.Load(); gate != nil {
		<-*gate
	}
	return f.File.ReadAt(b, at)
}

// places is how many places to read bodies from the disk are taken.
func (m *member) places() int {
	m.bodyReads.mu.Lock()
	defer m.bodyReads.mu.Unlock()
	return m.bodyReads.running
}

// fill takes all places, as two users, until they are given back.
func (m *member) fill(t *testing.T) (release func()) {
	t.Helper()
	var taken []string
	for _, user := range []string{"x", "y", "z"} {
		for m.bodyReads.try(user) {
			taken = append(taken, user)
		}
	}
	if len(taken) != maxBodyReads || taken[maxBodyReads/2-1] != "x" || taken[maxBodyReads/2] != "y" {
		t.Fatalf("%d places, %v", len(taken), taken)
	}
	return func() {
		for _, user := range taken {
			m.bodyReads.give(user)
		}
	}
}

func (m *member) manyWhole(ctx context.Context, paths ...string) (files []namenode.OpenedFile, err error) {
	done := make(chan struct{})
	m.FilesWithData(ctx, m.caller(), paths, 1<<20, func(got []namenode.OpenedFile, e error) { files, err = got, e; close(done) })
	<-done
	return files, err
}

// storeSynced makes a file whose body is in a segment, if it is not in the state.
func (m *member) storeSynced(t *testing.T, path string, data []byte) metadata.Block {
	t.Helper()
	if _, err := m.store(t, storing(path), data); err != nil {
		t.Fatal(err)
	}
	must(t, m.bodies.Sync())
	return m.locate(t, path).Blocks[0].Block
}

// Calls that read small files from the disk are so many at most, and the rest hears to try again; what is in memory needs no place.
func TestCallsThatReadBodiesAreBounded(t *testing.T) {
	t.Parallel()
	lead := newCluster(t, 1, nil).raised()
	data := noise(5000)
	lead.storeSynced(t, "/x", data)
	lead.storeSynced(t, "/tiny", data[:100])
	read := func() {
		t.Helper()
		if f, err := lead.whole(t, "/x"); err != nil || !bytes.Equal(f.Data, data) {
			t.Error(err)
		}
		if f, err := lead.manyWhole(t.Context(), "/x", "/tiny"); err != nil || !bytes.Equal(f[0].Data, data) || !bytes.Equal(f[1].Data, data[:100]) {
			t.Error(err)
		}
	}
	release := lead.fill(t)
	read() // the page cache has it, or the state
	release()
	read()
	if n := lead.places(); n != 0 {
		t.Errorf("%d places are not given back", n)
	}
}

// Who has no place hears to try again, whatever call it is, and one user cannot have all places.
func TestWhoReadsBodiesNeedsAPlace(t *testing.T) {
	t.Parallel()
	var silent atomic.Pointer[chan struct{}]
	c := newCluster(t, 1, func(conf *Config) { conf.bodiesDisk = bareDisk{silent: &silent} })
	lead := c.raised()
	data := noise(5000)
	b := lead.storeSynced(t, "/x", data)
	lead.storeSynced(t, "/tiny", data[:100])
	c.known()
	key := lead.config.Credentials.Key("namenode")
	conn, err := grpc.NewClient("passthrough:///"+lead.grpc, grpc.WithTransportCredentials(credentials.TransportCredentials(key.Credentials())))
	must(t, err)
	defer conn.Close()
	located := lead.locate(t, "/x").Blocks[0]
	calls := map[string]func() ([]byte, error){
		"FileWithData": func() ([]byte, error) {
			f, err := lead.whole(t, "/x")
			if err != nil {
				return nil, err
			}
			return f.Data, nil
		},
		"FilesWithData": func() ([]byte, error) {
			f, err := lead.manyWhole(t.Context(), "/tiny", "/x")
			if err != nil {
				return nil, err
			}
			return f[1].Data, f[1].Err
		},
		"Body": func() ([]byte, error) { return lead.Body(t.Context(), b.ID, b.Generation) },
		"Bodies": func() (got []byte, err error) {
			var one error
			err = lead.Bodies(t.Context(), lead.BlockPool(), []namenode.WantedBody{{Block: b, Token: located.Token}}, func(_ int, data []byte, err error) { got, one = data, err })
			return got, errors.Join(err, one)
		},
		"another namenode": func() ([]byte, error) {
			answer, err := pb.NewMembershipClient(conn).Body(t.Context(), &pb.BodyRequest{Id: int64(b.ID)})
			if status.Code(err) == codes.Unavailable {
				err = metadata.Errorf(metadata.ErrRetriable, "%v", err)
			}
			return answer.GetData(), err
		},
	}
	each := func(sound bool) {
		t.Helper()
		var all sync.WaitGroup
		for what, call := range calls {
			all.Go(func() {
				got, err := call()
				if sound && (err != nil || !bytes.Equal(got, data)) {
					t.Errorf("%s: %v", what, err)
				}
				if !sound && metadata.KindOf(err) != metadata.ErrRetriable {
					t.Errorf("%s has an answer without a place, or this error: %v", what, err)
				}
			})
		}
		all.Wait()
	}
	release := lead.fill(t)
	each(false)
	if f, err := lead.manyWhole(t.Context(), "/tiny"); err != nil || !bytes.Equal(f[0].Data, data[:100]) {
		t.Error(err)
	}
	release()
	each(true)
	n := 0
	for lead.bodyReads.try("greedy") {
		n++
	}
	if n != maxBodyReads/2 {
		t.Errorf("one user has %d of %d places", n, maxBodyReads)
	}
	each(true)
	for range n {
		lead.bodyReads.give("greedy")
	}
	eventually(t, "all places are given back", func() bool { return lead.places() == 0 })
}

// A body that is known to be damaged here comes from another namenode though there is no place to read this one's disk.
func TestWithoutAPlaceOthersAreAskedForWhatIsDamaged(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	lead := c.raised()
	data := noise(5000)
	b := lead.storeSynced(t, "/x", data)
	c.level(t, c.servers())
	lead.damage(t, data)
	lead.finds(t, b)
	defer lead.fill(t)()
	eventually(t, "it comes", func() bool {
		got, err := lead.bodyFor(t.Context(), "ann", b.ID, b.Generation)
		return err == nil && bytes.Equal(got, data)
	})
}

// Where the disk is silent, who has gone is waited for by nobody; the place is free when the disk has answered.
func TestReadsOfASilentDiskAreGivenUp(t *testing.T) {
	t.Parallel()
	var silent atomic.Pointer[chan struct{}]
	lead := newCluster(t, 1, func(conf *Config) { conf.bodiesDisk = bareDisk{silent: &silent} }).raised()
	data := noise(5000)
	b := lead.storeSynced(t, "/x", data)
	gate := make(chan struct{})
	silent.Store(&gate)
	r, err := lead.ns.FindBody(b.ID, 0)
	must(t, err)
	for what, call := range map[string]func(ctx context.Context) error{
		"Body": func(ctx context.Context) error { _, err := lead.Body(ctx, b.ID, b.Generation); return err },
		"many": func(ctx context.Context) error {
			return lead.readBodies(ctx, "user", []namespace.BodyRef{*r}, func(int, []byte, error) { t.Error("who has gone is told something") })
		},
		"FilesWithData": func(ctx context.Context) error { _, err := lead.manyWhole(ctx, "/x"); return err },
	} {
		before := lead.places()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		eventually(t, what+" has a place", func() bool { return lead.places() == before+1 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		if lead.places() != before+1 {
			t.Errorf("%s: the place is given back while the disk is at it", what)
		}
		late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := call(late); metadata.KindOf(err) != metadata.ErrRetriable && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
		cancel()
	}
	silent.Store(nil)
	close(gate)
	eventually(t, "all places are given back", func() bool { return lead.places() == 0 })
	if got, err := lead.Body(t.Context(), b.ID, b.Generation); err != nil || !bytes.Equal(got, data) {
		t.Error(err)
	}
}

// A call that panics while bodies are read keeps no place.
func TestAPanicKeepsNoPlace(t *testing.T) {
	t.Parallel()
	var silent atomic.Pointer[chan struct{}]
	lead := newCluster(t, 1, func(conf *Config) { conf.bodiesDisk = bareDisk{silent: &silent} }).raised()
	var refs []namespace.BodyRef
	for i := range 3 {
		b := lead.storeSynced(t, fmt.Sprintf("/%d", i), smallBytes(5000, byte(i)))
		r, err := lead.ns.FindBody(b.ID, 0)
		must(t, err)
		refs = append(refs, *r)
	}
	err := lead.readBodies(t.Context(), "user", refs, func(int, []byte, error) { panic("as asked") })
	if !errors.Is(err, metadata.ErrIO) {
		t.Error(err)
	}
	if n := lead.places(); n != 0 {
		t.Errorf("%d places are kept", n)
	}
}
