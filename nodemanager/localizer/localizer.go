// Package localizer puts what a container needs into its work directory: files, archives and code artifacts, from the
// cluster's filesystem or inline. Everything is written through os.Root, so that no name in an artifact or an archive
// reaches outside, whatever it contains. Sizes, counts and contents are checked before the container starts, and an error
// names the artifact and the reason.
package localizer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/gohops/hops/nodemanager"
)

// Info describes a file of the cluster's filesystem.
type Info struct {
	Size int64
	// Modified is in milliseconds since 1970.
	Modified int64
	Dir      bool
}

// Filesystem is the cluster's filesystem as one user sees it.
type Filesystem interface {
	Stat(ctx context.Context, path string) (Info, error)
	Open(ctx context.Context, path string) (io.ReadCloser, error)
}

// Config holds the limits. Zero values take the defaults.
type Config struct {
	// Cache is the directory for downloaded artifacts.
	Cache string
	// CacheSize bounds the cache in bytes; the least recently used go first. Default 10 GiB.
	CacheSize int64
	// MaxDownload bounds one artifact, default 64 GiB.
	MaxDownload int64
	// MaxUnpacked and MaxFiles bound what one archive becomes. Defaults 64 GiB and 500,000.
	MaxUnpacked int64
	MaxFiles    int
	// Authorities are the host:port of this cluster's namenodes: an artifact of another filesystem is refused. Empty: every
	// hdfs URI is taken to mean this cluster.
	Authorities []string
}

// Localizer is safe for concurrent use.
type Localizer struct {
	config Config
	cache  *cache
}

// New makes a localizer. The cache directory is made if need be.
func New(c Config) (*Localizer, error) {
	if c.CacheSize <= 0 {
		c.CacheSize = 10 << 30
	}
	if c.MaxDownload <= 0 {
		c.MaxDownload = 64 << 30
	}
	if c.MaxUnpacked <= 0 {
		c.MaxUnpacked = 64 << 30
	}
	if c.MaxFiles <= 0 {
		c.MaxFiles = 500_000
	}
	cache, err := openCache(c.Cache, c.CacheSize)
	if err != nil {
		return nil, fmt.Errorf("artifact cache: %w", err)
	}
	return &Localizer{config: c, cache: cache}, nil
}

// Localize puts the artifacts into the directory workDir, which must exist. fsys is only asked when an artifact has a URI
// and may be nil otherwise.
func (l *Localizer) Localize(ctx context.Context, fsys Filesystem, workDir string, artifacts []nodemanager.Artifact) error {
	root, err := os.OpenRoot(workDir)
	if err != nil {
		return err
	}
	defer root.Close()
	seen := map[string]bool{}
	for i := range artifacts {
		a := &artifacts[i]
		name, err := cleanName(a.Name)
		if err == nil && seen[name] {
			err = errors.New("another artifact has the same name")
		}
		if err == nil {
			seen[name] = true
			err = l.one(ctx, fsys, root, name, a)
		}
		if err != nil {
			return fmt.Errorf("artifact %.200q (%s): %w", a.Name, source(a), err)
		}
	}
	return nil
}

func source(a *nodemanager.Artifact) string {
	if a.URI == "" {
		return "inline"
	}
	if len(a.URI) > 300 {
		return a.URI[:300] + "…"
	}
	return a.URI
}

// cleanName checks that a name stays below its root. os.Root would refuse the same later, less clearly.
func cleanName(name string) (string, error) {
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "", errors.New("the name is empty or contains a zero byte")
	case strings.HasPrefix(name, "/"):
		return "", errors.New("the name is absolute")
	case len(name) > 4096:
		return "", errors.New("the name is longer than 4096 bytes")
	}
	clean := path.Clean(name)
	if clean == "." || !fs.ValidPath(clean) {
		return "", fmt.Errorf("the name %.200q leads out of its directory", name)
	}
	return clean, nil
}

func (l *Localizer) one(ctx context.Context, fsys Filesystem, root *os.Root, name string, a *nodemanager.Artifact) error {
	switch a.Kind {
	case nodemanager.File, nodemanager.Archive, nodemanager.Code, "":
	default:
		return fmt.Errorf("kind %.40q is none of file, archive, code", string(a.Kind))
	}
	if a.SHA256 != "" {
		if raw, err := hex.DecodeString(a.SHA256); err != nil || len(raw) != sha256.Size {
			return fmt.Errorf("sha256 %.80q is not 64 hexadecimal digits", a.SHA256)
		}
	}
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	file, err := l.fetch(ctx, fsys, a)
	if err != nil {
		return err
	}
	defer file.Close()
	if a.Kind == nodemanager.File || a.Kind == "" {
		return put(root, name, file)
	}
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	below, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer below.Close()
	u := &unpacking{ctx: ctx, root: below, bytes: l.config.MaxUnpacked, files: l.config.MaxFiles}
	if a.Kind == nodemanager.Code {
		return u.code(file)
	}
	return u.archive(file)
}

// put copies the bytes of a file artifact.
func put(root *os.Root, name string, from *blob) error {
	to, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.NewSectionReader(from, 0, from.size))
	if closeErr := to.Close(); err == nil {
		err = closeErr
	}
	return err
}

// blob is an artifact's bytes: verified, and complete.
type blob struct {
	io.ReaderAt
	size  int64
	close func() error
}

func (b *blob) Close() error {
	if b.close == nil {
		return nil
	}
	return b.close()
}

// fetch gets the verified bytes of an artifact.
func (l *Localizer) fetch(ctx context.Context, fsys Filesystem, a *nodemanager.Artifact) (*blob, error) {
	if a.URI == "" {
		check := verify(a)
		check.Write(a.Content)
		if err := check.done(); err != nil {
			return nil, err
		}
		return &blob{ReaderAt: bytes.NewReader(a.Content), size: int64(len(a.Content))}, nil
	}
	file, err := l.pathOf(a.URI)
	if err != nil {
		return nil, err
	}
	if fsys == nil {
		return nil, errors.New("this node has no connection to a filesystem")
	}
	if a.SHA256 != "" {
		// The content is named by its hash: no question to the filesystem when it is here.
		key := "sha256-" + strings.ToLower(a.SHA256)
		return l.cache.get(ctx, key, a, func(to io.Writer) error { return l.download(ctx, fsys, file, a, nil, to) })
	}
	info, err := l.stat(ctx, fsys, file, a)
	if err != nil {
		return nil, err
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", file, info.Size, info.Modified))
	exact := *a
	exact.Size = info.Size
	return l.cache.get(ctx, "stat-"+hex.EncodeToString(h[:]), &exact, func(to io.Writer) error {
		return l.download(ctx, fsys, file, a, &info, to)
	})
}

// pathOf takes the path out of a URI: an absolute path, or hdfs://authority/path of this cluster.
func (l *Localizer) pathOf(uri string) (string, error) {
	if strings.HasPrefix(uri, "/") {
		return path.Clean(uri), nil
	}
	u, err := url.Parse(uri)
	if err != nil {
		return "", fmt.Errorf("not a URI: %w", err)
	}
	if u.Scheme != "hdfs" {
		return "", fmt.Errorf("scheme %.20q is not served: want hdfs or an absolute path of the cluster's filesystem", u.Scheme)
	}
	if u.Host != "" && len(l.config.Authorities) > 0 {
		ours := false
		for _, known := range l.config.Authorities {
			ours = ours || known == u.Host
		}
		if !ours {
			return "", fmt.Errorf("%s is not a namenode of this cluster (%s)", u.Host, strings.Join(l.config.Authorities, ", "))
		}
	}
	if u.Path == "" || u.Path[0] != '/' {
		return "", errors.New("the URI has no path")
	}
	return path.Clean(u.Path), nil
}

// stat checks what the filesystem says against what the artifact promises.
func (l *Localizer) stat(ctx context.Context, fsys Filesystem, file string, a *nodemanager.Artifact) (Info, error) {
	info, err := fsys.Stat(ctx, file)
	switch {
	case err != nil:
		return info, err
	case info.Dir:
		return info, errors.New("is a directory")
	case info.Size > l.config.MaxDownload:
		return info, fmt.Errorf("%s is more than the %s a node takes", nodemanager.ByteSize(info.Size), nodemanager.ByteSize(l.config.MaxDownload))
	case a.Size != 0 && info.Size != a.Size:
		return info, fmt.Errorf("has %d bytes, expected %d", info.Size, a.Size)
	case a.Timestamp != 0 && a.SHA256 == "" && info.Modified != a.Timestamp:
		// YARN's words (FSDownload), which people search for.
		return info, fmt.Errorf("resource %s changed on src filesystem (expected %d, was %d)", file, a.Timestamp, info.Modified)
	}
	return info, nil
}

func (l *Localizer) download(ctx context.Context, fsys Filesystem, file string, a *nodemanager.Artifact, info *Info, to io.Writer) error {
	if info == nil {
		got, err := l.stat(ctx, fsys, file, a)
		if err != nil {
			return err
		}
		info = &got
	}
	from, err := fsys.Open(ctx, file)
	if err != nil {
		return err
	}
	defer from.Close()
	exact := *a
	exact.Size = info.Size
	check := verify(&exact)
	// One byte more than promised is read, so that a file that grew is noticed and an endless one does no harm.
	if _, err := io.Copy(io.MultiWriter(to, check), &cancelable{ctx, io.LimitReader(from, info.Size+1)}); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return check.done()
}

// cancelable ends a copy when ctx does.
type cancelable struct {
	ctx  context.Context
	from io.Reader
}

func (c *cancelable) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.from.Read(b)
}

// verifier compares bytes written to it with what an artifact promises.
type verifier struct {
	a    *nodemanager.Artifact
	n    int64
	hash hash.Hash
}

func verify(a *nodemanager.Artifact) *verifier {
	v := &verifier{a: a}
	if a.SHA256 != "" {
		v.hash = sha256.New()
	}
	return v
}

func (v *verifier) Write(b []byte) (int, error) {
	v.n += int64(len(b))
	if v.hash != nil {
		v.hash.Write(b)
	}
	return len(b), nil
}

func (v *verifier) done() error {
	if v.a.Size != 0 && v.n != v.a.Size {
		return fmt.Errorf("has %d bytes, expected %d", v.n, v.a.Size)
	}
	if v.hash != nil {
		if got := hex.EncodeToString(v.hash.Sum(nil)); !strings.EqualFold(got, v.a.SHA256) {
			return fmt.Errorf("sha256 is %s, expected %s", got, strings.ToLower(v.a.SHA256))
		}
	}
	return nil
}
