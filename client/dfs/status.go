package dfs

import (
	"bytes"
	"errors"
	"path"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The answers about files are decoded straight into statuses: the generated messages take an allocation for each of some
// fifteen fields, which in a listing is most of what a client does.

var errAnswer = errors.New("malformed answer")

// onlyAnswers is the half of hrpc.Message that an answer has no use for.
type onlyAnswers struct{}

func (onlyAnswers) MarshalToSizedBufferVT([]byte) (int, error) { return 0, errAnswer }
func (onlyAnswers) SizeVT() int                                { return 0 }

// infoAnswer is a GetFileInfoResponseProto about the path name.
type infoAnswer struct {
	onlyAnswers
	name   string
	found  bool
	status metadata.FileStatus
}

func (a *infoAnswer) UnmarshalVT(b []byte) error {
	a.found = false
	return walk(b, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		if value == nil {
			return errAnswer
		}
		a.found = true
		return decodeStatus(value, &a.status, a.name, "", "")
	})
}

// listAnswer is a GetListingResponseProto about the path name.
type listAnswer struct {
	onlyAnswers
	name  string
	found bool
	page  Page
}

func (a *listAnswer) UnmarshalVT(b []byte) error {
	a.found, a.page = false, Page{}
	return walk(b, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		if value == nil {
			return errAnswer
		}
		a.found = true
		return a.list(value)
	})
}

// list decodes a DirectoryListingProto.
func (a *listAnswer) list(b []byte) error {
	entries := 0
	complete := false
	err := walk(b, func(field protowire.Number, n uint64, value []byte) error {
		switch {
		case field == 1 && value != nil:
			entries++
		case field == 2 && value == nil:
			a.page.Remaining, complete = int(uint32(n)), true
		case field <= 2:
			return errAnswer
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !complete {
		return errAnswer
	}
	a.page.Entries = make([]metadata.FileStatus, entries)
	at, owner, group := 0, "", ""
	return walk(b, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		s := &a.page.Entries[at]
		at++
		err := decodeStatus(value, s, a.name, owner, group)
		owner, group = s.Owner, s.Group
		return err
	})
}

// walk calls fn with the fields of a message: with value nil and n for a number, with value for bytes.
func walk(b []byte, fn func(field protowire.Number, n uint64, value []byte) error) error {
	for len(b) > 0 {
		field, kind, used := protowire.ConsumeTag(b)
		if used < 0 {
			return errAnswer
		}
		b = b[used:]
		var n uint64
		var value []byte
		switch kind {
		case protowire.VarintType:
			n, used = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			value, used = protowire.ConsumeBytes(b)
		default: // no field that is known
			if used = protowire.ConsumeFieldValue(field, kind, b); used >= 0 {
				b = b[used:]
				continue
			}
		}
		if used < 0 {
			return errAnswer
		}
		b = b[used:]
		if err := fn(field, n, value); err != nil {
			return err
		}
	}
	return nil
}

// The fields of HdfsFileStatusProto: which are bytes, and which have to be there, by number.
const (
	statusBytes    = 1<<2 | 1<<4 | 1<<5 | 1<<6 | 1<<9 | 1<<12 | 1<<15 | 1<<17 | 1<<19
	statusRequired = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8
	statusFields   = 20
)

// decodeStatus decodes a HdfsFileStatusProto. name is the path that was asked for, or the directory's of an entry; owner
// and group are strings to use again if they are right.
func decodeStatus(b []byte, s *metadata.FileStatus, name, owner, group string) error {
	*s = metadata.FileStatus{Type: metadata.TypeFile, Path: name, Owner: owner, Group: group}
	seen := uint32(0)
	err := walk(b, func(field protowire.Number, n uint64, value []byte) error {
		if field >= statusFields {
			return nil
		}
		if (value != nil) != (statusBytes>>field&1 != 0) {
			return errAnswer
		}
		seen |= 1 << field
		switch field {
		case 1:
			if n == uint64(hadooppb.HdfsFileStatusProto_IS_DIR) {
				s.Type = metadata.TypeDirectory
			}
		case 2:
			setName(s, name, value)
		case 3:
			s.Length = int64(n)
		case 4:
			complete := false
			err := walk(value, func(field protowire.Number, n uint64, value []byte) error {
				if field == 1 && value == nil {
					s.Mode, complete = metadata.Mode(n&0o1777), true
				}
				return nil
			})
			if err != nil || !complete {
				return errAnswer
			}
		case 5:
			if string(value) != s.Owner {
				s.Owner = string(value)
			}
		case 6:
			if string(value) != s.Group {
				s.Group = string(value)
			}
		case 7:
			s.MTime = metadata.Time(n)
		case 8:
			s.ATime = metadata.Time(n)
		case 10:
			s.Replication = uint16(n)
		case 11:
			s.BlockSize = int64(n)
		case 12: // LocatedBlocksProto
			return walk(value, func(field protowire.Number, n uint64, value []byte) error {
				if field == 3 && value == nil {
					s.UnderConstruction = n != 0
				}
				return nil
			})
		case 13:
			s.ID = metadata.INodeID(n)
		case 14:
			s.Children = max(int(int32(n)), 0)
		case 16:
			s.StoragePolicy = uint8(n)
		case 17: // ErasureCodingPolicyProto
			return walk(value, func(field protowire.Number, n uint64, value []byte) error {
				if field == 4 && value == nil {
					s.Erasure = metadata.ErasurePolicyID(n)
				}
				return nil
			})
		case 18:
			s.ACL = n&uint64(hadooppb.HdfsFileStatusProto_HAS_ACL) != 0
			s.Snapshottable = n&uint64(hadooppb.HdfsFileStatusProto_SNAPSHOT_ENABLED) != 0
		}
		return nil
	})
	if err != nil {
		return err
	}
	if seen&statusRequired != statusRequired {
		return errAnswer
	}
	return nil
}

// setName sets the name of an entry and its path, of which the name is the end, so that both are one allocation.
func setName(s *metadata.FileStatus, dir string, name []byte) {
	switch {
	case len(name) == 0:
		s.Name, s.Path = "", dir
	case name[0] == '.' || bytes.IndexByte(name, '/') >= 0: // perhaps no name of an entry
		s.Name = string(name)
		s.Path = path.Join(dir, s.Name)
	default:
		if dir == "/" {
			dir = ""
		}
		s.Path = dir + "/" + string(name)
		s.Name = s.Path[len(s.Path)-len(name):]
	}
}
