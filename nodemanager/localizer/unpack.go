package localizer

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"sort"
	"strings"
)

// unpacking writes the entries of one archive below root until the container's budget is used up. What it holds in memory
// does not grow with the archive, except for the names of links.
type unpacking struct {
	*budget
	root *os.Root
	// made is the directory that was last made or found; entries of one directory mostly follow each other.
	made string
	// links are the names of all symbolic links.
	links []string
	// only are the names that are taken out of a zip; nil: all.
	only *regexp.Regexp
}

// archive unpacks zip, tar and tar.gz, told apart by their first bytes, because names lie.
func (u *unpacking) archive(b *blob) error {
	magic := make([]byte, 262)
	n, err := b.ReadAt(magic, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	magic = magic[:n]
	in := io.NewSectionReader(b, 0, b.size)
	switch {
	case strings.HasPrefix(string(magic), "PK\x03\x04"), strings.HasPrefix(string(magic), "PK\x05\x06"):
		return u.zip(b, nil)
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		z, err := gzip.NewReader(bufio.NewReaderSize(in, 1<<16))
		if err != nil {
			return fmt.Errorf("not a gzip file: %w", err)
		}
		defer z.Close()
		return u.tar(z)
	case len(magic) >= 262 && string(magic[257:262]) == "ustar":
		// Nearly what the files in it take; how much that of a compressed one is shows file by file.
		if err := u.disk.takes(u.dir, b.size, 1); err != nil {
			return err
		}
		return u.tar(bufio.NewReaderSize(in, 1<<16))
	}
	return errors.New("is neither zip, tar nor tar.gz")
}

func (u *unpacking) tar(in io.Reader) error {
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not a tar file: %w", err)
		}
		if err := u.entry(h.Size); err != nil {
			return err
		}
		name, err := entryName(h.Name)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = u.makeDir(name)
		case tar.TypeReg:
			_, err = u.file(name, t, h.Size, h.FileInfo().Mode())
		case tar.TypeSymlink:
			err = u.symlink(name, h.Linkname)
		case tar.TypeLink:
			var target string
			if target, err = entryName(h.Linkname); err == nil {
				err = u.link(target, name)
			}
		case tar.TypeXGlobalHeader:
		default:
			err = fmt.Errorf("entry %.200q is a device, a pipe or something else that is not unpacked", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

// entryName checks the name of an archive's entry; "" is the archive's own root.
func entryName(name string) (string, error) {
	if path.Clean(name) == "." && name != "" {
		return "", nil
	}
	clean, err := cleanName(strings.ReplaceAll(name, `\`, "/"))
	if err != nil {
		return "", fmt.Errorf("entry %.200q: %w", name, err)
	}
	return clean, nil
}

// makeDir makes a directory and those above it, each of which is counted.
func (u *unpacking) makeDir(dir string) error {
	if dir == "." || dir == u.made {
		return nil
	}
	switch info, err := u.root.Stat(dir); {
	case err == nil && !info.IsDir():
		return fmt.Errorf("entry %.200q is a directory, and not one", dir)
	case errors.Is(err, fs.ErrNotExist):
		if err := u.makeMissing(strings.Split(dir, "/")); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	u.made = dir
	return nil
}

// makeMissing makes what is missing of a path, component by component: each full name would be looked up from its beginning
// again, which for a deep tree is most of the work.
func (u *unpacking) makeMissing(parts []string) error {
	have := sort.Search(len(parts)-1, func(i int) bool {
		_, err := u.root.Stat(path.Join(parts[:i+1]...))
		return errors.Is(err, fs.ErrNotExist)
	})
	at, err := u.root.OpenRoot(path.Join(".", path.Join(parts[:have]...)))
	if err != nil {
		return err
	}
	defer func() { at.Close() }()
	for _, part := range parts[have:] {
		if err := u.inode(); err != nil {
			return err
		}
		if err := at.Mkdir(part, 0o755); err != nil {
			return err
		}
		below, err := at.OpenRoot(part)
		if err != nil {
			return err
		}
		at.Close()
		at = below
	}
	return nil
}

// parent makes the directory of an entry that is about to be made.
func (u *unpacking) parent(name string) error {
	if err := u.makeDir(path.Dir(name)); err != nil {
		return err
	}
	return u.inode()
}

// file writes one file of an archive.
func (u *unpacking) file(name string, in io.Reader, size int64, mode fs.FileMode) (sum [sha256.Size]byte, err error) {
	if err := u.parent(name); err != nil {
		return sum, err
	}
	perm := fs.FileMode(0o644)
	if mode&0o111 != 0 {
		perm = 0o755
	}
	if sum, err = u.create(name, in, size, perm); err != nil {
		return sum, fmt.Errorf("entry %.200q: %w", name, err)
	}
	return sum, nil
}

// create writes the bytes of in, which announced how many they are.
func (u *unpacking) create(name string, in io.Reader, size int64, perm fs.FileMode) (sum [sha256.Size]byte, err error) {
	out, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(&spending{u.budget, out}, h), &cancelable{u.ctx, in})
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err == nil && n != size {
		err = fmt.Errorf("has %d bytes, not the %d that its header announces", n, size)
	}
	h.Sum(sum[:0])
	return sum, err
}

// maxLinkNames bounds what is remembered of one container's links, in bytes: some hundred thousand of them.
const maxLinkNames = 16 << 20

// remember keeps the name of a symbolic link for checkLinks.
func (u *unpacking) remember(name string) error {
	if u.budget.links -= len(name) + 64; u.budget.links < 0 {
		return errors.New("has more symbolic links than a node unpacks for one container")
	}
	u.links = append(u.links, name)
	return nil
}

// symlink makes a link that stays inside the archive's directory as far as its words tell; checkLinks sees where it leads.
func (u *unpacking) symlink(name, target string) error {
	if target == "" || len(target) > 4096 || strings.HasPrefix(target, "/") || !fs.ValidPath(path.Join(path.Dir(name), target)) {
		return leadsOut(name, target)
	}
	if err := u.parent(name); err != nil {
		return err
	}
	if err := u.remember(name); err != nil {
		return err
	}
	return u.root.Symlink(target, name)
}

func (u *unpacking) link(target, name string) error {
	if err := u.parent(name); err != nil {
		return err
	}
	// A hard link to a symbolic link is that link in another directory, from where it leads elsewhere.
	if info, err := u.root.Lstat(target); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if err := u.remember(name); err != nil {
			return err
		}
	}
	return u.root.Link(target, name)
}

func leadsOut(name, target string) error {
	return fmt.Errorf("entry %.200q is a symbolic link to %.200q, out of its directory", name, target)
}

// checkLinks resolves every link as the container would, now that all it may lead through is there: os.Root itself would
// not follow one that leads out, but the container, and whoever copies its directory, would. A link to nothing stays.
func (u *unpacking) checkLinks() error {
	for _, name := range u.links {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if _, err := u.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			target, _ := u.root.Readlink(name)
			return fmt.Errorf("%w: %w", leadsOut(name, target), err)
		}
	}
	return nil
}
