package server

import (
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// unmasked is the form in which commands carry a mode that may be absent.
func unmasked(mode *metadata.Mode) *uint32 {
	if mode == nil {
		return nil
	}
	return new(uint32(*mode))
}

// SetXAttr implements namenode.Attributes.
func (s *Server) SetXAttr(c metadata.Caller, r namenode.SetXAttrRequest, done func(error)) {
	t, err := target(r.Path)
	if err != nil {
		done(err)
		return
	}
	a := r.Attribute
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetXattr{SetXattr: &logpb.SetXAttr{
		Target: t, Create: r.Create, Replace: r.Replace,
		Attribute: &logpb.XAttr{Namespace: logpb.XAttr_Namespace(a.Namespace), Name: a.Name, Value: a.Value},
	}}
	s.simple(&c, r.Retry, e, done)
}

// RemoveXAttr implements namenode.Attributes.
func (s *Server) RemoveXAttr(c metadata.Caller, retry namenode.Retry, path string, a metadata.XAttr, done func(error)) {
	t, err := target(path)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_RemoveXattr{RemoveXattr: &logpb.RemoveXAttr{
		Target: t, Namespace: logpb.XAttr_Namespace(a.Namespace), Name: a.Name,
	}}
	s.simple(&c, retry, e, done)
}

// ask answers a read from the namespace, which is quick: others may wait for it.
func ask[T any](s *Server, c *metadata.Caller, done func(T, error), read func() (T, error)) {
	var seen T
	var err error
	if s.glance(func() { seen, err = read() }) {
		done(seen, err)
		return
	}
	askGroup(s, c, done, read)
}

// glance runs look on what this member has, if that is new enough without asking anybody, and reports whether it still was afterwards. look must
// not be kept, so that what it needs is not allocated.
func (s *Server) glance(look func()) bool { return s.reign.Load() != nil && s.group.Glance(look) }

// askGroup is ask where others have to be asked first.
func askGroup[T any](s *Server, c *metadata.Caller, done func(T, error), read func() (T, error)) {
	s.read(c, func(err error) {
		if err != nil {
			var none T
			done(none, err)
			return
		}
		done(read())
	})
}

// XAttrs implements namenode.Attributes.
func (s *Server) XAttrs(c metadata.Caller, path string, names []metadata.XAttr, done func([]metadata.XAttr, error)) {
	ask(s, &c, done, func() ([]metadata.XAttr, error) { return s.ns.XAttrs(c, path, names) })
}

// ListXAttrs implements namenode.Attributes.
func (s *Server) ListXAttrs(c metadata.Caller, path string, done func([]metadata.XAttr, error)) {
	ask(s, &c, done, func() ([]metadata.XAttr, error) { return s.ns.ListXAttrs(c, path) })
}

var aclChanges = [...]logpb.SetACL_Change{
	namenode.ACLSet:           logpb.SetACL_SET,
	namenode.ACLModify:        logpb.SetACL_MODIFY,
	namenode.ACLRemoveEntries: logpb.SetACL_REMOVE_ENTRIES,
	namenode.ACLRemoveDefault: logpb.SetACL_REMOVE_DEFAULT,
	namenode.ACLRemove:        logpb.SetACL_REMOVE,
}

// maxSpec bounds a request's list of ACL entries; a valid list has fewer.
const maxSpec = 4 * metadata.MaxACLEntries

// SetACL implements namenode.Attributes.
func (s *Server) SetACL(c metadata.Caller, path string, change namenode.ACLChange, entries []metadata.ACLEntry, done func(error)) {
	t, err := target(path)
	if err == nil && len(entries) > maxSpec {
		err = metadata.Errorf(metadata.ErrACL, "Invalid ACL: ACL has %d access entries, which exceeds maximum of %d. Path: %s",
			len(entries), metadata.MaxACLEntries, path)
	}
	if err != nil {
		done(err)
		return
	}
	op := &logpb.SetACL{Target: t, Change: aclChanges[change], Entries: make([]*logpb.ACLEntry, len(entries))}
	for i, x := range entries {
		op.Entries[i] = &logpb.ACLEntry{Default: x.Default, Type: logpb.ACLEntry_Type(x.Type), Name: x.Name, Rights: uint32(x.Rights)}
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetAcl{SetAcl: op}
	s.simple(&c, namenode.Retry{}, e, done)
}

// ACL implements namenode.Attributes.
func (s *Server) ACL(c metadata.Caller, path string, done func(*metadata.ACL, error)) {
	ask(s, &c, done, func() (*metadata.ACL, error) { return s.ns.ACL(c, path) })
}

// SetQuota implements namenode.Attributes.
func (s *Server) SetQuota(c metadata.Caller, path string, names, space int64, done func(error)) {
	t, err := target(path)
	if err != nil {
		done(err)
		return
	}
	s.setQuota(c, t, &logpb.SetQuota{Target: t, Names: names, Space: space}, done)
}

// SetTypeQuota implements namenode.Attributes.
func (s *Server) SetTypeQuota(c metadata.Caller, path string, kind uint32, space int64, done func(error)) {
	t, err := target(path)
	_, known := metadata.QuotaTypeOf(kind)
	switch {
	case err != nil:
	case !known:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "Don't support Quota for storage type : %v", namenode.StorageType(kind))
	case space < metadata.QuotaUnset || space == metadata.QuotaKeep:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "Invalid values for quota :%d", space)
	case s.group.Level() < release.TypeQuotas:
		err = metadata.Errorf(metadata.ErrUnsupported, "quotas by storage type need a cluster of level %d: raise it (`hops cluster finalize`)", release.TypeQuotas)
	}
	if err != nil {
		done(err)
		return
	}
	s.setQuota(c, t, &logpb.SetQuota{Target: t, Names: metadata.QuotaKeep, Space: metadata.QuotaKeep, Type: kind, TypeSpace: space}, done)
}

// typesOf is what a survey has counted of types, for clusters in which commands may say it.
func (s *Server) typesOf(survey uint64, u namespace.Usage) []int64 {
	if survey == 0 || s.group.Level() < release.TypeQuotas {
		return nil
	}
	return u.Types[:]
}

func (s *Server) setQuota(c metadata.Caller, t *logpb.Target, op *logpb.SetQuota, done func(error)) {
	left := surveys
	s.surveyed(surveys, &c, t, false, 0, namespace.Usage{}, func(survey uint64, u namespace.Usage, done func(*namespace.Result, error)) {
		op.Survey, op.UsedNames, op.UsedSpace, op.UsedTypes = survey, u.Names, u.Space, s.typesOf(survey, u)
		op.Count = left == 0 // it changes all the time
		left--
		e := newEnvelope()
		e.command.Op = &logpb.Command_SetQuota{SetQuota: op}
		s.change(&c, namenode.Retry{}, e, done)
	}, func(_ bool, err error) { done(err) })
}

// SetStoragePolicy implements namenode.Attributes.
func (s *Server) SetStoragePolicy(c metadata.Caller, path string, policy uint8, done func(error)) {
	t, err := target(path)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetStoragePolicy{SetStoragePolicy: &logpb.SetStoragePolicy{Target: t, Policy: uint32(policy)}}
	s.simple(&c, namenode.Retry{}, e, done)
}

// QuotaUsage implements namenode.Attributes.
func (s *Server) QuotaUsage(c metadata.Caller, path string, done func(*metadata.QuotaUsage, error)) {
	s.readLong(&c, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(s.ns.QuotaUsage(c, path))
	})
}

// Truncate implements namenode.Writer.
func (s *Server) Truncate(c metadata.Caller, retry namenode.Retry, path string, length int64, client string, done func(bool, error)) {
	t, err := target(path)
	var r *reign
	if err == nil {
		r, err = s.leading()
	}
	if err == nil {
		err = s.safe.check(s)
	}
	if err != nil {
		done(false, err)
		return
	}
	body, stays, err := s.bodyToCut(c, path, length)
	if err != nil {
		done(false, err)
		return
	}
	if body != nil {
		s.beside(func(err error) { done(false, err) }, func() {
			s.cutBody(r, c, retry, &logpb.Truncate{Target: t, Length: length, ClientName: client}, body, stays, done)
		})
		return
	}
	apart := s.ns.Counts().Snapshots > 0 // the block that is cut may have to be another one
	kind := noID
	if apart {
		kind = blockID
	}
	s.take(r, kind, func(made metadata.BlockID, id metadata.Generation, err error) {
		if err != nil {
			done(false, err)
			return
		}
		e := newEnvelope()
		e.command.Op = &logpb.Command_Truncate{Truncate: &logpb.Truncate{
			Target: t, Length: length, ClientName: client, RecoveryId: uint64(id), NewBlock: int64(made),
		}}
		s.change(&c, retry, e, func(result *namespace.Result, err error) {
			switch {
			case err != nil:
				if result != nil {
					s.expired(result.Expired)
				}
				done(false, err)
			case result.OK || result.File == nil:
				done(result.OK, nil)
			default:
				s.recoverBlock(r, result.File, func(bool, error) { done(false, nil) })
			}
		})
	})
}

// truncation is what a block recovery is to leave of the block, as orders carry it: 1 + bytes; 0: it is no truncation. source is the
// block that is to be copied up to there, nil for the block itself.
func (s *Server) truncation(id metadata.BlockID, recovery metadata.Generation) (truncate int64, source *pb.Block) {
	owner, ok := s.ns.BlockOwner(id)
	if !ok || owner.RecoveryID != recovery || owner.Truncate <= 0 {
		return 0, nil
	}
	if owner.Source.ID != 0 {
		source = wireBlock(owner.Source)
	}
	return owner.Truncate, source
}

// maxSources is how many files one concat takes; more blocks than that a file cannot have.
const maxSources = namespace.MaxBlocks

// Concat implements namenode.Writer.
func (s *Server) Concat(c metadata.Caller, retry namenode.Retry, path string, sources []string, done func(error)) {
	t, err := target(path)
	if err == nil && len(sources) > maxSources {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "concat: %d sources are more than %d", len(sources), maxSources)
	}
	op := &logpb.Concat{Target: t}
	for _, source := range sources {
		if err != nil {
			break
		}
		var one *logpb.Target
		one, err = target(source)
		op.Sources = append(op.Sources, one)
	}
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_Concat{Concat: op}
	s.simple(&c, retry, e, done)
}
