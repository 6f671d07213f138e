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
	var made nnserver.Certificate
	ask := map[string]any{"user": c.Args().First(), "life": c.Duration("life").String(), "request": request}
	if err := n.ask(c.Context, http.MethodPost, "/api/v1/user-certificates", ask, &made); err != nil {
		return err
	}
	path := c.String("out")
	if err := replaceFile(path, append([]byte(made.Certificate), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), 0o600); err != nil {
		return err
	}
	known := c.String("authorities")
	if known == "" {
		known = "ca.pem"
	} else if err := replaceFile(known, []byte(made.Authorities), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(c.App.ErrWriter, "%s: certificate %s of %s, good until %s: curl --cacert %s --cert %s https://…\n",
		path, made.ID, made.User, made.Expires.Local().Format(time.DateTime), quoted(known), quoted(path))
	return nil
}

// replaceFile writes a file, wholly or not at all.
func replaceFile(path string, text []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
