package localizer

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/gohops/hops/nodemanager"
)

// unpacking writes the entries of one archive below root until its budget is used up.
type unpacking struct {
	ctx   context.Context
	root  *os.Root
	bytes int64
	files int
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
		_, err := u.zip(b)
		return err
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		z, err := gzip.NewReader(bufio.NewReaderSize(in, 1<<16))
		if err != nil {
			return fmt.Errorf("not a gzip file: %w", err)
		}
		defer z.Close()
		return u.tar(z)
	case len(magic) >= 262 && string(magic[257:262]) == "ustar":
		return u.tar(bufio.NewReaderSize(in, 1<<16))
	}
	return errors.New("is neither zip, tar nor tar.gz")
}

// zip unpacks a zip file and returns the sha256 of every file in it by name.
func (u *unpacking) zip(b *blob) (map[string]string, error) {
	z, err := zip.NewReader(b, b.size)
	if err != nil {
		return nil, fmt.Errorf("not a zip file: %w", err)
	}
	sums := map[string]string{}
	for _, f := range z.File {
		name, err := entryName(f.Name)
		if err != nil {
			return nil, err
		}
		if name == "" {
			continue
		}
		switch mode := f.Mode(); {
		case mode.IsDir():
			err = u.dir(name)
		case mode&fs.ModeSymlink != 0:
			var target string
			if target, err = readLink(f); err == nil {
				err = u.symlink(name, target)
			}
		case mode.IsRegular():
			var in io.ReadCloser
			if in, err = f.Open(); err == nil {
				sums[name], err = u.file(name, in, mode)
				in.Close()
			}
		default:
			err = fmt.Errorf("entry %.200q is neither file, directory nor symbolic link", f.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	return sums, nil
}

func readLink(f *zip.File) (string, error) {
	in, err := f.Open()
	if err != nil {
		return "", err
	}
	defer in.Close()
	target, err := io.ReadAll(io.LimitReader(in, 4097))
	return string(target), err
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
		name, err := entryName(h.Name)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = u.dir(name)
		case tar.TypeReg:
			_, err = u.file(name, t, h.FileInfo().Mode())
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

// spend takes one entry from the budget.
func (u *unpacking) spend() error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	if u.files--; u.files < 0 {
		return errors.New("has more entries than a node unpacks")
	}
	return nil
}

func (u *unpacking) dir(name string) error {
	if err := u.spend(); err != nil {
		return err
	}
	return u.root.MkdirAll(name, 0o755)
}

func (u *unpacking) parent(name string) error {
	if err := u.spend(); err != nil {
		return err
	}
	if dir := path.Dir(name); dir != "." {
		return u.root.MkdirAll(dir, 0o755)
	}
	return nil
}

// file writes one file, counting what really comes out, not what a header promises.
func (u *unpacking) file(name string, in io.Reader, mode fs.FileMode) (sum string, err error) {
	if err := u.parent(name); err != nil {
		return "", err
	}
	perm := fs.FileMode(0o644)
	if mode&0o111 != 0 {
		perm = 0o755
	}
	out, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return "", fmt.Errorf("entry %.200q: %w", name, err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, h), io.LimitReader(&cancelable{u.ctx, in}, u.bytes+1))
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return "", fmt.Errorf("entry %.200q: %w", name, err)
	}
	if u.bytes -= n; u.bytes < 0 {
		return "", errors.New("unpacks to more bytes than a node takes")
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// symlink makes a link that stays inside the archive's directory. os.Root itself would not follow another one, but the
// container would.
func (u *unpacking) symlink(name, target string) error {
	if err := u.parent(name); err != nil {
		return err
	}
	if target == "" || strings.HasPrefix(target, "/") || !fs.ValidPath(path.Join(path.Dir(name), target)) {
		return fmt.Errorf("entry %.200q is a symbolic link to %.200q, out of its directory", name, target)
	}
	return u.root.Symlink(target, name)
}

func (u *unpacking) link(target, name string) error {
	if err := u.parent(name); err != nil {
		return err
	}
	return u.root.Link(target, name)
}

// ManifestName is the file in a code artifact that lists the others.
const ManifestName = "manifest.json"

// manifest is what the localizer needs of a code artifact's manifest.
type manifest struct {
	Files manifestFiles `json:"files"`
}

// manifestFiles holds the sha256 of each file by name. In JSON it is an object, or a list of {path, sha256}.
type manifestFiles map[string]string

func (m *manifestFiles) UnmarshalJSON(text []byte) error {
	*m = manifestFiles{}
	var object map[string]string
	if json.Unmarshal(text, &object) == nil {
		*m = object
		return nil
	}
	var list []struct{ Path, Name, SHA256 string }
	if err := json.Unmarshal(text, &list); err != nil {
		return errors.New(`"files" is neither an object of hashes by name nor a list of {path, sha256}`)
	}
	for _, f := range list {
		if f.Path == "" {
			f.Path = f.Name
		}
		(*m)[f.Path] = f.SHA256
	}
	return nil
}

// code unpacks a code artifact and compares every file with the manifest: each listed file must be there with its hash,
// and nothing may be there that is not listed.
func (u *unpacking) code(b *blob) error {
	sums, err := u.zip(b)
	if err != nil {
		return err
	}
	if _, ok := sums[ManifestName]; !ok {
		return fmt.Errorf("has no %s, so it is not a code artifact", ManifestName)
	}
	text, err := u.root.ReadFile(ManifestName)
	if err != nil {
		return err
	}
	if len(text) > 16<<20 {
		return fmt.Errorf("%s is %s", ManifestName, nodemanager.ByteSize(int64(len(text))))
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("%s: %w", ManifestName, err)
	}
	for name, want := range m.Files {
		switch got, ok := sums[name]; {
		case !ok:
			return fmt.Errorf("%s lists %.200q, which is not in the artifact", ManifestName, name)
		case !strings.EqualFold(got, want):
			return fmt.Errorf("%.200q has sha256 %s, %s says %.80s", name, got, ManifestName, want)
		}
	}
	for name := range sums {
		if _, ok := m.Files[name]; !ok && name != ManifestName {
			return fmt.Errorf("%.200q is not listed in %s", name, ManifestName)
		}
	}
	return nil
}
