package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode/roster"
	nnserver "github.com/gohops/hops/namenode/server"
	"github.com/gohops/hops/resourcemanager/rest"
)

// keyFlag names the passphrase of a backup.
func keyFlag() cli.Flag {
	return &cli.StringFlag{Name: "key", Usage: "`FILE` with the passphrase that the backup is encrypted with, of at least 12 characters; -: standard input"}
}

func clusterBackupCommand() *cli.Command {
	return &cli.Command{
		Name: "backup", Usage: "write authority, secret and metadata into one file, on the machine of the namenode that leads, while it runs", ArgsUsage: "FILE",
		Description: "The file has mode 0600. Without --key it is not encrypted: who reads it is the cluster. Blocks of files are not in it.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE` of this machine"}, userFlag(), keyFlag(),
			&cli.BoolFlag{Name: "without-resourcemanagers", Usage: "leave the applications out, where no resource manager leads"},
		},
		Action: clusterBackup,
	}
}

func clusterRestoreCommand() *cli.Command {
	return &cli.Command{
		Name: "restore", Usage: "make the machine of a namenode anew out of a backup, with its name, addresses and directories", ArgsUsage: "FILE",
		Description: "For when all namenodes are lost. Nothing that is there is overwritten. The namenode is the only one then: start it, and add the others again.\n" +
			"Where the machine has a resource manager, and no other one runs, its group is made anew out of the backup, too.",
		Flags:  []cli.Flag{keyFlag()},
		Action: clusterRestore,
	}
}

const (
	// backupVersion is written; those from 1 on are read. Version 1 has no resource managers.
	backupVersion = 2
	// manifestMax bounds what is read into memory of a backup: the files beside the snapshot.
	manifestMax = 16 << 20
	// shortest passphrase, in bytes.
	shortestKey = 12
)

// manifest is the first part of a backup; the second is the namenodes' snapshot, the third, if there is one, the resource managers'.
type manifest struct {
	Version int       `json:"version"`
	Made    time.Time `json:"made"`
	Machine string    `json:"machine"`
	// Cluster is the authority's.
	Cluster string `json:"cluster"`
	// Config, Identity, Servers and Secret are files, and where they were.
	Config   savedFile `json:"config"`
	Identity savedFile `json:"identity"`
	Servers  savedFile `json:"servers"`
	Secret   savedFile `json:"secret"`
	// Namenode is what the namenode says.
	Namenode nnserver.Backup `json:"namenode"`
	// Manager is what the resource manager says; nil: there is none, or it was left out.
	Manager *raftstore.Backup `json:"resourcemanager,omitempty"`
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
	file, _, leader, err := leadingNamenode(c)
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
	identity, err := authority.LoadIdentity(file.Cluster.Identity)
	if err != nil {
		return err
	}
	trust, err := identity.Trust()
	if err != nil {
		return err
	}
	m.Cluster = trust.Cluster
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
	applications := part{name: managersPart}
	if len(file.ResourceManagers) > 0 && !c.Bool("without-resourcemanagers") {
		kept, err := backupManagers(c, as, &m, &applications, filepath.Dir(path))
		if err != nil {
			return err
		}
		defer kept.Close()
	}
	snapshot, err := os.Open(filepath.Join(file.Namenode.Data, "raft", nnserver.Group, filepath.Clean("/"+m.Namenode.Snapshot)))
	if err != nil {
		return err
	}
	defer snapshot.Close()
	info, err := snapshot.Stat()
	if err != nil {
		return err
	}
	all := []part{{namenodesPart, info.Size(), snapshot}}
	if m.Manager != nil {
		all = append(all, applications)
	}
	if err := writeBackup(out, key, &m, all); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s: cluster %s at entry %d, %s of metadata", path, m.Namenode.Cluster, m.Namenode.Index, size.About(info.Size()))
	switch {
	case m.Manager != nil:
		fmt.Fprintf(c.App.Writer, "; applications at entry %d, %s", m.Manager.Index, size.About(applications.size))
	case len(file.ResourceManagers) > 0:
		fmt.Fprint(c.App.Writer, "; applications are not in it")
	}
	if key == nil {
		fmt.Fprint(c.App.Writer, "; it is not encrypted, and who reads it is the cluster: keep it where nobody does")
	}
	fmt.Fprintln(c.App.Writer)
	return nil
}

// part of a backup behind the manifest.
type part struct {
	name string
	size int64
	from io.Reader
}

const (
	namenodesPart = "snapshot"
	managersPart  = "resourcemanager-snapshot"
)

// backupManagers asks the resource manager that leads for its snapshot, and keeps that in dir until the caller closes it: it comes behind the
// namenodes' in the backup, and a resource manager does not wait while that one is written.
func backupManagers(c *cli.Context, as string, m *manifest, into *part, dir string) (io.Closer, error) {
	_, leader, err := leadingManager(c)
	if err != nil {
		return nil, err
	}
	if leader == nil {
		return nil, fail(exitUnreachable, "no resource manager leads, who could give its metadata: `hops resourcemanager list` shows who runs; or leave them out with --without-resourcemanagers")
	}
	answer, err := sendManager(c.Context, *leader, as, http.MethodPost, "/api/v1/backup", nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	m.Manager = &raftstore.Backup{}
	if err := json.Unmarshal([]byte(answer.Header.Get(rest.BackupHeader)), m.Manager); err != nil || answer.ContentLength <= 0 {
		return nil, fmt.Errorf("resource manager %s: its answer is no backup", leader.ID)
	}
	kept, err := spool(dir, answer.Body, answer.ContentLength)
	if err != nil {
		return nil, fmt.Errorf("resource manager %s: %w", leader.ID, err)
	}
	into.size, into.from = answer.ContentLength, kept
	return kept, nil
}

// spool keeps what is read in a file of mode 0600 that has no name any more, at whose begin it is.
func spool(dir string, from io.Reader, size int64) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".applications-*.tmp")
	if err != nil {
		return nil, err
	}
	err = os.Remove(f.Name())
	if err == nil {
		_, err = io.CopyN(f, from, size)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writeBackup writes all parts durably.
func writeBackup(out *os.File, key []byte, m *manifest, all []part) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	sealed, err := backup.New(out, key)
	if err != nil {
		return err
	}
	parts := tar.NewWriter(sealed)
	for _, p := range append([]part{{"manifest.json", int64(len(text)), bytes.NewReader(text)}}, all...) {
		if err := parts.WriteHeader(&tar.Header{Name: p.name, Size: p.size, Mode: 0o600}); err != nil {
			return err
		}
		if _, err := io.CopyN(parts, p.from, p.size); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if err := parts.Close(); err != nil {
		return err
	}
	if err := sealed.Close(); err != nil {
		return err
	}
	return out.Sync()
}

// readBackup reads the manifest, the first part.
func readBackup(in io.Reader, key []byte) (*manifest, *tar.Reader, error) {
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
	if err == nil && (m.Version < 1 || m.Version > backupVersion) {
		err = fmt.Errorf("it has version %d, this program reads versions 1 to %d", m.Version, backupVersion)
	}
	if err == nil {
		err = release.Reads("it", m.Namenode.Level)
	}
	return m, parts, err
}

// next goes on to the part of a name.
func next(parts *tar.Reader, name string) error {
	h, err := parts.Next()
	if err == nil && h.Name != name {
		err = backup.ErrDamaged
	}
	return err
}

// openBackup opens the file that the command names and makes sure, before anything is made of it, that it is whole. The caller closes it.
func openBackup(c *cli.Context) (in *os.File, m *manifest, parts *tar.Reader, err error) {
	if c.NArg() != 1 {
		return nil, nil, nil, fail(exitUsage, "%s: give one FILE", c.Command.FullName())
	}
	key, err := passphrase(c)
	if err != nil {
		return nil, nil, nil, err
	}
	if in, err = os.Open(c.Args().First()); err != nil {
		return nil, nil, nil, err
	}
	sealed, err := backup.Open(in, key)
	if err == nil {
		_, err = io.Copy(io.Discard, sealed)
	}
	if err == nil {
		_, err = in.Seek(0, io.SeekStart)
	}
	if err == nil {
		m, parts, err = readBackup(in, key)
	}
	if err != nil {
		in.Close()
		return nil, nil, nil, fail(exitFailed, "%s: %w", in.Name(), err)
	}
	return in, m, parts, nil
}

func clusterRestore(c *cli.Context) (err error) {
	in, m, parts, err := openBackup(c)
	if err != nil {
		return err
	}
	defer in.Close()
	var made []string // files, and directories with data
	defer func() {
		if err != nil {
			for _, path := range made {
				err = errors.Join(err, os.RemoveAll(path))
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
	if hasData(data) {
		return fail(exitFailed, "%s has the data of a namenode, and nothing is overwritten: move it away if it is lost all the same", data)
	}
	survived := file.ResourceManager != nil && hasData(file.ResourceManager.Data)
	b, err := roles.New(file, false, "", version, slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	others := managersThatRun(c.Context, file)
	if err := next(parts, namenodesPart); err != nil {
		return fail(exitFailed, "%s: %w", in.Name(), err)
	}
	made = append(made, data)
	if err := b.RestoreNamenode(m.Namenode.Backup, parts); err != nil {
		return err
	}
	if err := likeTree(data, filepath.Dir(m.Config.Path)); err != nil {
		return err
	}
	servers := "namenode"
	manages := m.Manager != nil && file.ResourceManager != nil && len(others) == 0 && !survived
	if manages {
		if err := restoreManager(b, m, parts); err != nil {
			return err
		}
		servers = "namenode and resource manager"
	}
	fmt.Fprintf(c.App.Writer, "%s of cluster %s is as it was on %s, and its only %s. Start it: hops server --role %s -c %s\n",
		m.Machine, m.Namenode.Cluster, m.Made.Format(time.DateTime), servers, strings.ReplaceAll(servers, " and resource ", ",resource"), m.Config.Path)
	switch {
	case manages || m.Manager == nil:
	case len(others) > 0:
		fmt.Fprintf(c.App.Writer, "Resource managers run (%s), who know more of the applications than the backup: those stay.\n", strings.Join(others, ", "))
	case survived:
		fmt.Fprintf(c.App.Writer, "%s has the data of a resource manager, who knows more of the applications than the backup: it stays. Start it, too: hops server --role resourcemanager -c %s\n", file.ResourceManager.Data, m.Config.Path)
	default:
		fmt.Fprintln(c.App.Writer, "The applications are in the backup, too: `hops resourcemanager restore` on the machine that is to run the resource manager brings them back.")
	}
	return nil
}

// managersThatRun are the resource managers of other machines at whose addresses somebody answers.
func managersThatRun(ctx context.Context, file *config.File) (out []string) {
	for _, m := range file.ResourceManagers {
		if file.ResourceManager != nil && m.ID == file.ResourceManager.ID {
			continue
		}
		d := net.Dialer{Timeout: 3 * time.Second}
		if conn, err := d.DialContext(ctx, "tcp", m.HTTP); err == nil { // whoever it is, nothing is made beside them
			conn.Close()
			out = append(out, m.ID)
		}
	}
	return out
}

// restoreManager makes the group of the resource managers out of the part that follows.
func restoreManager(b *roles.Builder, m *manifest, parts *tar.Reader) error {
	data := b.File.ResourceManager.Data
	if hasData(data) {
		return fail(exitFailed, "%s has the data of a resource manager, and nothing is overwritten: move it away if it is lost all the same", data)
	}
	if err := next(parts, managersPart); err != nil {
		return err
	}
	err := b.RestoreManager(*m.Manager, parts)
	if err == nil {
		err = likeTree(data, filepath.Dir(b.File.Cluster.Identity))
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(data)) // nothing was there
	}
	return err
}

// hasData reports whether something is in a directory, or may be: it cannot be read.
func hasData(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err != nil && !errors.Is(err, fs.ErrNotExist) || len(entries) > 0
}

func restoreManagerCommand() *cli.Command {
	return &cli.Command{
		Name: "restore", Usage: "make the group of the resource managers anew out of a backup of the cluster, with the one of this machine as its only member", ArgsUsage: "FILE",
		Description: "For when all resource managers are lost, but not the namenodes; `hops cluster restore` does it itself where it can. The one of this machine must not run,\n" +
			"and its directory must be empty: nothing is overwritten. Start it then, and add the others again.",
		Flags:  []cli.Flag{&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE` of this machine"}, keyFlag()},
		Action: restoreManagers,
	}
}

func restoreManagers(c *cli.Context) error {
	in, m, parts, err := openBackup(c)
	if err != nil {
		return err
	}
	defer in.Close()
	file, err := config.Load(c.String("config"))
	switch {
	case err != nil:
		return err
	case m.Manager == nil:
		return fail(exitFailed, "%s: there are no applications in it", in.Name())
	case file.ResourceManager == nil:
		return fail(exitUsage, "%s has no section resourcemanager, which says where this machine's resource manager keeps its data", c.String("config"))
	}
	b, err := roles.New(file, false, "", version, slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	if cluster := b.Credentials.Member.Self().Cluster; cluster != m.Cluster {
		return fail(exitFailed, "%s is of cluster %s, this machine of %s", in.Name(), m.Cluster, cluster)
	}
	if others := managersThatRun(c.Context, file); len(others) > 0 {
		return fail(exitFailed, "resource managers run (%s): stop them for good first, or let this one join them", strings.Join(others, ", "))
	}
	if err := next(parts, namenodesPart); err != nil {
		return fail(exitFailed, "%s: %w", in.Name(), err)
	}
	if err := restoreManager(b, m, parts); err != nil {
		return fail(exitFailed, "%s: %w", in.Name(), err)
	}
	fmt.Fprintf(c.App.Writer, "resource manager %s knows the applications of %s, and is the only one. Start it: hops server --role resourcemanager -c %s\n",
		file.ResourceManager.ID, m.Made.Format(time.DateTime), c.String("config"))
	return nil
}

// likeTree gives a directory, with all that is in it, the owner of another one.
func likeTree(dir, owner string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, like(path, owner)) })
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
