package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/backup"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/namenode/roster"
	nnserver "github.com/gohops/hops/namenode/server"
)

// keyFlag names the passphrase of a backup.
func keyFlag() cli.Flag {
	return &cli.StringFlag{Name: "key", Usage: "`FILE` with the passphrase that the backup is encrypted with, of at least 12 characters; -: standard input"}
}

func clusterBackupCommand() *cli.Command {
	return &cli.Command{
		Name: "backup", Usage: "write authority, secret and metadata into one file, on the machine of the namenode that leads, while it runs", ArgsUsage: "FILE",
		Description: "The file has mode 0600. Without --key it is not encrypted: who reads it is the cluster. Blocks of files are not in it, nor are applications.",
		Flags:       []cli.Flag{&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE` of this machine"}, userFlag(), keyFlag()},
		Action:      clusterBackup,
	}
}

func clusterRestoreCommand() *cli.Command {
	return &cli.Command{
		Name: "restore", Usage: "make the machine of a namenode anew out of a backup, with its name, addresses and directories", ArgsUsage: "FILE",
		Description: "For when all namenodes are lost. Nothing that is there is overwritten. The namenode is the only one then: start it, and add the others again.",
		Flags:       []cli.Flag{keyFlag()},
		Action:      clusterRestore,
	}
}

const (
	backupVersion = 1
	// manifestMax bounds what is read into memory of a backup: the files beside the snapshot.
	manifestMax = 16 << 20
	// shortest passphrase, in bytes.
	shortestKey = 12
)

// manifest is the first of the two parts of a backup; the second is the snapshot.
type manifest struct {
	Version int       `json:"version"`
	Made    time.Time `json:"made"`
	Machine string    `json:"machine"`
	// Config, Identity, Servers and Secret are files, and where they were.
	Config   savedFile `json:"config"`
	Identity savedFile `json:"identity"`
	Servers  savedFile `json:"servers"`
	Secret   savedFile `json:"secret"`
	// Namenode is what the namenode says.
	Namenode nnserver.Backup `json:"namenode"`
}

func (m *manifest) files() []*savedFile {
	return []*savedFile{&m.Config, &m.Identity, &m.Servers, &m.Secret}
}

type savedFile struct {
	Path string `json:"path"`
	Text []byte `json:"text"`
}

// passphrase of --key; nil: there is none.
func passphrase(c *cli.Context) ([]byte, error) {
	path := c.String("key")
	if path == "" {
		return nil, nil
	}
	in := c.App.Reader
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fail(exitUsage, "--key: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, 64<<10))
	if err != nil {
		return nil, fail(exitUsage, "--key: %w", err)
	}
	if text = bytes.TrimSpace(text); len(text) < shortestKey {
		return nil, fail(exitUsage, "--key %s: a passphrase has at least %d characters, this one has %d", path, shortestKey, len(text))
	}
	return text, nil
}

func clusterBackup(c *cli.Context) (err error) {
	if c.NArg() != 1 {
		return fail(exitUsage, "cluster backup: give one FILE")
	}
	key, err := passphrase(c)
	if err != nil {
		return err
	}
	file, _, leader, err := askNamenodes(c)
	if err != nil {
		return err
	}
	switch {
	case file.Namenode == nil:
		return fail(exitUsage, "this machine has no namenode: make the backup on the machine of the one that leads")
	case file.Cluster.Identity == "" || file.Cluster.SecretFile == "" || file.Cluster.Servers == "":
		return fail(exitUsage, "%s names no identity, secret and servers, as those of `hops cluster init` and `hops join` do: see docs/how-to/backup.md", c.String("config"))
	case leader == nil:
		return fail(exitUnreachable, "no namenode leads: `hops namenode list` shows who runs")
	case leader.ID != file.Namenode.ID:
		return fail(exitFailed, "%s leads, whose machine makes backups: do it there, or say `hops namenode transfer %s` first", leader.ID, file.Namenode.ID)
	}
	path := c.Args().First()
	m := manifest{Version: backupVersion, Made: time.Now().UTC().Truncate(time.Second), Machine: file.Namenode.ID}
	for i, from := range []string{c.String("config"), file.Cluster.Identity, file.Cluster.Servers, file.Cluster.SecretFile} {
		saved := m.files()[i]
		if saved.Path, err = filepath.Abs(from); err == nil {
			saved.Text, err = os.ReadFile(from)
		}
		if err != nil {
			return fail(exitFailed, "%w: make the backup as the user that the servers run as, or root", err)
		}
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fail(exitUsage, "%s is there already: nothing is overwritten", path)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	as, err := operator(c.String("user"), filepath.Dir(c.String("config")))
	if err != nil {
		return err
	}
	if err := request(c.Context, leader.ID, leader.http, as, http.MethodPost, "/api/v1/backup", nil, &m.Namenode); err != nil {
		return err
	}
	snapshot, err := os.Open(filepath.Join(file.Namenode.Data, "raft", nnserver.Group, filepath.Clean("/"+m.Namenode.Snapshot)))
	if err != nil {
		return err
	}
	defer snapshot.Close()
	length, err := writeBackup(out, key, &m, snapshot)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s: cluster %s at entry %d, %s of metadata", path, m.Namenode.Cluster, m.Namenode.Index, size.About(length))
	if key == nil {
		fmt.Fprint(c.App.Writer, "; it is not encrypted, and who reads it is the cluster: keep it where nobody does")
	}
	fmt.Fprintln(c.App.Writer)
	return nil
}

// writeBackup writes the two parts durably. It returns the length of the snapshot in bytes.
func writeBackup(out *os.File, key []byte, m *manifest, snapshot *os.File) (int64, error) {
	info, err := snapshot.Stat()
	if err != nil {
		return 0, err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	sealed, err := backup.New(out, key)
	if err != nil {
		return 0, err
	}
	parts := tar.NewWriter(sealed)
	if err := parts.WriteHeader(&tar.Header{Name: "manifest.json", Size: int64(len(text)), Mode: 0o600}); err != nil {
		return 0, err
	}
	if _, err := parts.Write(text); err != nil {
		return 0, err
	}
	if err := parts.WriteHeader(&tar.Header{Name: "snapshot", Size: info.Size(), Mode: 0o600}); err != nil {
		return 0, err
	}
	if _, err := io.Copy(parts, snapshot); err != nil {
		return 0, err
	}
	if err := parts.Close(); err != nil {
		return 0, err
	}
	if err := sealed.Close(); err != nil {
		return 0, err
	}
	return info.Size(), out.Sync()
}

// readBackup reads the manifest; the snapshot follows.
func readBackup(in io.Reader, key []byte) (*manifest, io.Reader, error) {
	sealed, err := backup.Open(in, key)
	if err != nil {
		return nil, nil, err
	}
	parts := tar.NewReader(sealed)
	m := &manifest{}
	h, err := parts.Next()
	if err == nil && (h.Name != "manifest.json" || h.Size > manifestMax) {
		err = backup.ErrDamaged
	}
	if err == nil {
		err = json.NewDecoder(parts).Decode(m)
	}
	if err == nil && m.Version != backupVersion {
		err = fmt.Errorf("it has version %d, this program reads version %d", m.Version, backupVersion)
	}
	if err == nil {
		err = release.Reads("it", m.Namenode.Level)
	}
	if err == nil {
		h, err = parts.Next()
	}
	if err == nil && h.Name != "snapshot" {
		err = backup.ErrDamaged
	}
	return m, parts, err
}

func clusterRestore(c *cli.Context) (err error) {
	if c.NArg() != 1 {
		return fail(exitUsage, "cluster restore: give one FILE")
	}
	key, err := passphrase(c)
	if err != nil {
		return err
	}
	in, err := os.Open(c.Args().First())
	if err != nil {
		return err
	}
	defer in.Close()
	if sealed, err := backup.Open(in, key); err != nil { // all of it, before anything is made of it
		return fail(exitFailed, "%s: %w", in.Name(), err)
	} else if _, err := io.Copy(io.Discard, sealed); err != nil {
		return fail(exitFailed, "%s: %w", in.Name(), err)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return err
	}
	m, snapshot, err := readBackup(in, key)
	if err != nil {
		return fail(exitFailed, "%s: %w", in.Name(), err)
	}
	var made []string
	defer func() {
		if err != nil {
			for _, path := range made {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	for _, f := range m.files() {
		if _, err := os.Lstat(f.Path); err == nil {
			return fail(exitFailed, "%s is there already, and nothing is overwritten: this machine is in a cluster; move that file away if it is lost all the same", f.Path)
		}
	}
	for _, f := range m.files() {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		out, err := os.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		made = append(made, f.Path)
		_, err = out.Write(f.Text)
		if err = errors.Join(err, out.Sync(), out.Close(), likeFolder(f.Path)); err != nil {
			return err
		}
	}
	if err := os.Chmod(m.Config.Path, 0o644); err != nil {
		return err
	}
	if err := reissue(m); err != nil {
		return err
	}
	file, err := config.Load(m.Config.Path)
	if err != nil {
		return err
	}
	if file.Namenode == nil {
		return fail(exitFailed, "%s: %s has no namenode", in.Name(), m.Config.Path)
	}
	data := file.Namenode.Data
	if entries, err := os.ReadDir(data); err == nil && len(entries) > 0 {
		return fail(exitFailed, "%s has the data of a namenode, and nothing is overwritten: move it away if it is lost all the same", data)
	}
	b, err := roles.New(file, false, "", version, slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	if err := b.RestoreNamenode(m.Namenode.Backup, snapshot); err != nil {
		return err
	}
	owner := filepath.Dir(m.Config.Path)
	if err := filepath.WalkDir(data, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, like(path, owner))
	}); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s of cluster %s is as it was on %s, and its only namenode. Start it: hops server --role namenode -c %s\n",
		m.Machine, m.Namenode.Cluster, m.Made.Format(time.DateTime), m.Config.Path)
	return nil
}

// reissue gives the machine a key and a certificate that begin today: those in the backup may have ended.
func reissue(m *manifest) error {
	old, err := authority.LoadIdentity(m.Identity.Path)
	if err != nil {
		return err
	}
	secret, err := security.LoadSecret(m.Secret.Path)
	if err != nil {
		return err
	}
	fresh, err := roster.Reissue(nnserver.Seal(secret), m.Namenode.Authority, old, time.Now())
	if err != nil {
		return err
	}
	return fresh.Write(m.Identity.Path)
}

// likeFolder gives a file the owner of its directory, as which the servers run.
func likeFolder(path string) error { return like(path, filepath.Dir(path)) }

func like(path, owner string) error {
	info, err := os.Stat(owner)
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return os.Lchown(path, int(s.Uid), int(s.Gid))
}
