package rebuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/metadata"
)

// group is a group of random bytes with all its internal blocks, with a cell that is small enough to try much.
type group struct {
	metadata.Block
	coder *erasure.Coder
	units [][]byte
}

func newGroup(t testing.TB, policy string, cell, length int64) *group {
	t.Helper()
	p, _ := metadata.ErasurePolicyNamed(policy)
	p.Layout.Cell = cell
	coder, err := erasure.New(p)
	if err != nil {
		t.Fatal(err)
	}
	g := &group{metadata.Block{ID: metadata.FirstGroupID, Generation: 1, Length: length}, coder, make([][]byte, p.Layout.Units())}
	data := make([]byte, length)
	_, _ = rand.NewChaCha8([32]byte{byte(length)}).Read(data)
	for piece := range p.Layout.Pieces(0, length) {
		g.units[piece.Unit] = append(g.units[piece.Unit], data[piece.Offset:piece.Offset+piece.Length]...)
	}
	for i := p.Layout.Data; i < p.Layout.Units(); i++ {
		g.units[i] = make([]byte, p.Layout.UnitLength(length, i))
	}
	if err := coder.Encode(g.units[:p.Layout.Data], g.units[p.Layout.Data:]); err != nil {
		t.Fatal(err)
	}
	return g
}

// job computes some internal blocks of others into buffers.
func (g *group) job(sources, targets []int) (*Job, []*bytes.Buffer) {
	j := &Job{Group: g.Block, Coder: g.coder, Sources: sources, Open: g.open}
	var out []*bytes.Buffer
	for _, unit := range targets {
		b := new(bytes.Buffer)
		out = append(out, b)
		j.Targets = append(j.Targets, Target{Unit: unit, Length: -1, Writer: b})
	}
	return j, out
}

func (g *group) open(_ context.Context, unit int, off, n int64) (io.ReadCloser, error) {
	if n <= 0 || off+n > int64(len(g.units[unit])) {
		return nil, fmt.Errorf("%d bytes at %d of internal block %d, which has %d", n, off, unit, len(g.units[unit]))
	}
	return io.NopCloser(bytes.NewReader(g.units[unit][off : off+n])), nil
}

func (g *group) compare(t *testing.T, targets []int, out []*bytes.Buffer) {
	t.Helper()
	for i, unit := range targets {
		if !bytes.Equal(out[i].Bytes(), g.units[unit]) {
			t.Fatalf("group of %d bytes: internal block %d of %d bytes was made wrong, or %d bytes of it", g.Length, unit, len(g.units[unit]), out[i].Len())
		}
	}
}

// Every loss that a policy survives is mended, in groups of every shape: shorter than a cell, with short last stripes, of several slices.
func TestEveryLossIsMended(t *testing.T) {
	t.Parallel()
	const cell = 1000
	for _, policy := range []string{"RS-6-3-1024k", "RS-3-2-1024k", "RS-10-4-1024k", "XOR-2-1-1024k"} {
		p, _ := metadata.ErasurePolicyNamed(policy)
		stripe := int64(p.Layout.Data) * cell
		for _, length := range []int64{1, cell - 1, cell, cell + 1, stripe - 1, stripe, 2*stripe + 3*cell/2} {
			g := newGroup(t, policy, cell, length)
			for lost := uint32(1); lost < 1<<p.Layout.Units(); lost++ {
				if bits.OnesCount32(lost) > p.Layout.Parity {
					continue
				}
				var sources, targets []int
				for i := range p.Layout.Units() {
					if lost>>i&1 == 0 {
						sources = append(sources, i)
					} else {
						targets = append(targets, i)
					}
				}
				if lost%2 == 1 { // parity in front
					slices.Reverse(sources)
				}
				j, out := g.job(sources, targets)
				failed, err := j.Run(t.Context())
				if err = errors.Join(append(failed, err)...); err != nil {
					t.Fatalf("%s, %d bytes, without %v: %v", policy, length, targets, err)
				}
				g.compare(t, targets, out)
			}
		}
	}
}

func TestBlocksLongerThanASlice(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "RS-6-3-1024k", 1<<20, 6<<20+1<<20+77777)
	targets := []int{0, 1, 8}
	j, out := g.job([]int{2, 3, 4, 5, 6, 7}, targets)
	if failed, err := j.Run(t.Context()); errors.Join(append(failed, err)...) != nil {
		t.Fatal(failed, err)
	}
	g.compare(t, targets, out)

	j, out = g.job([]int{0, 2, 3, 4, 5, 6}, []int{1}) // the beginning of one
	j.Targets[0].Length = 700_001
	if _, err := j.Run(t.Context()); err != nil || !bytes.Equal(out[0].Bytes(), g.units[1][:700_001]) {
		t.Errorf("%d bytes of 700,001: %v", out[0].Len(), err)
	}
}

// faulty reads up to a point, and fails or hangs then.
type faulty struct {
	io.Reader
	left int
	hang context.Context //nolint:containedctx // of the stream
}

var errFaulty = errors.New("this source is faulty")

func (f *faulty) Read(p []byte) (int, error) {
	if f.left == 0 {
		if f.hang != nil {
			<-f.hang.Done()
		}
		return 0, errFaulty
	}
	n, err := f.Reader.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}

func (f *faulty) Close() error { return nil }

// Sources that fail or hang anywhere are replaced, as long as there are others; else the error says what each of them said.
func TestSourcesAreReplaced(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "RS-6-3-1024k", 300_000, 6*300_000+299_999)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		order := random.Perm(9)
		targets := order[:1+random.IntN(2)]
		sources := order[len(targets):]
		spares := len(sources) - 6
		bad := map[int]int{}
		for _, unit := range sources[:1+random.IntN(spares+1)] {
			bad[unit] = random.IntN(len(g.units[unit]) + 1)
		}
		var mu sync.Mutex
		told := map[int]bool{}
		j, out := g.job(sources, targets)
		j.Slow = 10 * time.Millisecond
		j.Failed = func(unit int, _ error) { told[unit] = true }
		j.Open = func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error) {
			r, err := g.open(ctx, unit, off, n)
			at, faults := bad[unit]
			if err != nil || !faults {
				return r, err
			}
			mu.Lock()
			defer mu.Unlock()
			f := &faulty{Reader: r, left: max(0, at-int(off))}
			if len(bad) <= spares && round%2 == 0 {
				f.hang = ctx
			}
			return f, nil
		}
		failed, err := j.Run(t.Context())
		if len(bad) > spares {
			if err == nil { // some fail behind what is read of them
				g.compare(t, targets, out)
			} else if !errors.Is(err, erasure.ErrTooFew) || !errors.Is(err, errFaulty) {
				t.Fatalf("too few sources: %v", err)
			}
			continue
		}
		if err = errors.Join(append(failed, err)...); err != nil {
			t.Fatalf("round %d: %v of %v, with %v faulty: %v", round, targets, sources, bad, err)
		}
		g.compare(t, targets, out)
	}
}

// Who takes the place of a source that is slow has as much time as any.
func TestOnlyWhoIsSlowIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, "RS-6-3-1024k", 1000, 6000)
		j, out := g.job([]int{1, 2, 3, 4, 5, 6, 7, 8}, []int{0})
		var told []int
		j.Failed = func(unit int, _ error) { told = append(told, unit) }
		j.Open = func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error) {
			if unit == 2 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return g.open(ctx, unit, off, n)
		}
		if failed, err := j.Run(t.Context()); errors.Join(append(failed, err)...) != nil {
			t.Fatal(failed, err)
		}
		g.compare(t, []int{0}, out)
		if !slices.Equal(told, []int{2}) {
			t.Errorf("internal blocks %v were not used any more", told)
		}
	})
}

// A source that is slow is waited for when there is no other.
func TestTheLastSourcesAreWaitedFor(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "XOR-2-1-1024k", 1<<20, 2<<20)
	j, out := g.job([]int{0, 2}, []int{1})
	j.Slow = time.Millisecond
	j.Open = func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		return g.open(ctx, unit, off, n)
	}
	if failed, err := j.Run(t.Context()); errors.Join(append(failed, err)...) != nil {
		t.Fatal(failed, err)
	}
	g.compare(t, []int{1}, out)
}

type full struct{ room int }

var errFull = errors.New("full")

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// A target that takes no more does not hold up the others; without any the work ends.
func TestTargetsThatAreFull(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "RS-3-2-1024k", 1<<20, 5<<20)
	j, out := g.job([]int{1, 3, 2}, []int{0, 4})
	j.Targets[0].Writer = &full{400_000}
	failed, err := j.Run(t.Context())
	if err != nil || !errors.Is(failed[0], errFull) || failed[1] != nil {
		t.Fatal(failed, err)
	}
	g.compare(t, []int{4}, out[1:])
	j, _ = g.job([]int{1, 3, 2}, []int{0})
	j.Targets[0].Writer = &full{}
	if failed, err = j.Run(t.Context()); err != nil || !errors.Is(failed[0], errFull) {
		t.Fatal(failed, err)
	}
}

func TestJobsThatCannotBe(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "RS-3-2-1024k", 1000, 9000)
	for name, change := range map[string]func(*Job){
		"no group":          func(j *Job) { j.Group.ID = 5 },
		"an internal block": func(j *Job) { j.Group.ID++ },
		"negative length":   func(j *Job) { j.Group.Length = -1 },
		"target beyond":     func(j *Job) { j.Targets[0].Unit = 5 },
		"target twice":      func(j *Job) { j.Targets = append(j.Targets, j.Targets[0]) },
		"target too long":   func(j *Job) { j.Targets[0].Length = 3001 },
		"source beyond":     func(j *Job) { j.Sources = append(j.Sources, -1) },
	} {
		j, _ := g.job([]int{0, 1, 2}, []int{3})
		change(j)
		if _, err := j.Run(t.Context()); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	j, _ := g.job([]int{0, 1, 1, 3}, []int{3}) // one twice, and the target
	if _, err := j.Run(t.Context()); !errors.Is(err, erasure.ErrTooFew) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j, _ = g.job([]int{0, 1, 2}, []int{3})
	j.Pace = func(ctx context.Context, _ int64) error { return ctx.Err() }
	if _, err := j.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
