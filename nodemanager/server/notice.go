package server

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/durable"
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
		if err := c.heed(now[c.id]); err != nil {
			c.log.Warn("the container is not told whether it is to make room", "error", err)
		}
	}
}

// heed has the container's file say a notice; empty: there is none. The directory is ours, so nothing can be put in the file's place, and only the
// container's user comes through it.
func (c *container) heed(text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heeded && c.notice == text || c.unrecorded || c.record.State == nodemanager.Complete {
		return nil
	}
	var err error
	if text != "" {
		if err = durable.ReplaceFile(c.noticeFile(), []byte(text), 0o644); err == nil {
			err = os.Chmod(c.noticeFile(), 0o644) // whatever our umask is
		}
	} else if err = os.Remove(c.noticeFile()); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		c.heeded, c.notice = true, text
	}
	return err
}
