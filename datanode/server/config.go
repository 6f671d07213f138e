package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// SoftwareVersion is what registration and getDatanodeInfo tell.
const SoftwareVersion = "3.4.0-hops"

// Volume is a directory to keep blocks in.
type Volume struct {
	Path string
	// Type is HDFS's name of a storage type; empty is DISK.
	Type string
}

// Config configures a datanode. The server owns the listeners once Run was called.
type Config struct {
	Volumes []Volume
	// Reread reads the configuration anew, for the volumes that the datanode is to have from then on; nil: it cannot be.
	Reread func() ([]Volume, error)
	// Transfer, HTTP, IPC and GRPC are where it is reached; their ports are what namenodes tell clients.
	Transfer, HTTP, IPC, GRPC net.Listener
	// Near is a Unix-domain socket at which transfers are taken too, NearPath the template of the paths at which other datanodes of
	// this machine have theirs; nil and empty: there is none.
	Near     net.Listener
	NearPath string
	// AdvertiseIP is the address that clients dial; empty is that of Transfer. AdvertiseHost is the name that WebHDFS
	// redirects to; empty is AdvertiseIP.
	AdvertiseIP, AdvertiseHost string
	// NamenodesGRPC and NamenodesIPC are all namenodes, host:port each, until SetNamenodes names others.
	NamenodesGRPC, NamenodesIPC []string
	// Credentials are the server's; Door says who calls over IPC and HTTP.
	Credentials security.Credentials
	Door        *security.Door
	// Offers are the methods of SASL on Hadoop IPC.
	Offers []hrpc.Offer
	// Heartbeat is the time between beats; 0 is what each namenode asks for.
	Heartbeat time.Duration
	// FullReport is the time between full block reports; 0 is 6 h.
	FullReport time.Duration
	// Reserve is how many bytes of each volume stay free; 0 is a twentieth, 1 GiB at most, -1 none.
	Reserve int64
	// Tolerated is how many volumes may not work: with more the datanode does not start, and ends when they fail later. nil: it starts with all but one,
	// and goes on with none (dfs.datanode.failed.volumes.tolerated).
	Tolerated *int
	// TrashKeep is how long replicas are kept that are not wanted but whose file nobody deleted; 0 is a day.
	TrashKeep time.Duration
	// ScrubRate is how many bytes a second of each volume are verified; 0 is 8 MiB. ScrubEvery is the least time between the
	// beginnings of two passes; 0 is 21 days.
	ScrubRate  int64
	ScrubEvery time.Duration
	// RebuildRate is how many bytes a second are read of other datanodes to compute lost internal blocks of block groups, and sent to where replicas are
	// missing; 0 is 128 MiB.
	RebuildRate int64
	// LockedMemory is how many bytes of replicas are kept in memory at most, where namenodes want them there (dfs.datanode.max.locked.memory); 0: none.
	LockedMemory int64
	// SaveEvery is how often replicas on volumes of type RAM_DISK are saved on others; 0 is a minute.
	SaveEvery time.Duration
	// Unsynced: replicas are finalized without being synced (dfs.datanode.synconclose=false).
	Unsynced bool
	// DiskTimeout is how long a call of a disk may take before its volume is given up; 0 is 30 s.
	DiskTimeout time.Duration
	// Protection are the qualities of protection of which one has to be agreed on before blocks move (dfs.data.transfer.protection); none:
	// they move without. Encrypt has them move encrypted only (dfs.encrypt.data.transfer).
	Protection []sasl.Quality
	Encrypt    bool
	// UseHostnames makes datanodes dial each other by name.
	UseHostnames bool
	// FS is the disk; nil is the operating system's.
	FS vfs.FS
	// Slow is told of disks, and of other datanodes, that take too long; nil: nobody is.
	Slow *slowlog.Log
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// validate lists every mistake and fills in what follows from the rest.
func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, metadata.Errorf(metadata.ErrInvalidArgument, format, args...))
	}
	if len(c.Volumes) == 0 {
		bad("datanode has no volumes")
	}
	for name, l := range map[string]net.Listener{"Transfer": c.Transfer, "HTTP": c.HTTP, "IPC": c.IPC, "GRPC": c.GRPC} {
		if l == nil {
			bad("datanode has no %s listener", name)
			continue
		}
		if c.Door == nil {
			continue // said below
		}
		if err := c.Door.CheckBind(l.Addr().String()); err != nil {
			errs = append(errs, fmt.Errorf("datanode %s listener: %w", name, err))
		}
	}
	if len(c.NamenodesGRPC) == 0 || len(c.NamenodesIPC) == 0 {
		bad("datanode knows no namenode")
	}
	if c.Door == nil {
		bad("datanode has no door")
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if c.AdvertiseIP == "" {
		c.AdvertiseIP, _, _ = net.SplitHostPort(c.Transfer.Addr().String())
	}
	if ip := net.ParseIP(c.AdvertiseIP); ip == nil || ip.IsUnspecified() {
		return metadata.Errorf(metadata.ErrInvalidArgument, "datanode cannot advertise %q: clients have to dial it", c.AdvertiseIP)
	}
	if c.LockedMemory > 0 {
		if err := vfs.PinLimit(c.LockedMemory); err != nil {
			return metadata.Errorf(metadata.ErrInvalidArgument, "Cannot start datanode because %d bytes of replicas are to be kept in memory (dfs.datanode.max.locked.memory): %v", c.LockedMemory, err)
		}
	}
	if c.AdvertiseHost == "" {
		c.AdvertiseHost = c.AdvertiseIP
	}
	if c.FullReport == 0 {
		c.FullReport = 6 * time.Hour
	}
	if c.RebuildRate <= 0 {
		c.RebuildRate = 128 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

func volumesOf(list []Volume) ([]blockstore.VolumeConfig, error) {
	var out []blockstore.VolumeConfig
	for _, v := range list {
		t, err := datanode.ParseStorageType(v.Type)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Path, err)
		}
		out = append(out, blockstore.VolumeConfig{Path: v.Path, Type: t})
	}
	return out, nil
}

// id is how the others find this datanode.
func (c *Config) id(uuid string) *pb.DatanodeID {
	port := func(l net.Listener) uint32 {
		_, p, _ := net.SplitHostPort(l.Addr().String())
		n, _ := strconv.ParseUint(p, 10, 16)
		return uint32(n)
	}
	return &pb.DatanodeID{
		Uuid: uuid, Ip: c.AdvertiseIP, Host: c.AdvertiseHost,
		TransferPort: port(c.Transfer), HttpPort: port(c.HTTP), IpcPort: port(c.IPC), GrpcPort: port(c.GRPC),
	}
}
