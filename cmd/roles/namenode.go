package roles

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode/server"
)

// Namenode makes the namenode of File's section.
func (b *Builder) Namenode() ([]program.Part, error) {
	f, own := b.File, b.File.Namenode
	var self config.NamenodeMember
	var members []raftstore.Member
	var peers []server.Peer
	for _, n := range f.Namenodes {
		if n.ID == own.ID {
			self = n
		}
		members = append(members, raftstore.Member{ID: n.ID, Address: n.Raft})
		peers = append(peers, server.Peer{ID: n.ID, IPC: n.IPC, HTTP: n.HTTP})
	}
	properties := f.HadoopProperties()
	offers, err := tickets(properties, properties.Kerberos.NamenodePrincipal, properties.Kerberos.NamenodeKeytab)
	if err != nil {
		return nil, err
	}
	slow := b.slow()
	host, parts, err := b.host(authority.Namenode, own.ID, self.Raft, filepath.Join(own.Data, "raft"), int64(own.Reserve), slow)
	if err != nil {
		return nil, err
	}
	audit, err := b.audit("namenode", own.Data)
	if err != nil {
		return nil, err
	}
	parts = append(audit, parts...)
	ip, name, err := advertise(own.Transfer)
	if err != nil {
		return nil, fmt.Errorf("namenode.transfer: %w", err)
	}
	l, err := b.listeners(self.IPC, self.HTTP, self.GRPC, own.Transfer)
	if err != nil {
		return nil, err
	}
	s, err := server.New(server.Config{
		ID: own.ID, Dir: filepath.Join(own.Data, "namespace"), IPC: l[0], HTTP: l[1], GRPC: l[2], Transfer: l[3], AdvertiseIP: ip, AdvertiseHost: name,
		Host: host, Members: members, Bootstrap: b.Bootstrap, Timers: b.Timers, Credentials: b.Credentials, Door: b.Door, Offers: offers,
		Properties: properties, QuorumReads: own.Reads == "quorum", Heartbeat: own.Heartbeat, StaleAfter: own.StaleAfter, DeadAfter: own.DeadAfter, RecoveryPatience: own.RecoveryPatience, Memory: int64(own.Memory), SmallFiles: *own.SmallFiles, SmallFileLimit: int(own.SmallFileLimit), SmallFileDelay: *own.SmallFileDelay, ScrubRate: int64(own.ScrubRate), ScrubEvery: own.ScrubEvery,
		FeedBytes: feedBytes(own.Feed), FeedAge: own.FeedAge, Search: own.Search,
		Peers: peers, OIDC: own.OIDC,
		Name: f.Cluster.Name, Servers: config.Servers{Namenodes: f.Namenodes, ResourceManagers: f.ResourceManagers}, Static: !f.Followed,
		Settings: f.Properties, Founding: b.founding, Founded: b.founded, Slow: slow, Logger: b.Logger,
	})
	if err != nil {
		return nil, err
	}
	if f.Cluster.Conf != "" {
		if err := WriteConf(f.Cluster.Conf, f, b.Credentials.Member.Roots()); err != nil {
			return nil, err
		}
	}
	parts = append(parts, program.Part{Name: "namenode " + own.ID, Run: s.Run, Ready: s.Ready()})
	b.membership.serves(authority.Namenode, own.ID)
	return append(parts, program.Part{Name: "system directories", Run: b.directories}), nil
}

// feedBytes is what the feed of changes may take: 0 for the default, -1 for none.
func feedBytes(size *config.Size) int64 {
	if size == nil {
		return 0
	}
	return cmp.Or(int64(*size), -1)
}
