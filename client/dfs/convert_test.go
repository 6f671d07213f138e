package dfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// rewrites has the namenode convert files. meanwhile, if not nil, runs when a copy is begun.
func (c *cluster) rewrites(s *hrpc.Server, meanwhile func()) (begun *int) {
	begun = new(int)
	s.Handle(operatorProtocol, hrpc.Method{
		Name: "beginRewrite", Right: security.ByPath, New: func() hrpc.Message { return new(hadooppb.BeginRewriteRequestProto) },
		Handle: func(call *hrpc.Call) {
			q := call.Request.(*hadooppb.BeginRewriteRequestProto)
			if meanwhile != nil {
				meanwhile()
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			*begun++
			old := c.files[q.GetSrc()]
			c.nextID++
			made := &fakeFile{id: c.nextID, replication: 1, blockSize: old.blockSize, holder: q.GetClientName()}
			c.files[fmt.Sprint("/.reserved/.inodes/", made.id)] = made
			call.Reply(&hadooppb.BeginRewriteResponseProto{Source: &made.id, Blocks: new(uint64), BlockSize: &made.blockSize, Replication: &made.replication, Length: new(old.length())})
		},
	})
	s.Handle(operatorProtocol, hrpc.Method{
		Name: "endRewrite", Right: security.ByPath, New: func() hrpc.Message { return new(hadooppb.EndRewriteRequestProto) },
		Handle: func(call *hrpc.Call) {
			q := call.Request.(*hadooppb.EndRewriteRequestProto)
			source := fmt.Sprint("/.reserved/.inodes/", q.GetSource())
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.files[q.GetSrc()] == nil {
				delete(c.files, source)
				c.dropped = append(c.dropped, q.GetSource())
				call.Fail(missing(q.GetSrc()))
				return
			}
			quiet := false
			if exchanging := c.exchanging; exchanging != nil {
				c.mu.Unlock()
				var err error
				quiet, err = exchanging()
				c.mu.Lock()
				if err != nil {
					call.Fail(err)
					return
				}
			}
			if c.late > 0 {
				c.late--
				call.Fail(metadata.Errorf(metadata.ErrNotReplicatedYet, "not yet"))
				return
			}
			c.files[q.GetSrc()].blocks = c.files[source].blocks
			delete(c.files, source)
			if !quiet {
				call.Reply(new(hadooppb.EndRewriteResponseProto))
			}
		},
	})
	return begun
}

// A converted file has checksums of the kind that it had, and takes the place of the old one as soon as enough of it is stored. One of blocks of several kinds, which appends write, is refused, and so is one that gets such a block meanwhile.
func TestConvertKeepsTheKindOfChecksums(t *testing.T) {
	t.Parallel()
	const size = 16 << 10
	crc32, crc32c := ChecksumOption{Type: "CRC32", BytesPer: 1024}, ChecksumOption{Type: "CRC32C", BytesPer: 512}
	for _, test := range []struct {
		what            string
		first, appended ChecksumOption
		blocks          int  // of each
		late, open      bool // an append comes, or ends, when the copy is begun
		want            dtp.Checksum
		err             *metadata.Kind
		says            string
	}{
		{what: "alike", first: crc32, appended: crc32, blocks: 3, want: dtp.Checksum{Type: dtp.CRC32, BytesPer: 1024}},
		{what: "empty", first: crc32, want: dtp.DefaultChecksum},
		{what: "another type at the end", first: crc32c, appended: ChecksumOption{Type: "CRC32", BytesPer: 512}, blocks: 1, err: metadata.ErrInvalidRequest, says: "CRC32C of 512 bytes, blk_"},
		{what: "other chunks at the end", first: crc32c, appended: ChecksumOption{Type: "CRC32C", BytesPer: 1024}, blocks: 12, err: metadata.ErrInvalidRequest, says: "CRC32C of 1024 bytes)"},
		{what: "closed meanwhile", first: crc32, blocks: 1, open: true, err: metadata.ErrIO, says: "changed while it was converted"},
		{what: "meanwhile", first: crc32c, appended: crc32, blocks: 1, late: true, err: metadata.ErrIO, says: "changed while it was converted"},
	} {
		c, _ := newCluster(t, 1)
		write := func(o ChecksumOption, more bool) {
			client := c.client(Config{Checksum: o, BlockSize: size, Replication: 1})
			if !more {
				if err := client.WriteFile(t.Context(), "/f", pattern(test.blocks*size), true); err != nil {
					t.Fatal(err)
				}
				return
			}
			w, err := client.Append(t.Context(), "/f")
			if err == nil {
				_, err = w.Write(pattern(test.blocks * size))
			}
			if err == nil {
				err = w.Close()
			}
			if err != nil {
				t.Error(err)
			}
		}
		write(test.first, false)
		var begun *int
		c.addr = c.serve(security.NewDoor(security.Config{}), func(s *hrpc.Server) {
			c.register(s)
			begun = c.rewrites(s, func() {
				if test.late {
					write(test.appended, true)
				}
				if test.open {
					c.mu.Lock()
					c.files["/f"].holder = ""
					c.mu.Unlock()
				}
			})
		})
		c.late = 2
		if test.open {
			c.mu.Lock()
			c.files["/f"].holder = "somebody"
			c.mu.Unlock()
		} else if !test.late && test.blocks > 0 {
			write(test.appended, true)
		}
		var before []byte
		if !test.open {
			before = c.content("/f")
		}
		old := map[uint64]bool{}
		c.nodes[0].set(func() {
			for id := range c.nodes[0].kinds {
				old[id] = true
			}
		})
		err := c.client(Config{Checksum: ChecksumOption{Type: "CRC32C", BytesPer: 512}}).Convert(t.Context(), "/f", ConvertOptions{Policy: namenode.ReplicationPolicy})
		if test.err != nil {
			if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v", test.what, err)
			}
			if *begun > 0 && !test.late && !test.open {
				t.Errorf("%s: a copy was begun", test.what)
			}
		} else if err != nil {
			t.Errorf("%s: %v", test.what, err)
		}
		if !test.late && !test.open {
			sameBytes(t, test.what, c.content("/f"), before)
		}
		made := 0
		c.nodes[0].set(func() {
			for id, kind := range c.nodes[0].kinds {
				if old[id] {
					continue
				}
				if made++; kind != test.want && !test.late {
					t.Errorf("%s: block %d has checksums %v of %d bytes", test.what, id, kind.Type, kind.BytesPer)
				}
			}
		})
		if test.err == nil && made != 2*test.blocks {
			t.Errorf("%s: %d blocks were made", test.what, made)
		}
	}
}

// A copy that is gone is somebody else's doing where the file is still the one that was to be converted, whatever has its name.
func TestConvertKnowsTheFileByItsID(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what  string
		then  func(c *cluster) // once some of it is copied
		err   *metadata.Kind
		says  string
		never string
	}{
		{"another one converts it", func(*cluster) {}, metadata.ErrBeingCreated, "somebody else has begun to convert it", "another one has its name"},
		{"another file has its name", func(c *cluster) {
			c.nextID++
			c.files["/f"] = &fakeFile{id: c.nextID, replication: 1, blockSize: 1 << 20}
		}, metadata.ErrIO, "another one has its name", "somebody else"},
		{"nothing has its name", func(c *cluster) { delete(c.files, "/f") }, metadata.ErrNotExist, "", "somebody else"},
	} {
		c, _ := newCluster(t, 1)
		if err := c.client(Config{Replication: 1}).WriteFile(t.Context(), "/f", pattern(16<<10), true); err != nil {
			t.Fatal(err)
		}
		c.addr = c.serve(security.NewDoor(security.Config{}), func(s *hrpc.Server) {
			c.register(s)
			c.rewrites(s, nil)
		})
		copied := false
		err := c.client(Config{}).Convert(t.Context(), "/f", ConvertOptions{Policy: namenode.ReplicationPolicy, Copied: func(int64) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if copied {
				return
			}
			copied = true
			for name := range c.files {
				if strings.HasPrefix(name, "/.reserved/.inodes/") {
					delete(c.files, name)
				}
			}
			test.then(c)
		}})
		if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), test.never) {
			t.Errorf("%s: %v", test.what, err)
		}
		if said := strings.Count(err.Error(), "convert /f: "); said != 1 {
			t.Errorf("%s: it says %d times what was done: %v", test.what, said, err)
		}
	}
}

// Who gives a conversion up says what the namenode has refused it with, in the time that it has, and leaves no copy behind, but where it may have been exchanged.
func TestAConversionThatIsGivenUp(t *testing.T) {
	t.Parallel()
	unknown := metadata.Errorf(metadata.ErrRetriable, "which blocks are stored is not known yet")
	for _, test := range []struct {
		what     string
		patience time.Duration
		copied   bool                                                 // given up while it is copied
		exchange func(asked int, give func()) (quiet bool, err error) // nil: it is not come to
		err      error                                                // nil: any
		says     string
		kept     bool // the namenode does not hear that it was given up
		any      bool // it may hear of it or not
	}{
		{what: "in the middle", patience: limit, copied: true, err: context.Canceled},
		{what: "too little is stored", patience: exchangeAnswer - time.Second, exchange: func(int, func()) (bool, error) {
			return false, metadata.Errorf(metadata.ErrNotReplicatedYet, "blk_1 is stored on 1 datanodes")
		}, err: metadata.ErrNotReplicatedYet, says: "convert /f: blk_1 is stored on 1 datanodes"},
		{what: "nothing is known", patience: limit, exchange: func(asked int, give func()) (bool, error) {
			if asked == 2 {
				give()
			}
			return false, unknown
		}, any: true}, // the last answer may have come before its client has gone
		{what: "the answer is lost after a refusal", patience: limit, exchange: func(asked int, give func()) (bool, error) {
			if asked == 1 {
				return false, unknown
			}
			give()
			return true, nil
		}, err: context.Canceled, kept: true},
		{what: "nothing is known for too long", patience: time.Millisecond, exchange: func(int, func()) (bool, error) { return false, unknown }, any: true},
		{what: "refused", patience: limit, exchange: func(int, func()) (bool, error) { return false, metadata.Errorf(metadata.ErrSpaceQuota, "no room") }, err: metadata.ErrSpaceQuota, says: "no room"},
		{what: "the answer is lost", patience: limit, exchange: func(_ int, give func()) (bool, error) { give(); return true, nil }, err: context.Canceled, kept: true},
	} {
		c, _ := newCluster(t, 1)
		if err := c.client(Config{Replication: 1}).WriteFile(t.Context(), "/f", pattern(16<<10), true); err != nil {
			t.Fatal(err)
		}
		c.addr = c.serve(security.NewDoor(security.Config{}), func(s *hrpc.Server) {
			c.register(s)
			c.rewrites(s, nil)
		})
		ctx, give := context.WithCancel(t.Context())
		defer give()
		asked := 0
		c.exchanging = func() (bool, error) {
			asked++
			return test.exchange(asked, give)
		}
		client := c.client(Config{})
		client.times.exchange = test.patience
		var err error
		within(t, test.what, func() {
			err = client.Convert(ctx, "/f", ConvertOptions{Policy: namenode.ReplicationPolicy, Copied: func(int64) {
				if test.copied {
					give()
				}
			}})
		})
		if err == nil || test.err != nil && !errors.Is(err, test.err) || !strings.HasPrefix(err.Error(), "convert /f: ") || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.what, err)
		}
		switch { // of these either the last refusal is known, and the copy goes, or what became of the last call is not
		case !test.any:
		case errors.Is(err, metadata.ErrRetriable):
			if !strings.Contains(err.Error(), "convert /f: which blocks are stored is not known yet") {
				t.Errorf("%s: %v", test.what, err)
			}
		case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, hrpc.ErrTimeout):
			t.Errorf("%s: %v", test.what, err)
		}
		c.mu.Lock()
		if n := len(c.dropped); !test.any && (n == 0) != test.kept {
			t.Errorf("%s: %d copies were given up", test.what, n)
		}
		c.mu.Unlock()
		if test.any {
			continue
		}
		within(t, test.what+": no copy is left", func() { // one may be exchanged by a call whose client has gone
			for there := true; there; time.Sleep(time.Millisecond) {
				there = false
				c.mu.Lock()
				for name := range c.files {
					there = there || strings.HasPrefix(name, "/.reserved/.inodes/")
				}
				c.mu.Unlock()
			}
		})
	}
}
