package namespace

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// The arithmetic of access control lists: HDFS's AclTransformation and AclStorage. A list here is the logical one: with
// the entries that the mode holds, access entries before default ones, each in the order of type and name.

const (
	aclUser  = metadata.ACLUser
	aclGroup = metadata.ACLGroup
	aclMask  = metadata.ACLMask
	aclOther = metadata.ACLOther
)

type aclList = []metadata.ACLEntry

func compareEntries(a, b metadata.ACLEntry) int {
	return cmp.Or(compareBools(a.Default, b.Default), cmp.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func badACL(format string, args ...any) error {
	return metadata.Errorf(metadata.ErrACL, "Invalid ACL: "+format, args...)
}

// logicalACL is the whole list of an inode.
func (n *inode) logicalACL() aclList {
	digit := func(shift int) metadata.Access { return metadata.Access(n.mode>>shift) & 7 }
	list := aclList{{Type: aclUser, Rights: digit(6)}}
	if n.extra != nil && len(n.extra.access) > 0 {
		list = append(list, n.extra.access...)
		list = append(list, metadata.ACLEntry{Type: aclMask, Rights: digit(3)})
	} else {
		list = append(list, metadata.ACLEntry{Type: aclGroup, Rights: digit(3)})
	}
	list = append(list, metadata.ACLEntry{Type: aclOther, Rights: digit(0)})
	if n.extra != nil {
		list = append(list, n.extra.inherited...)
	}
	return list
}

// storeACL makes a valid logical list that of a touched inode.
func (n *inode) storeACL(list aclList) {
	i := slices.IndexFunc(list, func(e metadata.ACLEntry) bool { return e.Default })
	if i < 0 {
		i = len(list)
	}
	access, inherited := list[:i], list[i:]
	last := len(access) - 1
	n.mode = n.mode&metadata.Sticky | metadata.Mode(access[0].Rights)<<6 |
		metadata.Mode(access[last-1].Rights)<<3 | metadata.Mode(access[last].Rights)
	if len(access) == 3 {
		access = nil
	} else {
		access = slices.Clone(access[1 : last-1])
	}
	x := n.own()
	x.access, x.inherited = access, slices.Clone(inherited)
	n.tidy()
}

// masks is what a change says about the mask of a scope.
type masks struct {
	provided *metadata.ACLEntry
	// dirty: the mask itself was named. touched: any entry of the scope was.
	dirty, touched bool
}

// aclBuilder collects a new list; masks, which are computed, apart. Index 0 is access, 1 default.
type aclBuilder struct {
	list  aclList
	scope [2]masks
}

func scopeOf(e metadata.ACLEntry) int {
	if e.Default {
		return 1
	}
	return 0
}

func (b *aclBuilder) add(e metadata.ACLEntry) {
	if e.Type == aclMask {
		b.scope[scopeOf(e)].provided = &e
		return
	}
	b.list = append(b.list, e)
}

// named notes that a change named an entry.
func (b *aclBuilder) named(e metadata.ACLEntry) {
	s := &b.scope[scopeOf(e)]
	s.touched = true
	if e.Type == aclMask {
		s.dirty = true
	}
}

func checkSpec(spec aclList) (aclList, error) {
	spec = slices.Clone(spec)
	slices.SortStableFunc(spec, compareEntries)
	return spec, checkEntries(spec)
}

func checkEntries(list aclList) error {
	counts := [2]int{}
	for _, e := range list {
		counts[scopeOf(e)]++
	}
	for i, scope := range []string{"access", "default"} {
		if counts[i] > metadata.MaxACLEntries {
			return badACL("ACL has %d %s entries, which exceeds maximum of %d.", counts[i], scope, metadata.MaxACLEntries)
		}
	}
	return nil
}

// findEntry finds an entry's place in a sorted list. Of several with the same name it finds the one that Java's bisection
// comes upon, so that a list with one name twice changes what it does in HDFS.
func findEntry(list aclList, e metadata.ACLEntry) (int, bool) {
	for low, high := 0, len(list)-1; low <= high; {
		middle := (low + high) / 2
		switch c := compareEntries(list[middle], e); {
		case c == 0:
			return middle, true
		case c < 0:
			low = middle + 1
		default:
			high = middle - 1
		}
	}
	return 0, false
}

// mergeACL adds the entries of spec to have, or gives those that are there their rights.
func mergeACL(have, spec aclList) (aclList, error) {
	spec, err := checkSpec(spec)
	if err != nil {
		return nil, err
	}
	var b aclBuilder
	used := make([]bool, len(spec))
	for _, e := range have {
		if i, found := findEntry(spec, e); found {
			used[i] = true
			e = spec[i]
			b.named(e)
		}
		b.add(e)
	}
	for _, e := range spec {
		// A second one of the same name was found in place of the first; it stays, and the list is refused.
		if first, _ := findEntry(spec, e); used[first] {
			continue
		}
		b.named(e)
		b.add(e)
	}
	return b.build()
}

// removeEntries removes the entries that spec names.
func removeEntries(have, spec aclList) (aclList, error) {
	spec, err := checkSpec(spec)
	if err != nil {
		return nil, err
	}
	var b aclBuilder
	for _, e := range have {
		if _, found := findEntry(spec, e); found {
			b.named(e)
			continue
		}
		b.add(e)
	}
	return b.build()
}

// removeDefaults removes the default entries.
func removeDefaults(have aclList) (aclList, error) {
	list := slices.Clone(have)
	return validACL(slices.DeleteFunc(list, func(e metadata.ACLEntry) bool { return e.Default }))
}

// replaceACL takes spec for the scopes that it has entries of.
func replaceACL(have, spec aclList) (aclList, error) {
	spec, err := checkSpec(spec)
	if err != nil {
		return nil, err
	}
	var b aclBuilder
	for _, e := range spec {
		b.named(e)
		b.add(e)
	}
	replaced := [2]bool{b.scope[0].touched, b.scope[1].touched}
	for _, e := range have {
		if !replaced[scopeOf(e)] {
			b.add(e)
		}
	}
	return b.build()
}

func (b *aclBuilder) build() (aclList, error) {
	slices.SortStableFunc(b.list, compareEntries)
	b.copyDefaults()
	if err := b.addMasks(); err != nil {
		return nil, err
	}
	return validACL(b.list)
}

// copyDefaults completes a list of default entries by the access entries for owner, group and others.
func (b *aclBuilder) copyDefaults() {
	if !slices.ContainsFunc(b.list, func(e metadata.ACLEntry) bool { return e.Default }) {
		return
	}
	sorted := slices.Clone(b.list)
	for _, t := range []metadata.ACLType{aclUser, aclGroup, aclOther} {
		if _, found := findEntry(sorted, metadata.ACLEntry{Default: true, Type: t}); found {
			continue
		}
		if i, found := findEntry(sorted, metadata.ACLEntry{Type: t}); found {
			b.list = append(b.list, metadata.ACLEntry{Default: true, Type: t, Rights: sorted[i].Rights})
		}
	}
}

// addMasks adds the masks: the one that was given, the one that was there if nothing of its scope changed, else what all
// that it masks have together.
func (b *aclBuilder) addMasks() error {
	var found, needed [2]bool
	var union [2]metadata.Access
	for _, e := range b.list {
		i := scopeOf(e)
		found[i] = true
		if e.Type == aclGroup || e.Name != "" {
			union[i] |= e.Rights
		}
		if e.Name != "" {
			needed[i] = true
		}
	}
	for i, s := range b.scope {
		switch {
		case !found[i]:
		case s.provided == nil && needed[i] && s.dirty:
			return badACL("mask is required and cannot be deleted.")
		case s.provided != nil && (!s.touched || s.dirty):
			b.list = append(b.list, *s.provided)
		case needed[i] || s.provided != nil:
			b.list = append(b.list, metadata.ACLEntry{Default: i == 1, Type: aclMask, Rights: union[i]})
		}
	}
	return nil
}

// validACL sorts a list and checks that it is one.
func validACL(list aclList) (aclList, error) {
	slices.SortStableFunc(list, compareEntries)
	for i, e := range list {
		if i > 0 && compareEntries(list[i-1], e) == 0 {
			return nil, badACL("multiple entries with same scope, type and name.")
		}
		if e.Name != "" && (e.Type == aclMask || e.Type == aclOther) {
			return nil, badACL("this entry type must not have a name: %s.", e)
		}
	}
	if err := checkEntries(list); err != nil {
		return nil, err
	}
	defaults := slices.ContainsFunc(list, func(e metadata.ACLEntry) bool { return e.Default })
	for _, t := range []metadata.ACLType{aclUser, aclGroup, aclOther} {
		if _, found := findEntry(list, metadata.ACLEntry{Type: t}); !found {
			return nil, badACL("the user, group and other entries are required.")
		}
		if _, found := findEntry(list, metadata.ACLEntry{Default: true, Type: t}); defaults && !found {
			return nil, metadata.Errorf(metadata.ErrACL, "Invalid default ACL: the user, group and other entries are required.")
		}
	}
	return list, nil
}

// inherit gives a new inode, whose mode is masked, the list that its directory has for new entries. unmasked is the mode
// before the umask, which plays no part then; nil: the client did not say.
func (n *inode) inherit(dir *inode, unmasked *uint32) {
	if dir.extra == nil || len(dir.extra.inherited) == 0 {
		return
	}
	if unmasked != nil {
		n.mode = metadata.Mode(*unmasked) & modeMask
	}
	defaults := dir.extra.inherited
	minimal := len(defaults) == 3
	digit := func(shift int) metadata.Access { return metadata.Access(n.mode>>shift) & 7 }
	list := make(aclList, 0, 2*len(defaults))
	for _, e := range defaults {
		e.Default = false
		switch {
		case e.Type == aclUser && e.Name == "":
			e.Rights &= digit(6)
		case e.Type == aclGroup && minimal, e.Type == aclMask:
			e.Rights &= digit(3)
		case e.Type == aclOther:
			e.Rights &= digit(0)
		}
		list = append(list, e)
	}
	if n.isDir() {
		list = append(list, defaults...)
	}
	n.storeACL(list)
}

// mayByACL is the check of an inode with access entries (FSPermissionChecker.hasAclPermission): the first match counts,
// but of several groups any that grants.
func (c *caller) mayByACL(n *inode, want metadata.Access) bool {
	mask := metadata.Access(n.mode>>3) & 7
	if c.owns(n) {
		return metadata.Access(n.mode>>6)&want == want
	}
	matched := false
	for _, e := range n.extra.access {
		switch e.Type {
		case aclUser:
			if e.Name == c.user {
				return e.Rights&mask&want == want
			}
		case aclGroup:
			group := e.Name
			if group == "" {
				group = n.group.Value()
			}
			if c.inGroup(group) {
				if e.Rights&mask&want == want {
					return true
				}
				matched = true
			}
		}
	}
	return !matched && metadata.Access(n.mode)&want == want
}
