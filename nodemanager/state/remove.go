package state

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
)

// RemoveAll removes a tree that a container made as it liked: with directories that give no rights, millions of names, and
// any depth. It holds three descriptors and a thousand names at a time, where os.RemoveAll holds a descriptor for each
// level: a chain of empty directories would take all that the node manager has.
//
// What lies deeper than one level is moved up before it is taken apart, so every directory is seen once.
func RemoveAll(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return os.Remove(path)
	}
	if err := os.Chmod(path, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := (&removal{root: root}).empty("."); err != nil {
		return err
	}
	return os.Remove(path)
}

// removal takes one tree apart.
type removal struct {
	root  *os.Root
	moved int // names given so far to what was moved up
}

// empty removes what is in a directory of the tree. Directories in the top are emptied, those in others moved to the top.
func (r *removal) empty(dir string) error {
	for {
		list, err := r.some(dir)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, e := range list {
			name := e.Name()
			if dir != "." {
				name = dir + "/" + name
			}
			switch {
			case !e.IsDir():
				err = r.root.Remove(name)
			case dir == ".":
				err = r.take(name)
			default:
				err = r.lift(name)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
}

// some lists entries of a directory, none when it is empty.
func (r *removal) some(dir string) ([]fs.DirEntry, error) {
	d, err := r.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	list, err := d.ReadDir(1000)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return list, err
}

// take removes a directory of the top.
func (r *removal) take(name string) error {
	if err := r.root.Chmod(name, 0o700); err != nil {
		return err
	}
	if err := r.empty(name); err != nil {
		return err
	}
	return r.root.Remove(name)
}

// lift moves a directory to the top, under a name that nothing there has.
func (r *removal) lift(name string) error {
	if err := r.root.Chmod(name, 0o700); err != nil { // its own entry ".." changes
		return err
	}
	for {
		r.moved++
		to := ".removed-" + strconv.Itoa(r.moved)
		if _, err := r.root.Lstat(to); err == nil {
			continue
		}
		return r.root.Rename(name, to)
	}
}
