package supervisor

import (
	"cmp"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

const (
	// maxDiskEntries bounds the files and directories of a container: a disk is full without inodes too.
	maxDiskEntries = 2_000_000
	// diskPause is the shortest time between two measurements of what a container has on disk; a long one is followed by a
	// pause of twenty times its length.
	diskPause = 2 * time.Second
)

// watchDisk measures, beside everything else, what the command has written outside of its logs, until the container ends.
func (s *supervisor) watchDisk() {
	l := &s.launch
	if l.DiskLimit <= 0 {
		return
	}
	for s.currentCause() == nil {
		begin := time.Now()
		bytes, entries := s.diskUsage()
		text := ""
		switch {
		case bytes > l.DiskLimit:
			text = fmt.Sprintf("exceeded the limit of its disk space: %s of %s used", nodemanager.ByteSize(bytes), nodemanager.ByteSize(l.DiskLimit))
		case entries > maxDiskEntries:
			text = fmt.Sprintf("has more than %d files and directories, or names that are too deep", maxDiskEntries)
		}
		if text != "" {
			s.end(cause{
				status: nodemanager.KilledForExcessLogs, killAt: Now(),
				diagnostics: fmt.Sprintf("Container %s %s. Killing container.", l.Container, text),
			})
			return
		}
		select {
		case <-s.treeGone:
			return
		case <-time.After(max(min(diskPause, 4*l.Poll), 20*time.Since(begin))):
		}
	}
}

// diskUsage is what counts for the container's limit.
func (s *supervisor) diskUsage() (bytes int64, entries int) {
	l := &s.launch
	for _, dir := range l.DiskDirs {
		b, e := usageOf(dir)
		bytes, entries = bytes+b, entries+e
	}
	if l.SharedDir != "" {
		b, e := usageOf(l.SharedDir)
		n := max(1, cmp.Or(s.sharers.Load(), int64(l.Sharers)))
		bytes, entries = bytes+b/n, entries+e/int(n)
	}
	return bytes, entries
}

// usageOf is what the files below dir take on the disk, holes not counted and a file of several names once. It stops when it
// has seen too many. Links are not followed, and pipes not waited for.
func usageOf(dir string) (bytes int64, entries int) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, 0
	}
	defer root.Close()
	for queue := []string{"."}; len(queue) > 0; queue = queue[1:] {
		if len(queue[0]) >= unix.PathMax {
			return bytes, maxDiskEntries + 1 // nobody hides there
		}
		d, err := openDirectory(root, queue[0])
		if err != nil {
			continue // gone meanwhile
		}
		for entries <= maxDiskEntries {
			list, err := d.ReadDir(256)
			for _, e := range list {
				entries++
				if e.IsDir() {
					queue = append(queue, queue[0]+"/"+e.Name())
				}
				info, err := e.Info()
				if err != nil {
					continue
				}
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					names := int64(1)
					if !e.IsDir() {
						names = max(1, int64(st.Nlink))
					}
					bytes += st.Blocks * 512 / names
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
