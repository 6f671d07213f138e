package fault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/internal/config"
)

// Linux's requests to a filesystem, that nobody changes it from now on, and that they may (linux/fs.h). Who tries meanwhile waits in the kernel, without an error, and cannot be killed.
const (
	requestFreeze = 0xc0045877
	requestThaw   = 0xc0045878
)

// disk is a filesystem of its own that can be made to hang.
type disk struct {
	*row
	dir    string
	frozen bool
	// device is the block device; throttle are the files in which its rates are limited.
	device   string
	throttle []string
}

// disk puts a filesystem of so many bytes, in a file beside it, at a directory, until the test ends.
func (r *row) disk(dir string, size int64) *disk {
	r.t.Helper()
	if os.Geteuid() != 0 {
		r.skip("disks that hang need root")
	}
	image := dir + ".disk"
	r.must(os.MkdirAll(dir, 0o755))
	r.must(os.WriteFile(image, nil, 0o600))
	r.must(os.Truncate(image, size))
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			r.skip(fmt.Sprintf("disks that hang need a filesystem in a file: %s: %v %s", strings.Join(command, " "), err, strings.TrimSpace(string(out))))
		}
	}
	d := &disk{row: r, dir: dir}
	r.t.Cleanup(func() {
		d.goOn()
		for i := 0; unix.Unmount(dir, 0) != nil && i < 100; i++ { // a process may still be ending
			time.Sleep(50 * time.Millisecond)
		}
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	if err := d.request(requestFreeze); err != nil {
		r.skip("a filesystem cannot be frozen here: " + err.Error())
	}
	r.must(d.request(requestThaw))
	r.must(os.Remove(filepath.Join(dir, "lost+found"))) // whoever has the directory finds it empty
	var st unix.Stat_t
	r.must(unix.Stat(dir, &st))
	d.device = fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	return d
}

func (d *disk) request(what uint) error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), what, 0)
}

// freeze has everybody wait who changes something there, or makes it durable.
func (d *disk) freeze() {
	d.t.Helper()
	d.must(d.request(requestFreeze))
	d.frozen = true
}

// silence has everybody wait who needs the device, to read what is not in memory too. False: that cannot be had here.
func (d *disk) silence() bool {
	d.t.Helper()
	for _, kind := range []string{"read", "write"} {
		name := filepath.Join("/sys/fs/cgroup/blkio", "blkio.throttle."+kind+"_bps_device")
		if err := os.WriteFile(name, []byte(d.device+" 1"), 0o200); err != nil {
			d.goOn()
			return false
		}
		d.throttle = append(d.throttle, name)
	}
	d.must(filepath.WalkDir(d.dir, func(name string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if f, err := os.Open(name); err == nil {
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			f.Close()
		}
		return nil
	}))
	return true
}

// goOn ends that.
func (d *disk) goOn() {
	for _, name := range d.throttle {
		_ = os.WriteFile(name, []byte(d.device+" 0"), 0o200)
	}
	d.throttle = nil
	if d.frozen {
		d.frozen = false
		if err := d.request(requestThaw); err != nil {
			d.t.Error(err)
		}
	}
}

// beforeStop has the disks go on before the servers are stopped, which come to no end before.
func beforeStop(t *testing.T, disks ...*disk) {
	t.Cleanup(func() {
		for _, d := range disks {
			d.goOn()
		}
	})
}

// threads is how many a server has.
func (s *scene) threads(name string) int {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.k.Pid(name)))
	s.must(err)
	return len(all)
}

// twoVolumes are the datanodes of which dn1 has a second volume.
func twoVolumes(dir, second string) processes.Config {
	return processes.Config{
		Dir: dir, Namenodes: 1, Datanodes: 4, Properties: properties("2"),
		Adjust: func(name string, f *config.File) {
			if name == "dn1" {
				f.Datanode.Volumes = append(f.Datanode.Volumes, config.Volume{Path: second, Type: "DISK"})
			}
		},
	}
}

// failed reports whether a volume is listed as one that failed.
func (s *scene) failed(volume string) error {
	if text := s.k.Hops().OK("datanode", "list", "-o", "json"); !strings.Contains(text, "volume "+volume+" failed") {
		return errors.New("volume " + volume + " works")
	}
	return nil
}

// D9: one of two disks of a datanode does not answer, and does again: first to who writes, then to anybody.
func TestD9(t *testing.T) {
	r := begin(t, "D9", "a disk of a datanode that has two hangs")
	dir := process.Dir(t)
	hung := r.disk(filepath.Join(dir, "hung"), 768<<20)
	second := filepath.Join(hung.dir, "volume")
	r.keep = 400 // what has to be copied would grow with each time
	s := r.start(twoVolumes(dir, second))
	beforeStop(t, hung)
	read := s.write("/fault/read", 2)
	read.more(24 << 20)
	s.must(read.Close())
	var reads, writes, given, copied, back worst
	most := 0
	for i := range 2 * *repeats {
		ctx := process.Context(t)
		s.warm()
		began := time.Now()
		if i%2 == 0 {
			hung.freeze()
		} else if !hung.silence() {
			s.note("reads that hang need cgroup v1's blkio controller: not tried")
			continue
		}
		var both sync.WaitGroup
		var longest time.Duration
		both.Go(func() {
			out := s.write(fmt.Sprintf("/fault/written-%d", i), 3)
			for range 12 {
				began := time.Now()
				out.more(1 << 20)
				if err := out.Hflush(ctx); err != nil {
					t.Error(err)
				}
				longest = max(longest, time.Since(began))
			}
			s.must(out.Close())
			out.check()
		})
		both.Go(func() {
			longest := time.Duration(0)
			for began := time.Now(); time.Since(began) < 6*time.Second; { // before the namenodes hear of it, and after
				f, err := s.fs.Open(ctx, read.name)
				if err != nil {
					t.Error(err)
					return
				}
				longest = max(longest, read.rest(f, 0))
				f.Close()
			}
			reads.add(longest)
		})
		both.Wait()
		writes.add(longest)
		s.until("the volume is given up", func() error {
			live, err := s.fs.Datanodes(ctx, dfs.LiveDatanodes)
			if err == nil && len(live) != 4 {
				err = fmt.Errorf("%d datanodes live: one is silent because a disk is", len(live))
				s.t.Error(err)
			}
			return errors.Join(err, s.failed(second))
		})
		given.add(time.Since(began))
		s.history.More(60)
		copied.add(s.healthy(2 * process.Patience))
		most = max(most, s.threads("dn1"))
		hung.goOn()
		began = time.Now()
		s.until("the volume is back", func() error {
			if s.failed(second) == nil {
				return errors.New("it is not")
			}
			return nil
		})
		back.add(time.Since(began))
		s.healthy(2 * process.Patience)
	}
	s.note("longest wait of a reader: %s; of a writer: %s; given up: %s; then all replicas there again: %s; back: %s; %d threads at most", reads, writes, given, copied, back, most)
	s.settled()
}

// D10: a datanode that waits for one of two disks is ended, which it cannot be, and another process is started in its place.
func TestD10(t *testing.T) {
	r := begin(t, "D10", "a datanode restarted while a disk of it hangs")
	dir := process.Dir(t)
	hung := r.disk(filepath.Join(dir, "hung"), 768<<20)
	second := filepath.Join(hung.dir, "volume")
	c := twoVolumes(dir, second)
	c.Datanodes, c.Later = 5, []string{"dn5"}
	adjust, first := c.Adjust, config.Datanode{}
	c.Adjust = func(name string, f *config.File) {
		adjust(name, f)
		switch name {
		case "dn1":
			first = *f.Datanode
		case "dn5": // is it again
			*f.Datanode = first
		}
	}
	s := r.start(c)
	beforeStop(t, hung)
	s.warm()
	hung.freeze()
	s.until("somebody waits for the disk", func() error { return waits(s.k.Pid("dn1")) })
	s.k.MayEnd("dn1")
	s.must(s.k.Signal("dn1", syscall.SIGTERM))
	s.until("it has ended but for what waits", func() error { return dying(s.k.Pid("dn1")) })
	began := time.Now()
	s.must(s.k.Start("dn5"))
	s.until("the one in its place lives", func() error {
		text, err := os.ReadFile(s.k.Log("dn5"))
		if err == nil && !strings.Contains(string(text), "datanode ready in") {
			err = errors.New("it is not ready")
		}
		return errors.Join(err, s.failed(second))
	})
	took := time.Since(began)
	if waits(s.k.Pid("dn1")) != nil {
		t.Error("the first one has ended: nothing was shown")
	}
	s.history.More(60)
	s.healthy(2 * process.Patience)
	hung.goOn()
	<-s.k.Ended("dn1")
	began = time.Now()
	s.until("the volume is back", func() error {
		if s.failed(second) == nil {
			return errors.New("it is not")
		}
		return nil
	})
	s.note("ready after %.1f s beside a process that could not end; the volume back %.1f s after that had ended", took.Seconds(), time.Since(began).Seconds())
	s.settled()
}

// dying is nil if a process has ended but for threads that cannot.
func dying(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil && !strings.HasPrefix(string(text[bytes.LastIndexByte(text, ')')+1:]), " Z") {
		err = errors.New("it runs")
	}
	return err
}

// waits is nil if a thread of a process waits in the kernel, and cannot be killed.
func waits(pid int) error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, name := range tasks {
		if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text[bytes.LastIndexByte(text, ')')+1:]), " D") {
			return nil
		}
	}
	return errors.New("no thread does")
}

// refuses is nil if an address refuses connections.
func (s *scene) refuses(address string) error {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err == nil {
		conn.Close()
		return errors.New(address + " takes connections")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}

// M11: the disk of the leader, and then that of another member, does not answer, in the kernel: what waits for it cannot be ended.
func TestM11(t *testing.T) {
	r := begin(t, "M11", "a namenode's disk hangs, and so does its process's end")
	dir := process.Dir(t)
	disks := map[string]*disk{}
	for _, name := range []string{"nn1", "nn2", "nn3"} {
		disks[name] = r.disk(filepath.Join(dir, name), 512<<20)
	}
	c := three("2")
	c.Dir = dir
	s := r.start(c)
	beforeStop(t, disks["nn1"], disks["nn2"], disks["nn3"])
	lists := [][]string{nil, nil}
	for _, n := range s.k.File().Namenodes {
		lists = append(lists, []string{n.IPC})
		lists[0], lists[1] = append(lists[0], n.IPC), append(lists[1], n.IPC)
	}
	s.must(s.fs.Mkdirs(process.Context(t), "/fault/registers", 0o755, true))
	g := startRegisters(t, s.fs, "/fault/registers", lists...)
	t.Cleanup(func() { g.stop(); g.done.Wait() })
	var leaders, others worst
	for i := range 2 * *repeats {
		s.warm()
		name, gaps := s.k.Leader(s.fs), &leaders
		if i%2 == 1 {
			gaps = &others
			for other := range disks {
				if other != name {
					name = other
					break
				}
			}
		}
		s.k.MayEnd(name)
		began := time.Now()
		disks[name].freeze()
		s.history.More(9)
		gaps.add(time.Since(began))
		if now := s.k.Leader(s.fs); now == name {
			t.Errorf("%s leads on with a disk that hangs", name)
		}
		s.until("its process is dead to all others", func() error { return s.refuses(s.address(name)) })
		if waits(s.k.Pid(name)) != nil {
			t.Errorf("%s has ended: nothing was shown", name)
		}
		s.history.More(60)
		disks[name].goOn()
		<-s.k.Ended(name)
		s.must(s.k.Start(name))
		s.k.AwaitMember(s.fs, s.address(name))
	}
	s.note("operations again when it is the leader's: %s; another one's: %s; %s", leaders, others, g.end())
	if g.reads.Load() == 0 || g.writes.Load() == 0 {
		t.Error("nothing was compared")
	}
	s.settled()
}

// M12: the disk of the only namenode does not answer for longer than a member of several waits, and does again.
func TestM12(t *testing.T) {
	r := begin(t, "M12", "the only namenode's disk hangs for 20 s")
	dir := process.Dir(t)
	d := r.disk(filepath.Join(dir, "nn1"), 512<<20)
	s := r.start(processes.Config{Dir: dir, Namenodes: 1, Datanodes: 3, Properties: properties("2")})
	beforeStop(t, d)
	var again worst
	for range *repeats {
		s.warm()
		d.freeze()
		time.Sleep(20 * time.Second)
		acknowledged, _ := s.history.Counts()
		time.Sleep(time.Second)
		if now, _ := s.history.Counts(); now != acknowledged {
			t.Errorf("%d operations were acknowledged while the disk was silent", now-acknowledged)
		}
		d.goOn()
		began := time.Now()
		s.history.More(9)
		again.add(time.Since(began))
	}
	s.note("operations again: %s", again)
	s.settled()
}

// page is a page of a namenode.
func (s *scene) page(name, path string) (code int, text string, err error) {
	address := ""
	for _, n := range s.k.File().Namenodes {
		if n.ID == name {
			address = "http://" + n.HTTP
		}
	}
	request, err := http.NewRequestWithContext(timeout(s.t, 20*time.Second), http.MethodGet, address+path, nil)
	s.must(err)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// watched asks a namenode for its pages as who watches a cluster asks: some of them again and again. It returns how long one took at most, and what /health and /metrics said.
func (s *scene) watched(name string) (longest time.Duration, code int, health, figures string) {
	s.t.Helper()
	get := func(path string) (int, string) {
		began := time.Now()
		code, text, err := s.page(name, path)
		if err != nil {
			s.t.Errorf("%s says nothing at %s: %v", name, path, err)
		}
		longest = max(longest, time.Since(began))
		return code, text
	}
	for range 5 {
		for _, path := range []string{"/livez", "/readyz", "/jmx", "/api/v1/datanodes"} {
			if code, text := get(path); code != http.StatusOK && path != "/readyz" {
				s.t.Errorf("%s of %s: %d %s", path, name, code, text)
			}
		}
	}
	code, health = get("/health")
	_, figures = get("/metrics")
	return longest, code, health, figures
}

// members is what `hops namenode list` says, where a namenode has its configuration.
func (s *scene) members(name string) string {
	s.t.Helper()
	r := s.k.Hops().Run("namenode", "list", "-c", strings.TrimSuffix(s.k.Log(name), ".log")+".yaml") // fails in a moment in which nobody leads
	return r.Stdout + r.Stderr
}

// M13: what the leader has beside its log lies on a disk that does not answer, while the log goes on: the bodies of small files, or the checkpoint.
func TestM13(t *testing.T) {
	r := begin(t, "M13", "what a namenode has beside its log is on a disk that hangs")
	dir := process.Dir(t)
	kinds := []string{"smallfiles", "checkpoint"}
	disks := map[string]*disk{}
	var all []*disk
	for _, name := range []string{"nn1", "nn2", "nn3"} {
		for _, kind := range kinds {
			d := r.disk(filepath.Join(dir, name, "namespace", kind), 768<<20)
			disks[name+kind], all = d, append(all, d)
		}
	}
	c := three("2")
	c.Dir = dir
	r.keep = 400
	s := r.start(c)
	beforeStop(t, all...)
	s.must(s.fs.Mkdirs(process.Context(t), "/fault/small", 0o755, true))
	took := map[string]*worst{}
	var pages worst
	standing := 0
	for i := range 2 * *repeats {
		s.warm()
		kind, leader := kinds[i%2], s.k.Leader(s.fs)
		hung := disks[leader+kind]
		hung.freeze()
		var users sync.WaitGroup
		began := time.Now()
		for u := range 8 {
			users.Go(func() {
				body := make([]byte, 60<<10)
				for n := range 200 { // more in all than what waits in memory for a disk, and than what makes a checkpoint due
					name := fmt.Sprintf("/fault/small/%d-%d-%d", i, u, n)
					if err := s.k.Cluster.Await(2*process.Patience, "a small file", func() error { return s.fs.WriteFile(timeout(t, 20*time.Second), name, body, true) }); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		users.Wait()
		if took[kind] == nil {
			took[kind] = &worst{}
		}
		took[kind].add(time.Since(began))
		s.history.More(9)
		now := s.k.Leader(s.fs)
		if kind == "smallfiles" && now == leader {
			t.Errorf("%s leads on, and carries out nothing", leader)
		}
		t.Logf("%s of %s: %s leads", kind, leader, now)
		if _, _, err := s.page(leader, "/livez"); err != nil && kind == "checkpoint" {
			// A checkpoint is written into mapped files. Who waits in a page fault cannot be stopped by Go's runtime, so from the next collection on the process stands still.
			standing++
			if list := s.members(now); now == leader || !strings.Contains(list, "unreachable") {
				t.Errorf("%s stands still; %s leads, and the list is\n%s", leader, now, list)
			}
		}
		if kind == "smallfiles" {
			longest, code, health, figures := s.watched(leader)
			pages.add(longest)
			for _, want := range []struct{ page, text string }{
				{health, `"stuck":true`},
				{health, `"stuck_since":"`},
				{health, "is stuck at entry"},
				{s.members(now), "is stuck at entry"},
				{figures, "hops_raft_stuck{group=\"namespace\"} 1\n"},
				{figures, "hops_ready{role=\"namenode\"} 0\n"},
			} {
				if !strings.Contains(want.page, want.text) {
					t.Errorf("nobody hears %q of %s: %s", want.text, leader, want.page)
				}
			}
			if code != http.StatusServiceUnavailable {
				t.Errorf("/health of %s: %d", leader, code)
			}
		}
		hung.goOn()
		s.k.AwaitMember(s.fs, s.address(leader))
	}
	for _, kind := range kinds {
		s.note("96 MB of small files while the leader's %s hangs: %s", kind, took[kind])
	}
	s.note("longest wait for a page of one whose small files hang: %s; of those whose checkpoint hangs %d stood still as a whole", pages, standing)
	s.settled()
}
