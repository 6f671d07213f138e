package dfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// become has a file stored as another one is that has the same bytes, as `hops ec convert` does.
func (c *cluster) become(name, copied string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, made := c.files[name], c.files[copied]
	f.blocks, f.coding = made.blocks, made.coding
	delete(c.files, copied)
}

// form is how a file may be stored.
type form struct {
	policy *hadooppb.ErasureCodingPolicyProto // nil: replicated
	block  int64                              // size of its blocks, in bytes
}

// forms are those that a file may be converted from and to: policies of several layouts, groups that end elsewhere, and replicated.
func forms() map[string]form {
	narrow, wide, least := coding("rs", 3, 2), coding("rs", 6, 3), coding("xor", 2, 1)
	wide.Id, least.Id = new(uint32(65)), new(uint32(66))
	return map[string]form{
		"RS-3-2": {narrow, groupBlock}, "RS-3-2 in small groups": {narrow, groupBlock / 2}, "RS-6-3": {wide, groupBlock}, "XOR-2-1": {least, groupBlock}, "replicated": {nil, groupBlock},
	}
}

// putAs stores a file in a form.
func (c *cluster) putAs(client *Client, name string, f form, data []byte) {
	c.t.Helper()
	c.mu.Lock()
	c.coding = f.policy
	c.mu.Unlock()
	w, err := client.Create(c.t.Context(), name, CreateOptions{BlockSize: f.block})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// A file gets another form while it is read, and the datanodes refuse the tokens of its former blocks, which they look at before they look for a replica: the reader goes on where it
// is, with the same bytes, and blames nobody.
func TestAFileIsConvertedAndItsTokensAreRefused(t *testing.T) {
	t.Parallel()
	all := forms()
	for from, before := range all {
		for to, after := range all {
			for _, lost := range []bool{false, true} {
				if from == to || lost && before.policy == nil {
					continue
				}
				for _, way := range []string{"Read", "ReadAt", "WriteTo", "Seek"} {
					t.Run(fmt.Sprintf("%s becomes %s, lost %t, %s", from, to, lost, way), func(t *testing.T) {
						t.Parallel()
						c, client := newGroups(t, 9, nil)
						patient(client)
						client.times.stall = limit
						c.expire()
						data := pattern(2*6*groupBlock + 5000)
						c.putAs(client, "/f", before, data)
						c.putAs(client, "/made", after, data)
						c.mu.Lock()
						if lost { // the stripes are read as a whole
							for _, b := range c.files["/f"].blocks {
								b.nodes = append([]*fakeNode(nil), b.nodes...)
								b.nodes[1] = nil
							}
						}
						c.mu.Unlock()
						r, err := client.Open(t.Context(), "/f")
						if err != nil {
							t.Fatal(err)
						}
						defer r.Close()
						at := int64(36 << 10) // the beginning of a stripe, elsewhere in the block of each form
						if way != "ReadAt" {
							if _, err := r.Seek(at, io.SeekStart); err != nil {
								t.Fatal(err)
							}
							part := make([]byte, 2048) // a cell
							if _, err := io.ReadFull(r, part); err != nil {
								t.Fatal(err)
							}
							sameBytes(t, "before", part, data[at:at+2048])
							at += 2048
						}
						c.become("/f", "/made")
						c.expire()
						var got []byte
						switch way {
						case "Read":
							got, err = io.ReadAll(r)
						case "ReadAt":
							got = make([]byte, int64(len(data))-at)
							_, err = r.ReadAt(got, at)
						case "WriteTo":
							var b bytes.Buffer
							_, err = r.WriteTo(&b)
							got = b.Bytes()
						case "Seek":
							at += 3000
							if _, err = r.Seek(at, io.SeekStart); err == nil {
								got, err = io.ReadAll(r)
							}
						}
						if err != nil {
							t.Fatal(err)
						}
						sameBytes(t, "after", got, data[at:])
						if len(r.bad) > 0 {
							t.Errorf("blamed are %v", r.bad)
						}
					})
				}
			}
		}
	}
}

// Where several internal blocks are read at once, all of them with a token that has expired, it is renewed once, and no datanode is blamed for it.
func TestExpiredTokensOfAStripeAreNobodysFault(t *testing.T) {
	t.Parallel()
	c, client := newGroups(t, 9, coding("rs", 6, 3))
	patient(client)
	client.times.stall = limit
	c.expire()
	data := pattern(6 * groupBlock)
	put(t, client, "/f", data)
	c.mu.Lock()
	c.files["/f"].blocks[0].nodes[2] = nil
	c.mu.Unlock()
	r, err := client.Open(t.Context(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	asked := c.count("getBlockLocations")
	c.expire()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "/f", got, data)
	if n := c.count("getBlockLocations") - asked; n != 1 || len(r.bad) > 0 {
		t.Errorf("the namenode was asked %d times, and blamed are %v", n, r.bad)
	}
}

// An internal block is at another datanode, or at another one as well, which is named first, when tokens are asked for anew while it is being read: what comes of it goes on to be of who it comes from, who is blamed for what is wrong in it, or it
// comes from who has it now.
func TestWhoIsReadFromIsBlamedAfterTokensAreRenewed(t *testing.T) {
	t.Parallel()
	for _, moved := range []bool{false, true} {
		c, client := newGroups(t, 6, coding("rs", 3, 2))
		patient(client)
		client.times.stall = limit
		c.expire()
		data := pattern(3 * 512 << 10)
		c.putAs(client, "/f", form{c.coding, 1 << 20}, data)
		former, another := c.nodes[0], c.nodes[5]
		c.mu.Lock()
		b := c.files["/f"].blocks[0]
		if b.nodes[0] != former {
			t.Fatal("the first internal block is elsewhere")
		}
		c.mu.Unlock()
		former.set(func() { former.flip, former.flipFrom = true, 256<<10 })
		r, err := client.Open(t.Context(), "/f")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		first := make([]byte, 2048)
		if _, err := io.ReadFull(r, first); err != nil {
			t.Fatal(err)
		}
		former.mu.Lock()
		replica := *former.replicas[b.id]
		former.mu.Unlock()
		another.set(func() { another.replicas[b.id] = &replica })
		c.mu.Lock()
		if moved {
			b.nodes[0] = another
		} else {
			b.beside = map[int]*fakeNode{0: another}
		}
		c.mu.Unlock()
		c.expire() // the second internal block has not been asked for
		rest, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, fmt.Sprintf("moved %t", moved), append(first, rest...), data)
		var want []string
		if !moved {
			want = []string{former.uuid}
		}
		c.mu.Lock()
		if !slices.Equal(c.bad, want) {
			t.Errorf("moved %t: bad are said to be the replicas of %v, not of %v", moved, c.bad, want)
		}
		c.mu.Unlock()
	}
}

// Of another file under the name of the one that was opened a reader reads nothing: neither where it knew a block, nor where it knew none yet, nor when it is asked again after it has said so.
func TestNothingIsReadOfAnotherFileUnderTheName(t *testing.T) {
	t.Parallel()
	all := forms()
	for from, before := range all {
		for to, after := range all {
			for _, elsewhere := range []bool{false, true} { // the inodes are not known
				t.Run(fmt.Sprintf("%s, then %s, without inodes %t", from, to, elsewhere), func(t *testing.T) {
					t.Parallel()
					c, client := newGroups(t, 9, nil)
					client.times.stall = limit
					const n = 3 * 6 * groupBlock
					c.putAs(client, "/f", before, pattern(n))
					r, err := client.Open(t.Context(), "/f")
					if err != nil {
						t.Fatal(err)
					}
					defer r.Close()
					for _, node := range c.nodes { // as those that had it have removed it
						node.set(func() { clear(node.replicas) })
					}
					c.putAs(client, "/other", after, bytes.Repeat([]byte("other"), n/5+1))
					c.mu.Lock()
					c.files["/f"] = c.files["/other"]
					delete(c.files, "/other")
					c.mu.Unlock()
					if elsewhere {
						r.inode = 0
					}
					places := []int64{0, 0, 5 * groupBlock}
					if !elsewhere || before.policy != after.policy { // else nothing shows that it is another one
						r.blocks = r.blocks[:len(r.blocks)/2] // the others did not come with the first answer
						places = append(places, n-100, n-100)
					}
					for _, at := range places {
						p := make([]byte, 100)
						if m, err := r.ReadAt(p, at); !errors.Is(err, metadata.ErrIO) || m > 0 {
							t.Errorf("%d bytes are read at %d: %v", m, at, err)
						}
					}
				})
			}
		}
	}
}

// A file that is truncated and grows again has other blocks behind the cut, with other bytes: nothing is read of those, neither at first nor when it is tried again. One that was
// replicated anew has other blocks, too, and the same bytes.
func TestNothingIsReadBehindACut(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{true, false} {
		c, client := newGroups(t, 3, nil)
		client.times.stall = limit
		data := pattern(3 * groupBlock)
		put(t, client, "/f", data)
		r, err := client.Open(t.Context(), "/f")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		other := data
		if cut {
			other = append(data[:groupBlock:groupBlock], bytes.Repeat([]byte("other"), groupBlock)...)
		}
		put(t, client, "/made", other)
		c.mu.Lock()
		f, made := c.files["/f"], c.files["/made"]
		gone := f.blocks
		if cut {
			f.blocks, gone = append(f.blocks[:1:1], made.blocks[1:]...), f.blocks[1:]
			f.mtime++
		} else {
			f.blocks = made.blocks
		}
		for _, b := range gone {
			for _, n := range b.nodes {
				n.set(func() { delete(n.replicas, b.id) })
			}
		}
		c.mu.Unlock()
		for _, at := range []int64{0, groupBlock + 100, groupBlock + 100, 3*groupBlock - 100} {
			p := make([]byte, 100)
			switch n, err := r.ReadAt(p, at); {
			case !cut || at == 0:
				if err != nil {
					t.Errorf("cut %t: at %d: %v", cut, at, err)
				}
				sameBytes(t, fmt.Sprintf("at %d", at), p, data[at:at+100])
			case !errors.Is(err, metadata.ErrIO) || n > 0:
				t.Errorf("%d bytes are read at %d, behind the cut: %v", n, at, err)
			}
		}
	}
}

// A file that was truncated, has grown again and then got another form has other bytes in the place of those that were opened, and its time shows it: nothing is read of them. One that was being written when it was opened gets another time
// when it is closed, without other bytes, and one that only got another form keeps its time: both are read on.
func TestNothingIsReadOfAFormThatCameAfterACut(t *testing.T) {
	t.Parallel()
	all := forms()
	for from, before := range all {
		for to, after := range all {
			if before.policy == after.policy || before.policy != nil && after.policy != nil {
				continue
			}
			for _, then := range []string{"is cut", "is closed", "stays"} {
				t.Run(fmt.Sprintf("%s %s, then %s", from, then, to), func(t *testing.T) {
					t.Parallel()
					c, client := newGroups(t, 9, nil)
					client.times.stall, client.times.retry = limit, time.Millisecond
					data := pattern(3 * 6 * groupBlock)
					other := data
					if then == "is cut" {
						other = bytes.Repeat([]byte("other"), len(data)/5+1)
					}
					c.putAs(client, "/f", before, data)
					c.mu.Lock()
					if then == "is closed" {
						c.files["/f"].holder = "somebody"
					}
					c.mu.Unlock()
					r, err := client.Open(t.Context(), "/f")
					if err != nil {
						t.Fatal(err)
					}
					defer r.Close()
					length := int(r.Size())
					r.blocks = r.blocks[:len(r.blocks)/2] // the others did not come with the first answer
					for _, node := range c.nodes {
						node.set(func() { clear(node.replicas) })
					}
					c.putAs(client, "/made", after, other)
					c.become("/f", "/made")
					c.mu.Lock()
					c.files["/f"].holder = ""
					if then != "stays" {
						c.files["/f"].mtime++
					}
					c.mu.Unlock()
					for _, at := range []int{0, 0, length - 100, length - 100} {
						p := make([]byte, 100)
						switch n, err := r.ReadAt(p, int64(at)); {
						case then != "is cut":
							if err != nil {
								t.Errorf("at %d: %v", at, err)
							}
							sameBytes(t, fmt.Sprintf("at %d", at), p, data[at:at+100])
						case !errors.Is(err, metadata.ErrIO) || n > 0:
							t.Errorf("%d bytes are read at %d, of another form with other bytes: %v", n, at, err)
						}
					}
				})
			}
		}
	}
}

// A file that is appended to may have only blocks that are complete, and gets another time when it is closed all the same: who has opened it meanwhile finds the same bytes in another form.
func TestAFileOpenedBetweenBlocksHasNoTime(t *testing.T) {
	t.Parallel()
	_, client := newCluster(t, 0)
	list := &hadooppb.LocatedBlocksProto{
		FileLength: new(uint64(100)), UnderConstruction: new(true), IsLastBlockComplete: new(true), FileId: new(uint64(7)), ModificationTime: new(uint64(1)),
		LastBlock: &hadooppb.LocatedBlockProto{Offset: new(uint64(0)), B: &hadooppb.ExtendedBlockProto{BlockId: new(uint64(1)), NumBytes: new(uint64(100))}},
	}
	r, err := client.newReader(t.Context(), "/f", list)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.learn(list)
	list.UnderConstruction, list.ModificationTime, list.EcPolicy = new(false), new(uint64(2)), coding("rs", 3, 2)
	if !r.exchangedLocked(list, nil, nil) {
		t.Error("its bytes are taken for others")
	}
}

// A file that is coded anew by the policy that it has may have its groups end elsewhere. Of those that a reader has known no byte is known twice.
func TestBlocksThatAreLearntDoNotOverlap(t *testing.T) {
	t.Parallel()
	r := &Reader{length: 1000, bad: map[replica]bool{}}
	id := uint64(0)
	learn := func(bounds ...uint64) {
		list := &hadooppb.LocatedBlocksProto{IsLastBlockComplete: new(true)}
		for i, from := range bounds[:len(bounds)-1] {
			id++
			list.Blocks = append(list.Blocks, &hadooppb.LocatedBlockProto{Offset: &from, B: &hadooppb.ExtendedBlockProto{BlockId: new(id), NumBytes: new(bounds[i+1] - from)}})
		}
		r.learn(list)
		end := int64(0)
		for _, b := range r.blocks {
			if b.offset < end {
				t.Errorf("after %v: block %d begins at %d, and the one before ends at %d", bounds, b.block.GetBlockId(), b.offset, end)
			}
			end = b.end()
		}
		for pos := bounds[0]; pos < bounds[len(bounds)-1]; pos++ {
			if b := r.known(int64(pos)); b == nil || b.block.GetBlockId() <= id-uint64(len(bounds)-1) {
				t.Fatalf("after %v: %v is known at %d", bounds, b, pos)
			}
		}
	}
	learn(0, 100, 200, 300)
	learn(10, 20)
	learn(50, 150)
	learn(100, 400, 500)
	learn(0, 1000)
	learn(999, 1000)
	learn(0, 10, 20, 30)
}

// A reader that nobody gives a block of any more asks for the blocks anew: it finds those that took the place of the former ones, whichever form these had, and goes on.
func TestAFileIsConvertedAndItsBlocksAreGone(t *testing.T) {
	t.Parallel()
	all := forms()
	for from, before := range all {
		for to, after := range all {
			t.Run(from+" becomes "+to, func(t *testing.T) {
				t.Parallel()
				c, client := newGroups(t, 9, nil)
				client.times.stall, client.times.retry = limit, time.Millisecond
				data := pattern(2*6*groupBlock + 5000)
				c.putAs(client, "/f", before, data)
				r, err := client.Open(t.Context(), "/f")
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				part := make([]byte, 3*groupBlock+2048)
				if _, err := io.ReadFull(r, part); err != nil {
					t.Fatal(err)
				}
				for _, node := range c.nodes {
					node.set(func() { clear(node.replicas) })
				}
				c.putAs(client, "/made", after, data)
				c.become("/f", "/made")
				got, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				sameBytes(t, "/f", append(part, got...), data)
			})
		}
	}
}
