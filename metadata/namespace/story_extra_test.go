package namespace

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// The commands of stories about extended attributes, access control lists, quotas, truncate, concat and snapshots.

func (a arguments) unmasked() *uint32 {
	if _, ok := a.named["unmasked"]; !ok {
		return nil
	}
	return new(uint32(a.number("unmasked", 0)))
}

func parseXAttr(text string) metadata.XAttr {
	prefix, name, _ := strings.Cut(text, ".")
	for ns := metadata.XAttrUser; ns <= metadata.XAttrRaw; ns++ {
		if ns.String() == prefix {
			return metadata.XAttr{Namespace: ns, Name: name}
		}
	}
	panic("attribute " + text)
}

func parseACL(text string) []*logpb.ACLEntry {
	var out []*logpb.ACLEntry
	for one := range strings.SplitSeq(text, ",") {
		if one == "" {
			continue
		}
		e := &logpb.ACLEntry{}
		one, e.Default = strings.CutPrefix(one, "default:")
		parts := strings.Split(one, ":")
		e.Type = logpb.ACLEntry_Type(map[string]int32{"user": 0, "group": 1, "mask": 2, "other": 3}[parts[0]])
		e.Name = parts[1]
		if len(parts) > 2 {
			for i, c := range "xwr" {
				if strings.ContainsRune(parts[2], c) {
					e.Rights |= 1 << i
				}
			}
		}
		out = append(out, e)
	}
	return out
}

func (s *story) extraOperation(verb string, a arguments) any {
	target := to(a.word(0))
	switch verb {
	case "setfattr":
		x := parseXAttr(a.word(1))
		value := []byte(a.text("value", ""))
		if n := a.number("size", 0); n > 0 {
			value = bytes.Repeat([]byte("x"), int(n))
		}
		return &logpb.SetXAttr{
			Target: target, Create: !a.has("replace"), Replace: !a.has("create"),
			Attribute: &logpb.XAttr{Namespace: logpb.XAttr_Namespace(x.Namespace), Name: x.Name, Value: value},
		}
	case "removefattr":
		x := parseXAttr(a.word(1))
		return &logpb.RemoveXAttr{Target: target, Namespace: logpb.XAttr_Namespace(x.Namespace), Name: x.Name}
	case "setfacl":
		return &logpb.SetACL{
			Target: target, Entries: parseACL(a.word(2)),
			Change: map[string]logpb.SetACL_Change{
				"set": logpb.SetACL_SET, "modify": logpb.SetACL_MODIFY, "entries": logpb.SetACL_REMOVE_ENTRIES,
				"defaults": logpb.SetACL_REMOVE_DEFAULT, "remove": logpb.SetACL_REMOVE,
			}[a.word(1)],
		}
	case "setquota":
		return &logpb.SetQuota{Target: target, Names: a.number("names", metadata.QuotaKeep), Space: a.number("space", metadata.QuotaKeep)}
	case "setpolicy":
		return &logpb.SetStoragePolicy{Target: target, Policy: uint32(a.number("number", 0))}
	case "truncate":
		return &logpb.Truncate{Target: target, Length: a.number("length", 0), ClientName: a.text("client", "c1"), RecoveryId: uint64(1000 + a.number("id", 0))}
	}
	switch verb {
	case "allowsnapshots":
		return snapshotChange(a.word(0), allowSnapshots)
	case "snapshot":
		return snapshotChange(a.word(0), createSnapshot, a.word(1))
	}
	op := &logpb.Concat{Target: target}
	for _, source := range a.words[1:] {
		op.Sources = append(op.Sources, to(source))
	}
	return op
}

func (s *story) readExtra(verb string, a arguments) (string, bool) {
	ns := s.w.ns
	switch verb {
	case "getfattr":
		var names []metadata.XAttr
		for _, name := range a.words[1:] {
			names = append(names, parseXAttr(name))
		}
		all, err := ns.XAttrs(s.who, a.word(0), names)
		if err != nil {
			return failure(err), true
		}
		out := []string{fmt.Sprintf("%d attributes", len(all))}
		for _, x := range all {
			out = append(out, fmt.Sprintf("%s=%.20s", x.FullName(), x.Value))
		}
		return strings.Join(out, "\n"), true
	case "listfattr":
		all, err := ns.ListXAttrs(s.who, a.word(0))
		if err != nil {
			return failure(err), true
		}
		out := []string{fmt.Sprintf("%d attributes", len(all))}
		for _, x := range all {
			out = append(out, x.FullName())
		}
		return strings.Join(out, "\n"), true
	case "getfacl":
		acl, err := ns.ACL(s.who, a.word(0))
		if err != nil {
			return failure(err), true
		}
		out := []string{fmt.Sprintf("%s:%s %v", acl.Owner, acl.Group, acl.Mode)}
		for _, e := range acl.Entries {
			out = append(out, e.String())
		}
		return strings.Join(out, "\n"), true
	case "policy":
		st, err := ns.Stat(s.who, a.word(0))
		if err != nil {
			return failure(err), true
		}
		return fmt.Sprint(st.StoragePolicy), true
	case "quota":
		u, err := ns.QuotaUsage(s.who, a.word(0))
		if err != nil {
			return failure(err), true
		}
		return fmt.Sprintf("names=%d/%d space=%d/%d", u.Names, u.NameQuota, u.Space, u.SpaceQuota), true
	}
	return "", false
}
