// Package durable writes small files that are either there completely or not at all, whatever happens in between.
package durable

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteFile replaces the file at path: after it returned nil the new content survives a power cut; after an error or a
// crash the old or the new content is there, never a mixture. One writer per path.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode, (*os.File).Sync); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// ReplaceFile is WriteFile without the promise for a power cut: the content is there for whoever reads it after this process
// was killed. It is for what a restart of the machine makes meaningless, and does not wait for the disk's fsync.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	return replace(path, data, mode, func(*os.File) error { return nil })
}

func replace(path string, data []byte, mode fs.FileMode, sync func(*os.File) error) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = sync(f)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

// WriteJSON is WriteFile of v as indented JSON, for people who look.
func WriteJSON(path string, v any, mode fs.FileMode) error {
	data, err := encode(path, v)
	if err != nil {
		return err
	}
	return WriteFile(path, data, mode)
}

// ReplaceJSON is ReplaceFile of v as indented JSON.
func ReplaceJSON(path string, v any, mode fs.FileMode) error {
	data, err := encode(path, v)
	if err != nil {
		return err
	}
	return ReplaceFile(path, data, mode)
}

func encode(path string, v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return append(data, '\n'), nil
}

// maxJSON bounds a file that is read.
const maxJSON = 64 << 20

// ReadJSON reads what WriteJSON wrote, at most 64 MiB. Containers may put other things in its place: a pipe is not waited
// for, and a link not followed.
func ReadJSON(path string, v any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is damaged: it is no regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return err
	}
	if len(data) > maxJSON {
		return fmt.Errorf("%s is %d bytes or more, too large to be one of ours", path, len(data))
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
