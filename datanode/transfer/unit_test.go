package transfer

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/datanode/rebuild"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// array is a group of which each datanode has one internal block.
type array struct {
	metadata.Block
	policy metadata.ErasurePolicy
	coder  *erasure.Coder
	data   []byte
	units  [][]byte
	nodes  []*node
	sum    dtp.Checksum
}

// newArray makes a group; a cell of 0 is the policy's.
func newArray(t testing.TB, policy string, cell int64, length int) *array {
	t.Helper()
	return newArrayOf(t, policy, cell, length, dtp.DefaultChecksum)
}

func newArrayOf(t testing.TB, policy string, cell int64, length int, sum dtp.Checksum) *array {
	t.Helper()
	a := &array{sum: sum, Block: metadata.Block{ID: metadata.FirstGroupID, Generation: 1001, Length: int64(length)}, data: pattern(length)}
	a.policy, _ = metadata.ErasurePolicyNamed(policy)
	if cell > 0 {
		a.policy.Layout.Cell = cell
	}
	l := a.policy.Layout
	var err error
	a.coder, err = erasure.New(a.policy)
	check(t, err)
	a.units = make([][]byte, l.Units())
	for p := range l.Pieces(0, a.Length) {
		a.units[p.Unit] = append(a.units[p.Unit], a.data[p.Offset:p.Offset+p.Length]...)
	}
	for i := l.Data; i < l.Units(); i++ {
		a.units[i] = make([]byte, l.UnitLength(a.Length, i))
	}
	check(t, a.coder.Encode(a.units[:l.Data], a.units[l.Data:]))
	a.nodes = start(t, l.Units())
	for i := range a.units {
		a.put(t, i)
	}
	return a
}

func (a *array) unit(i int) metadata.Block {
	return metadata.Block{ID: a.ID.Internal(i), Generation: a.Generation, Length: int64(len(a.units[i]))}
}

func (a *array) put(t testing.TB, i int) {
	t.Helper()
	w, err := a.nodes[i].store.Create(a.unit(i), datanode.CreateOptions{Checksum: kept(a.sum)})
	check(t, err)
	check(t, w.Write(0, a.units[i], nil))
	_, err = w.Finalize()
	check(t, err)
}

// job computes an internal block of others that a datanode reads.
func (a *array) job(by *node, sources []int, target int) (*rebuild.Job, *bytes.Buffer) {
	out := new(bytes.Buffer)
	return &rebuild.Job{
		Group: a.Block, Coder: a.coder, Sources: sources,
		Open: func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error) {
			return by.srv.Fetch(ctx, pool, a.unit(unit), a.nodes[unit].info, off, n)
		},
		Targets: []rebuild.Target{{Unit: target, Length: -1, Writer: out}},
	}, out
}

// Bits of data, parity and checksums that flip anywhere on the disks make no wrong byte: another source is used, or there is an error.
func TestFlippedBitsMakeNoWrongInternalBlock(t *testing.T) {
	rounds := 340
	if testing.Short() {
		rounds = 40
	}
	t.Run("in files", func(t *testing.T) { flipAndCompute(t, 20_000, rounds) })
	t.Run("in packs", func(t *testing.T) { flipAndCompute(t, 3000, rounds) })
}

func flipAndCompute(t *testing.T, cell int64, rounds int) {
	a := newArray(t, "RS-3-2-1024k", cell, int(4*3*cell+cell+999))
	random := rand.New(rand.NewPCG(3, 4))
	files := make([][]string, len(a.nodes))
	for i, d := range a.nodes {
		check(t, filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && !slices.Contains([]string{"VERSION", "in_use.lock"}, e.Name()) {
				files[i] = append(files[i], path)
			}
			return err
		}))
		if len(files[i]) == 0 {
			t.Fatalf("internal block %d is nowhere", i)
		}
	}
	spoiled, refused := 0, 0
	for range rounds {
		order := random.Perm(5)
		target, sources := order[0], order[1:]
		bad := sources[:1+random.IntN(2)]
		undo := make([]func(), len(bad))
		for i, unit := range bad {
			undo[i] = flipSome(t, files[unit][random.IntN(len(files[unit]))], random)
		}
		j, out := a.job(a.nodes[target], sources, target)
		failed, err := j.Run(t.Context())
		switch err = errors.Join(append(failed, err)...); {
		case err == nil && !bytes.Equal(out.Bytes(), a.units[target]):
			t.Fatalf("internal block %d made wrong of %v with %v flipped", target, sources, bad)
		case err != nil && len(bad) == 1:
			t.Fatalf("internal block %d of %v with %d flipped: %v", target, sources, bad[0], err)
		case err != nil:
			refused++
		}
		if !bytes.HasPrefix(a.units[target], out.Bytes()) {
			t.Fatalf("internal block %d: what was written before the error is wrong", target)
		}
		for _, f := range undo {
			f()
		}
		spoiled += len(bad)
	}
	t.Logf("%d flips, %d refused", spoiled, refused)
	accused := 0
	for _, d := range a.nodes {
		d.mu.Lock()
		accused += len(d.accused)
		d.mu.Unlock()
	}
	if refused == 0 || accused == 0 {
		t.Errorf("%d of %d were refused, %d told to the datanodes that have them", refused, rounds, accused)
	}
}

// flipSome flips a bit of a file, and gives back what undoes it.
func flipSome(t *testing.T, path string, random *rand.Rand) (undo func()) {
	t.Helper()
	text, err := os.ReadFile(path)
	check(t, err)
	// In place: the store keeps files open.
	write := func(at int) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		check(t, err)
		_, err = f.WriteAt(text[at:at+1], int64(at))
		check(t, err)
		check(t, f.Close())
	}
	at, bit := random.IntN(len(text)), byte(1)<<random.IntN(8)
	text[at] ^= bit
	write(at)
	return func() { text[at] ^= bit; write(at) }
}

// A source that dies in the middle is replaced by another, and what was made of the others goes to another datanode as well.
func TestInternalBlocksGoToOtherDatanodes(t *testing.T) {
	a := newArray(t, "RS-3-2-1024k", 0, 5<<20)
	j, out := a.job(a.nodes[4], []int{1, 2, 3, 0}, 4)
	open := j.Open
	j.Open = func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error) {
		r, err := open(ctx, unit, off, n)
		if unit == 1 && err == nil {
			return &cutting{r, 300_000, a.nodes[1].kill}, nil
		}
		return r, err
	}
	extra := startOne(t)
	b := a.unit(4)
	w, err := a.nodes[4].srv.Place(t.Context(), pool, b, extra.info, hadooppb.StorageTypeProto_DISK, datanode.DefaultChecksum, false)
	check(t, err)
	defer w.Close()
	j.Targets[0].Writer = io.MultiWriter(out, w)
	failed, err := j.Run(t.Context())
	check(t, errors.Join(append(failed, err)...))
	check(t, w.Finish())
	if !bytes.Equal(out.Bytes(), a.units[4]) {
		t.Error("made wrong")
	}
	extra.wantContent(b, a.units[4])

	if !w.Made() {
		t.Error("it is not said that it was made")
	}

	// What is there already is not made again, another one in its place is refused, and what is given up leaves nothing.
	again := func(b metadata.Block, data []byte) (made bool, err error) {
		w, err := a.nodes[4].srv.Place(t.Context(), pool, b, extra.info, hadooppb.StorageTypeProto_DISK, datanode.DefaultChecksum, false)
		check(t, err)
		defer w.Close()
		if _, err = w.Write(data); err == nil {
			err = w.Finish()
		}
		return w.Made(), err
	}
	for _, part := range []int{len(a.units[4]), 0} {
		made, err := again(b, a.units[4][:part]) // which is as far as it gets before it hears
		check(t, err)
		if made {
			t.Error("it is stored twice")
		}
		extra.wantContent(b, a.units[4])
	}
	other := b
	other.Length--
	if _, err = again(other, a.units[4][:other.Length]); err == nil {
		t.Error("a replica of another length takes its place")
	}
	extra.wantContent(b, a.units[4])
	given := a.unit(3)
	w, err = a.nodes[4].srv.Place(t.Context(), pool, given, extra.info, hadooppb.StorageTypeProto_DISK, datanode.DefaultChecksum, false)
	check(t, err)
	_, err = w.Write(a.units[3][:1<<20])
	check(t, err)
	check(t, w.Close())
	extra.await("the rest is gone", func() bool {
		_, there := extra.store.Replica(given.ID)
		return !there
	})
}

// cutting kills its datanode after some bytes.
type cutting struct {
	io.ReadCloser
	left int
	kill func()
}

func (c *cutting) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.kill()
	}
	n, err := c.ReadCloser.Read(p)
	c.left -= n
	return n, err
}

// groupChecksum asks a datanode for the checksum of a group of which some internal blocks are named.
func (a *array) groupChecksum(t *testing.T, by *node, n int, units []int, kind hadooppb.BlockChecksumTypeProto) (*hadooppb.OpBlockChecksumResponseProto, error) {
	t.Helper()
	m := &hadooppb.OpBlockGroupChecksumProto{
		Header: header(a.Block, "").BaseHeader, Datanodes: &hadooppb.DatanodeInfosProto{}, RequestedNumBytes: new(uint64(n)),
		EcPolicy: &hadooppb.ErasureCodingPolicyProto{Id: new(uint32(a.policy.ID))}, BlockChecksumOptions: &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: kind.Enum()},
	}
	for _, i := range units {
		m.Datanodes.Datanodes = append(m.Datanodes.Datanodes, a.nodes[i].info)
		m.BlockIndices = append(m.BlockIndices, uint32(i))
		m.BlockTokens = append(m.BlockTokens, tokenFor(grant(a.unit(i).ID, anyMode)))
	}
	c := dial(t, by)
	check(t, dtp.WriteOp(c, dtp.OpGroupChecksum, m))
	answer, err := dtp.ReadResponse(c.r)
	check(t, err)
	return answer.GetChecksumResponse(), dtp.CheckResponse(dtp.OpGroupChecksum, answer)
}

// model is the same by the definition.
func (a *array) model(n int, kind hadooppb.BlockChecksumTypeProto) []byte {
	if kind == hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC {
		return binary.BigEndian.AppendUint32(nil, a.sum.Update(0, a.data[:n]))
	}
	var all []byte
	for i := range a.policy.Layout.Data {
		if length := a.policy.Layout.UnitLength(int64(n), i); length > 0 {
			one := md5.Sum(a.sum.Append(nil, a.units[i][:length]))
			all = append(all, one[:]...)
		}
	}
	for len(all) < 32 || len(all)&(len(all)-1) != 0 {
		all = append(all, 0)
	}
	sum := md5.Sum(all)
	return sum[:]
}

// The checksum of a group is HDFS's, whoever is asked, whichever internal blocks are left, and of every length.
func TestGroupChecksums(t *testing.T) {
	a := newArray(t, "RS-3-2-1024k", 0, 4<<20+1234)
	extra := startOne(t)
	for _, kind := range []hadooppb.BlockChecksumTypeProto{hadooppb.BlockChecksumTypeProto_MD5CRC, hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC} {
		for _, n := range []int{1, 1000, 1 << 20, 1<<20 + 700, 3 << 20, 4 << 20, 4<<20 + 1234} {
			for _, units := range [][]int{{0, 1, 2, 3, 4}, {4, 2, 0, 1}, {2, 3, 4}, {0, 3, 4}} {
				by := a.nodes[units[0]]
				if n%2 == 0 {
					by = extra
				}
				m, err := a.groupChecksum(t, by, n, units, kind)
				check(t, err)
				if want := a.model(n, kind); !bytes.Equal(m.GetBlockChecksum(), want) {
					t.Errorf("%v of %d bytes, with %v: %x, want %x", kind, n, units, m.GetBlockChecksum(), want)
				}
				if m.GetBytesPerCrc() != 512 || m.GetCrcPerBlock() != uint64(len(a.units[0])+511)/512 || m.GetCrcType() != hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C || m.GetBlockChecksumOptions().GetBlockChecksumType() != kind {
					t.Errorf("answer %v", m)
				}
			}
		}
	}
	a.nodes[1].kill()
	check(t, a.nodes[0].store.Delete(a.unit(0)))
	m, err := a.groupChecksum(t, extra, len(a.data), []int{0, 1, 2, 3, 4}, hadooppb.BlockChecksumTypeProto_MD5CRC)
	check(t, err)
	if !bytes.Equal(m.GetBlockChecksum(), a.model(len(a.data), hadooppb.BlockChecksumTypeProto_MD5CRC)) {
		t.Error("with one datanode down and one internal block gone")
	}
	check(t, a.nodes[4].store.Delete(a.unit(4)))
	if _, err = a.groupChecksum(t, extra, len(a.data), []int{0, 1, 2, 3, 4}, hadooppb.BlockChecksumTypeProto_MD5CRC); err == nil || !strings.Contains(err.Error(), "too few") {
		t.Errorf("of two: %v", err)
	}
}

// What `hadoop fs -checksum` of Hadoop 3.4.3 says of files of one group, on datanodes of its own. A file's checksum is made of those of its blocks.
func TestGroupChecksumsAreHadoops(t *testing.T) {
	for length, want := range map[int][2]string{
		700:          {"881e5b87bfc7b53ab2fcfb8f661e233b", "8d7be5a8"},
		1<<20 + 5:    {"9ef513096920411e9864702ff9152dfe", "39557a98"},
		4<<20 + 1234: {"f785befa9a0e8b3941a38ff2620875b8", "b30dedf5"},
	} {
		a := newArray(t, "RS-3-2-1024k", 0, length)
		for _, units := range [][]int{{0, 1, 2, 3, 4}, {1, 2, 3, 4}} {
			m, err := a.groupChecksum(t, a.nodes[3], length, units, hadooppb.BlockChecksumTypeProto_MD5CRC)
			check(t, err)
			if file := md5.Sum(append(m.GetBlockChecksum(), make([]byte, 16)...)); hex.EncodeToString(file[:]) != want[0] {
				t.Errorf("%d bytes, of %v: %x, want %s", length, units, file, want[0])
			}
			m, err = a.groupChecksum(t, a.nodes[3], length, units, hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC)
			check(t, err)
			if got := hex.EncodeToString(m.GetBlockChecksum()); got != want[1] {
				t.Errorf("%d bytes, of %v: %s, want %s", length, units, got, want[1])
			}
		}
	}
}

func TestGroupChecksumsThatCannotBe(t *testing.T) {
	a := newArray(t, "XOR-2-1-1024k", 0, 1<<20)
	for name, change := range map[string]func(m *hadooppb.OpBlockGroupChecksumProto){
		"no policy":             func(m *hadooppb.OpBlockGroupChecksumProto) { m.EcPolicy.Id = new(uint32(77)) },
		"a policy without code": func(m *hadooppb.OpBlockGroupChecksumProto) { m.EcPolicy.Id = new(uint32(3)) },
		"beyond the end":        func(m *hadooppb.OpBlockGroupChecksumProto) { m.RequestedNumBytes = new(uint64(1<<20 + 1)) },
		"negative":              func(m *hadooppb.OpBlockGroupChecksumProto) { m.RequestedNumBytes = new(uint64(1 << 63)) },
		"one too few":           func(m *hadooppb.OpBlockGroupChecksumProto) { m.BlockIndices = m.BlockIndices[:1] },
		"one twice":             func(m *hadooppb.OpBlockGroupChecksumProto) { m.BlockIndices[1] = 0 },
		"one that is none":      func(m *hadooppb.OpBlockGroupChecksumProto) { m.BlockIndices[1] = 3 },
		"a stranger": func(m *hadooppb.OpBlockGroupChecksumProto) {
			m.Datanodes.Datanodes[1] = &hadooppb.DatanodeInfoProto{Id: &hadooppb.DatanodeIDProto{
				IpAddr: new("127.0.0.1"), HostName: new("x"), DatanodeUuid: new("x"), XferPort: new(uint32(22)), InfoPort: new(uint32(0)), IpcPort: new(uint32(0)),
			}}
		},
		"a replicated block": func(m *hadooppb.OpBlockGroupChecksumProto) { m.Header = header(block(7, 1, 5), "").BaseHeader },
		"an internal block":  func(m *hadooppb.OpBlockGroupChecksumProto) { m.Header = header(a.unit(1), "").BaseHeader },
		"another kind": func(m *hadooppb.OpBlockGroupChecksumProto) {
			m.BlockChecksumOptions.BlockChecksumType = hadooppb.BlockChecksumTypeProto(7).Enum()
		},
	} {
		m := &hadooppb.OpBlockGroupChecksumProto{
			Header: header(a.Block, "").BaseHeader, RequestedNumBytes: new(uint64(1000)), EcPolicy: &hadooppb.ErasureCodingPolicyProto{Id: new(uint32(4))},
			Datanodes: &hadooppb.DatanodeInfosProto{Datanodes: []*hadooppb.DatanodeInfoProto{a.nodes[0].info, a.nodes[1].info}}, BlockIndices: []uint32{0, 1},
			BlockChecksumOptions: &hadooppb.BlockChecksumOptionsProto{},
		}
		change(m)
		c := dial(t, a.nodes[0])
		check(t, dtp.WriteOp(c, dtp.OpGroupChecksum, m))
		answer, err := dtp.ReadResponse(c.r)
		if name == "another kind" && err != nil { // the decoder may refuse it
			continue
		}
		check(t, err)
		if dtp.CheckResponse(dtp.OpGroupChecksum, answer) == nil {
			t.Errorf("%s: %v", name, answer)
		}
	}
	if !slices.Equal(a.nodes[0].accused, nil) {
		t.Error("somebody was accused")
	}
}
