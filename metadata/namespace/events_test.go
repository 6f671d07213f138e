package namespace

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// mirror is a tree that is made of events alone.
type mirror struct {
	nodes map[string]*mirrored
	// told are the events of entries: another namespace that applies them tells the same.
	told map[uint64][]metadata.Event
	errs []string
}

type mirrored struct {
	id           metadata.INodeID
	dir, open    bool
	cut          bool // it was truncated, and may be open until it is closed
	owner, group string
	mode         metadata.Mode
	replication  uint16
	length       int64
	acl          []metadata.ACLEntry
	xattrs       map[string]string
}

func newMirror() *mirror {
	root := &mirrored{id: metadata.RootID, dir: true, owner: "hops", group: "supergroup", mode: 0o755, xattrs: map[string]string{}}
	return &mirror{nodes: map[string]*mirrored{"/": root}, told: map[uint64][]metadata.Event{}}
}

func (m *mirror) bad(e metadata.Event, format string, args ...any) {
	m.errs = append(m.errs, fmt.Sprintf("%v %s: ", e.Kind, e.Path)+fmt.Sprintf(format, args...))
}

// take is Config.OnEvents.
func (m *mirror) take(index uint64, _ LogTime, events []metadata.Event) {
	m.told[index] = slices.Clone(events)
	for i, e := range events {
		if e.Continued && (i == 0 || events[i-1].Kind == metadata.EventClose) {
			m.bad(e, "continues nothing")
		}
		m.apply(e)
	}
}

// again is Config.OnEvents of a namespace that applies the same log.
func (m *mirror) again(index uint64, _ LogTime, events []metadata.Event) {
	if want := m.told[index]; !reflect.DeepEqual(want, slices.Clone(events)) {
		m.errs = append(m.errs, fmt.Sprintf("entry %d tells %+v, and told %+v", index, events, want))
	}
}

func (m *mirror) remove(path string) {
	maps.DeleteFunc(m.nodes, func(p string, _ *mirrored) bool { return p == path || below(p, path) })
}

// replaces holds what an event says that it has replaced against what was there.
func (m *mirror) replaces(e metadata.Event, old *mirrored) {
	if old == nil && e.Replaced != 0 || old != nil && e.Replaced != old.id {
		m.bad(e, "replaced %d, and there was %+v", e.Replaced, old)
	}
}

func (m *mirror) apply(e metadata.Event) {
	inPlace := func(path string, id metadata.INodeID) bool {
		if path == "/" {
			return id == 0
		}
		dir := m.nodes[parentOf(path)]
		return dir != nil && dir.dir && dir.id == id
	}
	n := m.nodes[e.Path]
	if !inPlace(e.Path, e.Parent) {
		m.bad(e, "its directory is not %d", e.Parent)
		return
	}
	if e.Kind == metadata.EventCreate {
		if n != nil && (!e.Overwrite || n.dir) {
			m.bad(e, "is there")
		}
		m.replaces(e, n)
		m.nodes[e.Path] = &mirrored{
			id: e.INode, dir: e.Dir, open: !e.Dir, owner: e.Owner, group: e.Group, mode: e.Mode, replication: e.Replication, acl: e.ACL,
			xattrs: map[string]string{},
		}
		return
	}
	if n == nil || n.id != e.INode {
		m.bad(e, "is another inode than %d", e.INode)
		return
	}
	switch e.Kind {
	case metadata.EventClose:
		if !n.open && !n.cut {
			m.bad(e, "is closed")
		}
		n.open, n.cut, n.length = false, false, e.Length
	case metadata.EventAppend:
		if n.open || n.dir {
			m.bad(e, "is open")
		}
		n.open = true
	case metadata.EventTruncate:
		n.length, n.cut = e.Length, true
	case metadata.EventUnlink:
		m.remove(e.Path)
	case metadata.EventRename:
		if old := m.nodes[e.Target]; old != nil != e.Overwrite {
			m.bad(e, "%s: %+v", e.Target, old)
		}
		m.replaces(e, m.nodes[e.Target])
		if !inPlace(e.Target, e.TargetParent) {
			m.bad(e, "the directory of %s is not %d", e.Target, e.TargetParent)
		}
		m.remove(e.Target)
		moved := map[string]*mirrored{}
		for p, n := range m.nodes {
			if p == e.Path || below(p, e.Path) {
				moved[e.Target+p[len(e.Path):]] = n
			}
		}
		m.remove(e.Path)
		maps.Copy(m.nodes, moved)
	case metadata.EventMetadata:
		switch e.Update {
		case metadata.UpdateReplication:
			n.replication = e.Replication
		case metadata.UpdateOwner:
			if e.Owner != "" {
				n.owner = e.Owner
			}
			if e.Group != "" {
				n.group = e.Group
			}
		case metadata.UpdatePermission:
			n.mode = e.Mode
			if len(n.acl) > 0 {
				n.acl = nil // the mode's digits are entries of it: nobody who wants to know it can do without reading it
			}
		case metadata.UpdateACL:
			n.mode, n.acl = e.Mode, e.ACL
		case metadata.UpdateXAttrs:
			for _, x := range e.XAttrs {
				if delete(n.xattrs, x.FullName()); !e.Removed {
					n.xattrs[x.FullName()] = string(x.Value)
				}
			}
		}
	}
}

func (m *mirror) dump() string {
	var out strings.Builder
	for _, path := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[path]
		if n.open {
			n.length = -1 // what is being written has a length when it is closed
		}
		fmt.Fprintln(&out, path, n.id, n.dir, n.owner, n.group, n.mode, n.replication, n.length, n.open, n.xattrs)
	}
	return out.String()
}

// mirrorOf is what a mirror of a namespace has to be.
func mirrorOf(ns *Namespace) *mirror {
	m := newMirror()
	var walk func(path string)
	walk = func(path string) {
		st, err := ns.Stat(super, path)
		if err != nil || st == nil {
			m.errs = append(m.errs, fmt.Sprintf("%s: %v, %v", path, st, err))
			return
		}
		n := &mirrored{id: st.ID, dir: st.IsDir(), open: st.UnderConstruction, owner: st.Owner, group: st.Group, mode: st.Mode, replication: st.Replication, length: st.Length, xattrs: map[string]string{}}
		m.nodes[path] = n
		all, err := ns.ListXAttrs(super, path)
		if err != nil {
			m.errs = append(m.errs, err.Error())
		}
		for _, x := range all {
			n.xattrs[x.FullName()] = string(x.Value)
		}
		if !n.dir {
			return
		}
		l, err := ns.List(super, path, "", 1000)
		if err != nil || l == nil {
			m.errs = append(m.errs, fmt.Sprintf("%s: %v, %v", path, l, err))
			return
		}
		for _, e := range l.Entries {
			walk(join(path, e.Name))
		}
	}
	walk("/")
	return m
}

// compare holds a mirror against the namespace it is of.
func (m *mirror) compare(t interface{ Fatalf(string, ...any) }, ns *Namespace) {
	want := mirrorOf(ns)
	if errs := append(m.errs, want.errs...); len(errs) > 0 {
		t.Fatalf("events: %s", strings.Join(errs, "\n"))
	}
	for path, n := range want.nodes {
		if have := m.nodes[path]; have != nil && have.cut {
			have.open = n.open
		}
	}
	if got, want := m.dump(), want.dump(); got != want {
		t.Fatalf("a tree made of events:\n%s\nthe namespace:\n%s", got, want)
	}
}
