package roles

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode/server"
)

// ReinstallNamenode deletes what the namenode of this machine has stored, so that its next start joins the group as an
// empty member. The namenode must not run.
func (b *Builder) ReinstallNamenode() error {
	return b.offline(func(h *raftstore.Host, group raftstore.GroupConfig) error {
		if err := h.Reinstall(group); err != nil {
			return err
		}
		return os.RemoveAll(filepath.Join(b.File.Namenode.Data, "namespace", "checkpoint"))
	})
}

// RecoverNamenode makes the group anew with the namenode of this machine as its only member. The namenode must not run.
func (b *Builder) RecoverNamenode(cluster string) error {
	return b.offline(func(h *raftstore.Host, group raftstore.GroupConfig) error { return h.Recover(group, cluster) })
}

// RestoreNamenode makes the group out of a backup, with the namenode of this machine as its only member. r is the snapshot.
func (b *Builder) RestoreNamenode(backup raftstore.Backup, r io.Reader) error {
	return b.offline(func(h *raftstore.Host, group raftstore.GroupConfig) error { return h.Restore(group, backup, r) })
}

// offline gives do the Raft host of this machine's namenode, on no port.
func (b *Builder) offline(do func(*raftstore.Host, raftstore.GroupConfig) error) error {
	own := b.File.Namenode
	if own == nil {
		return errors.New("the configuration has no section namenode, which says where this machine's namenode keeps its data")
	}
	var self config.NamenodeMember
	group := raftstore.GroupConfig{Name: server.Group}
	for _, n := range b.File.Namenodes {
		if n.ID == own.ID {
			self = n
		}
		group.Members = append(group.Members, raftstore.Member{ID: n.ID, Address: n.Raft})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: own.ID, Listener: l, Advertise: self.Raft, Dir: filepath.Join(own.Data, "raft"), Credentials: b.Credentials, Role: authority.Namenode, Door: b.Door, Logger: b.Logger, Reserve: -1,
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if err := do(host, group); err != nil {
		return errors.Join(fmt.Errorf("namenode %s: %w", own.ID, err), host.Close())
	}
	return host.Close()
}
