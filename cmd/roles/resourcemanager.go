package roles

import (
	"fmt"
	"path/filepath"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/server"
)

// ResourceManager makes the resource manager of File's section.
func (b *Builder) ResourceManager() ([]program.Part, error) {
	f, own := b.File, b.File.ResourceManager
	var self config.ManagerMember
	var members []raftstore.Member
	for _, m := range f.ResourceManagers {
		if m.ID == own.ID {
			self = m
		}
		members = append(members, raftstore.Member{ID: m.ID, Address: m.Raft})
	}
	queues := server.Queues(own.Queues)
	slow := b.slow()
	host, parts, err := b.host(authority.ResourceManager, own.ID, self.Raft, filepath.Join(own.Data, "raft"), int64(own.Reserve), slow)
	if err != nil {
		return nil, err
	}
	audit, err := b.audit("resourcemanager", own.Data)
	if err != nil {
		return nil, err
	}
	parts = append(audit, parts...)
	addresses := []string{self.HTTP, self.GRPC}
	for _, a := range []string{self.IPC, own.Scheduler, own.Admin} {
		if a != "" {
			addresses = append(addresses, a)
		}
	}
	l, err := b.listeners(addresses...)
	if err != nil {
		return nil, err
	}
	s, err := server.New(server.Config{
		ID: own.ID, HTTP: l[0], GRPC: l[1], IPC: l[2:], RPCProtection: f.HadoopProperties().RPCProtection, Host: host, Members: members, Bootstrap: b.Bootstrap, Timers: b.Timers, Peers: peers(f.ResourceManagers),
		Credentials: b.Credentials, Door: b.Door, Queues: queues, Configured: b.configured(), NodesExclude: f.HadoopProperties().NodesExclude, NodeLease: own.Lease,
		LaunchWithin: own.LaunchWithin,
		Preemption: server.Preemption{
			Off: own.Preemption.Disabled, After: own.Preemption.After, Notice: own.Preemption.Notice, RoundShare: own.Preemption.MaxShare,
			Defragment: own.Preemption.Defragment, DefragmentAfter: own.Preemption.DefragmentAfter, DefragmentPrice: own.Preemption.DefragmentPrice,
			DefragmentRest: own.Preemption.DefragmentRest,
		},
		Minimum:    rm.Resource{Memory: int64(own.MinimumAllocation)},
		Maximum:    rm.Resource{Memory: int64(own.MaximumAllocation.Memory), VCores: own.MaximumAllocation.VCores, GPUs: own.MaximumAllocation.GPUs},
		RackScript: f.HadoopProperties().RackScript, RackTable: f.HadoopProperties().RackTable,
		Logs: server.DFSLogs(b.filesystem), Locations: server.DFSLocations(b.filesystem), Secrets: server.DFSSecrets(b.Credentials.Secret, b.filesystem), Tokens: server.DFSTokens(b.Door.Daemon(), b.keptFilesystem(), b.filesystem), Executable: b.Executable,
		LogTree: server.DFSLogTree(b.keptFilesystem()), LogRetention: own.LogRetention,
		Environment: environmentOf(f), Slow: slow, Logger: b.Logger,
	})
	if err != nil {
		return nil, err
	}
	lists := b.followLists(func(now config.Servers) error {
		s.SetPeers(peers(now.ResourceManagers))
		all := *f
		all.Namenodes = now.Namenodes
		s.SetEnvironment(environmentOf(&all))
		return nil
	})
	b.membership.serves(authority.ResourceManager, own.ID)
	parts = append(parts, program.Part{Name: "resource manager " + own.ID, Run: s.Run, Ready: s.Ready()})
	return append(parts, lists...), nil
}

// environmentOf is what containers are told about the cluster.
func environmentOf(f *config.File) server.Environment {
	return server.Environment{FS: FSURI(f), WebHDFS: namenodes(f, func(n config.NamenodeMember) string { return n.HTTP }), HadoopConfDir: f.Cluster.Conf}
}

// configured reads anew what a resource manager may change while it runs; nil: the configuration comes from no file.
func (b *Builder) configured() func() (server.Configured, error) {
	if b.Path == "" {
		return nil
	}
	return func() (server.Configured, error) {
		f, err := config.Load(b.Path)
		if err != nil {
			return server.Configured{}, err
		}
		if f.ResourceManager == nil {
			return server.Configured{}, fmt.Errorf("%s has no section resourcemanager any more", b.Path)
		}
		p := f.HadoopProperties()
		return server.Configured{Queues: server.Queues(f.ResourceManager.Queues), Users: security.UserRules{Supergroup: p.Supergroup, ProxyUsers: p.ProxyUsers}}, nil
	}
}

func peers(list []config.ManagerMember) (out []server.Peer) {
	for _, m := range list {
		out = append(out, server.Peer{ID: m.ID, HTTP: m.HTTP, GRPC: m.GRPC})
	}
	return out
}
