package dfs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Stat describes a file or directory.
func (c *Client) Stat(ctx context.Context, name string) (metadata.FileStatus, error) {
	name, err := clean("stat", name)
	if err != nil {
		return metadata.FileStatus{}, err
	}
	answer := infoAnswer{name: name}
	if err := c.read(ctx, "stat", name, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &name}, &answer); err != nil {
		return metadata.FileStatus{}, err
	}
	if !answer.found {
		return metadata.FileStatus{}, notExist("stat", name)
	}
	return answer.status, nil
}

func notExist(op, name string) error {
	return &Error{Op: op, Path: name, Kind: metadata.ErrNotExist, Message: "File does not exist: " + name}
}

// Page is a part of a directory.
type Page struct {
	Entries []metadata.FileStatus
	// Remaining is zero at the end of the directory, and otherwise a guess of how many entries follow.
	Remaining int
}

// ListPage lists the entries whose names follow startAfter, as many as the server gives at a time. Of a file it lists
// the file itself, with an empty name.
func (c *Client) ListPage(ctx context.Context, name, startAfter string) (Page, error) {
	name, err := clean("list", name)
	if err != nil {
		return Page{}, err
	}
	answer := listAnswer{name: name}
	err = c.read(ctx, "list", name, "getListing",
		&hadooppb.GetListingRequestProto{Src: &name, StartAfter: []byte(startAfter), NeedLocation: new(bool)}, &answer)
	if err != nil {
		return Page{}, err
	}
	if !answer.found {
		return Page{}, notExist("list", name)
	}
	return answer.page, nil
}

// List lists a directory, in the order of names. Of a file it lists the file itself. The directory may change meanwhile:
// entries that are there all the time are listed once.
func (c *Client) List(ctx context.Context, name string) ([]metadata.FileStatus, error) {
	var entries []metadata.FileStatus
	turns := pagesFrom("list", name, "")
	for restarts := 0; ; {
		page, err := c.ListPage(ctx, name, turns.last)
		if errors.Is(err, metadata.ErrCursor) && restarts < 10 {
			entries, turns = nil, pagesFrom("list", name, "")
			restarts++
			continue
		}
		if err != nil {
			return nil, err
		}
		if entries == nil {
			entries = page.Entries
		} else {
			entries = append(entries, page.Entries...)
		}
		if page.Remaining == 0 || len(page.Entries) == 0 {
			return entries, nil
		}
		if err := turns.turn(page.Entries[len(page.Entries)-1].Name); err != nil {
			return nil, err
		}
	}
}

// Mkdirs makes a directory; with parents also those above it, and one that is there already is fine. The umask is
// cleared from mode.
func (c *Client) Mkdirs(ctx context.Context, name string, mode metadata.Mode, parents bool) error {
	name, err := clean("mkdir", name)
	if err != nil {
		return err
	}
	var answer hadooppb.MkdirsResponseProto
	err = c.call(ctx, "mkdir", name, "mkdirs", &hadooppb.MkdirsRequestProto{
		Src: &name, Masked: perm(mode &^ c.umask), Unmasked: perm(mode), CreateParent: &parents,
	}, &answer)
	if err == nil && !answer.GetResult() {
		err = &Error{Op: "mkdir", Path: name, Kind: metadata.ErrIO, Message: "the directory was not made"}
	}
	return err
}

func perm(mode metadata.Mode) *hadooppb.FsPermissionProto {
	return &hadooppb.FsPermissionProto{Perm: new(uint32(mode))}
}

// Rename moves src to dst, into dst if that is a directory. It returns false, with no error, where HDFS does: src is
// missing, dst exists, its parent does not, or it lies inside src.
func (c *Client) Rename(ctx context.Context, src, dst string) (bool, error) {
	src, dst, err := clean2("rename", src, dst)
	if err != nil {
		return false, err
	}
	var answer hadooppb.RenameResponseProto
	err = c.call(ctx, "rename", src, "rename", &hadooppb.RenameRequestProto{Src: &src, Dst: &dst}, &answer)
	return answer.GetResult(), err
}

// RenameOverwrite moves src to dst exactly, replacing a file or an empty directory there, atomically.
func (c *Client) RenameOverwrite(ctx context.Context, src, dst string) error {
	return c.rename2(ctx, src, dst, true)
}

// RenameStrict moves src to dst exactly and fails if something is there.
func (c *Client) RenameStrict(ctx context.Context, src, dst string) error {
	return c.rename2(ctx, src, dst, false)
}

func (c *Client) rename2(ctx context.Context, src, dst string, overwrite bool) error {
	src, dst, err := clean2("rename", src, dst)
	if err != nil {
		return err
	}
	return c.call(ctx, "rename", src, "rename2",
		&hadooppb.Rename2RequestProto{Src: &src, Dst: &dst, OverwriteDest: &overwrite}, new(hadooppb.Rename2ResponseProto))
}

func clean2(op, src, dst string) (string, string, error) {
	src, err := clean(op, src)
	if err != nil {
		return "", "", err
	}
	dst, err = clean(op, dst)
	return src, dst, err
}

// Delete removes a file or directory, one with entries only if recursive. It returns false if nothing was there.
func (c *Client) Delete(ctx context.Context, name string, recursive bool) (bool, error) {
	name, err := clean("delete", name)
	if err != nil {
		return false, err
	}
	var answer hadooppb.DeleteResponseProto
	err = c.call(ctx, "delete", name, "delete", &hadooppb.DeleteRequestProto{Src: &name, Recursive: &recursive}, &answer)
	return answer.GetResult(), err
}

// SetPermission sets the mode exactly; the umask plays no part.
func (c *Client) SetPermission(ctx context.Context, name string, mode metadata.Mode) error {
	name, err := clean("chmod", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "chmod", name, "setPermission",
		&hadooppb.SetPermissionRequestProto{Src: &name, Permission: perm(mode)}, new(hadooppb.SetPermissionResponseProto))
}

// SetOwner sets owner and group; an empty one stays as it is.
func (c *Client) SetOwner(ctx context.Context, name, owner, group string) error {
	name, err := clean("chown", name)
	if err != nil {
		return err
	}
	request := &hadooppb.SetOwnerRequestProto{Src: &name}
	if owner != "" {
		request.Username = &owner
	}
	if group != "" {
		request.Groupname = &group
	}
	return c.call(ctx, "chown", name, "setOwner", request, new(hadooppb.SetOwnerResponseProto))
}

// SetTimes sets the times of modification and access; a negative one stays as it is.
func (c *Client) SetTimes(ctx context.Context, name string, mtime, atime metadata.Time) error {
	name, err := clean("set times of", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "set times of", name, "setTimes", &hadooppb.SetTimesRequestProto{
		Src: &name, Mtime: new(uint64(max(mtime, -1))), Atime: new(uint64(max(atime, -1))),
	}, new(hadooppb.SetTimesResponseProto))
}

// SetReplication sets the wanted number of replicas of a file; false if name is not one.
func (c *Client) SetReplication(ctx context.Context, name string, replication int) (bool, error) {
	name, err := clean("set replication of", name)
	if err != nil {
		return false, err
	}
	if replication > metadata.MaxReplication { // HDFS's words, which do not travel when the number does not fit
		return false, &Error{
			Op: "set replication of", Path: name, Kind: metadata.ErrInvalidArgument,
			Message: fmt.Sprintf("Requested replication factor of %d exceeds maximum of %d for %s", replication, metadata.MaxReplication, name),
		}
	}
	if replication < 1 {
		return false, &Error{
			Op: "set replication of", Path: name, Kind: metadata.ErrInvalidArgument,
			Message: fmt.Sprintf("replication %d is less than 1", replication),
		}
	}
	var answer hadooppb.SetReplicationResponseProto
	err = c.call(ctx, "set replication of", name, "setReplication",
		&hadooppb.SetReplicationRequestProto{Src: &name, Replication: new(uint32(replication))}, &answer)
	return answer.GetResult(), err
}

// ContentSummary counts a subtree.
func (c *Client) ContentSummary(ctx context.Context, name string) (metadata.ContentSummary, error) {
	name, err := clean("count", name)
	if err != nil {
		return metadata.ContentSummary{}, err
	}
	var answer hadooppb.GetContentSummaryResponseProto
	err = c.call(ctx, "count", name, "getContentSummary", &hadooppb.GetContentSummaryRequestProto{Path: &name}, &answer)
	if err != nil {
		return metadata.ContentSummary{}, err
	}
	s := answer.GetSummary()
	policy, _ := metadata.ErasurePolicyNamed(s.GetErasureCodingPolicy())
	return metadata.ContentSummary{
		Length:        int64(s.GetLength()),
		Files:         int64(s.GetFileCount()),
		Directories:   int64(s.GetDirectoryCount()),
		SpaceConsumed: int64(s.GetSpaceConsumed()),
		Quota:         int64(s.GetQuota()),
		SpaceQuota:    int64(s.GetSpaceQuota()),
		Snapshot: metadata.SnapshotSummary{
			Length: int64(s.GetSnapshotLength()), Files: int64(s.GetSnapshotFileCount()),
			Directories: int64(s.GetSnapshotDirectoryCount()), SpaceConsumed: int64(s.GetSnapshotSpaceConsumed()),
		},
		Erasure: policy.ID,
	}, nil
}

// FsStats is the state of a file system as a whole; sizes are in bytes.
type FsStats struct {
	Capacity, Used, Remaining                     int64
	UnderReplicated, CorruptBlocks, MissingBlocks int64
}

// FsStats asks for it.
func (c *Client) FsStats(ctx context.Context) (FsStats, error) {
	var answer hadooppb.GetFsStatsResponseProto
	err := c.call(ctx, "file system status", "", "getFsStats", new(hadooppb.GetFsStatusRequestProto), &answer)
	return FsStats{
		Capacity:        int64(answer.GetCapacity()),
		Used:            int64(answer.GetUsed()),
		Remaining:       int64(answer.GetRemaining()),
		UnderReplicated: int64(answer.GetUnderReplicated()),
		CorruptBlocks:   int64(answer.GetCorruptBlocks()),
		MissingBlocks:   int64(answer.GetMissingBlocks()),
	}, err
}

// CheckAccess returns nil if the user may, and an error of kind ErrPermission if not.
func (c *Client) CheckAccess(ctx context.Context, name string, access metadata.Access) error {
	name, err := clean("access", name)
	if err != nil {
		return err
	}
	return c.read(ctx, "access", name, "checkAccess", &hadooppb.CheckAccessRequestProto{
		Path: &name, Mode: hadooppb.AclEntryProto_FsActionProto(access & 7).Enum(),
	}, new(hadooppb.CheckAccessResponseProto))
}

// ServerDefaults is what the server proposes for new files.
type ServerDefaults struct {
	BlockSize        int64
	Replication      int
	ChecksumType     dtp.ChecksumType
	BytesPerChecksum int
	// TrashInterval is how long deleted files stay in the trash; zero: as the client likes.
	TrashInterval time.Duration
	// EncryptDataTransfer: blocks move encrypted only.
	EncryptDataTransfer bool
}

// defaultsTTL is how long the server's defaults are remembered, as in Hadoop.
const defaultsTTL = time.Hour

// ServerDefaults asks for the defaults, once an hour.
func (c *Client) ServerDefaults(ctx context.Context) (ServerDefaults, error) {
	c.defaultsMu.Lock()
	known := c.defaults
	if known != nil && time.Since(c.defaultsTime) > defaultsTTL {
		known = nil
	}
	c.defaultsMu.Unlock()
	if known != nil {
		return *known, nil
	}
	var answer hadooppb.GetServerDefaultsResponseProto
	if err := c.call(ctx, "server defaults", "", "getServerDefaults", new(hadooppb.GetServerDefaultsRequestProto), &answer); err != nil {
		return ServerDefaults{}, err
	}
	p := answer.GetServerDefaults()
	sum, err := dtp.ChecksumOf(&hadooppb.ChecksumProto{Type: new(p.GetChecksumType()), BytesPerChecksum: new(p.GetBytesPerChecksum())})
	if err != nil {
		return ServerDefaults{}, fmt.Errorf("server defaults: %w", err)
	}
	d := ServerDefaults{
		BlockSize:           int64(p.GetBlockSize()),
		Replication:         int(p.GetReplication()),
		ChecksumType:        sum.Type,
		BytesPerChecksum:    sum.BytesPer,
		TrashInterval:       time.Duration(p.GetTrashInterval()) * time.Minute,
		EncryptDataTransfer: p.GetEncryptDataTransfer(),
	}
	c.defaultsMu.Lock()
	c.defaults, c.defaultsTime = &d, time.Now()
	c.defaultsMu.Unlock()
	return d, nil
}

// RecoverLease takes a file away from a writer that is gone. It returns true when the file is closed; until then the
// server works on it, and one asks again.
func (c *Client) RecoverLease(ctx context.Context, name string) (bool, error) {
	name, err := clean("recover lease of", name)
	if err != nil {
		return false, err
	}
	var answer hadooppb.RecoverLeaseResponseProto
	err = c.call(ctx, "recover lease of", name, "recoverLease", &hadooppb.RecoverLeaseRequestProto{Src: &name, ClientName: &c.name}, &answer)
	return answer.GetResult(), err
}

// IsFileClosed reports whether no writer has the file open.
func (c *Client) IsFileClosed(ctx context.Context, name string) (bool, error) {
	name, err := clean("stat", name)
	if err != nil {
		return false, err
	}
	var answer hadooppb.IsFileClosedResponseProto
	err = c.read(ctx, "stat", name, "isFileClosed", &hadooppb.IsFileClosedRequestProto{Src: &name}, &answer)
	return answer.GetResult(), err
}

// Truncate cuts a file to length bytes. It returns false if the cut goes through a block, which the datanodes then still
// have to shorten; the file is open until IsFileClosed.
func (c *Client) Truncate(ctx context.Context, name string, length int64) (bool, error) {
	name, err := clean("truncate", name)
	if err != nil {
		return false, err
	}
	var answer hadooppb.TruncateResponseProto
	err = c.call(ctx, "truncate", name, "truncate",
		&hadooppb.TruncateRequestProto{Src: &name, NewLength: new(uint64(length)), ClientName: &c.name}, &answer)
	return answer.GetResult(), err
}

// Concat appends the blocks of files of the same directory to target and removes them.
func (c *Client) Concat(ctx context.Context, target string, sources []string) error {
	target, err := clean("concat", target)
	if err != nil {
		return err
	}
	cleaned := make([]string, len(sources))
	for i, s := range sources {
		if cleaned[i], err = clean("concat", s); err != nil {
			return err
		}
	}
	return c.call(ctx, "concat", target, "concat", &hadooppb.ConcatRequestProto{Trg: &target, Srcs: cleaned}, new(hadooppb.ConcatResponseProto))
}

// SafeModeAction is what to do about safe mode.
type SafeModeAction int

// The actions, with HDFS's numbers. All but asking need the superuser.
const (
	SafeModeLeave SafeModeAction = 1
	SafeModeEnter SafeModeAction = 2
	SafeModeGet   SafeModeAction = 3
	// SafeModeForceExit is SafeModeLeave here: nothing keeps the namenode in it that an administrator could overrule.
	SafeModeForceExit SafeModeAction = 4
)

// SafeMode changes or asks for safe mode and returns whether it is on.
func (c *Client) SafeMode(ctx context.Context, action SafeModeAction) (bool, error) {
	var answer hadooppb.SetSafeModeResponseProto
	err := c.call(ctx, "safe mode", "", "setSafeMode",
		&hadooppb.SetSafeModeRequestProto{Action: hadooppb.SafeModeActionProto(action).Enum(), Checked: new(bool)}, &answer)
	return answer.GetResult(), err
}
