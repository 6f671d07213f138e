package namespace

import (
	"errors"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// extra is what few inodes have. An inode without any of it has none, and costs one nil pointer.
type extra struct {
	xattrs []metadata.XAttr // in the order of namespace and name
	// access are the entries of the access control list that the mode does not hold, inherited the default entries; both
	// in the order of type and name. With access entries the mode's group digit is the mask.
	access, inherited []metadata.ACLEntry
	quota             *quota
	// policy is HDFS's number of a storage policy; 0: that of the directory above.
	policy uint8
	// placed is that of which a file's blocks obey; 0: the default. A policy that a directory above is given later moves nothing, so it does not
	// change then.
	placed uint8
	// erasure is 1 + HDFS's number of the erasure coding policy for files that are made below a directory, 1 replication; 0: that of the directory
	// above.
	erasure uint8
	past    *past // which snapshots have it beside those of where it is; nil: none
	// small is whether small files may be stored below a directory: see smallFiles. data are the bytes of a small file's body, if they are few; nobody
	// changes them.
	small uint8
	data  []byte
	// later are the blocks of a file behind the first that are bodies, in order.
	later []laterBody
	// kept is what only snapshots of a directory have, claim what of it is in a deleted tree, at whose top it stands: see snapshot_quota.go.
	kept  total
	claim claim
}

func (x *extra) hasACL() bool { return x != nil && len(x.access)+len(x.inherited) > 0 }

// own makes sure that a touched inode has extra, before something is put there.
func (n *inode) own() *extra {
	if n.extra == nil {
		n.extra = &extra{}
	}
	return n.extra
}

// tidy drops an extra that holds nothing any more.
func (n *inode) tidy() {
	if x := n.extra; x != nil && x.empty() {
		n.extra = nil
	}
}

func (x *extra) empty() bool {
	return len(x.xattrs) == 0 && !x.hasACL() && x.quota == nil && x.policy == 0 && x.placed == 0 && x.erasure == 0 && x.past == nil &&
		x.small == 0 && len(x.data) == 0 && len(x.later) == 0 &&
		x.kept == total{} && x.claim == claim{}
}

func (x *extra) encode(r *logpb.INode) {
	for _, a := range x.xattrs {
		r.Xattrs = append(r.Xattrs, &logpb.XAttr{Namespace: logpb.XAttr_Namespace(a.Namespace), Name: a.Name, Value: a.Value})
	}
	for _, list := range [][]metadata.ACLEntry{x.access, x.inherited} {
		for _, e := range list {
			r.Acl = append(r.Acl, &logpb.ACLEntry{Default: e.Default, Type: logpb.ACLEntry_Type(e.Type), Name: e.Name, Rights: uint32(e.Rights)})
		}
	}
	r.StoragePolicy, r.PlacedBy, r.Erasure, r.SmallFiles = uint32(x.policy), uint32(x.placed), uint32(x.erasure), uint32(x.small)
	if p := x.past; p != nil {
		r.SnapshotPast = &logpb.SnapshotPast{Since: p.since, Spans: encodeSpans(p.spans)}
	}
	r.Kept, r.Claim = claim{left: x.kept}.encode(), x.claim.encode()
	if q := x.quota; q != nil {
		r.Quota = &logpb.Quota{
			Names: uint64(q.names + 1), Space: uint64(q.space + 1), UsedNames: q.used.names, UsedSpace: q.used.space,
		}
		q.types.encode(r.Quota)
	}
}

func decodeExtra(r *logpb.INode) (*extra, error) {
	if len(r.Xattrs) == 0 && len(r.Acl) == 0 && r.Quota == nil && r.StoragePolicy == 0 && r.PlacedBy == 0 && r.Erasure == 0 && r.SnapshotPast == nil &&
		r.Kept == nil && r.Claim == nil && r.SmallFiles == 0 && len(r.File.GetData()) == 0 && len(r.File.GetLaterBody()) == 0 {
		return nil, nil
	}
	if r.SmallFiles > smallFilesOn || r.SmallFiles != 0 && r.File != nil {
		return nil, errors.New("damaged policy of small files")
	}
	if r.StoragePolicy > maxPolicy || r.PlacedBy > maxPolicy || r.PlacedBy != 0 && r.File == nil {
		return nil, errors.New("damaged storage policy")
	}
	if r.Erasure != 0 && (r.File != nil || checkErasure(r.Erasure) != nil) {
		return nil, errors.New("damaged erasure coding policy")
	}
	x := &extra{policy: uint8(r.StoragePolicy), placed: uint8(r.PlacedBy), erasure: uint8(r.Erasure), small: uint8(r.SmallFiles), data: r.File.GetData()}
	if f := r.File; f != nil && len(f.LaterBody) > 0 {
		if len(f.LaterBody) != len(f.LaterCrc) {
			return nil, errors.New("damaged list of bodies")
		}
		x.later = make([]laterBody, len(f.LaterBody))
		for i, at := range f.LaterBody {
			x.later[i] = laterBody{at, f.LaterCrc[i]}
		}
	}
	if p := r.SnapshotPast; p != nil {
		x.past = &past{since: p.Since, spans: decodeSpans(p.Spans)}
	}
	x.kept, x.claim = decodeClaim(r.Kept).left, decodeClaim(r.Claim)
	for _, a := range r.Xattrs {
		x.xattrs = append(x.xattrs, metadata.XAttr{Namespace: metadata.XAttrNamespace(a.Namespace), Name: a.Name, Value: a.Value})
	}
	for _, e := range r.Acl {
		entry := entryOf(e)
		if e.Rights > 7 || e.Type > logpb.ACLEntry_OTHER || e.Type < 0 {
			return nil, errors.New("damaged access control list")
		}
		if entry.Default {
			x.inherited = append(x.inherited, entry)
		} else {
			x.access = append(x.access, entry)
		}
	}
	if q := r.Quota; q != nil {
		types, ok := decodeTypeQuota(q)
		if !ok {
			return nil, errors.New("damaged quota of storage types")
		}
		x.quota = &quota{
			types: types,
			names: int64(q.Names - 1), space: int64(q.Space - 1),
			used: total{names: q.UsedNames, space: q.UsedSpace},
		}
	}
	return x, nil
}

func entryOf(e *logpb.ACLEntry) metadata.ACLEntry {
	return metadata.ACLEntry{Default: e.Default, Type: metadata.ACLType(e.Type), Name: e.Name, Rights: metadata.Access(e.Rights & 7)}
}
