package badger

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/pace"
)

// badger maps its tables. What was read or written of them once counts as the process's memory until the system wants it, which is after others
// have gone without: in the end the whole store is resident. So pages of tables are unmapped when there are many. They stay in the page cache, and
// coming back is a minor fault.
const (
	// mappedAtMost is how much of files may be mapped and resident, the program and badger's logs of memory tables included.
	mappedAtMost = 192 << 20
	// mappedInterval is how often that is looked at. Merging brings 100 to 200 MB a second.
	mappedInterval = time.Second
)

// attend unmaps tables, and has the databases rest that have nothing to merge, until the store is closed.
func (s *Store) attend() {
	tick := pace.NewBeat(mappedInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-tick.C:
			tick.Next()
		}
		s.look(time.Now())
		if mapped() < mappedAtMost {
			continue
		}
		if err := s.unmap(); err != nil {
			s.opt.Logger.Debug("pages of tables stay mapped", "dir", s.dir, "error", err)
		}
	}
}

// mapped is how many bytes of files are resident in this process; 0 when the system does not say.
func mapped() int64 {
	text, err := os.ReadFile("/proc/self/statm") // size, resident, shared, in pages
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 3 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[2], 10, 64)
	return pages * int64(os.Getpagesize())
}

// unmap lets go of the resident pages of all tables. Addresses are of use only as long as nothing else can be mapped there: a table that was there
// before the present ones are held, and is there afterwards, is held, and so is its mapping.
func (s *Store) unmap() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil
	}
	before, err := s.db.tables()
	if err != nil {
		return err
	}
	defer s.holdTables()()
	held, err := s.db.tables()
	if err != nil {
		return err
	}
	for path := range held {
		if !before[path] {
			delete(held, path)
		}
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	return eachMapping(maps, func(start, end uintptr, path string) error {
		if !held[path] {
			return nil
		}
		// A shared mapping of a file loses nothing by this: the next access finds the page in the cache, or reads it.
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED)
		if errno != 0 {
			return errno
		}
		return nil
	})
}

// eachMapping calls fn for each shared mapping of a file in a text like that of /proc/self/maps.
func eachMapping(maps io.Reader, fn func(start, end uintptr, path string) error) error {
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		// 7f00a000-7f00b000 rw-s 00000000 fe:00 1234      /path
		line := lines.Text()
		span, rest, _ := strings.Cut(line, " ")
		slash := strings.IndexByte(rest, '/')
		if slash < 4 || rest[3] != 's' {
			continue
		}
		from, to, _ := strings.Cut(span, "-")
		start, err := strconv.ParseUint(from, 16, 64)
		if err != nil {
			return err
		}
		end, err := strconv.ParseUint(to, 16, 64)
		if err != nil {
			return err
		}
		if err := fn(uintptr(start), uintptr(end), rest[slash:]); err != nil {
			return err
		}
	}
	return lines.Err()
}
