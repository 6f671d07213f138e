package badger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"
)

// Reading is a store that is read and not changed, also one whose process was killed.
type Reading struct {
	*Store
	locks []*os.File
	temp  string
}

// maxCopied limits what of a store is copied: all but its tables, in bytes.
const maxCopied = 1 << 30

// Read opens the store in dir, or one that was set aside, whose own directory dir is then. Nothing in dir changes: badger reads the tables where they are and
// copies of the rest in a temporary directory, because what a killed process had not put into tables is only read by an opening that writes. All tables are
// checked first.
//
// Errors: one line; fs.ErrNotExist when there is no store.
func Read(dir string) (_ *Reading, err error) {
	data := filepath.Join(dir, current)
	for _, d := range []string{data, dir} {
		if data = d; has(filepath.Join(d, badger.ManifestFilename)) {
			break
		}
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, &fs.PathError{Op: "inspect", Path: dir, Err: unix.ENOTDIR}
	}
	if _, err := os.Stat(filepath.Join(data, badger.ManifestFilename)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no checkpoint: there is neither %s/%s nor %s in it (%w)", dir, current, badger.ManifestFilename, badger.ManifestFilename, fs.ErrNotExist)
	} else if err != nil {
		return nil, err
	}
	if data, err = filepath.Abs(data); err != nil {
		return nil, err
	}
	r := &Reading{}
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint %s: %s", dir, strings.ReplaceAll(err.Error(), "\n", "; "))
			r.release()
		}
	}()
	if r.temp, err = os.MkdirTemp("", "hops-inspect-"); err != nil {
		return nil, err
	}
	apart, _, err := classesIn(data)
	if err != nil {
		return nil, err
	}
	for _, class := range append([]byte{0}, apart...) {
		if err := r.shadow(folder(data, class), folder(r.temp, class)); err != nil {
			return nil, err
		}
	}
	r.Store = &Store{dir: r.temp, opt: Options{Memtable: 32 << 20, Logger: slog.New(slog.DiscardHandler)}, readOnly: true, closing: make(chan struct{})}
	r.Store.db, err = r.Store.open(r.temp)
	return r, err
}

// openManaged is badger's, which panics on some damage.
func openManaged(opt badger.Options) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("badger cannot read it: %v", p)
		}
	}()
	return badger.OpenManaged(opt)
}

func has(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// shadow locks the folder of a database and fills another one with links to its tables and copies of the rest.
func (r *Reading) shadow(data, into string) error {
	if !has(filepath.Join(data, badger.ManifestFilename)) {
		return errLost(data)
	}
	lock, err := os.Open(data)
	if err != nil {
		return err
	}
	r.locks = append(r.locks, lock)
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("a server has it open: stop the server, or inspect a copy of the directory")
	} else if err != nil {
		return err
	}
	names, err := os.ReadDir(data)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o700); err != nil {
		return err
	}
	room := int64(maxCopied)
	for _, n := range names {
		path, to := filepath.Join(data, n.Name()), filepath.Join(into, n.Name())
		info, err := n.Info()
		switch {
		case err != nil:
			return err
		case !info.Mode().IsRegular() || n.Name() == "LOCK":
			continue
		case strings.HasSuffix(n.Name(), ".sst"):
			if _, err := verifyTable(path, info); err != nil {
				return err
			}
			if err := os.Symlink(path, to); err != nil {
				return err
			}
			continue
		}
		if room -= info.Size(); room < 0 {
			return fmt.Errorf("%s has %d bytes: there are more than %d beside the tables, so this is no checkpoint of hops", path, info.Size(), maxCopied)
		}
		if err := copyFile(path, to); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(path, to string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func (r *Reading) release() error {
	var err error
	for _, lock := range r.locks {
		err = errors.Join(err, lock.Close())
	}
	if r.temp != "" {
		err = errors.Join(err, os.RemoveAll(r.temp))
	}
	return err
}

// Close lets the store go and removes the copies.
func (r *Reading) Close() error { return errors.Join(r.Store.Close(), r.release()) }
