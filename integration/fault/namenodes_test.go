package fault

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/integration/process"
)

func three(replication string) processes.Config {
	return processes.Config{Namenodes: 3, Datanodes: 3, Properties: properties(replication)}
}

// M1: the leader is killed under load, again and again.
func TestM1(t *testing.T) {
	s := begin(t, "M1", "kill -9 of the leader under load").start(three("2"))
	var gaps worst
	for range 4 * *repeats {
		s.warm()
		leader := s.k.Leader(s.fs)
		time.Sleep(time.Duration(s.random.IntN(50)) * time.Millisecond)
		began := time.Now()
		s.must(s.k.Kill(leader))
		s.history.More(9) // more than were under way
		gaps.add(time.Since(began))
		s.must(s.k.Start(leader))
		s.k.AwaitMember(s.fs, s.address(leader))
	}
	s.note("operations again: %s", gaps)
	s.settled()
}

// M3: the leader is frozen for as long as a virtual machine may be, and goes on.
func TestM3(t *testing.T) {
	s := begin(t, "M3", "leader frozen for 2 to 15 s, and thawed").start(three("2"))
	lists := [][]string{nil, nil}
	for _, n := range s.k.File().Namenodes {
		lists = append(lists, []string{n.IPC})
		lists[0], lists[1] = append(lists[0], n.IPC), append(lists[1], n.IPC)
	}
	g := startRegisters(t, s.fs, "/fault/registers", lists...)
	t.Cleanup(func() { g.stop(); g.done.Wait() })
	if err := s.fs.Mkdirs(process.Context(t), "/fault/registers", 0o755, true); err != nil {
		t.Fatal(err)
	}
	var gaps worst
	for range *repeats {
		for _, seconds := range []int{2, 5, 15} {
			s.warm()
			leader := s.k.Leader(s.fs)
			began := time.Now()
			s.must(s.k.Signal(leader, syscall.SIGSTOP))
			thaw := time.AfterFunc(time.Duration(seconds)*time.Second, func() { _ = s.k.Signal(leader, syscall.SIGCONT) })
			s.history.More(9)
			gaps.add(time.Since(began))
			time.Sleep(time.Until(began.Add(time.Duration(seconds)*time.Second + time.Second)))
			thaw.Stop()
			s.must(s.k.Signal(leader, syscall.SIGCONT))
			s.k.AwaitMember(s.fs, s.address(leader))
		}
	}
	s.note("operations again: %s; %s", gaps, g.end())
	if g.reads.Load() == 0 || g.writes.Load() == 0 {
		t.Error("nothing was compared")
	}
	s.settled()
}

// M4: the namenodes are killed one after the other, and then all processes at once.
func TestM4(t *testing.T) {
	s := begin(t, "M4", "every namenode killed in turn, then all at once").start(three("2"))
	var all worst
	for range *repeats {
		for _, n := range s.k.File().Namenodes {
			s.warm()
			s.must(s.k.Kill(n.ID))
			s.history.More(9)
			s.must(s.k.Start(n.ID))
			s.k.AwaitMember(s.fs, n.IPC)
		}
		s.warm()
		s.must(s.k.Kill(s.k.Names()...))
		began := time.Now()
		s.must(s.k.StartAll())
		s.k.Ready()
		s.history.More(9)
		all.add(time.Since(began))
	}
	s.note("after all were killed, operations again: %s", all)
	s.settled()
}

// M6: the disk of the leader's log does not answer, without an error.
func TestM6(t *testing.T) {
	s := begin(t, "M6", "the leader's disk hangs").start(three("2"))
	var gaps worst
	for range *repeats {
		s.warm()
		leader := s.k.Leader(s.fs)
		s.k.MayEnd(leader)
		began := time.Now()
		end := s.disturb(s.k.Pid(leader), "trace=fsync,fdatasync,sync_file_range,msync", "inject=fsync,fdatasync,sync_file_range,msync:delay_enter=60000000")
		s.history.More(9)
		gaps.add(time.Since(began))
		if now := s.k.Leader(s.fs); now == leader {
			t.Errorf("%s leads on with a disk that hangs", leader)
		}
		said := "runs on"
		select {
		case <-s.k.Ended(leader):
			said = "ended itself"
		case <-time.After(15 * time.Second):
		}
		end()
		_ = s.k.Kill(leader)
		s.must(s.k.Start(leader))
		s.k.AwaitMember(s.fs, s.address(leader))
		s.t.Logf("%s %s", leader, said)
	}
	s.note("operations again: %s", gaps)
	s.settled()
}

// M7: one fsync of the leader fails. It must not say that anything was written from then on.
func TestM7(t *testing.T) {
	s := begin(t, "M7", "one fsync of the leader fails (EIO)").start(three("2"))
	var gaps worst
	ended := 0
	for range *repeats {
		s.warm()
		leader := s.k.Leader(s.fs)
		s.k.MayEnd(leader)
		began := time.Now()
		end := s.disturb(s.k.Pid(leader), "trace=fsync,fdatasync,msync", "inject=fsync,fdatasync,msync:error=EIO:when=1")
		s.history.More(9)
		gaps.add(time.Since(began))
		select {
		case <-s.k.Ended(leader):
			ended++
		case <-time.After(15 * time.Second):
		}
		end()
		_ = s.k.Kill(leader)
		s.must(s.k.Start(leader))
		s.k.AwaitMember(s.fs, s.address(leader))
	}
	s.note("operations again: %s; the namenode ended itself %d times of %d", gaps, ended, *repeats)
	s.settled()
}

// M8: the disk of the only namenode is full, and has room again.
func TestM8(t *testing.T) {
	r := begin(t, "M8", "the namenode's disk is full, and has room again")
	dir := process.Dir(t)
	disk := filepath.Join(dir, "nn1")
	r.mount(disk, 512<<20)
	s := r.start(processes.Config{Dir: dir, Namenodes: 1, Datanodes: 2, Properties: properties("2")})
	var gaps worst
	for range *repeats {
		s.warm()
		empty := s.fill(disk, 64<<10)
		_, before := s.history.Counts()
		s.until("a refusal", func() error {
			if _, failed := s.history.Counts(); failed < before+8 {
				return fmt.Errorf("%d were refused", failed-before)
			}
			return nil
		})
		if _, err := s.fs.List(process.Context(t), "/fault/users"); err != nil {
			t.Errorf("reading while the disk is full: %v", err)
		}
		empty()
		began := time.Now()
		s.history.More(9)
		gaps.add(time.Since(began))
	}
	s.note("operations again: %s", gaps)
	s.settled()
}

// M9: the end of a member's log is torn, as by a power cut that the disk has lied about.
func TestM9(t *testing.T) {
	s := begin(t, "M9", "torn end of a namenode's log").start(three("2"))
	for range 2 * *repeats {
		s.warm()
		member := s.k.File().Namenodes[s.random.IntN(3)]
		s.must(s.k.Kill(member.ID))
		lost := s.random.IntN(4096) + 1
		what := s.tear(s.journal(member.ID), lost)
		s.revive(member.ID, member.IPC)
		s.t.Logf("%s: %s", member.ID, what)
	}
	s.note("%d times", 2**repeats)
	s.settled()
}

// M10: bits flip in files of a member that does not run.
func TestM10(t *testing.T) {
	s := begin(t, "M10", "bits flipped in a namenode's files").start(three("2"))
	reinstalled := 0
	for i := range 4 * *repeats {
		s.warm()
		if i == 0 { // there is a checkpoint to damage
			s.checkpoint()
		}
		member := s.k.File().Namenodes[s.random.IntN(3)]
		s.must(s.k.Kill(member.ID))
		flipped := s.flip(s.files(filepath.Join(filepath.Dir(s.k.Log(member.ID)), member.ID)), 1+s.random.IntN(20))
		if s.revive(member.ID, member.IPC) {
			reinstalled++
		}
		s.k.AwaitMember(s.fs, member.IPC) // the next one that is damaged is the only one
		s.t.Logf("%s: %s", member.ID, flipped)
	}
	s.note("%d times; %d of them the namenode asked to be reinstalled, which helped", 4**repeats, reinstalled)
	s.settled()
}

// revive starts a member whose files were damaged. It has to serve again by itself, or to end and say that it has to be reinstalled; then
// that has to help.
func (s *scene) revive(name, address string) (reinstalled bool) {
	s.t.Helper()
	s.must(s.k.Start(name))
	s.k.MayEnd(name)
	s.until("member "+name, func() error {
		select {
		case <-s.k.Ended(name):
			end := processes.Tail(s.k.Log(name), 3)
			if reinstalled || !strings.Contains(end, "reinstall") {
				s.t.Fatalf("%s ended and does not say what to do:\n%s", name, end)
			}
			r := s.k.Hops().Run("namenode", "reinstall", "-c", filepath.Join(filepath.Dir(s.k.Log(name)), name+".yaml"))
			if strings.Contains(r.Stderr, "no other namenode leads") { // not yet
				return errors.New(r.Stderr)
			}
			if r.Status != 0 {
				s.t.Fatal(r.Stderr)
			}
			reinstalled = true
			s.must(s.k.Start(name))
			s.k.MayEnd(name)
		default:
		}
		return s.answers(address)
	})
	s.k.AwaitMember(s.fs, address) // one that is reinstalled answers before a leader has found it, and nothing else may be damaged meanwhile
	return reinstalled
}

// L: histories of the namespace in one process, with pauses, kills, cut links, steps of clocks and changes of members.
func TestL(t *testing.T) {
	r := begin(t, "L", "histories of the namespace, checked (porcupine)")
	cmd := exec.Command("go", "test", "./metadata/raftstore", "-run", "TestNamespaceIsLinearizable", "-count=1", "-timeout", (4*longer.Abs() + 10*time.Minute).String(),
		"-args", "-linearize", longer.String(), "-seed", fmt.Sprint(*seed))
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, last(string(out), 40))
	}
	r.note("for %v", *longer)
}
