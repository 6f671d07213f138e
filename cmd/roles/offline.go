package roles

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode/server"
	rmserver "github.com/gohops/hops/resourcemanager/server"
)

// ReinstallNamenode deletes what the namenode of this machine has stored, so that its next start joins the group as an
// empty member. The namenode must not run.
func (b *Builder) ReinstallNamenode() error {
	return b.offlineNamenode(func(h *raftstore.Host, group raftstore.GroupConfig) error {
		if err := h.Reinstall(group); err != nil {
			return err
		}
		return b.forget("checkpoint", "feed", "search", "smallfiles")
	})
}

// RecoverNamenode makes the group anew with the namenode of this machine as its only member. The namenode must not run.
func (b *Builder) RecoverNamenode(cluster string) error {
	return b.offlineNamenode(func(h *raftstore.Host, group raftstore.GroupConfig) error { return h.Recover(group, cluster) })
}

// RestoreNamenode makes the group out of a backup, with the namenode of this machine as its only member. r is the snapshot.
func (b *Builder) RestoreNamenode(backup raftstore.Backup, r io.Reader) error {
	return b.offlineNamenode(func(h *raftstore.Host, group raftstore.GroupConfig) error {
		if err := h.Restore(group, backup, r); err != nil {
			return err
		}
		// Its small files come with the snapshot. Those that were made after it may have the ids of those that are made from now on.
		return b.forget("smallfiles")
	})
}

// forget deletes parts of what the namenode of this machine keeps beside its log.
func (b *Builder) forget(parts ...string) (err error) {
	for _, part := range parts {
		err = errors.Join(err, os.RemoveAll(filepath.Join(b.File.Namenode.Data, "namespace", part)))
	}
	return err
}

// RestoreManager makes the resource managers' group out of a backup, with the one of this machine as its only member. It must not run.
func (b *Builder) RestoreManager(backup raftstore.Backup, r io.Reader) error {
	return b.offlineManager(func(h *raftstore.Host, group raftstore.GroupConfig) error { return h.Restore(group, backup, r) })
}

// RecoverManager makes the resource managers' group anew with the one of this machine as its only member. It must not run.
func (b *Builder) RecoverManager() error {
	return b.offlineManager(func(h *raftstore.Host, group raftstore.GroupConfig) error { return h.Recover(group, "") })
}

// FoundManager makes the resource managers' group, with the one of this machine as its only member. It must not run.
func (b *Builder) FoundManager() error {
	return b.offlineManager(func(h *raftstore.Host, group raftstore.GroupConfig) error { return h.Found(group) })
}

func (b *Builder) offlineNamenode(do func(*raftstore.Host, raftstore.GroupConfig) error) error {
	own := b.File.Namenode
	if own == nil {
		return errors.New("the configuration has no section namenode, which says where this machine's namenode keeps its data")
	}
	var members []raftstore.Member
	for _, n := range b.File.Namenodes {
		members = append(members, raftstore.Member{ID: n.ID, Address: n.Raft})
	}
	return b.offline(authority.Namenode, own.ID, own.Data, raftstore.GroupConfig{Name: server.Group, Members: members}, do)
}

func (b *Builder) offlineManager(do func(*raftstore.Host, raftstore.GroupConfig) error) error {
	own := b.File.ResourceManager
	if own == nil {
		return errors.New("the configuration has no section resourcemanager, which says where this machine's resource manager keeps its data")
	}
	var members []raftstore.Member
	for _, m := range b.File.ResourceManagers {
		members = append(members, raftstore.Member{ID: m.ID, Address: m.Raft})
	}
	return b.offline(authority.ResourceManager, own.ID, own.Data, raftstore.GroupConfig{Name: rmserver.GroupName, Members: members}, do)
}

// offline gives do the Raft host of a server of this machine, on no port.
func (b *Builder) offline(role authority.Role, id, data string, group raftstore.GroupConfig, do func(*raftstore.Host, raftstore.GroupConfig) error) error {
	self := ""
	for _, m := range group.Members {
		if m.ID == id {
			self = m.Address
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: id, Listener: l, Advertise: self, Dir: filepath.Join(data, "raft"), Credentials: b.Credentials, Role: role, Door: b.Door, Logger: b.Logger, Reserve: -1,
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if err := do(host, group); err != nil {
		return errors.Join(fmt.Errorf("%s %s: %w", role, id, err), host.Close())
	}
	return host.Close()
}
