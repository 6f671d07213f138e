package localizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gohops/hops/nodemanager"
)

// ManifestName is the file in a code artifact that lists the others.
const ManifestName = "manifest.json"

// maxManifest bounds a manifest in bytes, and with it how many files a code artifact has: tens of thousands.
const maxManifest = 8 << 20

func errManifest(size int64) error {
	return fmt.Errorf("%s is %s, the most is %s", ManifestName, nodemanager.ByteSize(size), nodemanager.ByteSize(maxManifest))
}

// code unpacks a code artifact and compares every file with the manifest: each listed file must be there with its hash,
// and nothing may be there that is not listed.
func (u *unpacking) code(b *blob) error {
	sums := map[string][sha256.Size]byte{}
	if err := u.zip(b, sums); err != nil {
		return err
	}
	if _, ok := sums[ManifestName]; !ok {
		return fmt.Errorf("has no %s, so it is not a code artifact", ManifestName)
	}
	delete(sums, ManifestName)
	f, err := u.root.Open(ManifestName)
	if err != nil {
		return err
	}
	defer f.Close()
	listed := map[string]bool{}
	err = readManifest(io.LimitReader(f, maxManifest), func(name, want string) error {
		if name == ManifestName {
			return nil // whatever it says of itself
		}
		got, ok := sums[name]
		switch {
		case listed[name]:
			return fmt.Errorf("lists %.200q twice", name)
		case !ok:
			return fmt.Errorf("lists %.200q, which is not in the artifact", name)
		case !strings.EqualFold(hex.EncodeToString(got[:]), want):
			return fmt.Errorf("says %.200q has sha256 %.80s, but it has %x", name, want, got)
		}
		listed[name] = true
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", ManifestName, err)
	}
	for name := range sums {
		if !listed[name] {
			return fmt.Errorf("%.200q is not listed in %s", name, ManifestName)
		}
	}
	return nil
}

// readManifest calls file with the name and the sha256 of every file that a manifest lists: its member "files" is an object
// of hashes by name, or a list of {path, sha256}. It holds one file at a time.
func readManifest(in io.Reader, file func(name, sum string) error) error {
	d := json.NewDecoder(in)
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if name, _ := key.(string); strings.EqualFold(name, "files") {
			err = readFiles(d, file)
		} else {
			var other json.RawMessage // for other programs
			err = d.Decode(&other)
		}
		if err != nil {
			return err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

func expect(d *json.Decoder, want json.Token) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = fmt.Errorf("has %v where %v should be", got, want)
	}
	return err
}

var errFiles = errors.New(`"files" is neither an object of hashes by name nor a list of {path, sha256}`)

func readFiles(d *json.Decoder, file func(name, sum string) error) error {
	open, err := d.Token()
	if err != nil {
		return err
	}
	switch open {
	case nil:
		return nil
	case json.Delim('{'), json.Delim('['):
	default:
		return errFiles
	}
	for d.More() {
		var f struct{ Path, Name, SHA256 string }
		if open == json.Delim('{') {
			var name json.Token
			if name, err = d.Token(); err != nil {
				return err
			}
			f.Path, _ = name.(string)
			err = d.Decode(&f.SHA256)
		} else {
			err = d.Decode(&f)
		}
		if err != nil {
			if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				return errFiles
			}
			return err
		}
		if f.Path == "" {
			f.Path = f.Name
		}
		if err := file(f.Path, f.SHA256); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end
	return err
}
