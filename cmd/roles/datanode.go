package roles

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/server"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/program"
)

// Datanode makes the datanode of File's section.
func (b *Builder) Datanode() ([]program.Part, error) { return b.DatanodeAt(*b.File.Datanode, nil) }

// DatanodeAt makes a datanode of a section; err is passed on, so that the section can be made in the call.
func (b *Builder) DatanodeAt(own config.Datanode, err error) ([]program.Part, error) {
	if err != nil {
		return nil, err
	}
	var volumes []server.Volume
	for _, v := range own.Volumes {
		volumes = append(volumes, server.Volume{Path: v.Path, Type: v.Type})
		b.volumes = append(b.volumes, v.Path)
	}
	properties := b.File.HadoopProperties()
	offers, err := tickets(properties, properties.Kerberos.DatanodePrincipal, properties.Kerberos.DatanodeKeytab)
	if err != nil {
		return nil, err
	}
	ip, host, err := advertise(own.Transfer)
	if err != nil {
		return nil, fmt.Errorf("datanode.transfer: %w", err)
	}
	l, err := b.listeners(own.Transfer, own.HTTP, own.IPC, own.GRPC)
	if err != nil {
		return nil, err
	}
	var near net.Listener
	path := b.File.SocketPath(&own)
	if path != "" {
		at, err := localsocket.Listen(localsocket.Path(path, own.Transfer))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("datanode.domain_socket: %w", err), closeAll(l))
		}
		near = at
	}
	s, err := server.New(server.Config{
		Near: near, NearPath: path, FS: b.Disk,
		Volumes: volumes, Reread: b.reread(), AdvertiseIP: ip, AdvertiseHost: host, Transfer: l[0], HTTP: l[1], IPC: l[2], GRPC: l[3],
		NamenodesGRPC: namenodes(b.File, func(n config.NamenodeMember) string { return n.GRPC }), NamenodesIPC: ipc(b.File),
		Credentials: b.Credentials, Door: b.Door, Offers: offers, Reserve: int64(own.Reserve), TrashKeep: own.Trash, Tolerated: own.FailedVolumesTolerated,
		Protection: properties.TransferProtection, Encrypt: properties.EncryptTransfer,
		ScrubRate: int64(own.ScrubRate), ScrubEvery: own.ScrubEvery, RebuildRate: int64(own.RebuildRate), LockedMemory: int64(b.File.ReplicasMemory(&own)),
		SaveEvery: time.Duration(properties.LazyWriterInterval) * time.Second, Unsynced: !properties.SyncOnClose, DiskTimeout: properties.DiskCheckTimeout, Slow: b.slow(), Logger: b.Logger,
	})
	if err != nil {
		if near != nil {
			near.Close()
		}
		return nil, err
	}
	working := own.Volumes[0].Path
	for _, v := range slices.Backward(s.Store().Volumes()) {
		if v.Failed == nil && v.Type != datanode.RAMDisk {
			working = v.Path
		}
	}
	audit, err := b.audit("datanode", working) // a volume begins empty: after it was opened
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if audit != nil && b.File.Audit.Dir == "" {
		s.Hold(working, "the audit log is written there: set audit.dir and restart")
	}
	set := func(f *config.File) error {
		return s.SetNamenodes(namenodes(f, func(n config.NamenodeMember) string { return n.GRPC }), ipc(f))
	}
	b.membership.serves(authority.Datanode, "")
	b.membership.follow(func(now config.Servers) error { return set(&config.File{Namenodes: now.Namenodes}) })
	b.awaited = append(b.awaited, s.Ready())
	return slices.Concat(audit, []program.Part{{Name: "datanode " + own.Volumes[0].Path, Run: s.Run}}, b.follow(set)), nil
}

// reread reads the volumes of the datanode in the configuration file anew; nil: there is no file.
func (b *Builder) reread() func() ([]server.Volume, error) {
	if b.Path == "" {
		return nil
	}
	return func() ([]server.Volume, error) {
		text, err := os.ReadFile(b.Path)
		if err != nil {
			return nil, err
		}
		f, err := config.Parse(b.Path, text)
		if err != nil {
			return nil, err
		}
		if f.Datanode == nil {
			return nil, fmt.Errorf("%s has no datanode any more", b.Path)
		}
		var out []server.Volume
		for _, v := range f.Datanode.Volumes {
			out = append(out, server.Volume{Path: v.Path, Type: v.Type})
		}
		return out, nil
	}
}

func closeAll(listeners []net.Listener) (err error) {
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}
