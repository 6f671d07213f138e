package badger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"unicode"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/table"
)

// databases are what a content consists of: the one in its folder, and for each class of keys that is apart, in their order, one in the folder
// below that has the name of the class. Badger merges each for itself.
type databases []database

type database struct {
	class byte // 0: all that are not apart
	*badger.DB
}

// apartMemtable is the size of the memory tables of classes that are apart. The greatest value has to fit 15 % of it.
const apartMemtable = 8 << 20

// open opens the content in path and makes it when it is not there.
//
// The first database is made when the others are there to stay. So when it is there and another one is not, that one was lost; when it is not
// there and another one is not empty, it was.
func (s *Store) open(path string) (_ databases, err error) {
	there := has(filepath.Join(path, badger.ManifestFilename))
	apart := classes(s.opt.Apart)
	if there {
		var named bool
		if apart, named, err = classesIn(path); err != nil {
			return nil, err
		}
		if !named && !s.readOnly { // from here on it is known what is lost; the content is sound without
			if err := writeWhole(path, apartFile, apart); err != nil {
				s.opt.Logger.Warn("a checkpoint does not say which of its classes are apart, and the next start tries again to note it", "dir", path, "error", err)
			}
		}
	}
	db := make(databases, 1)
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	for _, class := range apart {
		dir := folder(path, class)
		if there && !has(filepath.Join(dir, badger.ManifestFilename)) {
			return nil, errLost(dir)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		d, err := s.openManaged(s.options(path, class))
		if err != nil {
			return nil, err
		}
		db = append(db, database{class, d})
	}
	if !there {
		if db[1:].last() > 0 {
			return nil, errLost(path)
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
		if err := writeWhole(path, apartFile, apart); err != nil {
			return nil, err
		}
	}
	d, err := s.openManaged(s.options(path, 0))
	if err != nil {
		return nil, err
	}
	db[0].DB = d
	return db, nil
}

func errLost(dir string) error {
	return fmt.Errorf("%s is lost: there is no %s", dir, badger.ManifestFilename)
}

func (s *Store) openManaged(opt badger.Options) (*badger.DB, error) {
	if s.readOnly {
		return openManaged(opt)
	}
	return badger.OpenManaged(opt)
}

// classes are those of Options.Apart, in their order.
func classes(apart string) []byte {
	c := []byte(apart)
	slices.Sort(c)
	return slices.Compact(c)
}

// apartFile has the classes that are apart in a content: it may be older than what Options.Apart says.
const apartFile = "APART"

// classesIn are the classes that are apart in a content that is there: those of the file, which all others that have a folder contradict, or, where there is none, all that have
// one. One that has no file was opened last by a program that did not write it.
func classesIn(path string) (apart []byte, named bool, err error) {
	names, err := os.ReadDir(path) // in their order
	if err != nil {
		return nil, false, err
	}
	var folders []byte
	for _, n := range names {
		if len(n.Name()) == 1 && n.IsDir() {
			folders = append(folders, n.Name()...)
		}
	}
	apart, err = os.ReadFile(filepath.Join(path, apartFile))
	if errors.Is(err, fs.ErrNotExist) {
		return folders, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if len(apart) > mostApart || !bytes.Equal(apart, classes(string(apart))) || bytes.ContainsFunc(apart, func(c rune) bool { return c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		return nil, false, fmt.Errorf("%s does not have letters and digits in their order: %q", filepath.Join(path, apartFile), apart[:min(len(apart), 64)])
	}
	for _, class := range folders {
		if !bytes.Contains(apart, []byte{class}) {
			return nil, false, fmt.Errorf("%s does not name class %c, which has a folder", filepath.Join(path, apartFile), class)
		}
	}
	return apart, true, nil
}

// mostApart is how many classes may be apart.
const mostApart = 16

// folder is where the database of a class is in a content.
func folder(path string, class byte) string {
	if class == 0 {
		return path
	}
	return filepath.Join(path, string(rune(class)))
}

// Close closes those that are open.
func (db databases) Close() (err error) {
	for _, d := range db {
		if d.DB != nil {
			err = errors.Join(err, d.DB.Close())
		}
	}
	return err
}

// last is the greatest timestamp in any.
func (db databases) last() (last uint64) {
	for _, d := range db {
		last = max(last, d.MaxVersion())
	}
	return last
}

// tables are the paths of the present tables, as the system has them.
func (db databases) tables() (map[string]bool, error) {
	paths := map[string]bool{}
	for _, d := range db {
		dir, err := filepath.Abs(d.Opts().Dir)
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			return nil, err
		}
		for _, t := range d.Tables() {
			paths[table.NewFilename(t.ID, dir)] = true
		}
	}
	return paths, nil
}
