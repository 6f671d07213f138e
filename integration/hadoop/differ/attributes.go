package differ

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// attributes to draw from; none without a name, which HDFS takes from a client that does not check.
var attributes = []string{"USER:k", "USER:k", "USER:k", "USER:k", "USER:l", "USER:l", "USER:k2", "TRUSTED:t", "TRUSTED:t", "SECURITY:s", "SYSTEM:y", "RAW:r", unreadable}

// unreadable is the attribute by which a file is closed to the superuser. It has no value.
const unreadable = "SECURITY:hdfs.unreadable.by.superuser"

// attribute reads NAMESPACE:name.
func attribute(s string) *pb.XAttrProto {
	namespace, name, _ := strings.Cut(s, ":")
	return &pb.XAttrProto{Namespace: pb.XAttrProto_XAttrNamespaceProto(pb.XAttrProto_XAttrNamespaceProto_value[namespace]).Enum(), Name: &name}
}

func makeSetXAttr(g *generator) Operation {
	if g.chance(10) {
		return op("setxattr", "src", g.file(), "name", unreadable, "flag", 1)
	}
	return op("setxattr", "src", g.path(), "name", pick(g, attributes...), "value", pick(g, "v", "w", "", strings.Repeat("x", 100), strings.Repeat("x", 20000)), "flag", pick(g, 1, 2, 3, 3, 3, 0))
}

func setXAttr(ctx context.Context, s *Side, o Operation) (string, error) {
	x := attribute(o.text("name"))
	if value, ok := o.Args["value"]; ok {
		x.Value = []byte(value)
	}
	return "", s.call(ctx, o.User, "setXAttr",
		&pb.SetXAttrRequestProto{Src: ptr(o.text("src")), XAttr: x, Flag: ptr(uint32(o.number("flag")))}, new(pb.SetXAttrResponseProto))
}

func makeGetXAttrs(g *generator) Operation {
	o := op("getxattrs", "src", g.path())
	if g.chance(60) {
		o.Args["names"] = pick(g, attributes...)
		if g.chance(40) {
			o.Args["names"] += "," + pick(g, attributes...)
		}
	}
	return o
}

func getXAttrs(ctx context.Context, s *Side, o Operation) (string, error) {
	request := &pb.GetXAttrsRequestProto{Src: ptr(o.text("src"))}
	for _, name := range o.list("names") {
		request.XAttrs = append(request.XAttrs, attribute(name))
	}
	var answer pb.GetXAttrsResponseProto
	err := s.call(ctx, o.User, "getXAttrs", request, &answer)
	return xattrsOf(answer.GetXAttrs()), err
}

func listXAttrs(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.ListXAttrsResponseProto
	err := s.call(ctx, o.User, "listXAttrs", &pb.ListXAttrsRequestProto{Src: ptr(o.text("src"))}, &answer)
	return xattrsOf(answer.GetXAttrs()), err
}

// xattrsOf prints attributes in the order of their names: theirs means nothing.
func xattrsOf(list []*pb.XAttrProto) string {
	var lines []string
	for _, x := range list {
		lines = append(lines, fmt.Sprintf("%v:%s=%q", x.GetNamespace(), x.GetName(), x.GetValue()))
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

func makeRemoveXAttr(g *generator) Operation {
	return op("removexattr", "src", g.path(), "name", pick(g, attributes...))
}

func removeXAttr(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "removeXAttr",
		&pb.RemoveXAttrRequestProto{Src: ptr(o.text("src")), XAttr: attribute(o.text("name"))}, new(pb.RemoveXAttrResponseProto))
}

// aclEntry reads [default:]type:name:permissions, permissions a digit.
func aclEntry(s string) *pb.AclEntryProto {
	e := &pb.AclEntryProto{Scope: pb.AclEntryProto_ACCESS.Enum()}
	if rest, ok := strings.CutPrefix(s, "default:"); ok {
		e.Scope, s = pb.AclEntryProto_DEFAULT.Enum(), rest
	}
	parts := strings.SplitN(s, ":", 3)
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	e.Type = pb.AclEntryProto_AclEntryTypeProto(pb.AclEntryProto_AclEntryTypeProto_value[strings.ToUpper(parts[0])]).Enum()
	if parts[1] != "" {
		e.Name = &parts[1]
	}
	rights, _ := strconv.Atoi(parts[2])
	e.Permissions = pb.AclEntryProto_FsActionProto(rights).Enum()
	return e
}

func (g *generator) acl(whole bool) string {
	var entries []string
	if whole && g.chance(90) {
		entries = append(entries, "user::7", fmt.Sprintf("group::%d", g.IntN(8)), fmt.Sprintf("other::%d", g.IntN(8)))
	}
	for range g.IntN(4) {
		e := fmt.Sprintf("%s:%s:%d", pick(g, "user", "user", "group", "mask", "other"), pick(g, "alice", "bob", "daemon", "staff", ""), g.IntN(8))
		if g.chance(35) {
			e = "default:" + e
		}
		entries = append(entries, e)
	}
	return strings.Join(entries, ",")
}

func makeACL(g *generator) Operation {
	how := pick(g, "modify", "modify", "modify", "set", "set", "remove", "removedefault", "removeall")
	o := op("acl", "src", g.path(), "how", how)
	switch how {
	case "modify", "remove":
		o.Args["entries"] = g.acl(false)
	case "set":
		o.Args["entries"] = g.acl(true)
	}
	return o
}

func changeACL(ctx context.Context, s *Side, o Operation) (string, error) {
	src := ptr(o.text("src"))
	var entries []*pb.AclEntryProto
	for _, e := range o.list("entries") {
		entries = append(entries, aclEntry(e))
	}
	switch o.text("how") {
	case "modify":
		return "", s.call(ctx, o.User, "modifyAclEntries", &pb.ModifyAclEntriesRequestProto{Src: src, AclSpec: entries}, new(pb.ModifyAclEntriesResponseProto))
	case "set":
		return "", s.call(ctx, o.User, "setAcl", &pb.SetAclRequestProto{Src: src, AclSpec: entries}, new(pb.SetAclResponseProto))
	case "remove":
		return "", s.call(ctx, o.User, "removeAclEntries", &pb.RemoveAclEntriesRequestProto{Src: src, AclSpec: entries}, new(pb.RemoveAclEntriesResponseProto))
	case "removedefault":
		return "", s.call(ctx, o.User, "removeDefaultAcl", &pb.RemoveDefaultAclRequestProto{Src: src}, new(pb.RemoveDefaultAclResponseProto))
	default:
		return "", s.call(ctx, o.User, "removeAcl", &pb.RemoveAclRequestProto{Src: src}, new(pb.RemoveAclResponseProto))
	}
}

func getACL(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.GetAclStatusResponseProto
	err := s.call(ctx, o.User, "getAclStatus", &pb.GetAclStatusRequestProto{Src: ptr(o.text("src"))}, &answer)
	a := answer.GetResult()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %v %o", a.GetOwner(), a.GetGroup(), a.GetSticky(), a.GetPermission().GetPerm())
	for _, e := range a.GetEntries() {
		fmt.Fprintf(&b, " %v:%v:%s:%v", e.GetScope(), e.GetType(), e.GetName(), e.GetPermissions())
	}
	return b.String(), err
}
