package vfs_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/datanode/vfs"
)

// ring is as little of io_uring as it takes to compare it with system calls: an operation is handed to the kernel by a call that does not wait, and for
// the end of it the runtime waits as for news of a socket, by an eventfd. See linux/io_uring.h for the layouts.
type ring struct {
	fd               int
	news             *os.File
	flags            *uint32 // of completions: 1 keeps the eventfd silent
	head, tail, sent *uint32 // of completions; sent is the tail of submissions
	entries          []ringEntry
	ends             []ringEnd
	free             chan uint64
	waiting          []chan int32 // by the user's word of the entry

	mu      sync.Mutex // guards submissions
	pending int
	entered bool       // somebody is submitting, and looks again
	taking  sync.Mutex // guards completions
}

type ringEntry struct {
	op         uint8
	_          [3]uint8
	fd         int32
	off        uint64
	at         uint64
	n, opFlags uint32
	user       uint64
	_          [3]uint64
}

type ringEnd struct {
	user   uint64
	result int32
	_      uint32
}

type ringParams struct {
	submissions, completions uint32
	_                        [8]uint32
	submission               struct{ head, tail, mask, entries, flags, dropped, array, _, _, _ uint32 }
	completion               struct{ head, tail, mask, entries, overflow, ends, flags, _, _, _ uint32 }
}

const (
	ringFsync, ringRead, ringWrite = 3, 22, 23 // IORING_OP_*
	ringDatasync                   = 1         // IORING_FSYNC_DATASYNC
	ringEventfd                    = 4         // IORING_REGISTER_EVENTFD
	ringEntriesAt                  = 0x10000000
	ringSize                       = 256
)

func newRing(b *testing.B) *ring {
	b.Helper()
	var p ringParams
	fd, _, refused := unix.Syscall(unix.SYS_IO_URING_SETUP, ringSize, uintptr(unsafe.Pointer(&p)), 0)
	if refused != 0 {
		b.Skipf("the kernel refuses io_uring: %v", refused)
	}
	size := max(p.submission.array+4*p.submissions, p.completion.ends+16*p.completions)
	both, err1 := unix.Mmap(int(fd), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	entries, err2 := unix.Mmap(int(fd), ringEntriesAt, 64*int(p.submissions), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	event, err3 := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	number := int32(event)
	_, _, err4 := unix.Syscall6(unix.SYS_IO_URING_REGISTER, fd, ringEventfd, uintptr(unsafe.Pointer(&number)), 1, 0, 0)
	if err := errors.Join(err1, err2, err3); err != nil || err4 != 0 {
		b.Fatal(err, err4)
	}
	word := func(at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&both[at])) }
	r := &ring{
		fd: int(fd), sent: word(p.submission.tail), head: word(p.completion.head), tail: word(p.completion.tail), flags: word(p.completion.flags),
		entries: unsafe.Slice((*ringEntry)(unsafe.Pointer(&entries[0])), p.submissions),
		ends:    unsafe.Slice((*ringEnd)(unsafe.Pointer(&both[p.completion.ends])), p.completions),
		free:    make(chan uint64, p.submissions), waiting: make([]chan int32, p.submissions),
	}
	order := unsafe.Slice(word(p.submission.array), p.submissions)
	for i := range p.submissions {
		order[i] = i
		r.free <- uint64(i)
	}
	r.news = os.NewFile(uintptr(event), "eventfd")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for word := make([]byte, 8); ; r.take() {
			if _, err := r.news.Read(word); err != nil {
				return
			}
		}
	}()
	b.Cleanup(func() {
		err := r.news.Close()
		<-done
		if err = errors.Join(err, unix.Close(r.fd), unix.Munmap(both), unix.Munmap(entries)); err != nil {
			b.Error(err)
		}
	})
	return r
}

// take passes on what has ended.
func (r *ring) take() {
	r.taking.Lock()
	defer r.taking.Unlock()
	at := atomic.LoadUint32(r.head)
	for ; at != atomic.LoadUint32(r.tail); at++ {
		end := r.ends[at%uint32(len(r.ends))]
		to := r.waiting[end.user]
		r.free <- end.user
		to <- end.result
	}
	atomic.StoreUint32(r.head, at)
}

// submit begins an operation, of which the result comes by to. Whoever is submitting already takes it along.
func (r *ring) submit(to chan int32, e ringEntry) {
	e.user = <-r.free
	r.waiting[e.user] = to
	r.mu.Lock()
	defer r.mu.Unlock()
	at := atomic.LoadUint32(r.sent)
	r.entries[at%uint32(len(r.entries))] = e
	atomic.StoreUint32(r.sent, at+1)
	r.pending++
	for first := !r.entered; first && r.pending > 0; {
		n := r.pending
		r.pending, r.entered = 0, true
		r.mu.Unlock()
		atomic.StoreUint32(r.flags, 1) // what ends at once is taken here
		for n > 0 {
			took, _, err := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), 0, 0, 0, 0)
			if err == 0 {
				n -= int(took)
			} else if err != unix.EINTR && err != unix.EAGAIN && err != unix.EBUSY {
				panic(err)
			}
		}
		atomic.StoreUint32(r.flags, 0)
		r.take()
		r.mu.Lock()
		r.entered = false
	}
}

// disk is how a benchmark reaches a file: by the ring for an operation that has one, otherwise by a system call.
type disk map[uint8]*ring

func (d disk) do(op uint8, f vfs.File, p []byte, off int64) error {
	var err error
	r := d[op]
	switch {
	case r != nil:
		e := ringEntry{op: op, fd: int32(f.OS().Fd()), off: uint64(off), n: uint32(len(p))}
		if op == ringFsync {
			e.opFlags = ringDatasync
		} else {
			e.at = uint64(uintptr(unsafe.Pointer(&p[0])))
		}
		to := make(chan int32, 1)
		r.submit(to, e)
		if n := <-to; n < 0 {
			err = syscall.Errno(-n)
		} else if n != int32(len(p)) {
			err = io.ErrShortWrite
		}
	case op == ringFsync:
		err = f.Sync()
	case op == ringRead:
		_, err = f.ReadAt(p, off)
	default:
		_, err = f.WriteAt(p, off)
	}
	runtime.KeepAlive(p)
	return err
}

// BenchmarkRing compares what a datanode asks of a disk by system calls and through io_uring (DESIGN.md of the datanode says what came of it): pages of a
// block that is appended to and synced, small appends of 16 writers that are synced each, and small reads that miss the cache. Run it with GOMAXPROCS of
// as many processors as there are cores, and one more; TMPDIR names the disk. late-us is by how much a goroutine beside them wakes too late (median).
func BenchmarkRing(b *testing.B) {
	r := newRing(b)
	for _, c := range []struct {
		name string
		run  func(*testing.B, disk)
	}{{"append-512K", appends}, {"hsync-4K-16", syncs}, {"read-4K-64-cold", coldReads}} {
		b.Run(c.name+"/calls", func(b *testing.B) { measure(b, disk{}, c.run) })
		b.Run(c.name+"/ring-but-writes", func(b *testing.B) { measure(b, disk{ringFsync: r, ringRead: r}, c.run) })
		b.Run(c.name+"/ring", func(b *testing.B) { measure(b, disk{ringFsync: r, ringRead: r, ringWrite: r}, c.run) })
	}
}

func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // with the kernel's threads of a ring
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure adds processor time and lateness to what is measured.
func measure(b *testing.B, d disk, run func(*testing.B, disk)) {
	stop, done := make(chan struct{}), make(chan time.Duration)
	go func() {
		var late []time.Duration
		for {
			select {
			case <-stop:
				slices.Sort(late)
				done <- append(late, 0)[len(late)/2]
				return
			default:
				began := time.Now()
				time.Sleep(time.Millisecond)
				late = append(late, time.Since(began)-time.Millisecond)
			}
		}
	}()
	before := processorTime()
	run(b, d)
	used := processorTime() - before
	close(stop)
	b.ReportMetric(float64((<-done).Microseconds()), "late-us")
	b.ReportMetric(float64(used.Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
}

func makeFile(b *testing.B, dir, name string) vfs.File {
	f, err := vfs.OS.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f
}

// share has n goroutines carry out the operations of the benchmark.
func share(b *testing.B, n int, op func(worker int) error) {
	var next atomic.Int64
	var g sync.WaitGroup
	for i := range n {
		g.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := op(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	g.Wait()
}

func appends(b *testing.B, d disk) {
	const size, file = 512 << 10, 64 << 20
	f, page, off := makeFile(b, b.TempDir(), "f"), make([]byte, size), int64(0)
	b.SetBytes(size)
	share(b, 1, func(int) error {
		err := d.do(ringWrite, f, page, off)
		if off += size; off == file {
			err, off = errors.Join(err, d.do(ringFsync, f, nil, 0), f.Truncate(0)), 0
		}
		return err
	})
}

func syncs(b *testing.B, d disk) {
	const writers, size = 16, 4 << 10
	dir := b.TempDir()
	var files [writers]vfs.File
	var offs [writers]int64
	for i := range files {
		files[i] = makeFile(b, dir, fmt.Sprint(i))
	}
	page := make([]byte, size)
	share(b, writers, func(i int) error {
		offs[i] += size
		return errors.Join(d.do(ringWrite, files[i], page, offs[i]-size), d.do(ringFsync, files[i], nil, 0))
	})
}

func coldReads(b *testing.B, d disk) {
	const readers, size, file = 64, 4 << 10, 512 << 20
	f, part := makeFile(b, b.TempDir(), "f"), make([]byte, 8<<20)
	for off := int64(0); off < file; off += int64(len(part)) {
		if _, err := f.WriteAt(part, off); err != nil {
			b.Fatal(err)
		}
	}
	err := errors.Join(f.Sync(), unix.Fadvise(int(f.OS().Fd()), 0, 0, unix.FADV_RANDOM))
	if err != nil {
		b.Fatal(err)
	}
	f.Forget(0, file)
	var pages [readers][size]byte
	order := rand.Perm(file / size) // a page is read twice only by more operations than there are pages
	var next atomic.Int64
	b.ResetTimer()
	share(b, readers, func(i int) error {
		return d.do(ringRead, f, pages[i][:], int64(order[int(next.Add(1))%len(order)])*size)
	})
}
