package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/client/dfs"
	dnserver "github.com/gohops/hops/datanode/server"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// realDatanode starts a datanode with a disk, under a name.
func (c *cluster) realDatanode(name string, more ...dnserver.Volume) (stop func()) {
	c.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("HOPS_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	conf := dnserver.Config{
		Volumes: append([]dnserver.Volume{{Path: filepath.Join(c.dir, name)}}, more...), Reserve: -1, SaveEvery: 20 * time.Millisecond, Credentials: c.credentials, Logger: log,
		Transfer: listen(c.t), HTTP: listen(c.t), IPC: listen(c.t), GRPC: listen(c.t),
		Door: security.NewDoor(security.Config{Supergroup: "supergroup"}), Heartbeat: 50 * time.Millisecond,
	}
	for _, m := range c.nodes {
		if m != nil {
			conf.NamenodesGRPC, conf.NamenodesIPC = append(conf.NamenodesGRPC, m.grpc), append(conf.NamenodesIPC, m.ipc)
		}
	}
	d, err := dnserver.New(conf)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.Run(ctx); err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	c.t.Cleanup(stop)
	for _, m := range c.nodes {
		if m != nil {
			eventually(c.t, name+" is known to "+m.config.ID, func() bool {
				return slices.ContainsFunc(m.Datanodes(), func(r namenode.NodeReport) bool {
					return string(r.Node.ID) == d.UUID() && r.Alive && !r.LastReport.IsZero()
				})
			})
		}
	}
	return stop
}

// located asks the leader, as a user, for the blocks of a file.
func (c *cluster) located(user, path string) (*hadoop.LocatedBlocksProto, error) {
	c.t.Helper()
	client, err := hrpc.Dial(c.t.Context(), c.leader().ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: user, DialTimeout: limit})
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	var r hadoop.GetBlockLocationsResponseProto
	err = client.Call(c.t.Context(), clientprotocol.Name, "getBlockLocations",
		&hadoop.GetBlockLocationsRequestProto{Src: &path, Offset: ptr(uint64(0)), Length: ptr(uint64(1 << 40))}, &r)
	return r.GetLocations(), err
}

// speak sends one request to a datanode's transfer port and returns its answer and, of a read, the data.
func speak(t *testing.T, node *hadoop.DatanodeInfoProto, op dtp.Op, m dtp.Message) (*hadoop.BlockOpResponseProto, []byte) {
	t.Helper()
	nc, err := net.Dial("tcp", dtp.TransferAddr(node.GetId(), false))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(limit))
	if err := dtp.WriteOp(nc, op, m); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReaderSize(nc, 256<<10)
	answer, err := dtp.ReadResponse(r)
	if err != nil {
		t.Fatal(err)
	}
	if op != dtp.OpReadBlock || answer.GetStatus() != hadoop.Status_SUCCESS {
		return answer, nil
	}
	var data []byte
	for packets := dtp.NewPacketReader(r); ; {
		p, err := packets.Next()
		if err != nil {
			t.Fatal(err)
		}
		if p.Last {
			return answer, data
		}
		data = append(data, p.Data...)
	}
}

func readOp(b *hadoop.LocatedBlockProto, token *hadoop.TokenProto) *hadoop.OpReadBlockProto {
	return &hadoop.OpReadBlockProto{
		Header: &hadoop.ClientOperationHeaderProto{BaseHeader: &hadoop.BaseHeaderProto{Block: b.B, Token: token}, ClientName: ptr("stranger")},
		Offset: ptr(uint64(0)), Len: b.B.NumBytes,
	}
}

func newUserDirectory(t *testing.T, c *cluster, user string) *dfs.Client {
	t.Helper()
	root := c.root()
	if err := root.Mkdirs(t.Context(), "/"+user, 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := root.SetOwner(t.Context(), "/"+user, user, user); err != nil {
		t.Fatal(err)
	}
	return c.client(user)
}

// A program that speaks the block protocol, and knows everything about a block but its token, neither reads a file that
// is not its user's nor spoils it.
func TestBlockProtocolOpensNoFileOfOthers(t *testing.T) {
	c := newCluster(t, 1, nil)
	for i := range 3 {
		c.realDatanode(fmt.Sprintf("dn%d", i))
	}
	ctx := t.Context()
	alice, bob := newUserDirectory(t, c, "alice"), newUserDirectory(t, c, "bob")
	secret, own := []byte(strings.Repeat("what alice keeps for herself ", 5000)), []byte("what bob has")
	w, err := alice.Create(ctx, "/alice/secret", dfs.CreateOptions{Mode: 0o600})
	if err == nil {
		_, err = w.Write(secret)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = bob.WriteFile(ctx, "/bob/own", own, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	if l, err := c.located("bob", "/alice/secret"); err == nil || l != nil {
		t.Fatalf("bob gets %v, %v", l, err)
	}
	var l *hadoop.LocatedBlocksProto
	eventually(t, "the namenode has heard of all replicas", func() bool { // a file is closed when it has heard of one
		l, err = c.located("alice", "/alice/secret")
		return err != nil || len(l.Blocks) == 1 && len(l.Blocks[0].Locs) == 3
	})
	if err != nil {
		t.Fatal(err)
	}
	target := l.Blocks[0] // bob has guessed it, generation and all
	if len(target.Locs) != 3 || target.GetBlockToken().GetKind() != "HDFS_BLOCK_TOKEN" || len(target.GetBlockToken().GetPassword()) != 32 {
		t.Fatalf("located block %v", target)
	}
	for _, node := range target.Locs { // the control: alice's token opens it
		if answer, data := speak(t, node, dtp.OpReadBlock, readOp(target, target.BlockToken)); !bytes.Equal(data, secret) {
			t.Fatalf("alice reads %d bytes, %v", len(data), answer)
		}
	}
	lb, err := c.located("bob", "/bob/own")
	if err != nil {
		t.Fatal(err)
	}
	bobs := lb.Blocks[0].BlockToken
	grafted := proto.Clone(bobs).(*hadoop.TokenProto)
	grafted.Identifier = target.BlockToken.Identifier
	for name, token := range map[string]*hadoop.TokenProto{"no token": nil, "bob's token": bobs, "a grafted token": grafted} {
		for i, node := range target.Locs {
			if answer, data := speak(t, node, dtp.OpReadBlock, readOp(target, token)); answer.GetStatus() != hadoop.Status_ERROR_ACCESS_TOKEN || len(data) > 0 {
				t.Errorf("%s reads %d bytes, %v", name, len(data), answer)
			}
			b := proto.Clone(target.B).(*hadoop.ExtendedBlockProto)
			answer, _ := speak(t, node, dtp.OpWriteBlock, &hadoop.OpWriteBlockProto{ // adopts the replica under a newer generation
				Header: &hadoop.ClientOperationHeaderProto{BaseHeader: &hadoop.BaseHeaderProto{Block: b, Token: token}, ClientName: ptr("stranger")},
				Stage:  hadoop.OpWriteBlockProto_PIPELINE_SETUP_APPEND.Enum(), PipelineSize: ptr(uint32(1)), MinBytesRcvd: b.NumBytes,
				MaxBytesRcvd: b.NumBytes, LatestGenerationStamp: ptr(b.GetGenerationStamp() + 1000 + uint64(i)), RequestedChecksum: dtp.DefaultChecksum.Proto(),
			})
			if answer.GetStatus() != hadoop.Status_ERROR_ACCESS_TOKEN {
				t.Errorf("%s: append is answered %v", name, answer)
			}
		}
	}
	// Alice's own token is for reading.
	answer, _ := speak(t, target.Locs[0], dtp.OpWriteBlock, &hadoop.OpWriteBlockProto{
		Header: &hadoop.ClientOperationHeaderProto{BaseHeader: &hadoop.BaseHeaderProto{Block: target.B, Token: target.BlockToken}, ClientName: ptr("c")},
		Stage:  hadoop.OpWriteBlockProto_PIPELINE_SETUP_APPEND.Enum(), PipelineSize: ptr(uint32(1)), MinBytesRcvd: target.B.NumBytes,
		MaxBytesRcvd: target.B.NumBytes, LatestGenerationStamp: ptr(target.B.GetGenerationStamp() + 1), RequestedChecksum: dtp.DefaultChecksum.Proto(),
	})
	if answer.GetStatus() != hadoop.Status_ERROR_ACCESS_TOKEN {
		t.Errorf("a token to read opens an append: %v", answer)
	}
	if got, err := alice.ReadFile(ctx, "/alice/secret"); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("alice reads %d bytes, %v", len(got), err)
	}
	// WebHDFS tells the same.
	for user, want := range map[string]bool{"alice": true, "bob": false} {
		page := fetch(t, "http://"+c.leader().http+"/webhdfs/v1/alice/secret?op=GET_BLOCK_LOCATIONS&user.name="+user)
		_, after, _ := strings.Cut(page, `"urlString":"`)
		text, _, _ := strings.Cut(after, `"`)
		token, err := base64.RawURLEncoding.DecodeString(text)
		if got := err == nil && bytes.Contains(token, []byte("\x04READ")) && bytes.Contains(token, []byte("HDFS_BLOCK_TOKEN")); got != want {
			t.Errorf("WebHDFS tells %s %s", user, page)
		}
	}
	// A listing with locations needs no right to the files, and gives none.
	rpc, err := hrpc.Dial(ctx, c.leader().ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: "bob", DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer rpc.Close()
	var list hadoop.GetListingResponseProto
	if err := rpc.Call(ctx, clientprotocol.Name, "getListing", &hadoop.GetListingRequestProto{Src: ptr("/alice"), StartAfter: []byte{}, NeedLocation: ptr(true)}, &list); err != nil {
		t.Fatal(err)
	}
	for _, b := range list.GetDirList().GetPartialListing()[0].GetLocations().GetBlocks() {
		if len(b.GetBlockToken().GetIdentifier()) > 0 {
			t.Error("a listing holds a token")
		}
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// Whoever may not write a file gets no token for its last block, even with the name of the client that writes it.
func TestTokensAreForTheWriterOfAFile(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.realDatanode("dn")
	ctx := t.Context()
	alice := newUserDirectory(t, c, "alice")
	w, err := alice.Create(ctx, "/alice/open", dfs.CreateOptions{Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if _, err = w.Write([]byte("so far")); err == nil {
		err = w.Hflush(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.located("alice", "/alice/open")
	if err != nil {
		t.Fatal(err)
	}
	m := c.leader()
	st, err := alice.Stat(ctx, "/alice/open")
	if err != nil {
		t.Fatal(err)
	}
	f, _ := m.ns.FileByID(st.ID)
	call := func(user, method string, q, a hrpc.Message) error {
		rpc, err := hrpc.Dial(ctx, m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: user, DialTimeout: limit})
		if err != nil {
			t.Fatal(err)
		}
		defer rpc.Close()
		return rpc.Call(ctx, clientprotocol.Name, method, q, a)
	}
	last := l.GetLastBlock()
	for method, try := range map[string]func(user string) (*hadoop.TokenProto, error){
		"updateBlockForPipeline": func(user string) (*hadoop.TokenProto, error) {
			var a hadoop.UpdateBlockForPipelineResponseProto
			err := call(user, "updateBlockForPipeline", &hadoop.UpdateBlockForPipelineRequestProto{Block: last.B, ClientName: &f.Holder}, &a)
			return a.GetBlock().GetBlockToken(), err
		},
		"getAdditionalDatanode": func(user string) (*hadoop.TokenProto, error) {
			var a hadoop.GetAdditionalDatanodeResponseProto
			err := call(user, "getAdditionalDatanode", &hadoop.GetAdditionalDatanodeRequestProto{
				Src: ptr("/alice/open"), Blk: last.B, Existings: last.Locs, NumAdditionalNodes: ptr(uint32(1)), ClientName: &f.Holder, FileId: ptr(uint64(st.ID)),
			}, &a)
			return a.GetBlock().GetBlockToken(), err
		},
		"addBlock": func(user string) (*hadoop.TokenProto, error) {
			var a hadoop.AddBlockResponseProto
			err := call(user, "addBlock", &hadoop.AddBlockRequestProto{Src: ptr("/alice/open"), ClientName: &f.Holder, FileId: ptr(uint64(st.ID))}, &a)
			return a.GetBlock().GetBlockToken(), err
		},
	} {
		if token, err := try("bob"); err == nil || token != nil {
			t.Errorf("%s gives bob %v, %v", method, token, err)
		}
		if method == "addBlock" {
			continue // alice's would begin another block
		}
		if token, err := try("alice"); err != nil || len(token.GetIdentifier()) == 0 {
			t.Errorf("%s gives alice %v, %v", method, token, err)
		}
	}
	// Nor does a writer get a token for a block of another file.
	foreign := proto.Clone(last.B).(*hadoop.ExtendedBlockProto)
	foreign.BlockId = ptr(foreign.GetBlockId() + 1)
	var a hadoop.GetAdditionalDatanodeResponseProto
	if err := call("alice", "getAdditionalDatanode", &hadoop.GetAdditionalDatanodeRequestProto{
		Src: ptr("/alice/open"), Blk: foreign, Existings: last.Locs, NumAdditionalNodes: ptr(uint32(1)), ClientName: &f.Holder, FileId: ptr(uint64(st.ID)),
	}, &a); err == nil {
		t.Errorf("a token for another block: %v", a.GetBlock())
	}
}

// A token that one leader signed is good under the next one, and after everything was stopped and started.
func TestTokensOutliveLeaderAndRestart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	var stops []func()
	for i := range 2 {
		stops = append(stops, c.realDatanode(fmt.Sprintf("dn%d", i)))
	}
	ctx, root := t.Context(), c.root()
	data := []byte(strings.Repeat("data ", 30000))
	if err := root.WriteFile(ctx, "/f", data, false); err != nil {
		t.Fatal(err)
	}
	l, err := c.located(root.User(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	old := l.Blocks[0]
	c.know(metadata.Block{ID: metadata.BlockID(old.B.GetBlockId())}, 2)
	reads := func(when string, b *hadoop.LocatedBlockProto) {
		t.Helper()
		eventually(t, "the old token is good "+when, func() bool {
			for _, node := range b.Locs {
				if answer, got := speak(t, node, dtp.OpReadBlock, readOp(b, old.BlockToken)); !bytes.Equal(got, data) {
					t.Logf("%s: %v", when, answer)
					return false
				}
			}
			return true
		})
	}
	reads("at first", old)
	leader := c.leader()
	keys, _ := leader.ns.BlockKeys()
	for i, m := range c.nodes {
		if m == leader {
			m.stop()
			c.nodes[i] = nil
		}
	}
	next := c.leader()
	if got, _ := next.ns.BlockKeys(); !slices.Equal(got, keys) {
		t.Error("the next leader has other keys")
	}
	reads("after a failover", old)
	if got, err := root.ReadFile(ctx, "/f"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read after a failover: %d bytes, %v", len(got), err)
	}
	if err := root.WriteFile(ctx, "/g", data, false); err != nil {
		t.Errorf("write after a failover: %v", err)
	}

	for _, stop := range stops {
		stop()
	}
	for _, m := range c.nodes {
		if m != nil {
			m.stop()
		}
	}
	for i := range c.nodes {
		c.start(i)
	}
	for i := range c.nodes {
		c.await(i)
	}
	for i := range 2 {
		c.realDatanode(fmt.Sprintf("dn%d", i))
	}
	if got, _ := c.leader().ns.BlockKeys(); !slices.Equal(got, keys) {
		t.Error("other keys after a restart")
	}
	eventually(t, "the file has its replicas again", func() bool {
		l, err = c.located(root.User(), "/f")
		return err == nil && len(l.Blocks) == 1 && len(l.Blocks[0].Locs) == 2
	})
	reads("after a restart", l.Blocks[0])
}

// Keys roll under readers and writers, and tokens expire under those that hold them long; nobody notices.
func TestKeysRollUnderReadersAndWriters(t *testing.T) {
	t.Parallel()
	// A token has to be good for longer than a busy machine takes between the namenode that gives it and the datanode that looks at it.
	const interval, lifetime = 1500 * time.Millisecond, 15 * time.Second
	c := newCluster(t, 1, func(conf *Config) { conf.BlockKeyInterval, conf.BlockTokenLifetime = interval, lifetime })
	c.realDatanode("dn0")
	c.realDatanode("dn1")
	ctx := t.Context()
	data := []byte(strings.Repeat("roll ", 50000))
	holder := c.root()
	if err := holder.WriteFile(ctx, "/held", data, false); err != nil {
		t.Fatal(err)
	}
	held, err := holder.Open(ctx, "/held") // its locations, and their tokens, are of now
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	old, err := c.located(holder.User(), "/held")
	if err != nil {
		t.Fatal(err)
	}
	slow, err := holder.Create(ctx, "/slow", dfs.CreateOptions{})
	if err == nil {
		_, err = slow.Write([]byte("begun with the first key"))
	}
	if err != nil {
		t.Fatal(err)
	}
	first, _ := c.leader().ns.BlockKeys()
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for i := range 3 {
		fs := c.root()
		workers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond): // what counts is when they work, not how much
				}
				path := fmt.Sprintf("/w%d-%d", i, n%4)
				size := []int{100, 5000, len(data)}[n%3]
				err := fs.WriteFile(ctx, path, data[:size], true)
				var got []byte
				if err == nil {
					got, err = fs.ReadFile(ctx, path)
				}
				if err != nil || !bytes.Equal(got, data[:size]) {
					t.Errorf("%s: %d bytes of %d, %v", path, len(got), size, err)
					return
				}
			}
		})
	}
	eventually(t, "the first keys are gone", func() bool {
		keys, _ := c.leader().ns.BlockKeys()
		return keys[0].ID > first[len(first)-1].ID && keys[0].ID > 2
	})
	close(stop)
	workers.Wait()
	if keys, _ := c.leader().ns.BlockKeys(); len(keys) > int((lifetime+2*interval)/interval)+8 {
		t.Errorf("%d keys are kept", len(keys))
	}
	node := old.Blocks[0].Locs[0]
	if answer, _ := speak(t, node, dtp.OpReadBlock, readOp(old.Blocks[0], old.Blocks[0].BlockToken)); answer.GetStatus() != hadoop.Status_ERROR_ACCESS_TOKEN {
		t.Errorf("a token of a key that is gone: %v", answer)
	}
	got := make([]byte, len(data))
	if _, err := held.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(got, data) {
		t.Errorf("reader that held an expired token: %v", err)
	}
	if all, err := io.ReadAll(held); err != nil || !bytes.Equal(all, data) {
		t.Errorf("reader that held an expired token: %d bytes, %v", len(all), err)
	}
	if _, err = slow.Write([]byte(", ended with another")); err == nil {
		err = slow.Close()
	}
	if err != nil {
		t.Errorf("writer that held an expired token: %v", err)
	}
	if got, err := holder.ReadFile(ctx, "/slow"); err != nil || string(got) != "begun with the first key, ended with another" {
		t.Errorf("%q, %v", got, err)
	}
}

// A namenode that has just heard of a cluster's first keys signs with them, whether or not it has looked at them by itself.
func TestTheFirstKeysSignAtOnce(t *testing.T) {
	m := newCluster(t, 1, nil).leader()
	m.trust.Store(&trust{keys: security.NewBlockKeys(nil), message: &pb.Trust{}})
	if token := m.sign(new(m.caller()), metadata.FirstBlockID, security.ReadBlock); len(token.Password) == 0 {
		t.Errorf("a token without a password: %+v", token)
	}
	m.trust.Store(&trust{keys: security.NewBlockKeys(nil), message: &pb.Trust{}})
	if _, err := m.EncryptionKey(); err != nil {
		t.Error(err)
	}
}

// Nothing that a namenode says or logs shows a seed.
func TestSeedsAreNotShown(t *testing.T) {
	var logged lockedBuffer
	c := newCluster(t, 1, func(conf *Config) {
		conf.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
		conf.BlockKeyInterval = 50 * time.Millisecond
	})
	c.realDatanode("dn")
	m := c.leader()
	eventually(t, "keys are rolled", func() bool { return m.ns.NewestBlockKey() > 4 })
	keys, _ := m.ns.BlockKeys()
	h := m.health()
	shown := logged.String() + fmt.Sprintf("%+v %v %v", h, m.ns.Check(), m.trust.Load().keys)
	for _, k := range keys {
		for _, form := range []string{string(k.Seed), fmt.Sprintf("%x", string(k.Seed)), fmt.Sprintf("%q", string(k.Seed))[1:40]} {
			if strings.Contains(shown, form) {
				t.Fatalf("the seed of key %d is shown", k.ID)
			}
		}
	}
}

// lockedBuffer is a buffer that many write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
