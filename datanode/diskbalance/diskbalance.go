// Package diskbalance evens out the volumes of a datanode: it carries out the plans of hdfs diskbalancer, one at a time, in the background. A plan is
// forgotten when the datanode ends; what was moved until then stays where it is, and nothing is half there.
package diskbalance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/diskplan"
	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
)

// Store is what is needed of a block store.
type Store interface {
	Volumes() []datanode.VolumeStatus
	Each(volume string, fn func(datanode.Replica) bool)
	// Silent reports whether the disk of a volume does not answer, Lost whether the volume was given up, or is not there any more.
	Silent(volume string) bool
	Lost(volume string) bool
	// MoveTo puts a finalized replica on another volume while everybody goes on with it.
	MoveTo(ctx context.Context, b metadata.Block, volume string, pace func(n int64) error) error
}

// Config configures a Balancer.
type Config struct {
	Store Store
	// Datanode is the uuid that plans have to be for.
	Datanode string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// What a plan does not say: HDFS's dfs.disk.balancer.max.disk.throughputInMBperSec, .max.disk.errors, .block.tolerance.percent and .plan.valid.interval.
const (
	// Bandwidth is in MiB a second.
	Bandwidth = 10
	errorsMax = 5
	tolerance = 10
	valid     = 24 * time.Hour
)

// Error is a refusal, Hadoop's DiskBalancerException.
type Error struct{ message string }

func (e *Error) Error() string { return e.message }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// UnknownKey refuses a setting that there is none of.
func UnknownKey(key string) error {
	return refuse("Disk Balancer - Unknown key in getDiskBalancerSetting: %s", key)
}

// Balancer carries out plans. Its methods do not block, except Run.
type Balancer struct {
	cfg Config
	// submitted has capacity 1.
	submitted chan *plan

	mu   sync.Mutex
	plan *plan // the last one, nil before the first
}

// plan is one that was accepted. What changes is guarded by Balancer.mu.
type plan struct {
	id, file string
	ctx      context.Context //nolint:containedctx // it ends with the plan
	cancel   context.CancelFunc
	works    []*work
	result   diskplan.Result
	done     bool // nobody works on it any more
}

// work is all that goes from one volume to another.
type work struct {
	from, to string // storage uuids
	diskplan.Work
	pace pace.Budget
	over bool // nothing that is found out about it counts any more
}

// New makes a balancer.
func New(cfg Config) *Balancer {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Balancer{cfg: cfg, submitted: make(chan *plan, 1)}
}

// Run works until ctx is done.
func (b *Balancer) Run(ctx context.Context) {
	for {
		select {
		case p := <-b.submitted:
			stop := context.AfterFunc(ctx, p.cancel)
			b.execute(p)
			stop()
			p.cancel()
		case <-ctx.Done():
			return
		}
	}
}

// Submit accepts a plan and begins with it. version is that of the plan's format, id the SHA-1 of its text; old: it may be of any age.
func (b *Balancer) Submit(id string, version uint64, file string, text []byte, old bool) error {
	p, err := b.check(id, version, text, old)
	if err != nil {
		return err
	}
	works, err := b.works(p)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan != nil && !b.plan.done {
		return refuse("Executing another plan")
	}
	now := &plan{id: strings.ToLower(id), file: file, works: works, result: diskplan.UnderProgress}
	now.ctx, now.cancel = context.WithCancel(context.Background()) //nolint:gosec // Run cancels it
	b.plan = now
	b.submitted <- now // the one before was taken out
	return nil
}

// check says what is wrong with a plan, in Hadoop's words where it has some.
func (b *Balancer) check(id string, version uint64, text []byte, old bool) (*diskplan.Plan, error) {
	if version != diskplan.Version {
		return nil, refuse("Invalid plan version.")
	}
	if len(text) == 0 {
		return nil, refuse("Invalid plan.")
	}
	if len(text) <= diskplan.MaxBytes && !strings.EqualFold(id, diskplan.ID(text)) {
		return nil, refuse("Invalid or mis-matched hash.")
	}
	p, err := diskplan.Parse(text)
	switch {
	case err != nil:
		return nil, refuse("Parsing plan failed.: %v", err)
	case !old && time.UnixMilli(p.Time).Add(valid).Before(b.cfg.Now()):
		return nil, refuse("Plan was generated more than 1d ago")
	case p.NodeUUID != b.cfg.Datanode:
		return nil, refuse("Plan was generated for another node.")
	}
	return p, nil
}

// works are the moves of a plan, those between the same two volumes put together.
func (b *Balancer) works(p *diskplan.Plan) ([]*work, error) {
	there := map[string]datanode.VolumeStatus{}
	for _, v := range b.cfg.Store.Volumes() {
		there[v.ID] = v
	}
	var out []*work
	found := map[[2]string]*work{}
	for _, s := range p.Steps {
		from, to := there[s.Source.UUID], there[s.Destination.UUID]
		for _, v := range []struct {
			found datanode.VolumeStatus
			want  diskplan.Volume
		}{{from, s.Source}, {to, s.Destination}} {
			if v.found.ID == "" || v.found.Failed != nil {
				return nil, refuse("Disk Balancer - Unable to find volume: %s. SubmitPlan failed.", v.want.Path)
			}
		}
		switch {
		case from.ID == to.ID:
			return nil, refuse("Disk Balancer - Source and destination volumes are same: %s", from.ID)
		case from.Type != to.Type:
			return nil, refuse("Disk Balancer - %s is of type %v, %s of type %v: storage policies say what lies where", from.Path, from.Type, to.Path, to.Type)
		}
		w := found[[2]string{from.ID, to.ID}]
		if w == nil {
			w = &work{from: from.ID, to: to.ID, Work: diskplan.Work{Source: from.Path, Destination: to.Path}, pace: pace.Budget{Burst: pace.Burst}}
			found[[2]string{from.ID, to.ID}] = w
			out = append(out, w)
		}
		w.Item.Bytes += s.Bytes
		w.Item.Bandwidth, w.Item.Tolerance, w.Item.MaxErrors = s.Bandwidth, s.Tolerance, s.MaxErrors
	}
	return out, nil
}

// Cancel ends the plan that has an id, if it is not over.
func (b *Balancer) Cancel(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan == nil || id == "" || !strings.EqualFold(b.plan.id, id) {
		return refuse("No such plan.")
	}
	if b.plan.result == diskplan.UnderProgress {
		b.plan.result = diskplan.Cancelled
		b.plan.cancel()
	}
	return nil
}

// Status is how far the last plan is.
func (b *Balancer) Status() diskplan.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan == nil {
		return diskplan.Status{}
	}
	s := diskplan.Status{Result: b.plan.result, ID: b.plan.id, File: b.plan.file}
	for _, w := range b.plan.works {
		s.Work = append(s.Work, w.Work)
	}
	return s
}

// execute carries out a plan, one work after the other. One of which a disk does not answer is no longer waited for by the next ones; it goes on when the disk answers, and ends
// when its volume is given up, or the plan ends.
func (b *Balancer) execute(p *plan) {
	b.cfg.Logger.Info("the volumes are being balanced", "plan", p.id, "file", p.file)
	var late []*carrying
	for _, w := range p.works {
		if p.ctx.Err() != nil {
			break
		}
		if c := b.begin(p.ctx, w); !b.await(c, true) {
			b.cfg.Logger.Warn("a disk does not answer: what else is planned goes on", "plan", p.id, "from", w.Source, "to", w.Destination)
			late = append(late, c)
		}
	}
	for _, c := range late {
		b.await(c, false)
	}
	b.mu.Lock()
	if p.result == diskplan.UnderProgress {
		p.result = diskplan.Done
		if p.ctx.Err() != nil {
			p.result = diskplan.Cancelled
		}
	}
	p.done = true
	result := p.result
	b.mu.Unlock()
	b.cfg.Logger.Info("the balancing of the volumes has ended", "plan", p.id, "result", result.String())
}

// carrying is a work that somebody is at, who may wait for a disk.
type carrying struct {
	*work
	ctx  context.Context //nolint:containedctx // it ends with the plan
	done chan struct{}
}

func (b *Balancer) begin(ctx context.Context, w *work) *carrying {
	c := &carrying{w, ctx, make(chan struct{})}
	go func() {
		defer close(c.done)
		b.carry(ctx, w)
	}()
	return c
}

// look is how often it is looked whether disks answer.
const look = 100 * time.Millisecond

// await waits until a work has ended. One whose volume is given up ends, and one whose disk does not answer when the plan ends; whoever waits for the disk is left behind. impatient: false is returned when a
// disk does not answer.
func (b *Balancer) await(c *carrying, impatient bool) bool {
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		select {
		case <-c.done:
			return true
		case <-t.C:
		}
		for _, v := range [][2]string{{c.from, c.Source}, {c.to, c.Destination}} {
			switch {
			case b.cfg.Store.Lost(v[0]):
				b.abandon(c, fmt.Sprintf("Volume %s was given up.", v[1]))
				return true
			case !b.cfg.Store.Silent(v[0]):
			case c.ctx.Err() != nil:
				b.abandon(c, fmt.Sprintf("The disk of volume %s does not answer.", v[1]))
				return true
			case impatient:
				return false
			}
		}
	}
}

// abandon ends a work, unless it has just ended itself.
func (b *Balancer) abandon(c *carrying, why string) {
	select {
	case <-c.done:
		return
	default:
	}
	b.item(c.work, func(i *diskplan.Item) { i.Message = why })
	b.mu.Lock()
	c.over = true
	b.mu.Unlock()
	b.cfg.Logger.Warn("replicas stay where they are", "from", c.Source, "to", c.Destination, "err", why)
}

// item is what is known of a work now; change changes that.
func (b *Balancer) item(w *work, change func(i *diskplan.Item)) diskplan.Item {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.over {
		return w.Item
	}
	if change != nil {
		change(&w.Item)
	}
	if w.Item.Started > 0 {
		w.Item.Seconds = (b.cfg.Now().UnixMilli() - w.Item.Started) / 1000
	}
	return w.Item
}

// or is n, or what is taken where a plan says nothing.
func or(n, otherwise int64) int64 {
	if n > 0 {
		return n
	}
	return otherwise
}

// carry moves replicas from one volume to another until enough are there, there is none that fits, or too much goes wrong.
func (b *Balancer) carry(ctx context.Context, w *work) {
	b.item(w, func(i *diskplan.Item) { i.Started = max(1, b.cfg.Now().UnixMilli()) })
	say := func(message string) {
		b.item(w, func(i *diskplan.Item) { i.Message = message })
		b.cfg.Logger.Warn("replicas stay where they are", "from", w.Source, "to", w.Destination, "err", message)
	}
	for {
		now := b.item(w, nil)
		batch := b.fitting(w, now)
		moved := false
		for _, block := range batch {
			if b.ended(w) {
				return
			}
			if now = b.item(w, nil); enough(now) || !fits(block.Length, now) {
				continue
			}
			err := b.cfg.Store.MoveTo(ctx, block, w.to, func(n int64) error {
				return w.pace.Take(ctx, n, or(now.Bandwidth, Bandwidth)<<20)
			})
			switch {
			case err == nil:
				moved = true
				b.item(w, func(i *diskplan.Item) { i.BytesCopied, i.Blocks = i.BytesCopied+block.Length, i.Blocks+1 })
			case ctx.Err() != nil:
				return
			case errors.Is(err, metadata.ErrRetriable), errors.Is(err, metadata.ErrReplicaNotFound), errors.Is(err, metadata.ErrInvalidArgument):
				// It has changed, or is gone.
			default:
				b.cfg.Logger.Warn("replica not moved", "block", block.String(), "from", w.Source, "to", w.Destination, "err", err)
				if i := b.item(w, func(i *diskplan.Item) { i.Errors++ }); i.Errors > or(i.MaxErrors, errorsMax) {
					say("Error count exceeded.: " + err.Error())
					return
				}
			}
		}
		switch {
		case ctx.Err() != nil || b.ended(w) || enough(b.item(w, nil)):
			return
		case len(batch) == 0 || !moved:
			say("No more replicas that fit.")
			return
		}
	}
}

// ended reports whether a work was abandoned, or has to be because a volume of it was given up.
func (b *Balancer) ended(w *work) bool {
	for _, v := range [][2]string{{w.from, w.Source}, {w.to, w.Destination}} {
		if b.cfg.Store.Lost(v[0]) {
			b.item(w, func(i *diskplan.Item) { i.Message = fmt.Sprintf("Volume %s was given up.", v[1]) })
			return true
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return w.over
}

// fits: a replica of that size may go without too much being moved.
func fits(length int64, i diskplan.Item) bool {
	left := float64(i.Bytes - i.BytesCopied)
	return length > 0 && float64(length) <= left+left*float64(or(i.Tolerance, tolerance))/100
}

// enough has been moved.
func enough(i diskplan.Item) bool {
	return float64(i.BytesCopied)+float64(i.BytesCopied)*float64(or(i.Tolerance, tolerance))/100 >= float64(i.Bytes)
}

// batchMost is how many replicas are listed at once.
const batchMost = 4096

// fitting lists replicas that may go, about as much as is left to be moved.
func (b *Balancer) fitting(w *work, now diskplan.Item) []metadata.Block {
	var out []metadata.Block
	b.cfg.Store.Each(w.from, func(r datanode.Replica) bool {
		if r.State == datanode.Finalized && fits(r.Block.Length, now) {
			out = append(out, r.Block)
			now.BytesCopied += r.Block.Length
		}
		return len(out) < batchMost && !enough(now)
	})
	return out
}
