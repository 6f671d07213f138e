package diskbalance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/diskplan"
	"github.com/gohops/hops/metadata"
)

// volumes is a store of two disks and an SSD.
type volumes struct {
	mu   sync.Mutex
	on   map[metadata.BlockID]string
	size map[metadata.BlockID]int64
	fail error
	// silent are volumes whose disks do not answer, until freed is closed; lost those that were given up.
	silent, lost map[string]bool
	freed        chan struct{}
}

func (s *volumes) Silent(v string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[v] || s.lost[v]
}

func (s *volumes) Lost(v string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost[v]
}

// set says how a disk is.
func (s *volumes) set(of *map[string]bool, v string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *of == nil {
		*of = map[string]bool{}
	}
	(*of)[v] = is
}

func (s *volumes) Volumes() []datanode.VolumeStatus {
	return []datanode.VolumeStatus{
		{ID: "DS-1", Path: "/1", Type: datanode.Disk},
		{ID: "DS-2", Path: "/2", Type: datanode.Disk},
		{ID: "DS-3", Path: "/3", Type: datanode.SSD},
		{ID: "DS-4", Path: "/4", Type: datanode.Disk, Failed: errors.New("broken")},
		{ID: "DS-5", Path: "/5", Type: datanode.Disk},
	}
}

func (s *volumes) Each(volume string, fn func(datanode.Replica) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, v := range s.on {
		if v == volume && !fn(datanode.Replica{Block: metadata.Block{ID: id, Length: s.size[id]}, State: datanode.Finalized, Volume: v}) {
			return
		}
	}
}

func (s *volumes) MoveTo(ctx context.Context, b metadata.Block, volume string, pace func(int64) error) error {
	if err := errors.Join(pace(b.Length), ctx.Err()); err != nil {
		return err
	}
	s.mu.Lock()
	wait := s.freed != nil && (s.silent[volume] || s.silent[s.on[b.ID]])
	s.mu.Unlock()
	if wait {
		<-s.freed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		s.on[b.ID] = volume
	}
	return s.fail
}

func filled(blocks int, size int64) *volumes {
	s := &volumes{on: map[metadata.BlockID]string{}, size: map[metadata.BlockID]int64{}}
	for i := range blocks {
		s.on[metadata.BlockID(i)], s.size[metadata.BlockID(i)] = "DS-1", size
	}
	return s
}

func planOf(from, to string, bytes, bandwidth int64) []byte {
	text, err := json.Marshal(diskplan.Plan{NodeUUID: "me", Time: time.Now().UnixMilli(), Steps: []diskplan.Step{{
		Source: diskplan.Volume{UUID: from, Path: "/from"}, Destination: diskplan.Volume{UUID: to, Path: "/to"}, Bytes: bytes, Bandwidth: bandwidth,
	}}})
	if err != nil {
		panic(err)
	}
	return text
}

func TestPlansAreCarriedOutAtTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := filled(10_000, 1<<20)
		b := New(Config{Store: s, Datanode: "me"})
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { b.Run(ctx) })
		if st := b.Status(); st.Result != diskplan.NoPlan {
			t.Fatalf("%+v", st)
		}
		text := planOf("DS-1", "DS-2", 6000<<20, 100)
		if err := b.Submit(diskplan.ID(text), 1, "/plan", text, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		st := b.Status()
		if got := st.Work[0].Item; st.Result != diskplan.UnderProgress || got.BytesCopied < 2990<<20 || got.BytesCopied > 3020<<20 || st.ID != diskplan.ID(text) || st.File != "/plan" {
			t.Fatalf("after half of the time: %+v", st)
		}
		if err := b.Submit(diskplan.ID(text), 1, "/plan", text, false); err == nil || err.Error() != "Executing another plan" {
			t.Errorf("another one: %v", err)
		}
		time.Sleep(time.Minute)
		st = b.Status()
		if got := st.Work[0].Item; st.Result != diskplan.Done || got.BytesCopied < 5400<<20 || got.BytesCopied > 6600<<20 || got.Blocks != got.BytesCopied>>20 || got.Errors != 0 || got.Message != "" {
			t.Fatalf("%+v", st)
		}
		// Another one, which is cancelled.
		text = planOf("DS-2", "DS-1", 1000<<20, 0)
		if err := b.Submit(diskplan.ID(text), 1, "/plan", text, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := b.Cancel("0123"); err == nil || err.Error() != "No such plan." {
			t.Error(err)
		}
		if err := b.Cancel(diskplan.ID(text)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		st = b.Status()
		if got := st.Work[0].Item.BytesCopied; st.Result != diskplan.Cancelled || got < 99<<20 || got > 103<<20 {
			t.Fatalf("%+v", st)
		}
		// And one under way when the datanode ends.
		if err := b.Submit(diskplan.ID(text), 1, "/plan", text, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		end()
		running.Wait()
	})
}

func TestPlansThatCannotBeCarriedOut(t *testing.T) {
	for name, c := range map[string]struct {
		fail   error
		blocks int
		size   int64
		errors int64
		want   string
	}{
		"errors":        {metadata.Errorf(metadata.ErrIO, "broken"), 100, 1 << 10, errorsMax + 1, "Error count exceeded.: broken"},
		"changed":       {metadata.Errorf(metadata.ErrRetriable, "busy"), 100, 1 << 10, 0, "No more replicas that fit."},
		"nothing there": {nil, 0, 0, 0, "No more replicas that fit."},
		"too large":     {nil, 5, 1 << 30, 0, "No more replicas that fit."},
		"too few":       {nil, 5, 1 << 10, 0, "No more replicas that fit."},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := filled(c.blocks, c.size)
			s.fail = c.fail
			b := New(Config{Store: s, Datanode: "me"})
			ctx, end := context.WithCancel(t.Context())
			defer end()
			go b.Run(ctx)
			text := planOf("DS-1", "DS-2", 1<<20, 0)
			if err := b.Submit(diskplan.ID(text), 1, "", text, false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			st := b.Status()
			if got := st.Work[0].Item; st.Result != diskplan.Done || got.Message != c.want || got.Errors != c.errors {
				t.Errorf("%s: %+v", name, st)
			}
		})
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	b := New(Config{Store: filled(1, 1), Datanode: "me"})
	good := planOf("DS-1", "DS-2", 1, 0)
	other := fmt.Appendf(nil, `{"nodeUUID":"other","timeStamp":%d}`, time.Now().UnixMilli())
	for want, c := range map[string]struct {
		id      string
		version uint64
		text    []byte
	}{
		"Invalid plan version.":                {"", 2, good},
		"Invalid plan.":                        {"", 1, nil},
		"Invalid or mis-matched hash.":         {"0123", 1, good},
		"Plan was generated for another node.": {"", 1, other},
		"Plan was generated more than 1d ago":  {"", 1, []byte(`{"nodeUUID":"me","timeStamp":1}`)},
		"Parsing plan failed.: not a plan: invalid character 'x' looking for beginning of value":   {"", 1, []byte("x")},
		"Disk Balancer - Unable to find volume: /from. SubmitPlan failed.":                         {"", 1, planOf("DS-9", "DS-2", 1, 0)},
		"Disk Balancer - Unable to find volume: /to. SubmitPlan failed.":                           {"", 1, planOf("DS-1", "DS-4", 1, 0)},
		"Disk Balancer - Source and destination volumes are same: DS-1":                            {"", 1, planOf("DS-1", "DS-1", 1, 0)},
		"Disk Balancer - /1 is of type DISK, /3 of type SSD: storage policies say what lies where": {"", 1, planOf("DS-1", "DS-3", 1, 0)},
	} {
		id := c.id
		if id == "" {
			id = diskplan.ID(c.text)
		}
		err := b.Submit(id, c.version, "", c.text, false)
		if _, refused := errors.AsType[*Error](err); !refused || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := b.Submit(diskplan.ID([]byte(`{"nodeUUID":"me","timeStamp":1}`)), 1, "", []byte(`{"nodeUUID":"me","timeStamp":1}`), true); err != nil {
		t.Errorf("an old one whose age does not matter: %v", err)
	}
}

// A disk that does not answer holds up its own work alone. It goes on when the disk answers; it ends, and says why, when the volume is given up, and with the plan.
func TestADiskThatDoesNotAnswerHoldsUpNoOtherWork(t *testing.T) {
	for _, end := range []string{"it answers", "it is given up", "the plan is cancelled", "the datanode ends"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := filled(100, 1<<20)
				for i := range 50 {
					s.on[metadata.BlockID(i)] = "DS-2"
				}
				s.freed = make(chan struct{})
				free := sync.OnceFunc(func() { close(s.freed) })
				b := New(Config{Store: s, Datanode: "me"})
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { b.Run(ctx) })
				defer func() { stop(); free(); running.Wait(); synctest.Wait() }()
				var plan diskplan.Plan
				for _, from := range []string{"DS-1", "DS-2"} {
					plan.Steps = append(plan.Steps, diskplan.Step{
						Source: diskplan.Volume{UUID: from, Path: "/from"}, Destination: diskplan.Volume{UUID: "DS-5", Path: "/5"}, Bytes: 10 << 20, Bandwidth: 1000,
					})
				}
				plan.NodeUUID, plan.Time = "me", time.Now().UnixMilli()
				text, err := json.Marshal(plan)
				if err != nil {
					t.Fatal(err)
				}
				s.set(&s.silent, "DS-1", true)
				if err := b.Submit(diskplan.ID(text), diskplan.Version, "f", text, false); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				if w := b.Status().Work; w[0].Item.Blocks != 0 || w[1].Item.Blocks < 9 {
					t.Errorf("%+v", w)
				}
				want, result := "", diskplan.Done
				switch end {
				case "it answers":
					s.set(&s.silent, "DS-1", false)
					free()
				case "it is given up":
					s.set(&s.lost, "DS-1", true)
					want = "Volume /1 was given up."
				case "the plan is cancelled":
					if err := b.Cancel(diskplan.ID(text)); err != nil {
						t.Fatal(err)
					}
					want, result = "The disk of volume /1 does not answer.", diskplan.Cancelled
				case "the datanode ends":
					stop()
					running.Wait() // it does not wait for the disk
					want, result = "The disk of volume /1 does not answer.", diskplan.Cancelled
				}
				time.Sleep(5 * time.Second)
				now := b.Status()
				if now.Result != result || now.Work[0].Item.Message != want || now.Work[0].Item.Blocks > 0 != (want == "") {
					t.Errorf("%+v, want %q", now, want)
				}
				if ctx.Err() != nil {
					return
				}
				if err := b.Submit(diskplan.ID(text), diskplan.Version, "f", text, false); err != nil && end != "it is given up" {
					t.Error("the next plan:", err)
				}
				if want != "" && end != "it is given up" {
					free() // who was left behind ends, and changes nothing
					time.Sleep(time.Second)
				}
			})
		})
	}
}
