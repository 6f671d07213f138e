package localizer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/gohops/hops/nodemanager"
)

// Consumer is for whom artifacts are put in place.
type Consumer struct {
	User        nodemanager.User
	Application nodemanager.ApplicationID
}

// Link is Localize without copies: what has a URI is unpacked once, in the cache, for all containers that may have it, and the
// work directory gets symbolic links. Nobody may change what is linked to, which is for the caller to see to where the
// container runs under our own user id. The trees that are linked to stay until they were given to Release as often as they
// were returned; after an error none are held.
//
// What is linked to counts as if it had been unpacked here: one budget is for all artifacts, whoever has put them into the cache.
//
// A file that is declared public and that not everybody may read is refused, as YARN does.
func (l *Localizer) Link(ctx context.Context, fsys Filesystem, who Consumer, workDir string, artifacts []nodemanager.Artifact) (held []string, err error) {
	root, err := os.OpenRoot(workDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	defer func() {
		if err != nil {
			l.Release(held)
			held = nil
		}
	}()
	b := l.budget(ctx, workDir)
	err = each(artifacts, func(name string, a *nodemanager.Artifact) error {
		if a.URI == "" {
			return l.one(fsys, who.User, b, root, name, a, true)
		}
		tree, inside, takes, err := l.share(b, fsys, who, a)
		if err != nil {
			return err
		}
		again := slices.Contains(held, tree)
		held = append(held, tree)
		if !again {
			if err := b.charge(takes); err != nil {
				return err
			}
		}
		u := &unpacking{budget: b, root: root}
		if err := u.entry(0); err != nil {
			return err
		}
		if err := u.parent(name); err != nil {
			return err
		}
		return root.Symlink(filepath.Join(l.Tree(tree), inside), name)
	})
	return held, err
}

// Tree is the directory of a tree that Link returned.
func (l *Localizer) Tree(key string) string { return filepath.Join(l.trees.dir, key) }

// Size is what trees take on the disk, in bytes, each once.
func (l *Localizer) Size(trees []string) int64 { return l.trees.size(trees) }

// Hold counts the trees once more as used: by a container that an earlier node manager has started.
func (l *Localizer) Hold(trees []string) { l.trees.hold(trees) }

// Release is the end of one use of each of the trees.
func (l *Localizer) Release(trees []string) { l.trees.release(trees) }

// share finds an artifact in the cache, or puts it there. inside is its name in the tree, which is held. Nothing is taken from the budget,
// which bounds what is unpacked.
func (l *Localizer) share(b *budget, fsys Filesystem, who Consumer, a *nodemanager.Artifact) (tree, inside string, takes extent, err error) {
	ctx := b.ctx
	fail := func(err error) (string, string, extent, error) { return "", "", extent{}, err }
	switch a.Kind {
	case nodemanager.File, nodemanager.Archive, nodemanager.Pattern, "":
	default:
		return fail(fmt.Errorf("kind %.40q is none of file, archive, pattern", string(a.Kind)))
	}
	only, err := patternOf(a)
	if err != nil {
		return fail(err)
	}
	if raw, err := hex.DecodeString(a.SHA256); err != nil || a.SHA256 != "" && len(raw) != sha256.Size {
		return fail(fmt.Errorf("sha256 %.80q is not 64 hexadecimal digits", a.SHA256))
	}
	if fsys == nil {
		return fail(errors.New("this node has no connection to a filesystem"))
	}
	file, err := l.pathOf(a.URI)
	if err != nil {
		return fail(err)
	}
	info, err := l.stat(ctx, fsys, file, a)
	if err != nil {
		return fail(err)
	}
	if err := fsys.Readable(ctx, file); err != nil {
		return fail(err)
	}
	public, err := l.public(ctx, fsys, file, &info, a, true)
	if err != nil {
		return fail(err)
	}
	if inside = path.Base(file); inside == treeFile { // which is ours
		inside = "artifact"
	}
	exact := *a
	exact.Size = info.Size
	tree = treeKey(who, public, file, &info, a)
	takes, err = l.trees.get(ctx, tree, info.Size, func(part string) (extent, error) {
		return l.build(b, part, inside, &exact, only, func(to io.Writer) error { return l.download(ctx, fsys, file, &exact, &info, to) })
	})
	return tree, inside, takes, err
}

// treeKey names a tree: by what cacheKey names the bytes, what becomes of them, and whose application may have it.
func treeKey(who Consumer, public bool, file string, info *Info, a *nodemanager.Artifact) string {
	app := nodemanager.ApplicationID("")
	if a.Visibility == nodemanager.OfApplication {
		app = who.Application
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%s %q %q %q %q", cacheKey(who.User, public, file, info, a), app, a.Kind, a.Pattern, path.Base(file)))
	return hex.EncodeToString(h[:])
}

// patternOf is what an artifact takes out of its archive: nil for one that is no pattern.
func patternOf(a *nodemanager.Artifact) (*regexp.Regexp, error) {
	if a.Kind != nodemanager.Pattern {
		return nil, nil
	}
	if len(a.Pattern) > 1024 {
		return nil, errors.New("the pattern is longer than 1024 bytes")
	}
	only, err := regexp.Compile(`^(?:` + a.Pattern + `)$`)
	if err != nil {
		return nil, fmt.Errorf("the pattern %.80q is no regular expression that is known here: %w", a.Pattern, err)
	}
	return only, nil
}

// build makes an artifact in the directory part under the name inside, for reading only, with what is left of a budget. It returns what it
// takes.
func (l *Localizer) build(left *budget, part, inside string, a *nodemanager.Artifact, only *regexp.Regexp, download func(io.Writer) error) (extent, error) {
	root, err := os.OpenRoot(part)
	if err != nil {
		return extent{}, err
	}
	defer root.Close()
	own := *left
	own.dir = part
	b := &own
	unpacks := a.Kind == nodemanager.Archive || a.Kind == nodemanager.Pattern
	name := inside
	if unpacks {
		name = "packed"
		if inside == name {
			name = "packed.file"
		}
	}
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return extent{}, err
	}
	defer f.Close()
	if err := b.entry(a.Size); err != nil {
		return extent{}, err
	}
	if err := download(&spending{b, f}); err != nil {
		return extent{}, err
	}
	if unpacks {
		if err := l.unpack(b, root, inside, &blob{ReaderAt: f, size: a.Size}, only); err != nil {
			return extent{}, err
		}
		if only != nil { // YARN keeps the whole beside what was taken out
			err = root.Rename(name, inside+"/"+inside)
		} else {
			b.bytes += a.Size
			err = root.Remove(name)
		}
		if err != nil {
			return extent{}, err
		}
	}
	if err := readOnly(root, inside); err != nil {
		return extent{}, err
	}
	return extentOf(left.bytes-b.bytes, left.inodes-b.inodes), nil
}

func (l *Localizer) unpack(b *budget, root *os.Root, inside string, packed *blob, only *regexp.Regexp) error {
	if err := root.Mkdir(inside, 0o755); err != nil {
		return err
	}
	below, err := root.OpenRoot(inside)
	if err != nil {
		return err
	}
	defer below.Close()
	u := &unpacking{budget: b, root: below, only: only}
	if only != nil {
		if _, err := findDirectory(packed, packed.size); err != nil {
			return fmt.Errorf("a pattern wants a zip or a jar: %w", err)
		}
		err = u.zip(packed, nil)
	} else {
		err = u.archive(packed)
	}
	if err != nil {
		return err
	}
	return u.checkLinks()
}

// readOnly takes all rights to write from a tree. Every file may be run, as in YARN (FSDownload).
func readOnly(root *os.Root, name string) error {
	return fs.WalkDir(root.FS(), name, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return root.Chmod(name, 0o555)
	})
}
