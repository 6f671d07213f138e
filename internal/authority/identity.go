package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Identity is what a machine keeps of itself, in one file, so that no half of it is ever without the other: its certificate,
// its key, and the authorities that it trusts.
type Identity struct {
	Certificate []byte // in DER
	Key         crypto.Signer
	Roots       []*x509.Certificate
}

// maxIdentity is the size of the largest file that is read, in bytes.
const maxIdentity = 1 << 20

// LoadIdentity reads the file of an identity, which nobody but its owner may read. Its errors say what to do; fs.ErrNotExist:
// there is none.
func LoadIdentity(path string) (*Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("this machine's identity: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("this machine's identity: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("this machine's identity %s has mode %04o and others could read its key: chmod 600 it", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIdentity+1))
	if err != nil {
		return nil, fmt.Errorf("this machine's identity: %w", err)
	}
	i, err := parseIdentity(text)
	if err != nil {
		return nil, fmt.Errorf("this machine's identity %s is damaged: %w; let the machine join again", path, err)
	}
	return i, nil
}

func parseIdentity(text []byte) (*Identity, error) {
	if len(text) > maxIdentity {
		return nil, fmt.Errorf("more than %d bytes", maxIdentity)
	}
	certificate, rest := pem.Decode(text)
	if certificate == nil || certificate.Type != "CERTIFICATE" {
		return nil, errors.New("it begins with no certificate")
	}
	leaf, err := x509.ParseCertificate(certificate.Bytes)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(rest)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("no key follows the certificate")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	i := &Identity{Certificate: certificate.Bytes}
	var fits bool
	switch k := parsed.(type) {
	case *ecdsa.PrivateKey:
		i.Key, fits = k, k.PublicKey.Equal(leaf.PublicKey)
	case ed25519.PrivateKey:
		i.Key, fits = k, k.Public().(ed25519.PublicKey).Equal(leaf.PublicKey)
	case *rsa.PrivateKey:
		i.Key, fits = k, k.PublicKey.Equal(leaf.PublicKey)
	}
	if !fits {
		return nil, errors.New("the key is not that of the certificate")
	}
	if i.Roots, err = ParseRoots(bytes.TrimSpace(rest)); err != nil {
		return nil, err
	}
	return i, nil
}

// Trust is what the identity says of others, before anybody in the cluster was asked.
func (i *Identity) Trust() (*Trust, error) {
	cluster, err := clusterOf(i.Roots[0])
	if err != nil {
		return nil, err
	}
	return &Trust{Cluster: cluster, Roots: i.Roots}, nil
}

// Write replaces the file of an identity, wholly or not at all, and returns when that is on the disk.
func (i *Identity) Write(path string) (err error) {
	key, err := x509.MarshalPKCS8PrivateKey(i.Key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	text = append(text, MarshalRoots(i.Roots)...)

	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp") // of mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil //nolint:nilerr // the file is there; only whether it outlives a power cut is not known
	}
	syncErr := d.Sync()
	return errors.Join(syncErr, d.Close())
}
