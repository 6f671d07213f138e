package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/durable"
	"github.com/gohops/hops/nodemanager/localizer"
	"github.com/gohops/hops/nodemanager/state"
)

// localize fills the work directory and writes the token.
func (c *container) localize(ctx context.Context, spec *nodemanager.Spec) error {
	if spec.Token != "" {
		if err := c.put("token", []byte(spec.Token+"\n")); err != nil {
			return err
		}
		if err := c.tellAuthorities(); err != nil {
			return err
		}
	}
	var fsys Filesystem
	if slices.ContainsFunc(spec.Artifacts, func(a nodemanager.Artifact) bool { return a.URI != "" }) {
		var err error
		if fsys, err = c.server.fs(spec.User); err != nil {
			return err
		}
		defer c.server.releaseFS(spec.User)
	}
	dir, begin := filepath.Join(c.dir, "work"), time.Now()
	defer func() { c.server.localized.add(time.Since(begin)) }()
	return c.patiently(ctx, "filesystem", func() error {
		if err := emptyDir(dir); err != nil {
			return err
		}
		err := c.fill(ctx, fsys, spec, dir)
		if a := c.account; err == nil && a != nil {
			err = state.Give(dir, a.UID, a.GID)
		}
		return err
	})
}

// fill puts into a work directory what is in it before the command starts.
func (c *container) fill(ctx context.Context, fsys Filesystem, spec *nodemanager.Spec, dir string) error {
	loc := c.server.localizer
	if spec.Dialect != nodemanager.YARN {
		return loc.Localize(ctx, fsys, spec.User, dir, spec.Artifacts)
	}
	var err error
	if c.account != nil && c.server.protection.shared != "" {
		// Without a mount namespace the user could not reach the cache: copies, as YARN makes them on one disk per user.
		err = errors.Join(loc.Copy(ctx, fsys, spec.User, dir, spec.Artifacts), executable(dir))
	} else {
		var trees []string
		trees, err = loc.Link(ctx, fsys, localizer.Consumer{User: spec.User, Application: spec.Application}, dir, spec.Artifacts)
		c.hold(trees)
		// They are on the same disk, and count as if they had been unpacked for this container.
		if bytes := loc.Size(trees); err == nil && c.disk > 0 && bytes >= c.disk {
			err = fmt.Errorf("its artifacts take %s, and a container may have %s on the disk of this node",
				nodemanager.ByteSize(bytes), nodemanager.ByteSize(c.disk))
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(furnish(dir, spec), c.makeAppDir(spec))
}

// treesFile in a container's directory lists the trees of the cache that it is linked to.
const treesFile = "trees.json"

// hold notes which trees the container uses, also for a node manager that comes after us.
func (c *container) hold(trees []string) {
	c.dropTrees()
	c.trees = trees
}

// dropTrees is the end of the container's use of trees.
func (c *container) dropTrees() {
	c.server.localizer.Release(c.trees)
	c.trees = nil
}

// adoptTrees holds what the container has been linked to by an earlier node manager.
func (c *container) adoptTrees() {
	var trees []string
	err := durable.ReadJSON(filepath.Join(c.dir, treesFile), &trees)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Error("it is not known which shared artifacts the container uses", "error", err)
	}
	c.server.localizer.Hold(trees)
	c.trees = trees
}

// patiently tries again what fails because somebody does not answer, for as long as the configured outage: that is not the container's
// fault.
func (c *container) patiently(ctx context.Context, somebody string, try func() error) error {
	begin := time.Now()
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 8*time.Second) {
		err := try()
		if err == nil || !passes(err) || time.Since(begin) > c.server.config.Outage || ctx.Err() != nil {
			c.setWaits("")
			return err
		}
		if c.setWaits(fmt.Sprintf("waits for the %s: %v", somebody, err)) {
			c.log.Warn("the container cannot start yet", "waits for", somebody, "error", err)
		}
		sleep(ctx, pause)
	}
}

// passes reports whether an error of the filesystem, or of the resource manager, may be gone in a moment.
func passes(err error) bool {
	if _, ok := errors.AsType[*notYet](err); ok {
		return true
	}
	for _, kind := range []*metadata.Kind{metadata.ErrStandby, metadata.ErrRetriable, metadata.ErrSafeMode, metadata.ErrNotReplicatedYet, metadata.ErrReplicaNotFound, metadata.ErrIO} {
		if errors.Is(err, kind) {
			return true
		}
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET)
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := state.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
