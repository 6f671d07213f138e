package main

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/authority"
	nnserver "github.com/gohops/hops/namenode/server"
)

// makeUserCertificate has the cluster certify a key that is made here.
func makeUserCertificate(c *cli.Context) error {
	if c.NArg() > 1 {
		return fail(exitUsage, "user certificate: give one NAME, or none for yourself")
	}
	n, err := findNamenodes(c)
	if err != nil {
		return err
	}
	key, err := authority.NewKey()
	if err != nil {
		return err
	}
	request, err := authority.Request(key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	path, known := c.String("out"), c.String("authorities")
	// The files are begun first, lest there be a certificate that nobody has.
	own, err := beginFile(path, 0o600)
	if err != nil {
		return err
	}
	defer own.drop()
	var roots *newFile
	if known != "" {
		if roots, err = beginFile(known, 0o644); err != nil {
			return err
		}
		defer roots.drop()
	}
	var made nnserver.Certificate
	ask := map[string]any{"user": c.Args().First(), "life": c.Duration("life").String(), "request": request}
	if err := n.ask(c.Context, http.MethodPost, "/api/v1/user-certificates", ask, &made); err != nil {
		return err
	}
	if err := own.put(append([]byte(made.Certificate), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)); err != nil {
		return fmt.Errorf("%w; certificate %s was issued: `hops user revoke %s`", err, made.ID, made.ID)
	}
	if roots == nil {
		known = "ca.pem"
	} else if err := roots.put([]byte(made.Authorities)); err != nil {
		return err
	}
	fmt.Fprintf(c.App.ErrWriter, "%s: certificate %s of %s, good until %s: curl --cacert %s --cert %s https://…\n",
		path, made.ID, made.User, made.Expires.Local().Format(time.DateTime), quoted(known), quoted(path))
	return nil
}

// newFile is a file that is there wholly or not at all.
type newFile struct {
	path string
	f    *os.File // under another name; nil once it has its own
}

// beginFile fails where no file can be.
func beginFile(path string, mode os.FileMode) (*newFile, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // of mode 0600
	if err != nil {
		return nil, err
	}
	n := &newFile{path, f}
	if err := f.Chmod(mode); err != nil {
		n.drop()
		return nil, err
	}
	return n, nil
}

// put writes it in place of what is there.
func (n *newFile) put(text []byte) error {
	_, err := n.f.Write(text)
	if err = errors.Join(err, n.f.Sync()); err == nil {
		err = os.Rename(n.f.Name(), n.path)
	}
	if err != nil {
		return err
	}
	err = n.f.Close()
	n.f = nil
	return err
}

// drop removes what was begun and not put.
func (n *newFile) drop() {
	if n.f != nil {
		n.f.Close()
		os.Remove(n.f.Name())
	}
}
