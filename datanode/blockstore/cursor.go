package blockstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// scrubFile says how far the scrubber is on a volume. It is replaced by rename and not synced: what a crash takes of it is
// verified twice.
const scrubFile = "SCRUB"

func (s *Store) volumeOf(storage string) (*volume, error) {
	for _, v := range s.all() {
		if v.id.Storage == storage {
			return v, v.err()
		}
	}
	return nil, metadata.Errorf(metadata.ErrInvalidArgument, "there is no volume %q", storage)
}

// Cursor is what SetCursor saved for a volume; zero if that never happened.
func (s *Store) Cursor(storage string) (datanode.Cursor, error) {
	var c datanode.Cursor
	v, err := s.volumeOf(storage)
	if err != nil {
		return c, err
	}
	b, err := readFile(v.fs, filepath.Join(v.path, scrubFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("volume %s: %w", v.path, err)
	}
	text, sum, _ := strings.Cut(string(b), "crc32c=")
	var begun int64
	_, err = fmt.Sscanf(text, "begun=%d\nafter=%d\ndone=%t\n", &begun, &c.After, &c.Done)
	if err != nil || strings.TrimSpace(sum) != fmt.Sprintf("%08x", crcOf([]byte(text))) {
		return datanode.Cursor{}, fmt.Errorf("volume %s: %s is damaged: %w", v.path, scrubFile, metadata.ErrCorrupt)
	}
	c.Begun = time.Unix(begun, 0)
	return c, nil
}

// SetCursor saves how far the scrubber is on a volume.
func (s *Store) SetCursor(storage string, c datanode.Cursor) error {
	v, err := s.volumeOf(storage)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("begun=%d\nafter=%d\ndone=%t\n", c.Begun.Unix(), c.After, c.Done)
	text += fmt.Sprintf("crc32c=%08x\n", crcOf([]byte(text)))
	name := filepath.Join(v.path, scrubFile)
	f, err := v.fs.OpenFile(name+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = v.fs.Rename(name+".new", name)
	}
	return v.check(err)
}
