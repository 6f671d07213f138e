package dfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// smallCluster is a cluster whose namenode keeps small files.
type smallCluster struct {
	*cluster
	mu     sync.Mutex
	bodies map[string][]byte
	off    map[string]bool // directories without small files
	asked  map[string]int  // calls by method
	broken error           // what createWithData answers
	limit  int             // of a small file; 0: none is told
}

func newSmallCluster(t *testing.T, config Config) (*smallCluster, *Client) {
	c, _ := newCluster(t, 3)
	s := &smallCluster{cluster: c, bodies: map[string][]byte{}, off: map[string]bool{}, asked: map[string]int{}}
	c.addr = c.serve(security.NewDoor(security.Config{}), func(server *hrpc.Server) {
		c.register(server)
		server.Handle(operatorProtocol, hrpc.Method{
			Name: "createWithData", Right: security.ByPath, New: func() hrpc.Message { return new(hadooppb.CreateWithDataRequestProto) },
			Handle: func(call *hrpc.Call) {
				q := call.Request.(*hadooppb.CreateWithDataRequestProto)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.asked["createWithData"]++
				name := q.GetCreate().GetSrc()
				_, there := s.bodies[name]
				switch {
				case s.broken != nil:
					call.Fail(s.broken)
				case s.off[path.Dir(name)], s.limit > 0 && len(q.GetData()) > s.limit:
					call.Reply(&hadooppb.CreateWithDataResponseProto{Stored: new(false), Limit: new(uint32(s.limit))})
				case there && q.GetCreate().GetCreateFlag()&flagOverwrite == 0:
					call.Fail(metadata.Errorf(metadata.ErrExist, "%s already exists", name))
				default:
					s.bodies[name] = q.GetData()
					call.Reply(&hadooppb.CreateWithDataResponseProto{Stored: new(true), Status: c.status(&fakeFile{id: 7}, "")})
				}
			},
		})
		server.Handle(operatorProtocol, hrpc.Method{
			Name: "openWithData", Right: security.ByPath, New: func() hrpc.Message { return new(hadooppb.OpenWithDataRequestProto) },
			Handle: func(call *hrpc.Call) {
				q := call.Request.(*hadooppb.OpenWithDataRequestProto)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.asked["openWithData"]++
				if data, ok := s.bodies[q.GetPath()]; ok {
					call.Reply(&hadooppb.OpenWithDataResponseProto{Data: append([]byte{}, data...)})
					return
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				f, err := c.lookup(q.GetPath())
				if err != nil {
					call.Fail(err)
					return
				}
				list := &hadooppb.LocatedBlocksProto{FileLength: new(f.length()), UnderConstruction: new(false), IsLastBlockComplete: new(true)}
				at := uint64(0)
				for _, b := range f.blocks {
					c.stored(b)
					list.Blocks = append(list.Blocks, c.located(b, at))
					at += b.size
				}
				call.Reply(&hadooppb.OpenWithDataResponseProto{Locations: list})
			},
		})
		server.Handle(operatorProtocol, hrpc.Method{
			Name: "openManyWithData", Right: security.ByPath, New: func() hrpc.Message { return new(hadooppb.OpenManyWithDataRequestProto) },
			Handle: func(call *hrpc.Call) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.asked["openManyWithData"]++
				answer := new(hadooppb.OpenManyWithDataResponseProto)
				for i, name := range call.Request.(*hadooppb.OpenManyWithDataRequestProto).GetPaths() {
					one := new(hadooppb.OpenedFileProto)
					switch data, ok := s.bodies[name]; {
					case i == 20: // that is enough for one answer
						call.Reply(answer)
						return
					case ok:
						one.Data = append([]byte{}, data...)
					case path.Base(name) == "large":
					default:
						one.Exception, one.Message = new("java.io.FileNotFoundException"), new("File does not exist: "+name)
					}
					answer.Files = append(answer.Files, one)
				}
				call.Reply(answer)
			},
		})
	})
	return s, c.client(config)
}

func TestReadMany(t *testing.T) {
	t.Parallel()
	s, c := newSmallCluster(t, Config{})
	ctx := context.Background()
	w, err := c.Create(ctx, "/large", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(pattern(100_000)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	names := []string{"/large", "/none", "relative", "/f0"}
	for i := range 1200 {
		names = append(names, fmt.Sprintf("/f%d", i))
		s.bodies[names[len(names)-1]] = pattern(i)
	}
	for _, config := range []Config{{}, {NoSmallFiles: true}} {
		if config.NoSmallFiles {
			c = s.client(config)
			names = names[:3]
		}
		many, err := c.ReadMany(ctx, names, 0)
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "the large one", many.Data[0], pattern(100_000))
		if !errors.Is(many.Errors[1], metadata.ErrNotExist) || !errors.Is(many.Errors[2], metadata.ErrInvalidPath) || many.Errors[0] != nil {
			t.Errorf("errors %v", many.Errors[:3])
		}
		for i := 4; i < len(names); i++ {
			if many.Errors[i] != nil {
				t.Fatal(many.Errors[i])
			}
			sameBytes(t, names[i], many.Data[i], pattern(i-4))
		}
		if many, err = c.ReadMany(ctx, names, 50_000); err != nil || !errors.Is(many.Errors[0], metadata.ErrInvalidArgument) {
			t.Errorf("a file that is too long: %v, %v", many.Errors[0], err)
		}
	}
	if n := s.times("openWithData"); n != 2 {
		t.Errorf("%d files were opened by themselves", n)
	}
}

func (s *smallCluster) times(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[method]
}

func TestSmallFileIsOneCall(t *testing.T) {
	t.Parallel()
	s, c := newSmallCluster(t, Config{})
	ctx := context.Background()
	for _, n := range []int{0, 1, 1024, metadata.MaxBody} {
		name := "/f" + string(rune('a'+n%26))
		if err := c.WriteFile(ctx, name, pattern(n), false); err != nil {
			t.Fatal(err)
		}
		got, err := c.ReadFile(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, name, got, pattern(n))
	}
	if n := s.count("create") + s.count("addBlock") + s.count("complete") + s.count("getBlockLocations"); n > 0 {
		t.Errorf("%d calls as for ordinary files", n)
	}
	if a, b := s.times("createWithData"), s.times("openWithData"); a != 4 || b != 4 {
		t.Errorf("%d and %d calls for 4 files", a, b)
	}
	// One that is there is refused, and stays.
	if err := c.WriteFile(ctx, "/fb", pattern(5), false); !errors.Is(err, metadata.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if s.count("delete") > 0 {
		t.Error("a file was removed that somebody else has made")
	}
	got, err := c.ReadFile(ctx, "/fb")
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "/fb", got, pattern(1))
}

func TestLateWriterDecidesAtItsEnd(t *testing.T) {
	t.Parallel()
	s, c := newSmallCluster(t, Config{})
	ctx := context.Background()
	for name, write := range map[string]func(w *Writer, data []byte) error{
		"writes": func(w *Writer, data []byte) error {
			for len(data) > 0 {
				n, err := w.Write(data[:min(len(data), 1000)])
				if err != nil {
					return err
				}
				data = data[n:]
			}
			return nil
		},
		"reads": func(w *Writer, data []byte) error {
			n, err := w.ReadFrom(iotest.OneByteReader(bytes.NewReader(data)))
			if err == nil && n != int64(len(data)) {
				err = io.ErrShortWrite
			}
			return err
		},
	} {
		for _, n := range []int{0, 10, metadata.MaxBody, metadata.MaxBody + 1, 200_000} {
			before := s.count("create")
			file := "/" + name
			w, err := c.Create(ctx, file, CreateOptions{Overwrite: true, Late: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := write(w, pattern(n)); err != nil {
				t.Fatalf("%s of %d: %v", name, n, err)
			}
			if w.Size() != int64(n) {
				t.Errorf("%s of %d: size %d", name, n, w.Size())
			}
			if err := w.Close(); err != nil {
				t.Fatalf("%s of %d: %v", name, n, err)
			}
			w.Abort() // does nothing
			if small := s.count("create") == before; small != (n <= metadata.MaxBody) {
				t.Errorf("%s of %d bytes: small is %v", name, n, small)
			} else if !small {
				sameBytes(t, file, s.content(file), pattern(n))
			} else {
				sameBytes(t, file, s.bodies[file], pattern(n))
			}
		}
	}
	// What is flushed is there.
	w, err := c.Create(ctx, "/flushed", CreateOptions{Late: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(pattern(3)); err != nil {
		t.Fatal(err)
	}
	if err := w.Hflush(ctx); err != nil {
		t.Fatal(err)
	}
	if w.INode() == 0 || s.count("addBlock") == 0 {
		t.Error("it was flushed and is nowhere")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "/flushed", s.content("/flushed"), pattern(3))
	// What is given up was never there.
	if w, err = c.Create(ctx, "/aborted", CreateOptions{Late: true}); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	if err := w.Close(); err == nil {
		t.Error("closed after it was given up")
	}
	if s.count("recoverLease") > 0 {
		t.Error("the lease of a file that was not made is recovered")
	}
}

// Somebody asks for the inode while somebody else makes the file: what the race detector has to say of it.
func TestTheINodeOfAFileThatIsBeingMade(t *testing.T) {
	t.Parallel()
	_, c := newSmallCluster(t, Config{})
	for _, n := range []int{10, metadata.MaxBody + 1} { // made with its bytes, and before them
		w, err := c.Create(t.Context(), fmt.Sprintf("/f%d", n), CreateOptions{Late: true})
		if err != nil {
			t.Fatal(err)
		}
		var asking sync.WaitGroup
		made := make(chan struct{})
		asking.Go(func() {
			for {
				select {
				case <-made:
					return
				default:
					_ = w.INode()
					runtime.Gosched()
				}
			}
		})
		_, err = w.Write(pattern(n))
		err = errors.Join(err, w.Close())
		close(made)
		asking.Wait()
		if err != nil || w.INode() == 0 {
			t.Errorf("%d bytes: inode %d, %v", n, w.INode(), err)
		}
	}
}

func TestServersWithoutSmallFilesAreAskedOnce(t *testing.T) {
	t.Parallel()
	plain, c := newCluster(t, 3)
	ctx := context.Background()
	for i := range 5 {
		if err := c.WriteFile(ctx, "/f", pattern(100+i), true); err != nil {
			t.Fatal(err)
		}
		got, err := c.ReadFile(ctx, "/f")
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "/f", got, pattern(100+i))
	}
	if plain.count("create") != 5 || plain.count("getBlockLocations") != 5 {
		t.Error("an ordinary server is not spoken to as ever")
	}
	if c.small.served() || c.small.in("/") {
		t.Error("it would be asked again")
	}

	s, c := newSmallCluster(t, Config{})
	s.off["/d"] = true
	s.mkdirs("/d", 0o755)
	for range 5 {
		if err := c.WriteFile(ctx, "/d/f", pattern(9), true); err != nil {
			t.Fatal(err)
		}
	}
	sameBytes(t, "/d/f", s.content("/d/f"), pattern(9))
	if n := s.times("createWithData"); n != 1 {
		t.Errorf("asked %d times for a directory without small files", n)
	}
	if err := c.WriteFile(ctx, "/f", pattern(9), true); err != nil || s.times("createWithData") != 2 {
		t.Errorf("in another directory: %v", err)
	}

	s, c = newSmallCluster(t, Config{NoSmallFiles: true})
	if err := c.WriteFile(ctx, "/f", pattern(9), true); err != nil || s.times("createWithData") != 0 || s.count("create") != 1 {
		t.Errorf("switched off: %v", err)
	}
}

func TestReaderOfAFileThatCameWhole(t *testing.T) {
	t.Parallel()
	s, c := newSmallCluster(t, Config{})
	ctx := context.Background()
	data := pattern(5000)
	s.bodies["/f"] = data
	r, err := c.Open(ctx, "/f")
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(r, data); err != nil {
		t.Error(err)
	}
	if _, err := r.Seek(1000, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := r.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "the rest", out.Bytes(), data[1000:])
	got := make([]byte, 100)
	if n, err := r.ReadAt(got, 4950); n != 50 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(ctx, "/none"); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
	s.broken = metadata.Errorf(metadata.ErrPermission, "not for you")
	if err := c.WriteFile(ctx, "/g", data, false); !errors.Is(err, metadata.ErrPermission) || s.count("create")+s.count("delete") > 0 {
		t.Errorf("refused: %v", err)
	}
}

// How large a small file may be is the server's to say; what is larger is no reason to make others in the directory as ordinary files.
func TestTheServerLimitsSmallFiles(t *testing.T) {
	t.Parallel()
	s, c := newSmallCluster(t, Config{})
	s.limit = 1000
	ctx := context.Background()
	for i, n := range []int{2000, 1000, 1001, 999} {
		name := fmt.Sprintf("/f%d", i)
		if err := c.WriteFile(ctx, name, pattern(n), false); err != nil {
			t.Fatal(err)
		}
		got, err := c.ReadFile(ctx, name)
		if _, small := s.bodies[name]; err != nil || !bytes.Equal(got, pattern(n)) || small != (n <= 1000) {
			t.Errorf("%d bytes: small: %v, %d bytes, %v", n, small, len(got), err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.asked["createWithData"]; n != 3 {
		t.Errorf("%d calls: the third file was known to be too large", n)
	}
}

// A datanode that does not answer costs the files of which it has the only replica, each with an error that says so, and in bounded time; all others come meanwhile, and these when it answers.
func TestReadManyBesideASilentDatanode(t *testing.T) {
	t.Parallel()
	c, _ := newCluster(t, 2)
	client := c.client(Config{NoSmallFiles: true})
	client.times.stall, client.times.many = 20*time.Millisecond, 2*time.Second
	ctx := t.Context()
	var names []string
	silent := map[string]bool{}
	for i := range 12 {
		name := fmt.Sprint("/f", i)
		silent[name] = i%2 == 0
		c.mu.Lock()
		c.nodes[0].hidden = !silent[name]
		c.mu.Unlock()
		w, err := client.Create(ctx, name, CreateOptions{Replication: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(pattern(1000 + i)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	c.mu.Lock()
	c.nodes[0].hidden = false
	c.mu.Unlock()
	c.nodes[0].freeze()
	defer c.nodes[0].thaw()
	within(t, "reading", func() {
		many, err := client.ReadMany(ctx, names, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			if err := many.Errors[i]; silent[name] != (err != nil) || err != nil && !(strings.Contains(err.Error(), name) && strings.Contains(err.Error(), "has said nothing for 2s")) {
				t.Errorf("%s: %d bytes, %v", name, len(many.Data[i]), err)
			}
		}
	})
	c.nodes[0].thaw()
	within(t, "reading again", func() {
		many, err := client.ReadMany(ctx, names, 0)
		if err != nil || slices.ContainsFunc(many.Errors, func(err error) bool { return err != nil }) {
			t.Fatal(err, many.Errors)
		}
		for i := range names {
			sameBytes(t, names[i], many.Data[i], pattern(1000+i))
		}
	})
}
