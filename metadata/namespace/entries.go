package namespace

import (
	"bytes"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// A checkpoint has the record of a file or a directory under its place, in class entry. Where Marker.DirectoriesApart says so those of directories are in a class of
// their own under the same place: they change with each entry that comes below them, and files seldom do once they are written, so what a store merges of files is
// what is new (kv/DESIGN.md). To all but the store it is one class: keys are those of class entry, and so is what is hashed.

// entryClass is the class in which checkpoints have the record of n.
func (ns *Namespace) entryClass(n *inode) byte {
	if ns.apart && n.isDir() {
		return classDirectory
	}
	return classEntry
}

// storedKey is the key of the record of n, which is attached, as checkpoints have it.
func (ns *Namespace) storedKey(n *inode) string {
	var buf [9 + metadata.MaxNameLength]byte
	key := appendEntryKey(buf[:0], n.parent.id, n.name)
	key[0] = ns.entryClass(n)
	return string(key)
}

// deleted reports whether what the last complete checkpoint has under a key is gone since. Of an entry it is the name that counts: what the checkpoint has
// there, file or directory, is gone when either may be deleted, because what takes the name of what is gone is in memory until there is another checkpoint.
func (ns *Namespace) deleted(key string) bool {
	if key[0] == classEntry {
		return ns.deletedKey([]byte(key))
	}
	value, ok := ns.changedRecord(key)
	return ok && value == nil
}

// deletedKey is deleted for who has the bytes of an entry's key.
func (ns *Namespace) deletedKey(key []byte) bool {
	if ns.unwritten(key) {
		return true
	}
	if !ns.apart {
		return false
	}
	var buf [9 + metadata.MaxNameLength]byte
	apart := append(buf[:0], key...)
	apart[0] = classDirectory
	return ns.unwritten(apart)
}

// unwritten reports whether the record under a key, as it is in the store, is to be deleted.
func (ns *Namespace) unwritten(key []byte) bool {
	value, ok := ns.pending[string(key)]
	if !ok && ns.frozen != nil {
		value, ok = ns.frozen.pending[string(key)]
	}
	return ok && value == nil
}

// entry is the record under the key of an entry; nil: there is none.
func (v *checkpointView) entry(key []byte) ([]byte, error) {
	if v.apart { // there are fewer, and most of what a path leads through are those
		key[0] = classDirectory
		if value, err := v.get(key); value != nil || err != nil {
			return value, err
		}
		key[0] = classEntry
	}
	return v.get(key)
}

// eachEntry calls fn for the entries whose keys begin with prefix and are not below from, files and directories in the order of their keys, until
// it returns false, which is after about want of them. Key and value are good during the call.
//
// Errors: those of the store; ErrCorrupt for a name that is both.
func (v *checkpointView) eachEntry(prefix, from []byte, want int, fn func(key, value []byte) bool) error {
	return eachEntry(v.View, v.apart, prefix, from, want, fn)
}

// So many directories are read at a time before the files between them, at most, in number and in bytes.
const (
	mostDirectories  = 1024
	directoriesBytes = 256 << 10
)

func eachEntry(v kv.View, apart bool, prefix, from []byte, want int, fn func(key, value []byte) bool) error {
	if !apart {
		return v.Scan(prefix, from, fn)
	}
	most := min(max(want, 1), mostDirectories)
	for {
		directories, more, err := someDirectories(v, prefix, from, most)
		if err != nil {
			return err
		}
		rest := directories
		over := false
		var bad error
		err = v.Scan(prefix, from, func(key, value []byte) bool {
			for len(rest) > 0 && bytes.Compare(rest[0].key, key) < 0 {
				d := rest[0]
				rest = rest[1:]
				if over = !fn(d.key, d.value); over {
					return false
				}
			}
			switch {
			case len(rest) == 0 && more:
				return false // another directory may be before it
			case len(rest) > 0 && bytes.Equal(rest[0].key, key):
				bad = corrupt("entry %x is a file and a directory", key)
				return false
			}
			over = !fn(key, value)
			return !over
		})
		switch {
		case err != nil:
			return err
		case bad != nil, over:
			return bad
		}
		for _, d := range rest {
			if !fn(d.key, d.value) {
				return nil
			}
		}
		if !more {
			return nil
		}
		from = append(directories[len(directories)-1].key, 0)
	}
}

// someDirectories reads directories that are apart, under keys as those of class entry, and reports whether there may be more.
func someDirectories(v kv.View, prefix, from []byte, most int) (directories []record, more bool, err error) {
	apart := func(key []byte) []byte {
		if key = bytes.Clone(key); len(key) > 0 {
			key[0] = classDirectory
		}
		return key
	}
	size := 0
	err = v.Scan(apart(prefix), apart(from), func(key, value []byte) bool {
		if more = len(directories) == most || size > directoriesBytes; more {
			return false
		}
		d := record{bytes.Clone(key), bytes.Clone(value)}
		d.key[0] = classEntry
		directories = append(directories, d)
		size += len(key) + len(value)
		return true
	})
	return directories, more, err
}
