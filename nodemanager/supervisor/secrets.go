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

// TokensFile is the name of the file of credentials in Launch.CredentialsDir.
const TokensFile = "tokens"

// Handed is what a container is given for its command's eyes only.
type Handed struct {
	// Secrets are the files of Launch.SecretsDir, by name.
	Secrets map[string][]byte `json:"secrets,omitempty"`
	// Tokens is the content of TokensFile in Launch.CredentialsDir.
	Tokens []byte `json:"tokens,omitempty"`
}

// deliverAll puts what Start handed over where the command finds it: files owned by its user, mode 0400, in directories that are file
// systems in memory of their own, or part of the disk where nothing can be mounted.
func (l *Launch) deliverAll() error {
	if l.SecretsDir == "" && l.CredentialsDir == "" {
		return nil
	}
	file := os.NewFile(secretsFD, "secrets")
	text, err := io.ReadAll(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	var handed Handed
	if err := json.Unmarshal(text, &handed); err != nil {
		return errors.New("secrets: what was handed over cannot be read") // and is not quoted
	}
	if err := l.deliverSecrets(handed.Secrets); err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	if l.CredentialsDir == "" {
		return nil
	}
	if err := l.inMemory(l.CredentialsDir, "mode=0711,size=1m,nr_inodes=100"); err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	return l.putTokens(handed.Tokens)
}

// inMemory makes a directory, with a file system of its own where the container has a mount namespace.
func (l *Launch) inMemory(dir, options string) error {
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if l.Isolation == nil {
		return nil
	}
	if err := unix.Mount("secrets", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// deliverSecrets fills a directory of mode 0700, which the command cannot change where it is in memory.
func (l *Launch) deliverSecrets(secrets map[string][]byte) error {
	dir := l.SecretsDir
	if dir == "" {
		return nil
	}
	if err := l.inMemory(dir, "mode=0700,size=16m,nr_inodes=1000"); err != nil {
		return err
	}
	for name, secret := range secrets {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("%q is no name of a file", name)
		}
		if err := l.give(filepath.Join(dir, name), secret); err != nil {
			return err
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	if a := l.Account; a != nil {
		if err := os.Chown(dir, int(a.UID), int(a.GID)); err != nil {
			return err
		}
	}
	if l.Isolation == nil {
		return nil
	}
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// give writes a file that the command's user alone can read.
func (l *Launch) give(file string, content []byte) error {
	if err := os.WriteFile(file, content, 0o400); err != nil {
		return err
	}
	if a := l.Account; a != nil {
		return os.Chown(file, int(a.UID), int(a.GID))
	}
	return nil
}

// putTokens writes the file of credentials, in place of the one that is there. Its directory stays ours: what is in it is what we
// have put there.
func (l *Launch) putTokens(tokens []byte) error {
	next := filepath.Join(l.CredentialsDir, ".next")
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("credentials: %w", err)
	}
	err := l.give(next, tokens)
	if err == nil {
		err = os.Rename(next, filepath.Join(l.CredentialsDir, TokensFile))
	}
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	return nil
}

// forget removes what is on the disk; what is in memory goes with the namespace.
func (l *Launch) forget() error {
	if l.Isolation != nil {
		return nil
	}
	var failed error
	for _, dir := range []string{l.SecretsDir, l.CredentialsDir} {
		if dir == "" {
			continue
		}
		root, err := os.OpenRoot(filepath.Dir(dir))
		if err == nil {
			err = errors.Join(root.RemoveAll(filepath.Base(dir)), root.Close())
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
