package dfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// coding is a policy that users could have added, with small cells.
func coding(codec string, data, parity uint32) *hadooppb.ErasureCodingPolicyProto {
	return &hadooppb.ErasureCodingPolicyProto{
		Id: new(uint32(64)), Name: new(fmt.Sprintf("%s-%d-%d-2k", codec, data, parity)), CellSize: new(uint32(2048)),
		Schema: &hadooppb.ECSchemaProto{CodecName: &codec, DataUnits: &data, ParityUnits: &parity},
	}
}

const groupBlock = 8 << 10 // four cells

// newGroups is a cluster of n datanodes whose files have a policy, and a client of it that waits for nothing long.
func newGroups(t testing.TB, n int, policy *hadooppb.ErasureCodingPolicyProto) (*cluster, *Client) {
	c, _ := newCluster(t, n)
	c.coding = policy
	client := c.client(Config{BlockSize: groupBlock})
	client.times.retry = time.Millisecond
	return c, client
}

func layoutOf(t testing.TB, p *hadooppb.ErasureCodingPolicyProto) metadata.ErasurePolicy {
	policy, err := erasurePolicyOf(p)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func (c *cluster) addGroup(f *fakeFile, q *hadooppb.AddBlockRequestProto) (hrpc.Message, error) {
	layout := layoutOf(c.t, f.coding).Layout
	nodes := c.choose(layout.Units(), q.ExcludeNodes, nil)
	if len(nodes) < layout.Data {
		return nil, metadata.Errorf(metadata.ErrIO, "File %s could only be written to %d of the %d required nodes", q.GetSrc(), len(nodes), layout.Data)
	}
	b := &fakeBlock{id: uint64(1<<63) + uint64(c.nextBlock)<<4, gs: c.nextGS, nodes: nodes, coding: f.coding}
	c.nextBlock++
	c.nextGS++
	offset := f.length()
	f.blocks = append(f.blocks, b)
	return &hadooppb.AddBlockResponseProto{Block: c.located(b, offset)}, nil
}

// storedGroup reports whether enough internal blocks are finished; those that are not leave the list.
func (c *cluster) storedGroup(b *fakeBlock) bool {
	layout, readable := layoutOf(c.t, b.coding).Layout, 0
	nodes := make([]*fakeNode, layout.Units())
	for i := range layout.Units() {
		length := layout.UnitLength(int64(b.size), i)
		if length == 0 {
			readable++
		}
		if i < len(b.nodes) && b.nodes[i] != nil && length > 0 && b.nodes[i].has(&fakeBlock{id: b.id + uint64(i), gs: b.gs, size: uint64(length)}) {
			nodes[i] = b.nodes[i]
			readable++
		}
	}
	b.nodes = nodes
	return readable >= layout.Data
}

// cells are the internal blocks that a group of HDFS has with these data: the plain way.
func cells(t testing.TB, policy metadata.ErasurePolicy, data []byte) [][]byte {
	coder, err := erasure.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	l := policy.Layout
	units := make([][]byte, l.Units())
	for len(data) > 0 {
		row := make([][]byte, l.Data)
		for i := range row {
			n := min(len(data), int(l.Cell))
			row[i], data = data[:n], data[n:]
			units[i] = append(units[i], row[i]...)
		}
		parity := make([][]byte, l.Parity)
		for i := range parity {
			parity[i] = make([]byte, len(row[0]))
		}
		if err := coder.Encode(row, parity); err != nil {
			t.Fatal(err)
		}
		for i, p := range parity {
			units[l.Data+i] = append(units[l.Data+i], p...)
		}
	}
	return units
}

// checkGroups requires that what datanodes have of a file is what HDFS would.
func (c *cluster) checkGroups(name string, want []byte, lost int) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[name]
	if f.holder != "" {
		c.t.Errorf("%s is still open", name)
	}
	for _, b := range f.blocks {
		if !c.storedGroup(b) {
			c.t.Fatalf("%s: group %d is not stored", name, b.id)
		}
		policy := layoutOf(c.t, b.coding)
		if uint64(len(want)) < b.size {
			c.t.Fatalf("%s is longer than it should be", name)
		}
		missing := 0
		for i, unit := range cells(c.t, policy, want[:b.size]) {
			switch {
			case len(unit) == 0:
			case b.nodes[i] == nil:
				missing++
			default:
				sameBytes(c.t, fmt.Sprintf("%s: internal block %d", name, i), b.nodes[i].bytes(b.id+uint64(i)), unit)
			}
		}
		if missing > lost {
			c.t.Errorf("%s: %d internal blocks are lost, %d may be", name, missing, lost)
		}
		want = want[b.size:]
	}
	if len(want) > 0 {
		c.t.Errorf("%s lacks %d bytes", name, len(want))
	}
}

func put(t testing.TB, c *Client, name string, data []byte) {
	t.Helper()
	w, err := c.Create(t.Context(), name, CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

var codings = []*hadooppb.ErasureCodingPolicyProto{coding("xor", 2, 1), coding("rs", 3, 2), coding("rs", 6, 3)}

func TestGroupsAreLaidOutAsHDFSHasThem(t *testing.T) {
	t.Parallel()
	for _, p := range codings {
		l := layoutOf(t, p).Layout
		c, client := newGroups(t, l.Units(), p)
		client.times.stall = limit // on a machine that is busy, a datanode of the test may be quiet for seconds
		stripe, group := int(l.Stripe()), int(l.Capacity(groupBlock))
		for i, n := range []int{0, 1, 2047, 2048, 2049, stripe - 1, stripe, stripe + 1, stripe + 3000, group - 1, group, group + 1, 2*group + 5000} {
			name, data := fmt.Sprintf("/%s-%d", p.GetName(), i), pattern(n)
			put(t, client, name, data)
			c.checkGroups(name, data, 0)
			got, err := client.ReadFile(t.Context(), name)
			if err != nil {
				t.Fatal(name, err)
			}
			sameBytes(t, name, got, data)
		}
	}
}

func TestEveryLossOfAGroup(t *testing.T) {
	t.Parallel()
	for _, p := range codings[:2] {
		l := layoutOf(t, p).Layout
		c, client := newGroups(t, l.Units(), p)
		data := pattern(int(l.Capacity(groupBlock)) + 2*int(l.Stripe()) + 3000) // and a short stripe
		put(t, client, "/f", data)
		for _, damage := range []string{"nowhere", "damaged", "refused"} {
			for lost := range 1 << l.Units() {
				restore := c.lose(damage, lost)
				got, err := client.ReadFile(t.Context(), "/f")
				// Part of a cell, and parts of two stripes.
				part := make([]byte, 3000)
				r, openErr := client.Open(t.Context(), "/f")
				if openErr != nil {
					t.Fatal(openErr)
				}
				at := int64(lost*777) % int64(len(data)-len(part))
				_, partErr := r.ReadAt(part, at)
				restore()
				if bits.OnesCount(uint(lost)) > l.Parity {
					if err == nil {
						t.Errorf("%s %s %b: read although too few are left", p.GetName(), damage, lost)
					}
					if partErr == nil { // the data blocks that it needs may be left
						sameBytes(t, "a part", part, data[at:at+int64(len(part))])
					}
					continue
				}
				if err != nil || partErr != nil {
					t.Fatalf("%s %s %b: %v, %v", p.GetName(), damage, lost, err, partErr)
				}
				sameBytes(t, fmt.Sprintf("%s %s %b", p.GetName(), damage, lost), got, data)
				sameBytes(t, fmt.Sprintf("%s %s %b at %d", p.GetName(), damage, lost, at), part, data[at:at+int64(len(part))])
			}
		}
	}
}

// lose has internal blocks, by their numbers as bits, not be had. The nodes are numbered as they were chosen.
func (c *cluster) lose(damage string, lost int) (restore func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files["/f"]
	var kept [][]*fakeNode
	for _, b := range f.blocks {
		nodes := append([]*fakeNode(nil), b.nodes...)
		kept = append(kept, b.nodes)
		for i, n := range nodes {
			if lost>>i&1 == 0 || n == nil {
				continue
			}
			switch damage {
			case "nowhere":
				nodes[i] = nil
			case "damaged":
				n.set(func() { n.flip = true })
			case "refused":
				n.set(func() { n.gone = true })
			}
		}
		b.nodes = nodes
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, b := range f.blocks {
			b.nodes = kept[i]
		}
		for _, n := range c.nodes {
			n.set(func() { n.flip, n.gone = false, false })
		}
	}
}

// Datanodes of a group that seem slow when they are asked, as all do on a busy machine, and then fail: what looks at them for being slow and who gives them up
// do not meet.
func TestInternalBlocksThatSeemSlowAreLost(t *testing.T) {
	t.Parallel()
	l := layoutOf(t, codings[1]).Layout
	c, client := newGroups(t, l.Units(), codings[1])
	client.hedging.after = time.Nanosecond
	data := pattern(int(l.Capacity(groupBlock)))
	put(t, client, "/f", data)
	for lost := range 1 << l.Units() {
		restore := c.lose("refused", lost)
		got, err := client.ReadFile(t.Context(), "/f")
		restore()
		if bits.OnesCount(uint(lost)) > l.Parity {
			if err == nil {
				t.Errorf("%b: read although too few are left", lost)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%b: %v", lost, err)
		}
		sameBytes(t, fmt.Sprintf("%b", lost), got, data)
	}
}

func TestReadingOfAGroupAgainstAModel(t *testing.T) {
	t.Parallel()
	p := codings[1]
	l := layoutOf(t, p).Layout
	c, client := newGroups(t, l.Units(), p)
	data := pattern(2*int(l.Capacity(groupBlock)) + 12345)
	put(t, client, "/f", data)
	rapid.Check(t, func(rt *rapid.T) {
		lost := 0
		for range rapid.IntRange(0, l.Parity).Draw(rt, "losses") {
			lost |= 1 << rapid.IntRange(0, l.Units()-1).Draw(rt, "lost")
		}
		defer c.lose(rapid.SampledFrom([]string{"nowhere", "damaged", "refused"}).Draw(rt, "damage"), lost)()
		r, err := client.Open(context.Background(), "/f")
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		model := bytes.NewReader(data)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			n := rapid.SampledFrom([]int{1, 100, 2048, 5000, 20000}).Draw(rt, "n")
			switch rapid.SampledFrom([]string{"read", "seek", "at", "copy"}).Draw(rt, "op") {
			case "read":
				got, want := make([]byte, n), make([]byte, n)
				m, err := r.Read(got)
				k, wantErr := model.Read(want)
				if m != k || !errors.Is(err, wantErr) || !bytes.Equal(got[:m], want[:k]) {
					rt.Fatalf("read of %d: %d, %v; want %d, %v", n, m, err, k, wantErr)
				}
			case "seek":
				to := rapid.Int64Range(0, int64(len(data))).Draw(rt, "to")
				if _, err := r.Seek(to, io.SeekStart); err != nil {
					rt.Fatal(err)
				}
				_, _ = model.Seek(to, io.SeekStart)
			case "at":
				at := rapid.Int64Range(0, int64(len(data))).Draw(rt, "at")
				got, want := make([]byte, n), make([]byte, n)
				m, err := r.ReadAt(got, at)
				k, wantErr := model.ReadAt(want, at)
				if m != k || !errors.Is(err, wantErr) || !bytes.Equal(got[:m], want[:k]) {
					rt.Fatalf("read of %d at %d: %d, %v; want %d, %v", n, at, m, err, k, wantErr)
				}
			case "copy":
				var got, want bytes.Buffer
				_, err := io.Copy(&got, io.LimitReader(r, int64(n)))
				_, _ = io.Copy(&want, io.LimitReader(model, int64(n)))
				if err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
					rt.Fatalf("copy of %d: %d bytes, %v; want %d", n, got.Len(), err, want.Len())
				}
			}
		}
	})
}

func TestDatanodesFailWhileAGroupIsWritten(t *testing.T) {
	t.Parallel()
	p := codings[1]
	l := layoutOf(t, p).Layout
	faults := map[string]func(n *fakeNode){
		"refuses":    func(n *fakeNode) { n.refuse = true },
		"dies":       func(n *fakeNode) { n.dieAfter = 3 },
		"says no":    func(n *fakeNode) { n.badAck = 2 },
		"dies last":  func(n *fakeNode) { n.dieAtEnd = true },
		"is silent":  func(n *fakeNode) { n.mute = true },
		"is stopped": func(n *fakeNode) { n.frozen = make(chan struct{}) },
	}
	for what, fault := range faults {
		for failing := 1; failing <= l.Parity+1; failing++ {
			t.Run(fmt.Sprintf("%d of %d, each %s", failing, l.Units(), what), func(t *testing.T) {
				t.Parallel()
				c, client := newGroups(t, l.Units(), p)
				client.times.stall = limit
				switch what { // on a busy machine a word may take long, so nobody else is given up for being slow
				case "is stopped":
					c.hasten(client)
				case "is silent":
					client.config.DatanodeTimeout = 10 * time.Second
				}
				for i := range failing {
					n := c.nodes[(i*2+1)%len(c.nodes)]
					n.set(func() { fault(n) })
				}
				c.writeWithFaults(client, failing, l)
			})
		}
	}
}

// writeWithFaults writes a file of two groups while datanodes fail, and reads it.
func (c *cluster) writeWithFaults(client *Client, failing int, l stripe.Layout) {
	t := c.t
	data := pattern(int(l.Capacity(groupBlock)) + 2*int(l.Stripe()) + 2500)
	w, err := client.Create(t.Context(), "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = w.Write(data); err == nil {
		err = w.Close()
	}
	if failing > l.Parity {
		if want := fmt.Sprintf("the number of failed blocks = %d > the number of parity blocks = %d", failing, l.Parity); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		w.Abort()
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	c.checkGroups("/f", data, failing)
	for _, n := range c.nodes {
		n.set(func() { n.mute = false })
		n.thaw()
	}
	got, err := client.ReadFile(t.Context(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "/f", got, data)
}

// A datanode that was slow to answer a reader is left out of a new group where there are others. Where there are none the group waits for its word, and for nobody who has said none.
func TestAGroupWaitsForTheWordOfWhoWasOnlySlow(t *testing.T) {
	t.Parallel()
	for _, well := range []bool{true, false} {
		p := codings[1]
		c, client := newGroups(t, layoutOf(t, p).Layout.Units(), p)
		client.times.stall = limit
		asked := make(chan struct{})
		node := c.nodes[1].info()
		client.suspects.suspect(client.transferAddr(node), node, true, func(context.Context) error {
			<-asked
			if well {
				return nil
			}
			return errInjected
		})
		var once sync.Once
		c.before = func(method string, _ *hrpc.Call) error {
			if method == "addBlock" { // without the suspect
				once.Do(func() { close(asked) })
			}
			return nil
		}
		data := pattern(9000)
		put(t, client, "/f", data)
		lost, calls := 0, 2
		if !well {
			lost, calls = 1, 1
		}
		c.checkGroups("/f", data, lost)
		if n := c.count("addBlock"); n != calls {
			t.Errorf("well=%t: the namenode was asked for a group %d times, want %d", well, n, calls)
		}
	}
}

// A group that lacks a datanode which is well again is given back for a whole one. Where there is none by then, since readers have given up others meanwhile, those get another
// chance; and where the namenode does not take it back it is written.
func TestAGroupIsNotGivenUpForAWholeOneThatThereIsNot(t *testing.T) {
	t.Parallel()
	for _, refused := range []bool{false, true} {
		p := codings[1]
		c, client := newGroups(t, layoutOf(t, p).Layout.Units(), p)
		client.times.stall = limit
		asked := make(chan struct{})
		slow := c.nodes[1].info()
		client.suspects.suspect(client.transferAddr(slow), slow, true, func(context.Context) error {
			<-asked
			return nil
		})
		var once sync.Once
		c.before = func(method string, _ *hrpc.Call) error {
			switch {
			case method == "addBlock":
				once.Do(func() { close(asked) })
			case method == "abandonBlock" && refused:
				return metadata.Errorf(metadata.ErrSafeMode, "not now")
			case method == "abandonBlock":
				for _, n := range c.nodes[2:] {
					node := n.info()
					client.suspects.suspect(client.transferAddr(node), node, false, func(context.Context) error { return errInjected })
				}
			}
			return nil
		}
		data := pattern(9000)
		put(t, client, "/f", data)
		lost, calls := 0, 3
		if refused {
			lost, calls = 1, 1
		}
		c.checkGroups("/f", data, lost)
		if n := c.count("addBlock"); n != calls {
			t.Errorf("refused=%t: the namenode was asked for a group %d times, want %d", refused, n, calls)
		}
	}
}

// Where no datanode of a group says a word that is nobody's fault in particular, and all are waited for.
func TestAGroupOfWhichNobodySaysAWordIsWaitedFor(t *testing.T) {
	t.Parallel()
	c, client := newGroups(t, 5, codings[1])
	client.times.stall = 5 * time.Millisecond
	var asked atomic.Int64
	client.mute = func(*hadooppb.DatanodeInfoProto) bool {
		asked.Add(1)
		return true
	}
	for _, n := range c.nodes {
		n.freeze()
	}
	data := pattern(9000)
	go func() {
		for asked.Load() < 20 && t.Context().Err() == nil { // who was silent the first time is given up before it is asked again
			time.Sleep(time.Millisecond)
		}
		for _, n := range c.nodes {
			n.thaw()
		}
	}()
	put(t, client, "/f", data)
	c.checkGroups("/f", data, 0)
}

// A group that lost a datanode is given another generation while those that are left are still asked for a word: what the race detector has to
// say of it.
func TestAGroupIsRenewedWhileDatanodesAreAsked(t *testing.T) {
	t.Parallel()
	p := codings[1]
	c, client := newGroups(t, layoutOf(t, p).Layout.Units(), p)
	client.times.stall = 50 * time.Millisecond
	renewed := make(chan struct{})
	c.before = func(method string, _ *hrpc.Call) error {
		if method == "updatePipeline" {
			close(renewed)
		}
		return nil
	}
	c.nodes[1].refuse = true
	c.nodes[2].freeze()
	time.AfterFunc(200*time.Millisecond, c.nodes[2].thaw) // by the clock: a word from who asks would put what they do in order
	client.mute = func(*hadooppb.DatanodeInfoProto) bool {
		select {
		case <-renewed:
			time.Sleep(10 * time.Millisecond) // for the client to hear of it
		case <-time.After(limit):
			t.Error("the group is not renewed")
		}
		return false
	}
	data := pattern(9000)
	put(t, client, "/f", data)
	c.checkGroups("/f", data, 1)
}

// An internal block that is given up while its datanode ends it is none of those that the namenode is told of: what comes after that is not for it.
func TestAnInternalBlockThatIsGivenUpWhileItEnds(t *testing.T) {
	t.Parallel()
	c, client := newGroups(t, 5, codings[1])
	client.times.stall = limit
	w := create(t, client, "/f")
	defer w.Abort()
	write(t, w, pattern(9000))
	g, n := w.group, c.nodes[0]
	u := g.units[0]
	eventually(t, "all is acknowledged", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return u.drainedLocked()
	})
	connections := func() (count int) {
		n.set(func() { count = n.accepted })
		return count
	}
	before := connections()
	n.freeze()
	generation := g.block.GetGenerationStamp() + 1
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.closeAt(generation)
	}()
	eventually(t, "the datanode is asked to end it", func() bool { return connections() > before })
	func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		n.thaw()
		eventually(t, "the datanode has ended it", func() (final bool) {
			n.set(func() { r := n.replicas[u.block.GetBlockId()]; final = r.final && r.gs == generation })
			return final
		})
		u.err = errInjected
	}()
	within(t, "its end", func() { <-ended })
	g.mu.Lock()
	defer g.mu.Unlock()
	if u.stored {
		t.Error("it counts as stored")
	}
}

func TestGroupWithFewDatanodes(t *testing.T) {
	t.Parallel()
	p := codings[1]
	for n, want := range map[int]string{2: "2 of the 3", 3: "", 4: ""} {
		c, client := newGroups(t, n, p)
		data := pattern(9000)
		w, err := client.Create(t.Context(), "/f", CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.Write(data); err == nil {
			err = w.Close()
		}
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d datanodes: %v", n, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%d datanodes: %v", n, err)
			continue
		}
		c.checkGroups("/f", data, 5-n)
	}
}

func TestWhatAFileWithAPolicyRefuses(t *testing.T) {
	t.Parallel()
	c, client := newGroups(t, 5, codings[1])
	w, err := client.Create(t.Context(), "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.ReadFrom(strings.NewReader(strings.Repeat("x", 5000))); err != nil {
		t.Error(err)
	}
	for what, flush := range map[string]func(context.Context) error{"hflush": w.Hflush, "hsync": w.Hsync} {
		if err := flush(t.Context()); !errors.Is(err, metadata.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r, err := client.Open(t.Context(), "/f")
	if err != nil || r.Size() != 0 { // nothing was promised yet
		t.Errorf("an open file has %d bytes, %v", r.Size(), err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	c.checkGroups("/f", bytes.Repeat([]byte("x"), 5000), 0)
	w, err = client.Create(t.Context(), "/g", CreateOptions{Policy: namenode.ReplicationPolicy})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("replicated")); err != nil {
		t.Error(err)
	}
	if err := errors.Join(w.Hflush(t.Context()), w.Close()); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	c.coding = coding("rs-legacy", 6, 3)
	c.mu.Unlock()
	if _, err := client.Create(t.Context(), "/h", CreateOptions{}); !errors.Is(err, metadata.ErrUnsupported) {
		t.Errorf("a code that is not built: %v", err)
	}
}

func TestAnAbortedGroup(t *testing.T) {
	t.Parallel()
	c, client := newGroups(t, 5, codings[1])
	for _, n := range c.nodes {
		n.freeze()
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := client.Create(ctx, "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := w.Write(pattern(1 << 20)) // more than is held in memory
		written <- err
	}()
	cancel()
	if err := <-written; !errors.Is(err, context.Canceled) {
		t.Errorf("a write whose context ends: %v", err)
	}
	w.Abort()
	if err := w.Close(); err == nil {
		t.Error("an aborted file was closed")
	}
}
