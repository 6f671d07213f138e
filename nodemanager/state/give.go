package state

import (
	"io/fs"
	"os"
)

// Give makes everything below dir, but not dir itself, belong to a user. It is for a tree that nobody but us has had access
// to, and does not leave it: links are given, not followed.
func Give(dir string, uid, gid uint32) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return root.Lchown(name, int(uid), int(gid))
	})
}
