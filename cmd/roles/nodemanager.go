package roles

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/server"
	rm "github.com/gohops/hops/resourcemanager"
)

// NodeManager makes the node manager of File's section.
func (b *Builder) NodeManager() ([]program.Part, error) {
	f, own := b.File, b.File.NodeManager
	gpus, about, err := gpu.Detect(own.GPUs, f.Cluster.Name+"/"+own.HTTP)
	if err != nil {
		return nil, err
	}
	b.Logger.Info("GPUs", "found", about)
	hidden, shown, err := b.serverFiles()
	if err != nil {
		return nil, err
	}
	other, err := rm.NewAmounts(own.Resources)
	if err != nil {
		return nil, fmt.Errorf("nodemanager.resources: %w", err)
	}
	attributes, err := rm.NewAttributes(own.Attributes)
	if err != nil {
		return nil, fmt.Errorf("nodemanager.attributes: %w", err)
	}
	addrs := []string{own.HTTP, own.IPC}
	if own.Shuffle != config.Off {
		addrs = append(addrs, own.Shuffle)
	}
	l, err := b.listeners(addrs...)
	if err != nil {
		return nil, err
	}
	l = append(l, nil) // off
	s, err := server.New(server.Config{
		Work: own.Work, Memory: int64(own.Memory), VCores: own.VCores, Other: other, GPUs: gpus, GPUProbe: own.GPUProbe, HTTP: l[0], IPC: l[1], Shuffle: l[2], RPCProtection: f.HadoopProperties().RPCProtection,
		ResourceManagers: managers(f, func(m config.ManagerMember) string { return m.GRPC }),
		Credentials:      b.Credentials, Door: b.Door, Supervisor: []string{b.Executable, "supervisor"},
		FS:      server.OverDFS(b.filesystem),
		Cluster: clusterOf(f),
		Labels:  own.Labels, Attributes: attributes, Version: b.Version, LogLimit: int64(own.LogLimit), LogRate: int64(own.LogRate), LogRolled: own.LogRolled, LogKeep: int64(own.LogKeep), DiskLimit: int64(own.DiskLimit),
		Isolation: server.Isolation(own.Isolation), Accounts: accounts(own), Hidden: hidden, Shown: shown, Rack: own.Rack, Datanode: b.neighbour,
		Pids: own.Pids, Grace: own.Grace, HardCPU: own.CPU == "limit", GPUCores: own.CPUSet == "gpu", GPUIdle: own.GPUIdle, HealthScript: healthScript(own),
		StopContainers: b.Alone, Logger: b.Logger,
	})
	if err != nil {
		return nil, err
	}
	b.membership.serves(authority.NodeManager, "")
	lists := b.followLists(func(now config.Servers) error {
		all := *f
		all.Namenodes, all.ResourceManagers = now.Namenodes, now.ResourceManagers
		return s.SetCluster(managers(&all, func(m config.ManagerMember) string { return m.GRPC }), clusterOf(&all))
	})
	b.membership.onRoots(s.TellAuthorities)
	audit, err := b.audit("nodemanager", own.Work)
	if err != nil {
		return nil, err
	}
	b.awaited = append(b.awaited, s.Ready())
	return slices.Concat(audit, []program.Part{{Name: "node manager", Run: s.Run}}, lists), nil
}

func healthScript(n *config.NodeManager) server.HealthScript {
	if n.HealthScript == nil {
		return server.HealthScript{}
	}
	return server.HealthScript{Path: n.HealthScript.Path, Args: n.HealthScript.Args, Interval: n.HealthScript.Interval, Timeout: n.HealthScript.Timeout}
}

// accounts are the rules of whose containers run as their users.
func accounts(n *config.NodeManager) account.Rules {
	r := account.Rules{Banned: n.BannedUsers, Allowed: n.AllowedSystemUsers}
	if n.MinUserID != nil {
		r.MinUID = uint32(*n.MinUserID)
	}
	return r
}

// clusterOf is what containers are told of the cluster.
func clusterOf(f *config.File) server.Cluster {
	return server.Cluster{
		FS: FSURI(f), Namenodes: ipc(f), WebHDFS: namenodes(f, func(n config.NamenodeMember) string { return n.HTTP }),
		ResourceManagers: managers(f, func(m config.ManagerMember) string { return m.HTTP }), HadoopConfDir: f.Cluster.Conf,
	}
}

// neighbour is the uuid of this machine's datanode, empty while it has none. Of several the first counts.
func (b *Builder) neighbour() string {
	volumes := slices.Clone(b.volumes)
	if b.File.Datanode != nil {
		for _, v := range b.File.Datanode.Volumes {
			volumes = append(volumes, v.Path)
		}
	}
	for _, path := range volumes {
		if uuid, err := blockstore.OwnerOf(path); err == nil {
			return uuid
		}
	}
	return ""
}

// serverFiles are the files of this machine's servers that containers must not see, and those that they must.
func (b *Builder) serverFiles() (hidden, shown []string, err error) {
	f := b.File
	hidden = []string{f.Cluster.SecretFile, f.Cluster.Identity, filepath.Join(filepath.Dir(f.Cluster.Identity), authorityFile)}
	if f.Namenode != nil {
		hidden = append(hidden, f.Namenode.Data)
	}
	if f.ResourceManager != nil {
		hidden = append(hidden, f.ResourceManager.Data)
	}
	if f.Datanode != nil {
		for _, v := range f.Datanode.Volumes {
			hidden = append(hidden, v.Path)
		}
	}
	hidden = append(hidden, b.volumes...)
	if f.Audit.Dir != "" {
		hidden = append(hidden, f.Audit.Dir)
	}
	shown = []string{b.Executable}
	if f.Cluster.Conf != "" {
		shown = append(shown, f.Cluster.Conf)
	}
	for _, list := range [][]string{hidden, shown} {
		for i := range list {
			if list[i], err = filepath.Abs(list[i]); err != nil {
				return nil, nil, err
			}
		}
	}
	return hidden, shown, nil
}
