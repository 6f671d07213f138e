package raftstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
)

// formatVersion is the version of a group's directory as FORMAT.md describes it.
const formatVersion = 2

// identity is the file member.json: whose directory this is.
type identity struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster,omitempty"`
	Group   string `json:"group"`
	Member  string `json:"member"`
	// Joining: the member started empty beside a cluster that may be running. It may have acknowledged entries and
	// given votes in an earlier life, so it gives none now until it has all that a leader has.
	Joining bool `json:"joining,omitempty"`
	// Reinstalled: the directory was emptied by Reinstall, so that Bootstrap does not apply.
	Reinstalled bool `json:"reinstalled,omitempty"`
	// Recovered is how often the group was made anew of one surviving member. Members of different numbers do not talk.
	Recovered int `json:"recovered,omitempty"`
	// Level is the highest that the cluster had been raised to when this member noted it last: what is here may be of that level.
	// 0: the first.
	Level int `json:"level,omitempty"`
	// Damaged is what is wrong with this member's state; it does not serve before it was reinstalled.
	Damaged string `json:"damaged,omitempty"`
}

// lineage is what connections name: the cluster, and how often the group was recovered.
func (i identity) lineage() string {
	if i.Recovered == 0 {
		return i.Cluster
	}
	return fmt.Sprintf("%s#%d", i.Cluster, i.Recovered)
}

// ofLineage takes a lineage apart.
func ofLineage(text string) (cluster string, recovered int) {
	cluster, number, found := strings.Cut(text, "#")
	if found {
		recovered, _ = strconv.Atoi(number)
	}
	return cluster, recovered
}

// directory is a group's directory, locked against other processes.
type directory struct {
	path string
	lock *flock.Flock
	identity
}

func (d *directory) logs() string      { return filepath.Join(d.path, "log") }
func (d *directory) snapshots() string { return filepath.Join(d.path, "snapshots") }

// openDirectory locks the directory and checks that it is the one that want names; a new one gets that identity, and so does one whose
// identity is damaged or lost if it is to be emptied anyway. Errors: ErrCorrupt for a damaged identity, and others.
func openDirectory(path string, want identity, anew bool) (_ *directory, err error) {
	if err := makeDir(path); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	d := &directory{path: path, lock: flock.New(filepath.Join(path, "LOCK"))}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	locked, err := d.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("data directory %s: cannot lock it: %w", path, err)
	}
	if !locked {
		return nil, fmt.Errorf("data directory %s is in use by another process", path)
	}
	raw, err := os.ReadFile(d.file())
	if errors.Is(err, fs.ErrNotExist) {
		if old, _ := filepath.Glob(filepath.Join(d.logs(), "*")); len(old) > 0 && !anew {
			return nil, metadata.Errorf(metadata.ErrCorrupt, "data directory %s has a log but no member.json: it is damaged or not ours", path)
		}
		d.identity = want
		err = d.save()
	} else if err == nil {
		if err = d.check(raw, want); anew && errors.Is(err, metadata.ErrCorrupt) {
			d.identity, err = want, nil
		}
	}
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{d.logs(), d.snapshots()} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	return d, syncDir(path)
}

func (d *directory) check(raw []byte, want identity) error {
	if err := d.read(raw); err != nil {
		return err
	}
	switch {
	case d.Cluster != "" && want.Cluster != "" && d.Cluster != want.Cluster:
		return fmt.Errorf("data directory %s belongs to cluster %s, not to %s", d.path, d.Cluster, want.Cluster)
	case d.Group != want.Group:
		return fmt.Errorf("data directory %s belongs to group %s, not to %s", d.path, d.Group, want.Group)
	case d.Member != want.Member:
		return fmt.Errorf("data directory %s belongs to member %s, not to %s", d.path, d.Member, want.Member)
	}
	if d.Cluster == "" && want.Cluster != "" {
		d.Cluster = want.Cluster
		return d.save()
	}
	return nil
}

// sealed is where the checksum of the identity file begins, which is its last field and of all that is before.
const sealed = `,"crc32c":"`

func seal(text []byte) []byte {
	return fmt.Appendf(nil, "%s%s%08x\"}\n", text, sealed, crc32.Checksum(text, castagnoli))
}

// read takes the identity from the content of its file. Errors: ErrCorrupt; others when a later program wrote it. A file without a
// checksum is one of a program that wrote none.
func (d *directory) read(raw []byte) error {
	damaged := func(why any) error {
		return metadata.Errorf(metadata.ErrCorrupt, "%s is damaged: %v", d.file(), why)
	}
	if i := bytes.LastIndex(raw, []byte(sealed)); i >= 0 && !bytes.Equal(raw, seal(raw[:i])) {
		return damaged("it does not match its checksum")
	}
	var found identity
	if err := json.Unmarshal(raw, &found); err != nil {
		return damaged(err)
	}
	d.identity = found
	if d.Format != formatVersion {
		return fmt.Errorf("data directory %s has format %d, this program reads and writes %d: start the version that wrote it", d.path, d.Format, formatVersion)
	}
	return release.Reads("data directory "+d.path, d.Level)
}

func (d *directory) file() string { return filepath.Join(d.path, "member.json") }

// save replaces the identity file durably.
func (d *directory) save() error {
	text, err := json.Marshal(d.identity)
	if err != nil {
		return err
	}
	return writeFile(d.file(), seal(text[:len(text)-1]))
}

func (d *directory) close() error { return d.lock.Unlock() }

// clearTemporary removes *.tmp of a group's directory, unless another process has it open or a later version wrote it.
func clearTemporary(path string) error {
	d := directory{path: path}
	if raw, err := os.ReadFile(d.file()); err == nil {
		if err := d.read(raw); err != nil && !errors.Is(err, metadata.ErrCorrupt) {
			return err
		}
	}
	var names []string
	for _, pattern := range []string{"*.tmp", filepath.Join("snapshots", "*.tmp")} {
		found, err := filepath.Glob(filepath.Join(path, pattern))
		if err != nil {
			return err
		}
		names = append(names, found...)
	}
	if len(names) == 0 {
		return nil
	}
	lock := flock.New(filepath.Join(path, "LOCK"))
	locked, err := lock.TryLock()
	if err != nil {
		return fmt.Errorf("data directory %s: cannot lock it: %w", path, err)
	}
	if !locked {
		return fmt.Errorf("data directory %s is in use by another process", path)
	}
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return errors.Join(err, lock.Unlock())
}

// writeFile replaces a file so that after a crash the old or the new content is there.
func writeFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeDir makes a directory with those above it, and their entries durable: what is synced in a directory that a power cut takes away is lost.
func makeDir(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	above := filepath.Dir(path)
	if above != path {
		if err := makeDir(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if info, err := os.Stat(path); err != nil {
		return err
	} else if !info.IsDir() {
		return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
	}
	return syncDir(above)
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
