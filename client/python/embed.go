// Package python carries the sources of the Python package, so that the one binary can hand them to executors: no
// installation on the nodes is needed beyond python3.
package python

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"sync"
)

//go:embed hops/*.py maggy/*.py maggy/core/*.py tensorflowonspark/*.py
var sources embed.FS

// Zip is the package as one file that Python imports from directly, and its SHA-256. The same sources make the same
// bytes.
var Zip = sync.OnceValues(func() ([]byte, string) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: path, Method: zip.Deflate})
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // an embedded file cannot be unreadable, nor a buffer full
	}
	sum := sha256.Sum256(b.Bytes())
	return b.Bytes(), hex.EncodeToString(sum[:])
})
