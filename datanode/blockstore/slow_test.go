package blockstore

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// hang has calls of a kind on files whose names begin in some way wait until they are let go, which the end of the test does as well. stuck tells of each.
func hang(t *testing.T, disk *faulty.FS, call, under string) (stuck <-chan struct{}, free func()) {
	calls, freed := make(chan struct{}, 1000), make(chan struct{})
	disk.Set(func(op faulty.Op) error {
		if op.Call == call && strings.HasPrefix(op.Name, under) {
			calls <- struct{}{}
			<-freed
		}
		return nil
	})
	free = sync.OnceFunc(func() {
		disk.Set(nil)
		close(freed)
	})
	t.Cleanup(free)
	return calls, free
}

func (h *harness) ticks(n int) {
	for range n {
		h.watch(30 * time.Second)
	}
}

// over reports whether a function that is under way has come back.
func over(done <-chan error) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// A disk that does not answer for a while is left alone, by new replicas and by those who ask for it, and is as any other when it answers.
func TestASlowDiskIsLeftAlone(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/a", "/b")
	on := func(id int64) *volume { return h.get(metadata.BlockID(id)).vol }
	create := func(id int64) datanode.Writer {
		return must[datanode.Writer](t)(h.Create(block(id, 7, 0), datanode.CreateOptions{}))
	}
	w := create(1)
	slow := on(1)
	h.put(2, 7, pattern(100))
	if on(2) == slow {
		t.Fatal("volumes are not taken in turn")
	}
	stuck, free := hang(t, disk, "write", slow.path)
	written := make(chan error, 1)
	go func() { written <- w.Write(0, pattern(100_000), nil) }()
	<-stuck
	asked := make(chan bool, 1)
	go func() { asked <- h.Answers(t.Context(), 1) }()
	if !h.Answers(t.Context(), 2) || !h.Answers(t.Context(), 99) {
		t.Error("another disk, or none, does not answer")
	}
	h.ticks(slowTicks - 1)
	if h.Volumes()[0].Slow || h.Volumes()[1].Slow {
		t.Error("a volume is slow already")
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if h.Answers(short, 1) {
		t.Error("it is known that the disk answers")
	}
	select {
	case <-asked:
		t.Error("it is known already whether the disk answers")
	default:
	}
	h.ticks(1)
	if <-asked || h.Answers(t.Context(), 1) {
		t.Error("the disk answers")
	}
	for id := int64(10); id < 14; id++ {
		if create(id); on(id) == slow {
			t.Errorf("block %d is on the slow disk", id)
		}
	}
	on(2).slow.Store(true) // both are
	create(14)
	on(2).slow.Store(false)
	free()
	check(t, <-written)
	h.ticks(1)
	if h.Volumes()[0].Slow || h.Volumes()[1].Slow || !h.Answers(t.Context(), 1) {
		t.Error("the volume is slow although it answers")
	}
	if create(20); on(20) != slow {
		create(21)
		if on(21) != slow {
			t.Error("the disk is not used any more")
		}
	}
	check(t, w.Close())
}

// A volume that was given up because its disk did not answer is there again when it answers, and who waited for it changes nothing behind the back of
// what is there now.
func TestADiskThatAnswersAgainComesBack(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/a", "/b")
	now := time.Unix(1e9, 0)
	h.cfg.Now = func() time.Time { return now }
	var ids []int64
	for id := int64(1); len(ids) < 3; id++ {
		if h.put(id, 7, pattern(100_000)); h.get(metadata.BlockID(id)).vol.path == "/a" {
			ids = append(ids, id)
		}
	}
	var lost sync.WaitGroup
	defer lost.Wait()
	for round, call := range []string{"rename", "remove"} {
		id := ids[round]
		stuck, free := hang(t, disk, call, "/a")
		r := must2(h.Replica(metadata.BlockID(id)))
		if call == "remove" { // it is thrown away at once
			h.get(metadata.BlockID(id)).vol.trash.keep = -1
		}
		done := make(chan error, 1)
		lost.Go(func() { done <- h.Discard(r.Block) })
		<-stuck
		h.ticks(hangTicks)
		if h.Volumes()[0].Failed == nil && h.Volumes()[1].Failed == nil || len(h.Revive()) > 0 {
			t.Fatal("the volume works")
		}
		free()
		if <-done; round == 1 { // soon after the first time
			if back := h.Revive(); len(back) > 0 {
				t.Errorf("%v are back at once", back)
			}
			now = now.Add(minPatience)
		}
		if back := h.Revive(); len(back) != 1 || back[0] != "/a" {
			t.Fatalf("%v are back", back)
		}
		for _, v := range h.Volumes() {
			if v.Failed != nil || v.Slow {
				t.Errorf("%+v", v)
			}
		}
		h.wantContent(ids[2], pattern(100_000))
		h.settled()
	}
}

// A volume that was given up is not opened anew, whoever asks for it, before the calls of its disk have come back: what they do then would be done to the new one's replicas.
func TestAVolumeIsNotOpenedAnewWhileCallsAreUnderWay(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/a", "/b")
	h.put(1, 7, pattern(100_000))
	v := h.get(1).vol
	v.endWait = 50 * time.Millisecond
	stuck, free := hang(t, disk, "remove", v.dataPath(1))
	done := make(chan error, 1)
	go func() { done <- h.Delete(block(1, 7, 0)) }()
	<-stuck
	h.ticks(hangTicks)
	if v.err() == nil {
		t.Fatal("the volume works")
	}
	wantKind(t, h.Add(VolumeConfig{Path: v.path}), metadata.ErrIO)
	free()
	<-done
	check(t, h.Add(VolumeConfig{Path: v.path}))
	h.settled()
}

// A volume that was given back while calls of its disk are under way is locked until they have come back: what they do then would be done to what another process finds there.
func TestAVolumeStaysLockedWhileCallsAreUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		call, under, path string
		begin, end        func(h *harness) error
	}{
		"given back": {"remove", "/a/blocks", "/a", func(h *harness) error { return h.Delete(block(1, 7, 0)) }, func(h *harness) error { return h.Remove("/a") }},
		"left":       {"rename", "/c/" + versionFile, "/c", func(h *harness) error { return h.Add(VolumeConfig{Path: "/c"}) }, func(h *harness) error { h.Leave(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			inner := mem.New(1 << 24)
			disk := faulty.New(inner)
			h := open(t, disk, "/a", "/b")
			for h.get(1) == nil || h.get(1).vol.path != "/a" {
				check(t, h.Delete(block(1, 7, 0)))
				h.put(1, 7, pattern(100_000))
			}
			for _, v := range h.all() {
				v.endWait = 50 * time.Millisecond
			}
			stuck, free := hang(t, disk, c.call, c.under)
			done := make(chan error, 1)
			go func() { done <- c.begin(h) }()
			<-stuck
			check(t, c.end(h))
			if lock, err := lockVolume(inner, c.path); err == nil {
				t.Error("it is not locked while a call is under way")
				check(t, lock.Close())
			}
			free()
			<-done
			for {
				if lock, err := lockVolume(inner, c.path); err == nil {
					check(t, lock.Close())
					break
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// Who removes what was left alone of a block keeps only those waiting who need that to be gone. What could not be removed is there for the next one.
func TestWhatWasLeftAloneGoesWithoutALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New(1 << 24)
		disk := faulty.New(inner)
		h := open(t, disk)
		h.put(1, 7, pattern(100_000))
		v := h.get(1).vol
		v.leaveAlone(h.get(1))
		sums := v.sumsPath(1, 7, sufMeta)
		disk.Set(faulty.Nth(1, "remove", sums, true, syscall.ENOSPC))
		wantKind(t, v.dropStrays(1), metadata.ErrNoSpace)
		if !v.hasStray(1, 7) {
			t.Error("what could not be removed is forgotten")
		}
		_, free := hang(t, disk, "remove", sums)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- v.dropStrays(1) }()
		synctest.Wait()
		if !v.dirMu.TryLock() {
			free()
			t.Fatal("everybody waits for the disk")
		}
		v.dirMu.Unlock()
		check(t, v.dropStrays(2))
		go func() { second <- v.dropStrays(1) }()
		synctest.Wait()
		if over(second) || !v.hasStray(1, 7) {
			t.Error("the second one does not wait for what the first one removes")
		}
		free()
		check(t, errors.Join(<-first, <-second))
		if _, err := inner.Stat(sums); !errors.Is(err, fs.ErrNotExist) || v.hasStray(1, 7) {
			t.Errorf("it is still there: %v", err)
		}
	})
}

// How long a volume has to wait until it is opened anew doubles each time that it is given up soon after, and begins anew when it was well for long.
func TestPatienceWithADiskComesBack(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/a", "/b")
	now := time.Unix(1e9, 0)
	h.cfg.Now = func() time.Time { return now }
	on := func() *volume {
		return h.all()[slices.IndexFunc(h.all(), func(v *volume) bool { return v.path == "/a" })]
	}
	giveUp := func() {
		t.Helper()
		stuck, free := hang(t, disk, "stat", "/a")
		done := make(chan error, 1)
		v := on()
		go func() {
			_, err := v.fs.Stat("/a/VERSION")
			done <- err
		}()
		<-stuck
		h.ticks(hangTicks)
		free()
		<-done
		if v.err() == nil {
			t.Fatal("it works")
		}
	}
	revives := func(wait time.Duration) {
		t.Helper()
		now = now.Add(wait - 1)
		if back := h.Revive(); len(back) > 0 {
			t.Fatalf("%v are back before %v", back, wait)
		}
		now = now.Add(1)
		if back := h.Revive(); len(back) != 1 {
			t.Fatalf("%v are back after %v", back, wait)
		}
	}
	giveUp()
	if back := h.Revive(); len(back) != 1 {
		t.Fatalf("%v are back", back)
	}
	for pause := minPatience; pause < maxPatience; pause *= 2 {
		giveUp()
		revives(pause)
	}
	for range 2 {
		giveUp()
		revives(maxPatience)
	}
	now = now.Add(calmTimes*maxPatience - 1)
	giveUp() // well for nearly long enough
	if back := h.Revive(); len(back) != 1 {
		t.Fatalf("%v are back", back)
	}
	giveUp()
	revives(maxPatience)
	now = now.Add(calmTimes * maxPatience)
	giveUp()
	if back := h.Revive(); len(back) != 1 {
		t.Fatalf("%v are back", back)
	}
	giveUp()
	revives(minPatience)
	// What cannot be opened was not well meanwhile.
	giveUp()
	disk.Set(func(op faulty.Op) error {
		if strings.HasPrefix(op.Name, "/a") {
			return syscall.EIO
		}
		return nil
	})
	now = now.Add(2 * minPatience)
	h.Revive()
	disk.Set(nil)
	revives(4 * minPatience)
}

// A volume in memory that goes waits for no disk: not for one that is being saved to, and not for what is to be removed there.
func TestMemoryThatGoesWaitsForNoDisk(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/v", "/ram")
	h.ram().endWait = 50 * time.Millisecond
	h.lazy(1, pattern(50_000))
	stuck, free := hang(t, disk, "write", "/v/blocks")
	saved := make(chan error, 1)
	go func() {
		h.persist(context.Background(), h.ram())
		saved <- nil
	}()
	<-stuck
	removed := make(chan error, 1)
	go func() { removed <- h.Remove("/ram") }()
	h.ticks(slowTicks)
	<-saved
	wantKind(t, <-removed, metadata.ErrRetriable)
	wantKind(t, h.Remove("/ram"), metadata.ErrRetriable) // and nobody waits for the one before
	check(t, h.Add(VolumeConfig{Path: "/v2"}))
	h.lazy(2, pattern(3000))
	h.wantOn(datanode.RAMDisk, 1, 2)
	h.wantContent(1, pattern(50_000))
	// The disk is given up: what was on its way there goes elsewhere, whatever becomes of it.
	h.ticks(hangTicks)
	check(t, h.Remove("/ram"))
	h.wantOn(datanode.Disk, 1, 2)
	free()
	for h.all()[0].calls.oldest() >= 0 {
		time.Sleep(time.Millisecond)
	}
	h.Revive()
	for _, id := range []int64{1, 2} {
		if v := h.get(metadata.BlockID(id)).vol.path; v != "/v2" {
			t.Errorf("block %d is on %s", id, v)
		}
	}
	h.wantContent(1, pattern(50_000))
	h.wantContent(2, pattern(3000))
	h.settled()
}

// Who looks at what is in memory does not wait for the disk where the copy of a replica that was deleted is to be removed.
func TestACopyThatIsNotRemovedKeepsNobodyWaiting(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/v", "/ram")
	h.lazy(1, pattern(50_000))
	h.lazy(2, pattern(50_000))
	h.persist(t.Context(), h.ram())
	stuck, free := hang(t, disk, "remove", "/v")
	deleted := make(chan error, 1)
	go func() { deleted <- h.Delete(block(1, 7, 0)) }()
	<-stuck
	seen := ""
	h.Each(h.ram().id.Storage, func(r datanode.Replica) bool {
		seen += r.Block.String()
		return true
	})
	if want := must2(h.Replica(2)).Block.String(); seen != want {
		t.Errorf("there is %s, want %s", seen, want)
	}
	if _, there := h.Replica(1); there || over(deleted) {
		t.Error("it is there, or is gone already")
	}
	h.Corrupt()
	free()
	check(t, <-deleted)
	h.settled()
}

// How full disks are is asked of all at once, and who asks whose datanode this is waits for none.
func TestManyHungDisksAreWaitedForAsOne(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/a", "/b", "/c")
	all, free := hang(t, disk, "usage", "/")
	for _, v := range h.all() {
		v.usageWait = time.Hour
	}
	told := make(chan int, 1)
	go func() { told <- len(h.Volumes()) }()
	for range 3 {
		<-all
	}
	free()
	if n := <-told; n != 3 {
		t.Errorf("%d volumes", n)
	}

	stuck, free := hang(t, disk, "write", "/b/VERSION")
	joined := make(chan error, 1)
	go func() { joined <- h.Join("lab", "BP-1") }()
	<-stuck
	if id := h.Identity(); id.Cluster != "" {
		t.Errorf("%+v", id)
	}
	h.ticks(slowTicks)
	check(t, <-joined)
	if id := h.Identity(); id.Cluster != "lab" || id.BlockPool != "BP-1" || h.joined("lab", "BP-1") {
		t.Errorf("%+v", id)
	}
	free()
	for h.all()[1].calls.oldest() >= 0 {
		time.Sleep(time.Millisecond)
	}
	h.ticks(1)
	check(t, h.Join("lab", "BP-1"))
	if !h.joined("lab", "BP-1") {
		t.Error("a volume has not heard of the cluster")
	}
	wantKind(t, h.Join("other", "BP-1"), datanode.ErrVolumeOwner)
}

// However long a disk is waited for, it is slow and mute after seconds, not before, and is given up at the limit.
func TestADiskIsSlowAfterSecondsHoweverLongItIsWaitedFor(t *testing.T) {
	for _, limit := range []time.Duration{30 * time.Second, time.Minute, 10 * time.Minute, time.Hour} {
		t.Run(limit.String(), func(t *testing.T) {
			disk := faulty.New(mem.New(1 << 24))
			h := open(t, disk, "/a")
			h.cfg.DiskTimeout = limit
			h.put(1, 7, pattern(100_000))
			v := h.all()[0]
			tick := tickOf(limit)
			if tick > 100*time.Millisecond {
				t.Errorf("a tick is %v: what is sent is looked at too seldom", tick)
			}
			h.watch(limit)
			stuck, free := hang(t, disk, "read", "/a")
			done := make(chan error, 1)
			go func() {
				f, err := v.fs.OpenFile(v.dataPath(1), 0, 0)
				if err == nil {
					_, err = f.ReadAt(make([]byte, 1), 0)
				}
				done <- err
			}()
			<-stuck
			ticks := 0
			next := func() { h.watch(limit); ticks++ }
			for next(); !v.slow.Load() && v.err() == nil; next() {
				if v.mute.Load() {
					t.Fatal("it is mute before it is slow")
				}
			}
			if least, most := time.Duration(ticks-1)*tick, time.Duration(ticks)*tick; least < 2*time.Second || most > 3*time.Second || !v.mute.Load() {
				t.Errorf("it is slow after %v to %v, mute: %v", least, most, v.mute.Load())
			}
			if h.Answers(t.Context(), 1) {
				t.Error("it answers")
			}
			for v.err() == nil && ticks < 100_000 {
				next()
			}
			if after := time.Duration(ticks) * tick; after != limit {
				t.Errorf("it is given up after %v", after)
			}
			free()
			check(t, <-done)
		})
	}
}

// Calls keep their age however many ticks they are under way; where more ticks have some than can be told apart the youngest are taken for younger.
func TestCallsKeepTheirAge(t *testing.T) {
	var c calls
	first := c.read()
	for range 3 * ringSize {
		c.begin()
		c.tick()
	}
	if age := c.oldest(); age != 3*ringSize {
		t.Errorf("the oldest is %d ticks old", age)
	}
	first.Add(-1)
	if age := c.oldestRead(); age != -1 {
		t.Errorf("the oldest read is %d ticks old, and there is none", age)
	}
	last := c.read()
	if age := c.oldestRead(); age != 0 {
		t.Errorf("a read that has just begun is %d ticks old", age)
	}
	c.tick()
	last.Add(-1)
}
