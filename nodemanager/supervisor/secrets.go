package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// deliver puts the files that Start handed over where the command finds them: owned by its user, mode 0400, in a directory of
// mode 0700 that is a file system in memory of its own, or part of the disk where nothing can be mounted.
func (l *Launch) deliver() (err error) {
	if l.SecretsDir == "" {
		return nil
	}
	handed := os.NewFile(secretsFD, "secrets")
	text, err := io.ReadAll(handed)
	handed.Close()
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	var secrets map[string][]byte
	if err := json.Unmarshal(text, &secrets); err != nil {
		return errors.New("secrets: what was handed over cannot be read") // and is not quoted
	}
	dir := l.SecretsDir
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if l.Isolation != nil {
		if err := unix.Mount("secrets", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=16m,nr_inodes=1000"); err != nil {
			return fmt.Errorf("secrets: mount %s: %w", dir, err)
		}
	}
	for name, secret := range secrets {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("secrets: %q is no name of a file", name)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, secret, 0o400); err != nil {
			return fmt.Errorf("secrets: %w", err)
		}
		if a := l.Account; a != nil {
			if err := os.Chown(file, int(a.UID), int(a.GID)); err != nil {
				return fmt.Errorf("secrets: %w", err)
			}
		}
	}
	if a := l.Account; a != nil {
		if err := os.Chown(dir, int(a.UID), int(a.GID)); err != nil {
			return fmt.Errorf("secrets: %w", err)
		}
	}
	if l.Isolation == nil {
		return nil
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("", dir, "", flags, ""); err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	return nil
}

// forget removes secrets that are on the disk; those in memory go with the namespace.
func (l *Launch) forget() error {
	if l.SecretsDir == "" || l.Isolation != nil {
		return nil
	}
	root, err := os.OpenRoot(filepath.Dir(l.SecretsDir))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(filepath.Base(l.SecretsDir))
}
