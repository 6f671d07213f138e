package roles

import (
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/server"
)

// NodeManager makes the node manager of File's section.
func (b *Builder) NodeManager() ([]program.Part, error) {
	f, own := b.File, b.File.NodeManager
	gpus, about, err := gpu.Detect(own.GPUs, f.Cluster.Name+"/"+own.HTTP)
	if err != nil {
		return nil, err
	}
	b.Logger.Info("GPUs", "found", about)
	l, err := b.listeners(own.HTTP)
	if err != nil {
		return nil, err
	}
	s, err := server.New(server.Config{
		Work: own.Work, Memory: int64(own.Memory), VCores: own.VCores, GPUs: gpus, HTTP: l[0],
		ResourceManagers: managers(f, func(m config.ManagerMember) string { return m.GRPC }),
		Secret:           b.Secret, Door: b.Door, Supervisor: []string{b.Executable, "supervisor"},
		FS: server.OverDFS(b.filesystem),
		Cluster: server.Cluster{
			FS: FSURI(f), Namenodes: ipc(f), WebHDFS: namenodes(f, func(n config.NamenodeMember) string { return n.HTTP }),
			ResourceManagers: managers(f, func(m config.ManagerMember) string { return m.HTTP }), HadoopConfDir: f.Cluster.Conf,
		},
		Labels: own.Labels, Version: b.Version, LogLimit: int64(own.LogLimit), LogRate: int64(own.LogRate), StopContainers: b.Alone, Logger: b.Logger,
	})
	if err != nil {
		return nil, err
	}
	audit, err := b.audit("nodemanager", own.Work)
	if err != nil {
		return nil, err
	}
	return append(audit, program.Part{Name: "node manager", Run: s.Run}), nil
}
