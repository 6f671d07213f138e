package server

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gohops/hops/nodemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// noticeFile is where a container's program finds that it is to make room for others: it is there from the notice on, and goes when that is
// withdrawn.
func (c *container) noticeFile() string { return filepath.Join(c.dir, "preemption.json") }

// notice is what the file says; times are in milliseconds since 1970.
type notice struct {
	Since    int64  `json:"since"`
	Deadline int64  `json:"deadline"`
	Reason   string `json:"reason"`
}

// heed tells containers what the resource manager says of who is to go; nil: it says nothing of it.
func (s *Server) heed(said *rmpb.Notices) {
	if said == nil {
		return
	}
	now := map[nodemanager.ContainerID]string{}
	for _, n := range said.GetNotices() {
		b, err := json.Marshal(notice{n.GetSinceMs(), n.GetDeadlineMs(), n.GetReason()})
		if err == nil {
			now[nodemanager.ContainerID(n.GetContainerId())] = string(b) + "\n"
		}
	}
	for _, c := range s.list() {
		c.heed(now[c.id])
	}
}

// heed has the container's file say a notice; empty: there is none. The disk may be slow, and who reads orders does not wait for it.
func (c *container) heed(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heeded && c.notice == text || c.unrecorded || c.record.State == nodemanager.Complete {
		return
	}
	c.heeded, c.notice = true, text
	if c.heeding {
		return
	}
	c.heeding = true
	c.server.work.Go(func() {
		for {
			c.mu.Lock()
			text := c.notice
			c.mu.Unlock()
			err := c.putNotice(text)
			c.mu.Lock()
			if err != nil {
				c.heeded = false // the next orders try again
				c.log.Warn("the container is not told whether it is to make room", "error", err)
			}
			if err != nil || c.notice == text {
				c.heeding = false
				c.mu.Unlock()
				return
			}
			c.mu.Unlock()
		}
	})
}

// putNotice writes the file. The directory is ours, so nothing can be put in the file's place, and only the container's user comes through it.
func (c *container) putNotice(text string) error {
	if text == "" {
		if err := os.Remove(c.noticeFile()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return c.place(c.noticeFile(), []byte(text), 0o644, -1, -1) // whatever our umask is
}
