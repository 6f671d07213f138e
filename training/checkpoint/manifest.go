package checkpoint

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/gohops/hops/training"
)

// ManifestName is the file that ends a checkpoint's directory.
const ManifestName = "MANIFEST.json"

// BlobsName is the directory of an experiment with the files that checkpoints share.
const BlobsName = ".blobs"

// Versions of the manifest: a checkpoint without blobs is of the first, one with blobs of the third. (The second had a CRC-32 of blobs
// beside their SHA-256; nobody writes it any more.)
const (
	Version1 = 1
	Version3 = 3
)

// Limits.
const (
	MaxFiles    = 1000    // of one checkpoint
	MaxManifest = 1 << 20 // bytes
	maxName     = 255     // bytes of an element of a file's name
)

// Manifest is the content of MANIFEST.json, written last. What else is in it (the format of the object, its
// structure) is for the program that reads the checkpoint.
type Manifest struct {
	Version int              `json:"version"`
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	Step    int64            `json:"step"`
	// Blobs is the directory of blobs, relative to the checkpoint's. Empty if no file is one.
	Blobs string          `json:"blobs,omitempty"`
	Files []training.File `json:"files"`
}

// ParseManifest reads a manifest and checks it.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > MaxManifest {
		return nil, fmt.Errorf("%d bytes, at most %d", len(b), MaxManifest)
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	switch {
	case m.Version != Version1 && m.Version != Version3:
		return nil, fmt.Errorf("version %d, known are %d and %d", m.Version, Version1, Version3)
	case m.Trial < 1 || m.Attempt < 1:
		return nil, fmt.Errorf("trial %v, attempt %d", m.Trial, m.Attempt)
	}
	if err := CheckFiles(m.Files); err != nil {
		return nil, err
	}
	for _, f := range m.Files {
		if f.Blob == "" {
			continue
		}
		if m.Version < Version3 {
			return nil, fmt.Errorf("file %q is a blob, which version %d does not have", f.Name, m.Version)
		}
		if m.Blobs == "" || path.IsAbs(m.Blobs) || m.Blobs != path.Clean(m.Blobs) {
			return nil, fmt.Errorf("file %q is a blob, and %q is no relative directory of blobs", f.Name, m.Blobs)
		}
	}
	return &m, nil
}

// CheckFiles refuses files that cannot be those of a checkpoint.
func CheckFiles(files []training.File) error {
	if len(files) == 0 || len(files) > MaxFiles {
		return fmt.Errorf("a checkpoint has 1 to %d files, not %d", MaxFiles, len(files))
	}
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		if !fileName(f.Name) || f.Size < 0 {
			return fmt.Errorf("file %q of %d bytes cannot be in a checkpoint", f.Name, f.Size)
		}
		if seen[f.Name] {
			return fmt.Errorf("file %q is named twice", f.Name)
		}
		seen[f.Name] = true
		if f.Blob == "" {
			continue
		}
		if _, err := ParseBlob(f.Blob); err != nil {
			return fmt.Errorf("file %q: %w", f.Name, err)
		}
		if f.CRC32 != 0 {
			return fmt.Errorf("file %q is a blob with a CRC-32, and blobs are checked by the SHA-256 in their names", f.Name)
		}
	}
	return nil
}

// fileName says whether a file below the checkpoint's directory can have this name.
func fileName(name string) bool {
	if name == "" || name != path.Clean(name) || path.IsAbs(name) || name == "." || name == ManifestName || strings.ContainsAny(name, "\x00\n:") {
		return false
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." || len(element) > maxName {
			return false
		}
	}
	return true
}

// Blob is what the name of a blob says: the SHA-256 of its bytes, and the save that wrote it.
type Blob struct {
	Sum     [32]byte
	Trial   training.TrialID
	Attempt int
	Step    int64
}

func (b Blob) String() string {
	return fmt.Sprintf("%x-%v-%d-%d", b.Sum, b.Trial, b.Attempt, b.Step)
}

var errBlob = errors.New("is no name of a blob: <sha256>-<trial>-<attempt>-<step>")

var blobForm = regexp.MustCompile(`^([0-9a-f]{64})-([0-9]{4,10})-([0-9]{1,9})-(-?[0-9]{1,19})$`)

// ParseBlob reads the name of a blob. Each blob has one name.
func ParseBlob(name string) (b Blob, err error) {
	part := blobForm.FindStringSubmatch(name)
	if part == nil {
		return b, fmt.Errorf("%.120q %w", name, errBlob)
	}
	sum, err := hex.DecodeString(part[1])
	if err != nil {
		return b, fmt.Errorf("%q %w", name, errBlob)
	}
	copy(b.Sum[:], sum)
	if b.Trial, err = training.ParseTrialID(part[2]); err == nil {
		if _, err = fmt.Sscan(part[3], &b.Attempt); err == nil {
			_, err = fmt.Sscan(part[4], &b.Step)
		}
	}
	if err != nil || b.String() != name {
		return b, fmt.Errorf("%q %w", name, errBlob)
	}
	return b, nil
}

// BlobPath is where a blob lies below a directory of blobs.
func BlobPath(blobs, name string) string { return path.Join(blobs, name[:2], name) }

// Path is where a file of a checkpoint lies. blobs is the experiment's directory of blobs.
func Path(uri, blobs string, f training.File) string {
	if f.Blob != "" {
		return BlobPath(blobs, f.Blob)
	}
	return path.Join(uri, f.Name)
}
