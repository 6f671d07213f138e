package server

import (
	"strings"

	"github.com/gohops/hops/metadata"
)

// checkProtected refuses to remove or rename what would take a protected directory away that is not empty
// (fs.protected.directories; HDFS-8983, HDFS-14802, DFSUtil.checkProtectedDescendants). Nobody may, superusers included. It
// looks at the state of this moment, before the command is proposed: it is there for accidents.
func (s *Server) checkProtected(path string) error {
	list := s.config.Properties.Protected
	if len(list) == 0 {
		return nil
	}
	if strings.Contains(path, "//") || strings.HasSuffix(path, "/") { // as namespace.TargetOf takes it
		path = "/" + strings.Join(strings.FieldsFunc(path, func(c rune) bool { return c == '/' }), "/")
	}
	if path == "/" { // the root has a refusal of its own
		return nil
	}
	anybody := metadata.Caller{User: s.config.Door.Daemon(), Superuser: true}
	byID := strings.HasPrefix(path, "/.reserved/")
	for _, dir := range list {
		if !byID && path != dir && !below(dir, path) {
			continue
		}
		if byID && !s.onTheWay(anybody, path, dir) {
			continue
		}
		l, err := s.ns.List(anybody, dir, "", 1)
		if err != nil || len(l.Entries) == 0 || l.Entries[0].Name == "" { // not there, empty, or no directory
			continue
		}
		what := "subdirectory"
		if path == dir {
			what = "directory"
		}
		return metadata.Errorf(metadata.ErrPermission, "Cannot delete/rename non-empty protected %s %s", what, dir)
	}
	return nil
}

// onTheWay reports whether path, in the form of an inode's id, is dir or a directory above it.
func (s *Server) onTheWay(c metadata.Caller, path, dir string) bool {
	id, err := s.ns.Resolve(c, path)
	if err != nil {
		return false
	}
	for ; dir != ""; dir = dir[:strings.LastIndexByte(dir, '/')] {
		if other, err := s.ns.Resolve(c, dir); err == nil && other == id {
			return true
		}
	}
	return false
}
