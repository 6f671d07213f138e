package supervisor

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

const (
	// fastestWrite is how many bytes a second the page cache is taken to accept: looks are so close together that the allowance
	// is hardly exceeded at that.
	fastestWrite = 4 << 30
	// closestLook bounds that, and with it what the looks cost.
	closestLook = 10 * time.Millisecond
	// maxLogEntries bounds files and directories of a log directory, and what a look costs.
	maxLogEntries = 10_000
)

// logAllowance is how many bytes of log files a container may have after it ran so long: a quarter of the limit at once,
// then LogRate bytes a second, up to the limit.
func (l *Launch) logAllowance(ran time.Duration) int64 {
	if l.LogRate <= 0 {
		return l.LogLimit
	}
	more := float64(l.LogRate) * max(0, ran.Seconds())
	if more >= float64(l.LogLimit) {
		return l.LogLimit
	}
	return min(l.LogLimit, l.LogLimit/4+int64(more))
}

// watchLogs looks at the log files, beside everything else, until the container ends. A slow disk holds up this alone.
func (s *supervisor) watchLogs() {
	for s.currentCause() == nil {
		pause := s.inspectLogs()
		select {
		case <-s.treeGone:
			return
		case <-time.After(pause):
		}
	}
}

// inspectLogs cuts what is rolled, ends a container that has written too much, or too fast, and says when to look again.
func (s *supervisor) inspectLogs() time.Duration {
	l := &s.launch
	if l.LogLimit <= 0 || l.LogDir == "" || s.currentCause() != nil {
		return l.Poll
	}
	s.mu.Lock()
	ran := time.Since(s.startedAt)
	s.mu.Unlock()
	size, entries := s.sizeOf(l.LogDir)
	allowed := l.logAllowance(ran)
	var text string
	switch {
	case size > l.LogLimit:
		text = fmt.Sprintf("exceeded the limit of its log files: %s of %s used",
			nodemanager.ByteSize(size), nodemanager.ByteSize(l.LogLimit))
	case size > allowed:
		text = fmt.Sprintf("wrote its log files too fast: %s after %v, of %s allowed then (%s at once, %s a second after that, %s in all)",
			nodemanager.ByteSize(size), ran.Round(time.Millisecond), nodemanager.ByteSize(allowed), nodemanager.ByteSize(l.LogLimit/4),
			nodemanager.ByteSize(l.LogRate), nodemanager.ByteSize(l.LogLimit))
	case entries > maxLogEntries:
		text = fmt.Sprintf("has more than %d files and directories in its log directory", maxLogEntries)
	default:
		return min(l.Poll, max(closestLook, time.Duration(float64(allowed-size)/fastestWrite*float64(time.Second))))
	}
	s.end(cause{
		status: nodemanager.KilledForExcessLogs, killAt: Now(),
		diagnostics: fmt.Sprintf("Container %s %s. Killing container.", l.Container, text),
	})
	return l.Poll
}

// sizeOf sums the files below dir, until it has seen too many, and cuts those that are rolled. The container may put there what it
// likes: links are not followed, pipes not waited for, and neither names nor depth cost memory or descriptors.
func (s *supervisor) sizeOf(dir string) (bytes int64, entries int) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, 0
	}
	defer root.Close()
	for queue := []string{"."}; len(queue) > 0; queue = queue[1:] {
		d, err := openDirectory(root, queue[0])
		if err != nil {
			continue // gone meanwhile
		}
		for entries <= maxLogEntries {
			list, err := d.ReadDir(256)
			for _, e := range list {
				entries++
				if name := queue[0] + "/" + e.Name(); e.IsDir() && len(name) < unix.PathMax {
					queue = append(queue, name)
				} else if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
					if queue[0] == "." && s.launch.rolls(e.Name()) {
						bytes += s.roll(root, e.Name(), info)
					} else {
						bytes += info.Size()
					}
				}
			}
			if err != nil {
				break
			}
		}
		d.Close()
	}
	return bytes, entries
}

// openDirectory opens a directory below root, which the container may replace by a link or a pipe at any time.
func openDirectory(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}
