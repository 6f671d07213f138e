package namespace

import (
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

const (
	reserved       = ".reserved"
	inodesPrefix   = "/.reserved/.inodes/"
	snapshotFolder = ".snapshot"
)

// TargetOf turns an absolute path into the form in which commands carry it. A path of the form
// /.reserved/.inodes/<id>[/rest] starts at that inode. Repeated and trailing slashes mean nothing.
//
// Errors: ErrInvalidPath for a path that is not absolute or longer than any can be. An inode that is not a number becomes
// one that does not exist.
func TargetOf(path string) (*logpb.Target, error) {
	t := new(logpb.Target)
	return t, SetTarget(t, path)
}

// SetTarget is TargetOf in memory that there is.
func SetTarget(t *logpb.Target, path string) error {
	base, rest, err := parse(path)
	*t = logpb.Target{Base: uint64(base), Path: rest}
	return err
}

// parse splits an absolute path into a base inode, 0 for the root, and what follows it.
func parse(path string) (metadata.INodeID, string, error) {
	if !strings.HasPrefix(path, "/") {
		return 0, "", metadata.Errorf(metadata.ErrInvalidPath, "Absolute path required, but got '%s'", printable(path))
	}
	if len(path) > longestPath {
		return 0, "", metadata.Errorf(metadata.ErrInvalidPath, "Pathname too long.  Limit %d characters", longestPath)
	}
	if rest, ok := strings.CutPrefix(path, inodesPrefix); ok {
		if strings.Trim(rest, "/") == "" {
			return 0, path[1:], nil // the directory of inodes, which is not there
		}
		number, rest, _ := strings.Cut(rest, "/")
		id, err := strconv.ParseUint(number, 10, 63)
		if err != nil || id == 0 {
			if number == "" {
				rest = "/" + rest
			}
			return noINode, rest, nil
		}
		return metadata.INodeID(id), rest, nil
	}
	return 0, path[1:], nil
}

// noINode is an inode that is never made.
const noINode metadata.INodeID = 1

// longestPath bounds a request. What may be made has at most MaxPathLength characters; renaming a directory above it makes
// the path of what is there longer.
const longestPath = 4 * metadata.MaxPathLength

// checkLength is CheckLength of the path of a target.
func checkLength(verb string, target *logpb.Target) error { return CheckLength(verb, target.GetPath()) }

// CheckLength refuses what verb would make at a path that is too long, before anything else is looked at, as HDFS does: ErrIO.
func CheckLength(verb, path string) error {
	if len(path) < metadata.MaxPathDepth {
		return nil
	}
	length, levels := 1, 1
	for i, r := range path {
		length += max(1, utf16.RuneLen(r))
		if r == '/' && i > 0 && i < len(path)-1 {
			levels++
		}
	}
	if length > metadata.MaxPathLength || levels > metadata.MaxPathDepth {
		return metadata.Errorf(metadata.ErrIO, "%s: Pathname too long.  Limit %d characters, %d levels.", verb, metadata.MaxPathLength, metadata.MaxPathDepth)
	}
	return nil
}

// isReservedRoot reports whether path is /.reserved itself.
func isReservedRoot(path string) bool {
	return len(path) <= len(reserved)+4 && strings.Trim(path, "/") == reserved
}

// checkNotReserved refuses /.reserved itself, where HDFS says so and not that it is missing.
func checkNotReserved(target *logpb.Target) error {
	if target.GetBase() == 0 && target.GetPath() == reserved {
		return metadata.Errorf(metadata.ErrInvalidPath, "Invalid path name /%s", reserved)
	}
	return nil
}

func printable(path string) string {
	if len(path) > 1024 {
		path = path[:1024] + "..."
	}
	return strings.ToValidUTF8(path, "\ufffd")
}

// validName reports whether a component may be part of a path that is made: HDFS refuses dots and colons
// (DFSUtil.isValidName), we refuse NUL and what is not UTF-8 besides, so that distinct names never look alike to a client.
func validName(name string) bool {
	if name == "." || name == ".." {
		return false
	}
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == ':' || c == 0:
			return false
		case c >= utf8.RuneSelf:
			return utf8.ValidString(name) && strings.IndexByte(name, ':') < 0 && strings.IndexByte(name, 0) < 0
		}
	}
	return true
}

// place is a path resolved as far as it exists.
type place struct {
	names []string
	// nodes[0] is the root and nodes[i] what names[i-1] names; nil from the first missing one on.
	nodes []*inode
	// reader is who resolves the path to read.
	reader caller
}

var places = sync.Pool{New: func() any {
	return &place{names: make([]string, 0, 16), nodes: make([]*inode, 0, 16)}
}}

func newPlace() *place { return places.Get().(*place) }

// release gives p back; nobody may use it any more.
func (p *place) release() {
	clear(p.names)
	clear(p.nodes)
	p.names, p.nodes, p.reader = p.names[:0], p.nodes[:0], caller{}
	places.Put(p)
}

func (p *place) last() *inode { return p.nodes[len(p.nodes)-1] }

// parent is what the path without its last name resolves to; nil for the root and when it is missing.
func (p *place) parent() *inode {
	if len(p.nodes) < 2 {
		return nil
	}
	return p.nodes[len(p.nodes)-2]
}

func (p *place) isRoot() bool { return len(p.nodes) == 1 }

// name is the last name; empty for the root.
func (p *place) name() string {
	if len(p.names) == 0 {
		return ""
	}
	return p.names[len(p.names)-1]
}

// existing is the index of the deepest node that is there.
func (p *place) existing() int {
	i := len(p.nodes) - 1
	for p.nodes[i] == nil {
		i--
	}
	return i
}

func (p *place) String() string { return p.upTo(len(p.nodes) - 1) }

// upTo is the path of nodes[i].
func (p *place) upTo(i int) string {
	if i == 0 {
		return "/"
	}
	return "/" + strings.Join(p.names[:i], "/")
}

// push extends p by one name; n is what it names, or nil.
func (p *place) push(name string, n *inode) {
	p.names = append(p.names, name)
	p.nodes = append(p.nodes, n)
}

// prefix is the path so far, with nothing for the root.
func (p *place) prefix() string {
	if p.isRoot() {
		return ""
	}
	return p.String()
}

// intent is why a path is resolved.
type intent uint8

const (
	// existing paths only are of interest: a file as an ancestor is a refusal.
	toUse intent = iota
	// the path may be made: its names must be valid, none of them empty, and a file as an ancestor is named as such.
	toMake
)

// resolve walks from base (0: the root) along path and checks that c may traverse it. Missing components are no error.
// With load unset it ends in errCold when something has to be loaded first.
//
// Errors: ErrInvalidPath, ErrNotExist (of a base only), ErrPermission, ErrParentNotDirectory (toMake only).
func (ns *Namespace) resolve(p *place, c *caller, base metadata.INodeID, path string, why intent) error {
	p.names, p.nodes = p.names[:0], p.nodes[:0]
	var at *inode
	all, walked := path, false
	if base != 0 && base != metadata.RootID {
		n, err := ns.byID(base)
		if err != nil {
			return err
		}
		if n == nil || !n.attached() {
			if base == noINode && why == toMake && strings.HasPrefix(path, "/") {
				return metadata.Errorf(metadata.ErrInvalidPath, "Invalid file name: %s%s", inodesPrefix, printable(path))
			}
			if base == noINode {
				return metadata.Errorf(metadata.ErrNotExist, "Invalid inode path: %s%s", inodesPrefix, printable(path))
			}
			return metadata.Errorf(metadata.ErrNotExist, "File for given inode path does not exist: %s%d", inodesPrefix, base)
		}
		ns.climb(p, n)
		at = n
	} else if path, at = ns.approach(p, path); at == nil {
		at, walked = ns.root, true
		p.nodes = append(p.nodes, at)
	}
	for len(path) > 0 {
		var name string
		if i := strings.IndexByte(path, '/'); i >= 0 {
			name, path = path[:i], path[i+1:]
		} else {
			name, path = path, ""
		}
		if name == "" {
			if why == toMake && strings.Trim(path, "/") != "" {
				return metadata.Errorf(metadata.ErrInvalidPath, "Invalid file name: %s", printable(p.prefix()+"//"+path))
			}
			continue
		}
		if why == toMake && !validName(name) {
			return metadata.Errorf(metadata.ErrInvalidPath, "Invalid file name: %s",
				printable(p.String()+"/"+name+strings.TrimRight("/"+path, "/")))
		}
		if at != nil {
			if !at.isDir() {
				at = nil
			} else {
				var err error
				if at, err = ns.step(at, name); err != nil {
					return err
				}
			}
		}
		p.push(name, at)
	}
	if walked {
		ns.keepNear(p, all)
	}
	return p.checkTraverse(c, why)
}

// climb fills p with n and all that is above it.
func (ns *Namespace) climb(p *place, n *inode) {
	depth := 0
	for x := n; x.parent != nil; x = x.parent {
		depth++
	}
	for range depth {
		p.push("", nil)
	}
	p.nodes = append(p.nodes, nil)
	for x := n; ; x = x.parent {
		p.nodes[depth] = x
		if x.parent == nil {
			return
		}
		depth--
		p.names[depth] = x.name
	}
}

// checkNew checks that name may become an entry of the directory that p names up to i, which need not exist yet.
func (p *place) checkNew(i int, name string) error {
	if name == snapshotFolder {
		return metadata.Errorf(metadata.ErrInvalidArgument, "\"%s\" is a reserved name.", name)
	}
	if name == reserved && i == 0 {
		return metadata.Errorf(metadata.ErrInvalidArgument, "File name \"%s\" is reserved and cannot "+
			"be created. If this is during upgrade change the name of the existing file or directory to another name before upgrading to the new release.", name)
	}
	if len(name) > metadata.MaxNameLength {
		return metadata.Errorf(metadata.ErrNameTooLong,
			"The maximum path component name limit of %s in directory %s is exceeded: limit=%d length=%d",
			name, p.upTo(i), metadata.MaxNameLength, len(name))
	}
	return nil
}

// checkRoom checks that the directory p.nodes[i] can take one more entry.
func (p *place) checkRoom(i int) error {
	if entries := p.nodes[i].dir.entries; entries >= metadata.MaxDirectory {
		return metadata.Errorf(metadata.ErrDirectoryFull,
			"The directory item limit of %s is exceeded: limit=%d items=%d", p.upTo(i), metadata.MaxDirectory, entries+1)
	}
	return nil
}
