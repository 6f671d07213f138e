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
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Identity is what a machine keeps of itself, in one file, so that no half of it is ever without the other: its certificate,
// its key, and the authorities that it trusts.
type Identity struct {
	Certificate []byte // in DER
	Key         crypto.Signer
	Roots       []*x509.Certificate
	// Links lead to them from earlier ones.
	Links []*x509.Certificate
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
	if i.Roots, i.Links, err = parseAuthorities(bytes.TrimSpace(rest)); err != nil {
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
	return &Trust{Cluster: cluster, Roots: i.Roots, Links: i.Links}, nil
}

// Write replaces the file of an identity, wholly or not at all, and returns when that is on the disk.
func (i *Identity) Write(path string) error {
	text, err := i.marshal()
	if err != nil {
		return err
	}
	return writeFile(path, text, os.Rename)
}

// Create makes the file of an identity. fs.ErrExist: there is one.
func (i *Identity) Create(path string) error {
	text, err := i.marshal()
	if err != nil {
		return err
	}
	return writeFile(path, text, os.Link)
}

func (i *Identity) marshal() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(i.Key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	return append(text, MarshalRoots(slices.Concat(i.Roots, i.Links))...), nil
}

// Create keeps the authority with its key in a new file of mode 0600. fs.ErrExist: there is one.
func (a *Authority) Create(path string) error {
	text, err := a.Marshal()
	if err != nil {
		return err
	}
	return writeFile(path, text, os.Link)
}

// writeFile writes a file of mode 0600 beside path, makes it durable and gives it its name by place: os.Rename, or os.Link where
// there must be none.
func writeFile(path string, text []byte, place func(old, path string) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp") // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = likeOwner(f, path)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = place(f.Name(), path)
	}
	if gone := os.Remove(f.Name()); err == nil && gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = gone
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// likeOwner gives a file that root writes the owner of the one that it replaces, or else of its directory: other servers of the
// machine run as that user.
func likeOwner(f *os.File, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return f.Chown(int(owner.Uid), int(owner.Gid))
}

// Self is the identity of the machine on which the authority itself is: its first generation.
func (a *Authority) Self(machine string, roles []Role, addresses []string, now time.Time) (*Identity, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	request, err := Request(key)
	if err != nil {
		return nil, err
	}
	roles = slices.Sorted(slices.Values(roles))
	der, err := a.Issue(request, Name{Machine: machine, Generation: 1, Roles: roles}, addresses, now, MachineLife)
	if err != nil {
		return nil, err
	}
	return &Identity{Certificate: der, Key: key, Roots: []*x509.Certificate{a.root}}, nil
}

// Member is the machine as others meet it.
func (i *Identity) Member(now func() time.Time) (*Member, error) {
	trust, err := i.Trust()
	if err != nil {
		return nil, err
	}
	return NewMember(Config{Key: i.Key, Certificate: i.Certificate, Trust: trust, Now: now})
}
