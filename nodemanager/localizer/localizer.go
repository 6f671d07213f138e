// Package localizer puts what a container needs into its work directory: files, archives and code artifacts, from the
// cluster's filesystem or inline. Everything is written through os.Root, so that no name in an artifact or an archive
// reaches outside, whatever it contains. Sizes, counts and contents are checked before the container starts, and an error
// names the artifact and the reason.
//
// Whoever gets a file of the filesystem may read it at that moment: the filesystem is asked each time, also when the bytes
// are in the cache already. What one user's containers downloaded is not given to those of another, with YARN's exception
// (FSDownload.isPublic): a file that is declared public, and that everybody may read through all directories above it.
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
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gohops/hops/nodemanager"
)

// Info describes a file of the cluster's filesystem.
type Info struct {
	// ID is the inode's: another file of the same name, size and time has another one.
	ID   uint64
	Size int64
	// Modified is in milliseconds since 1970.
	Modified int64
	Dir      bool
	// Mode holds the permission bits.
	Mode fs.FileMode
}

// Filesystem is the cluster's filesystem as one user sees it.
type Filesystem interface {
	Stat(ctx context.Context, path string) (Info, error)
	// Readable returns nil when the user may read the file now, and the filesystem's refusal when not. Stat is no answer to
	// that: it wants rights on the directories above only.
	Readable(ctx context.Context, path string) error
	Open(ctx context.Context, path string) (io.ReadCloser, error)
}

// Config holds the limits. Zero values take the defaults.
type Config struct {
	// Cache is the directory for downloaded artifacts, Trees that for shared ones; default: trees beside Cache.
	Cache, Trees string
	// CacheSize bounds the cache in bytes, downloads under way included; the least recently used go first. A larger artifact
	// is not kept. What Link has put there has a bound of the same size; beyond it goes what no container uses. Default 10 GiB.
	CacheSize int64
	// Boot names the life of the machine: what Link has put into the cache before a restart of the machine is not used again,
	// because it may have been cut short. Empty: it is.
	Boot string
	// MaxDownload bounds one artifact, default 64 GiB.
	MaxDownload int64
	// MaxUnpacked and MaxFiles bound what the artifacts of one container become together. Defaults 64 GiB and 500,000.
	MaxUnpacked int64
	MaxFiles    int
	// Reserve is what stays free on the disks of the cache and of the work directories, in bytes: what would take of it is
	// refused. 0: only a disk that is full refuses.
	Reserve int64
	// Authorities are the host:port of this cluster's namenodes: an artifact of another filesystem is refused. Empty: every
	// hdfs URI is taken to mean this cluster.
	Authorities []string // until SetAuthorities
}

// Localizer is safe for concurrent use.
type Localizer struct {
	config Config
	cache  *cache
	trees  *trees
	disk   *disk

	authorities atomic.Pointer[[]string]
}

// SetAuthorities replaces Config.Authorities.
func (l *Localizer) SetAuthorities(authorities []string) {
	authorities = slices.Clone(authorities)
	l.authorities.Store(&authorities)
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
	if c.Trees == "" {
		c.Trees = filepath.Join(filepath.Dir(c.Cache), "trees")
	}
	d := &disk{reserve: c.Reserve, look: freeAt}
	cache, err := openCache(c.Cache, c.CacheSize, d)
	if err != nil {
		return nil, fmt.Errorf("artifact cache: %w", err)
	}
	trees, err := openTrees(c.Trees, c.Boot, c.CacheSize, d)
	if err != nil {
		return nil, fmt.Errorf("artifact cache: %w", err)
	}
	l := &Localizer{config: c, cache: cache, trees: trees, disk: d}
	l.SetAuthorities(c.Authorities)
	return l, nil
}

// Localize puts the artifacts into the directory workDir, which must exist, for a container of user. fsys is the filesystem
// as that user sees it; it is only asked when an artifact has a URI and may be nil otherwise.
//
// A file that is declared public and that not everybody may read is downloaded for its user alone.
func (l *Localizer) Localize(ctx context.Context, fsys Filesystem, user nodemanager.User, workDir string, artifacts []nodemanager.Artifact) error {
	return l.copies(ctx, fsys, user, workDir, artifacts, false)
}

// Copy is Link with copies in the place of links.
func (l *Localizer) Copy(ctx context.Context, fsys Filesystem, user nodemanager.User, workDir string, artifacts []nodemanager.Artifact) error {
	return l.copies(ctx, fsys, user, workDir, artifacts, true)
}

// copies puts artifacts into a work directory. strict: what is declared public has to be.
func (l *Localizer) copies(ctx context.Context, fsys Filesystem, user nodemanager.User, workDir string, artifacts []nodemanager.Artifact, strict bool) error {
	root, err := os.OpenRoot(workDir)
	if err != nil {
		return err
	}
	defer root.Close()
	b := l.budget(ctx, workDir)
	return each(artifacts, func(name string, a *nodemanager.Artifact) error { return l.one(fsys, user, b, root, name, a, strict) })
}

// budget is what the artifacts of one container may take on the disk of a directory.
func (l *Localizer) budget(ctx context.Context, dir string) *budget {
	return &budget{
		ctx: ctx, disk: l.disk, dir: dir, bytes: l.config.MaxUnpacked, entries: l.config.MaxFiles, inodes: l.config.MaxFiles, links: maxLinkNames,
	}
}

// each calls put with every artifact and its cleaned name, and says which one an error is about.
func each(artifacts []nodemanager.Artifact, put func(name string, a *nodemanager.Artifact) error) error {
	seen := map[string]bool{}
	for i := range artifacts {
		a := &artifacts[i]
		name, err := cleanName(a.Name)
		if err == nil && seen[name] {
			err = errors.New("another artifact has the same name")
		}
		if err == nil {
			seen[name] = true
			err = put(name, a)
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

// maxDepth bounds the components of a name: what takes a tree apart again costs as much as its depth.
const maxDepth = 256

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
	if strings.Count(clean, "/") >= maxDepth {
		return "", fmt.Errorf("the name %.200q has more than %d components", name, maxDepth)
	}
	return clean, nil
}

func (l *Localizer) one(fsys Filesystem, user nodemanager.User, b *budget, root *os.Root, name string, a *nodemanager.Artifact, strict bool) error {
	switch a.Kind {
	case nodemanager.File, nodemanager.Archive, nodemanager.Code, nodemanager.Pattern, "":
	default:
		return fmt.Errorf("kind %.40q is none of file, archive, code, pattern", string(a.Kind))
	}
	only, err := patternOf(a)
	if err != nil {
		return err
	}
	if a.SHA256 != "" {
		if raw, err := hex.DecodeString(a.SHA256); err != nil || len(raw) != sha256.Size {
			return fmt.Errorf("sha256 %.80q is not 64 hexadecimal digits", a.SHA256)
		}
	}
	file, err := l.fetch(b.ctx, fsys, user, a, strict)
	if err != nil {
		return err
	}
	defer file.Close()
	u := &unpacking{budget: b, root: root}
	if a.Kind == nodemanager.File || a.Kind == "" {
		if err := u.entry(file.size); err != nil {
			return err
		}
		if err := u.parent(name); err != nil {
			return err
		}
		_, err := u.create(name, io.NewSectionReader(file, 0, file.size), file.size, 0o644)
		return err
	}
	if err := u.entry(0); err != nil {
		return err
	}
	if err := u.parent(name); err != nil {
		return err
	}
	if only != nil {
		if err := l.unpack(b, root, name, file, only); err != nil {
			return err
		}
		source := name
		if a.URI != "" {
			if source, err = l.pathOf(a.URI); err != nil {
				return err
			}
		}
		// YARN keeps the whole beside what was taken out.
		_, err := u.create(name+"/"+path.Base(source), io.NewSectionReader(file, 0, file.size), file.size, 0o644)
		return err
	}
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	below, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer below.Close()
	u = &unpacking{budget: b, root: below}
	if a.Kind == nodemanager.Code {
		err = u.code(file)
	} else {
		err = u.archive(file)
	}
	if err != nil {
		return err
	}
	return u.checkLinks()
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
func (l *Localizer) fetch(ctx context.Context, fsys Filesystem, user nodemanager.User, a *nodemanager.Artifact, strict bool) (*blob, error) {
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
	info, err := l.stat(ctx, fsys, file, a)
	if err != nil {
		return nil, err
	}
	if err := fsys.Readable(ctx, file); err != nil {
		return nil, err
	}
	shared, err := l.public(ctx, fsys, file, &info, a, strict)
	if err != nil {
		return nil, err
	}
	exact := *a
	exact.Size = info.Size
	return l.cache.get(ctx, cacheKey(user, shared, file, &info, a), &exact, func(to io.Writer) error {
		return l.download(ctx, fsys, file, &exact, &info, to)
	})
}

// public reports whether everybody may have the file: it is declared public, and others may read it and search all
// directories above it (YARN's FSDownload.isPublic). Below /.reserved the directories above are not those of the file.
//
// strict: one that is declared public and is not is refused, in YARN's words (FSDownload).
func (l *Localizer) public(ctx context.Context, fsys Filesystem, file string, info *Info, a *nodemanager.Artifact, strict bool) (bool, error) {
	if a.Visibility != nodemanager.Public {
		return false, nil
	}
	open, err := everybodys(ctx, fsys, file, info)
	if err == nil && !open && strict {
		err = fmt.Errorf("Resource %s is not publicly accessible and as such cannot be part of the public cache.", file)
	}
	return open, err
}

// everybodys reports whether everybody may read a file.
func everybodys(ctx context.Context, fsys Filesystem, file string, info *Info) (bool, error) {
	if info.Mode&0o004 == 0 || strings.HasPrefix(file, "/.reserved/") {
		return false, nil
	}
	for dir := file; dir != "/"; {
		dir = path.Dir(dir)
		above, err := fsys.Stat(ctx, dir)
		if errors.Is(err, fs.ErrPermission) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if above.Mode&0o001 == 0 {
			return false, nil
		}
	}
	return true, nil
}

// cacheKey names an artifact in the cache. What everybody may read is known by the very file and the promise; what is one
// user's own by user and content, or by user and file where no hash is promised. To know a hash is therefore no right to
// bytes that another user's containers fetched, nor to what was public once.
func cacheKey(user nodemanager.User, public bool, file string, info *Info, a *nodemanager.Artifact) string {
	sum := strings.ToLower(a.SHA256)
	named := fmt.Sprintf("%q %d %d %d", file, info.ID, info.Size, info.Modified)
	kind, text := "private-", ""
	switch {
	case public:
		kind, text = "public-", fmt.Sprintf("%s %s", named, sum)
	case sum != "":
		text = fmt.Sprintf("%q %s", user, sum)
	default:
		text = fmt.Sprintf("%q %s", user, named)
	}
	h := sha256.Sum256([]byte(text))
	return kind + hex.EncodeToString(h[:])
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
	if known := *l.authorities.Load(); u.Host != "" && len(known) > 0 && !slices.Contains(known, u.Host) {
		return "", fmt.Errorf("%s is not a namenode of this cluster (%s)", u.Host, strings.Join(known, ", "))
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

// download copies the file that info describes. One that is replaced or changed meanwhile is refused, because it would be
// remembered as what it was before.
func (l *Localizer) download(ctx context.Context, fsys Filesystem, file string, a *nodemanager.Artifact, info *Info, to io.Writer) error {
	from, err := fsys.Open(ctx, file)
	if err != nil {
		return err
	}
	defer from.Close()
	check := verify(a)
	// One byte more than promised is read, so that a file that grew is noticed and an endless one does no harm.
	if _, err := io.Copy(io.MultiWriter(to, check), &cancelable{ctx, io.LimitReader(from, info.Size+1)}); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if check.n != info.Size {
		return fmt.Errorf("has %d bytes, expected %d", check.n, info.Size)
	}
	if err := check.done(); err != nil {
		return err
	}
	now, err := fsys.Stat(ctx, file)
	if err != nil {
		return err
	}
	if now.ID != info.ID || now.Size != info.Size || now.Modified != info.Modified {
		return fmt.Errorf("%s was changed while it was read: submit again once its writer has ended", file)
	}
	return nil
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
