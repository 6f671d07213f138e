package webhdfs

import (
	"fmt"
	"strconv"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
)

// The JSON of WebHDFS. Fields are in the order in which HDFS sends them, which is alphabetical nearly everywhere.

type fileStatus struct {
	AccessTime  int64 `json:"accessTime"`
	ACLBit      bool  `json:"aclBit,omitempty"`
	BlockSize   int64 `json:"blockSize"`
	ChildrenNum int   `json:"childrenNum"`
	ecStatus
	FileID           uint64 `json:"fileId"`
	Group            string `json:"group"`
	Length           int64  `json:"length"`
	ModificationTime int64  `json:"modificationTime"`
	Owner            string `json:"owner"`
	PathSuffix       string `json:"pathSuffix"`
	Permission       string `json:"permission"`
	Replication      uint16 `json:"replication"`
	SnapshotEnabled  bool   `json:"snapshotEnabled,omitempty"`
	StoragePolicy    uint8  `json:"storagePolicy"`
	Type             string `json:"type"`
}

func octal(m metadata.Mode) string { return strconv.FormatUint(uint64(m), 8) }

func statusOf(f *metadata.FileStatus) fileStatus {
	s := fileStatus{
		AccessTime: int64(f.ATime), ACLBit: f.ACL, BlockSize: f.BlockSize, ChildrenNum: f.Children, FileID: uint64(f.ID), Group: f.Group,
		Length: f.Length, ModificationTime: int64(f.MTime), Owner: f.Owner, PathSuffix: f.Name, Permission: octal(f.Mode),
		Replication: f.Replication, SnapshotEnabled: f.Snapshottable, StoragePolicy: f.StoragePolicy, Type: "FILE",
	}
	if f.IsDir() {
		s.Type = "DIRECTORY"
	}
	if p, coded := metadata.ErasurePolicyOf(f.Erasure); coded {
		s.ecStatus = ecStatus{true, p.Name, ecObjectOf(p)}
	}
	return s
}

// trashRoot is a file as Hadoop's own JSON has it, which only GETTRASHROOTS uses.
type trashRoot struct {
	AccessTime       int64  `json:"access_time"`
	BlockReplication uint16 `json:"block_replication"`
	BlockSize        int64  `json:"blocksize"`
	Group            string `json:"group"`
	IsDir            bool   `json:"isdir"`
	Length           int64  `json:"length"`
	ModificationTime int64  `json:"modification_time"`
	Owner            string `json:"owner"`
	Path             string `json:"path"`
	Permission       string `json:"permission"`
}

func trashRootOf(path string, f *metadata.FileStatus) trashRoot {
	return trashRoot{
		AccessTime: int64(f.ATime), BlockReplication: f.Replication, BlockSize: f.BlockSize, Group: f.Group, IsDir: f.IsDir(),
		Length: f.Length, ModificationTime: int64(f.MTime), Owner: f.Owner, Path: path, Permission: octal(f.Mode),
	}
}

type fileStatuses struct {
	FileStatuses struct {
		FileStatus []fileStatus
	}
}

func statusesOf(entries []metadata.FileStatus) (s fileStatuses) {
	s.FileStatuses.FileStatus = make([]fileStatus, len(entries))
	for i := range entries {
		s.FileStatuses.FileStatus[i] = statusOf(&entries[i])
	}
	return s
}

type directoryListing struct {
	DirectoryListing struct {
		PartialListing   fileStatuses `json:"partialListing"`
		RemainingEntries int          `json:"remainingEntries"`
	}
}

type contentSummary struct {
	DirectoryCount         int64      `json:"directoryCount"`
	ECPolicy               string     `json:"ecPolicy"`
	FileCount              int64      `json:"fileCount"`
	Length                 int64      `json:"length"`
	Quota                  int64      `json:"quota"`
	SnapshotDirectoryCount int64      `json:"snapshotDirectoryCount"`
	SnapshotFileCount      int64      `json:"snapshotFileCount"`
	SnapshotLength         int64      `json:"snapshotLength"`
	SnapshotSpaceConsumed  int64      `json:"snapshotSpaceConsumed"`
	SpaceConsumed          int64      `json:"spaceConsumed"`
	SpaceQuota             int64      `json:"spaceQuota"`
	TypeQuota              typeQuotas `json:"typeQuota"`
}

func summaryOf(s *metadata.ContentSummary) contentSummary {
	return contentSummary{
		ECPolicy:       hdfs.ErasureName(s),
		DirectoryCount: s.Directories, FileCount: s.Files, Length: s.Length, Quota: s.Quota,
		SpaceConsumed: s.SpaceConsumed, SpaceQuota: s.SpaceQuota,
		SnapshotDirectoryCount: s.Snapshot.Directories, SnapshotFileCount: s.Snapshot.Files,
		SnapshotLength: s.Snapshot.Length, SnapshotSpaceConsumed: s.Snapshot.SpaceConsumed, TypeQuota: typeQuotasOf(s.Types),
	}
}

// typeQuotas are the quotas of storage types that are set, by their names.
type typeQuotas map[string]typeQuota

type typeQuota struct {
	Consumed int64 `json:"consumed"`
	Quota    int64 `json:"quota"`
}

func typeQuotasOf(all []metadata.TypeQuota) typeQuotas {
	out := typeQuotas{}
	for _, q := range all {
		if q.Quota != metadata.QuotaUnset {
			out[q.Name] = typeQuota{q.Consumed, q.Quota}
		}
	}
	return out
}

type quotaUsage struct {
	FileAndDirectoryCount int64      `json:"fileAndDirectoryCount"`
	Quota                 int64      `json:"quota"`
	SpaceConsumed         int64      `json:"spaceConsumed"`
	SpaceQuota            int64      `json:"spaceQuota"`
	TypeQuota             typeQuotas `json:"typeQuota"`
}

type serverDefaults struct {
	BlockSize              int64  `json:"blockSize"`
	BytesPerChecksum       int    `json:"bytesPerChecksum"`
	ChecksumType           int    `json:"checksumType"`
	DefaultStoragePolicyID uint8  `json:"defaultStoragePolicyId"`
	EncryptDataTransfer    bool   `json:"encryptDataTransfer"`
	FileBufferSize         int    `json:"fileBufferSize"`
	KeyProviderURI         string `json:"keyProviderUri"`
	Replication            int    `json:"replication"`
	SnapshotTrashRoot      bool   `json:"snapshotTrashRootEnabled"`
	TrashInterval          int    `json:"trashInterval"`
	WritePacketSize        int    `json:"writePacketSize"`
}

func defaultsOf(d namenode.Defaults) serverDefaults {
	const crc32c = 2
	return serverDefaults{
		BlockSize: d.BlockSize, BytesPerChecksum: d.BytesPerChecksum, ChecksumType: crc32c, DefaultStoragePolicyID: namenode.HotPolicy.ID,
		FileBufferSize: d.FileBufferSize, Replication: d.Replication, TrashInterval: d.TrashMinutes, WritePacketSize: d.PacketSize,
	}
}

type aclStatus struct {
	Entries    []string `json:"entries"`
	Group      string   `json:"group"`
	Owner      string   `json:"owner"`
	Permission string   `json:"permission"`
	StickyBit  bool     `json:"stickyBit"`
}

type storagePolicy struct {
	CopyOnCreateFile     bool     `json:"copyOnCreateFile"`
	CreationFallbacks    []string `json:"creationFallbacks"`
	ID                   uint8    `json:"id"`
	Name                 string   `json:"name"`
	ReplicationFallbacks []string `json:"replicationFallbacks"`
	StorageTypes         []string `json:"storageTypes"`
}

func policyOf(p *namenode.StoragePolicy) storagePolicy {
	names := func(ts []namenode.StorageType) []string {
		out := make([]string, len(ts))
		for i, t := range ts {
			out[i] = t.String()
		}
		return out
	}
	return storagePolicy{
		CopyOnCreateFile: p.Name == "LAZY_PERSIST", CreationFallbacks: names(p.CreationFallback), ID: p.ID, Name: p.Name,
		ReplicationFallbacks: names(p.ReplicationFallback), StorageTypes: names(p.Types),
	}
}

type blockLocation struct {
	TopologyPaths []string `json:"topologyPaths"`
	Corrupt       bool     `json:"corrupt"`
	CachedHosts   []string `json:"cachedHosts"`
	Names         []string `json:"names"`
	Offset        int64    `json:"offset"`
	Hosts         []string `json:"hosts"`
	Length        int64    `json:"length"`
	StorageTypes  []string `json:"storageTypes"`
}

func blockLocationOf(b *namenode.LocatedBlock) blockLocation {
	l := blockLocation{
		TopologyPaths: []string{}, CachedHosts: []string{}, Names: []string{}, Hosts: []string{}, StorageTypes: []string{},
		Corrupt: b.Corrupt, Offset: b.Offset, Length: b.Block.Length,
	}
	for _, at := range b.Locations {
		l.TopologyPaths = append(l.TopologyPaths, at.Node.Rack+"/"+at.Node.TransferAddr())
		l.Names = append(l.Names, at.Node.TransferAddr())
		l.Hosts = append(l.Hosts, at.Node.Host)
		l.StorageTypes = append(l.StorageTypes, at.Type.String())
	}
	return l
}

type extendedBlock struct {
	BlockID         int64  `json:"blockId"`
	BlockPoolID     string `json:"blockPoolId"`
	GenerationStamp uint64 `json:"generationStamp"`
	NumBytes        int64  `json:"numBytes"`
}

type tokenJSON struct {
	URLString string `json:"urlString"`
}

// tokenOf is a block's token.
func tokenOf(t security.Token) tokenJSON {
	kind := ""
	if len(t.Identifier) > 0 {
		kind = security.BlockTokenKind
	}
	return tokenJSON{token.Token{Identifier: t.Identifier, Password: t.Password, Kind: kind}.Text()}
}

type datanodeInfo struct {
	AdminState               string `json:"adminState"`
	BlockPoolUsed            int64  `json:"blockPoolUsed"`
	CacheCapacity            int64  `json:"cacheCapacity"`
	CacheUsed                int64  `json:"cacheUsed"`
	Capacity                 int64  `json:"capacity"`
	DfsUsed                  int64  `json:"dfsUsed"`
	HostName                 string `json:"hostName"`
	InfoPort                 uint32 `json:"infoPort"`
	InfoSecurePort           uint32 `json:"infoSecurePort"`
	IPAddr                   string `json:"ipAddr"`
	IPCPort                  uint32 `json:"ipcPort"`
	LastBlockReportMonotonic int64  `json:"lastBlockReportMonotonic"`
	LastBlockReportTime      int64  `json:"lastBlockReportTime"`
	LastUpdate               int64  `json:"lastUpdate"`
	LastUpdateMonotonic      int64  `json:"lastUpdateMonotonic"`
	Name                     string `json:"name"`
	NetworkLocation          string `json:"networkLocation"`
	Remaining                int64  `json:"remaining"`
	StorageID                string `json:"storageID"`
	XceiverCount             int    `json:"xceiverCount"`
	XferPort                 uint32 `json:"xferPort"`
}

func datanodeOf(n *namenode.Node) datanodeInfo {
	return datanodeInfo{
		AdminState: "NORMAL", HostName: n.Host, InfoPort: n.HTTPPort, IPAddr: n.IP, IPCPort: n.IPCPort, Name: n.TransferAddr(),
		NetworkLocation: n.Rack, StorageID: string(n.ID), XferPort: n.TransferPort,
	}
}

type locatedBlock struct {
	Block           extendedBlock  `json:"block"`
	BlockToken      tokenJSON      `json:"blockToken"`
	CachedLocations []datanodeInfo `json:"cachedLocations"`
	IsCorrupt       bool           `json:"isCorrupt"`
	Locations       []datanodeInfo `json:"locations"`
	StartOffset     int64          `json:"startOffset"`
	StorageTypes    []string       `json:"storageTypes"`
}

type locatedBlocks struct {
	FileLength          int64          `json:"fileLength"`
	IsLastBlockComplete bool           `json:"isLastBlockComplete"`
	IsUnderConstruction bool           `json:"isUnderConstruction"`
	LastLocatedBlock    *locatedBlock  `json:"lastLocatedBlock"`
	LocatedBlocks       []locatedBlock `json:"locatedBlocks"`
}

func locatedOf(pool string, b *namenode.LocatedBlock) locatedBlock {
	l := locatedBlock{
		Block:           extendedBlock{int64(b.Block.ID), pool, uint64(b.Block.Generation), b.Block.Length},
		BlockToken:      tokenOf(b.Token),
		CachedLocations: []datanodeInfo{}, IsCorrupt: b.Corrupt, Locations: []datanodeInfo{}, StartOffset: b.Offset, StorageTypes: []string{},
	}
	for _, at := range b.Locations {
		l.Locations = append(l.Locations, datanodeOf(at.Node))
		l.StorageTypes = append(l.StorageTypes, at.Type.String())
	}
	return l
}

func locatedBlocksOf(pool string, f *namenode.LocatedFile) locatedBlocks {
	l := locatedBlocks{
		FileLength: f.Length, IsLastBlockComplete: f.LastComplete, IsUnderConstruction: f.UnderConstruction,
		LocatedBlocks: make([]locatedBlock, len(f.Blocks)),
	}
	for i := range f.Blocks {
		l.LocatedBlocks[i] = locatedOf(pool, &f.Blocks[i])
	}
	if f.Last != nil {
		last := locatedOf(pool, f.Last)
		l.LastLocatedBlock = &last
	}
	return l
}

type remoteException struct {
	RemoteException struct {
		Exception     string `json:"exception"`
		JavaClassName string `json:"javaClassName"`
		Message       string `json:"message"`
	}
}

func exceptionOf(class, message string) (e remoteException) {
	e.RemoteException.Exception = hdfs.Simple(class)
	e.RemoteException.JavaClassName = class
	e.RemoteException.Message = message
	return e
}

// parameterError is a parameter that cannot be one: java.lang.IllegalArgumentException, 400.
type parameterError struct{ message string }

func (e *parameterError) Error() string { return e.message }

func invalid(name, format string, args ...any) error {
	return &parameterError{fmt.Sprintf("Invalid value for webhdfs parameter \"%s\": %s", name, fmt.Sprintf(format, args...))}
}
