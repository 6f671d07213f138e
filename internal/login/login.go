// Package login is what a user's programs know of a cluster whose servers are on other machines: by which authorities its servers
// are known, and who the user is there.
package login

import (
	"cmp"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
)

// Login is what `hops login` keeps, in a file of mode 0600.
type Login struct {
	// Address is the HTTP address, host:port, at which the user logged in.
	Address string `json:"address"`
	// Authorities are the certificates of the cluster's authorities, in PEM.
	Authorities string `json:"authorities"`
	// Token shows who the user is; empty: none was given.
	Token string `json:"token,omitempty"`
}

// maxFile is the size of the largest file that is read, in bytes.
const maxFile = 1 << 20

// Path is where the login of this process's user is: $HOPS_LOGIN, else ~/.hops/login.
func Path() (string, error) {
	if path := os.Getenv("HOPS_LOGIN"); path != "" {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".hops", "login"), nil
}

// Load reads a login, which nobody but its owner may read. fs.ErrNotExist: there is none.
func Load(path string) (*Login, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("login: %s has mode %04o and others could read it: chmod 600 it", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	l := &Login{}
	if len(text) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	} else {
		err = json.Unmarshal(text, l)
	}
	if err == nil {
		_, err = l.Roots()
	}
	if err != nil {
		return nil, fmt.Errorf("login: %s is damaged: %w; run `hops login` again", path, err)
	}
	return l, nil
}

// Roots are the authorities.
func (l *Login) Roots() ([]*x509.Certificate, error) {
	return authority.ParseRoots([]byte(l.Authorities))
}

// None as the name of a file says that the servers are not known, and are spoken to in plain.
const None = "none"

// Dialer connects to the servers of a cluster whose authorities are in the file roots, in PEM; empty: in a container those that it
// was given ($HOPS_AUTHORITY), else those of the user's login, if there is one. None: in plain.
func Dialer(roots string) (*security.Dialer, error) {
	roots = cmp.Or(roots, os.Getenv("HOPS_AUTHORITY"))
	if roots == None {
		return &security.Dialer{Plain: true}, nil
	}
	if roots != "" {
		trust, err := authority.TrustFile(roots)
		if err != nil {
			return nil, fmt.Errorf("the certificates of the cluster's authorities (hops.cluster.roots): %w", err)
		}
		return &security.Dialer{Trust: trust}, nil
	}
	path, err := Path()
	if err != nil {
		return &security.Dialer{}, nil // of a user without a home
	}
	l, err := Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &security.Dialer{}, nil
	}
	if err != nil {
		return nil, err
	}
	known, err := l.Roots()
	if err != nil {
		return nil, err
	}
	trust, err := (&authority.Identity{Roots: known}).Trust()
	if err != nil {
		return nil, err
	}
	return &security.Dialer{Trust: trust}, nil
}
