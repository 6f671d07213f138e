// Package login is what a user has of a cluster on a machine that is none of its servers: a file with the addresses of its servers,
// the certificates by which they are known, and the user's token. `hops login` and `hops user token` write it; the command,
// the Go client and the Python package (client/python/hops/_login.py) read it. docs/reference/contracts.md describes the format.
package login

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
)

// Variable names another file than the one in the home directory.
const Variable = "HOPS_LOGIN"

const (
	version = 1
	// maxFile is the size of the largest file, in bytes.
	maxFile = 256 << 10
	// maxServers of each kind.
	maxServers = 100
)

// File is a login.
type File struct {
	// Version of the format, 1.
	Version int `json:"version"`
	// Cluster is the cluster's id.
	Cluster string `json:"cluster"`
	// Authorities are the certificates of the cluster's authorities, in PEM. Nobody else is taken for a server of the cluster.
	Authorities string `json:"authorities"`
	// Namenodes and ResourceManagers are the servers that users reach.
	Namenodes        []Namenode `json:"namenodes"`
	ResourceManagers []string   `json:"resource_managers"`
	// User is who the token is of, and ID what it is called.
	User  string `json:"user,omitempty"`
	ID    string `json:"id,omitempty"`
	Token string `json:"token,omitempty"`
	// Expires is when the token ends.
	Expires time.Time `json:"expires,omitzero"`

	trust *authority.Trust
}

// Namenode is where a namenode is reached: host:port each.
type Namenode struct {
	HTTP string `json:"http"`
	IPC  string `json:"ipc"`
}

// ErrNone: nobody has logged in here.
var ErrNone = errors.New("nobody has logged in on this machine: run `hops login`")

// Path is where the file is: $HOPS_LOGIN, else .hops/login in the home directory.
func Path() (string, error) {
	if path := os.Getenv(Variable); path != "" {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".hops", "login"), nil
}

// Parse reads a login. Half of one is an error.
func Parse(text []byte) (*File, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("%d bytes, %d are allowed", len(text), maxFile)
	}
	f := &File{}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(f); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("it is cut off: run `hops login` again")
		}
		return nil, fmt.Errorf("it is not a login: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows its end: run `hops login` again")
	}
	if f.Version != version {
		return nil, fmt.Errorf("it has version %d, this program reads version %d: run `hops login` again", f.Version, version)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) check() error {
	roots, err := authority.ParseRoots([]byte(f.Authorities))
	if err != nil {
		return fmt.Errorf("the certificates of the cluster's authorities: %w", err)
	}
	if f.trust, err = (&authority.Identity{Roots: roots}).Trust(); err != nil {
		return fmt.Errorf("the certificates of the cluster's authorities: %w", err)
	}
	if f.Cluster != f.trust.Cluster {
		return fmt.Errorf("it is for cluster %q, and its certificates are of %s", f.Cluster, f.trust.Cluster)
	}
	if len(f.Namenodes) == 0 || len(f.Namenodes) > maxServers || len(f.ResourceManagers) > maxServers {
		return fmt.Errorf("%d namenodes and %d resource managers; there is at least one namenode, and up to %d of each", len(f.Namenodes), len(f.ResourceManagers), maxServers)
	}
	addresses := append([]string(nil), f.ResourceManagers...)
	for _, n := range f.Namenodes {
		addresses = append(addresses, n.HTTP, n.IPC)
	}
	for _, a := range addresses {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return fmt.Errorf("%q is not host:port", a)
		}
	}
	if strings.ContainsFunc(f.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the token has characters that no token has")
	}
	return nil
}

// Load reads a file, which nobody but its owner, who runs this process, may read. ErrNone: there is none.
func Load(path string) (*File, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("login %s is no file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("login %s has mode %04o and others could read the token: chmod 600 it; if others are on this machine, revoke it and log in again", path, mode)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("login %s belongs to the user with the id %d, this process runs as %d: log in yourself", path, s.Uid, os.Geteuid())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	f, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("login %s: %w", path, err)
	}
	return f, nil
}

// Marshal is the file's text.
func (f *File) Marshal() ([]byte, error) {
	f.Version = version
	if err := f.check(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(f, "", "  ")
	return append(text, '\n'), err
}

// Write replaces a file at once, with mode 0600; its folder is made with mode 0700.
func (f *File) Write(path string) error {
	text, err := f.Marshal()
	if err != nil {
		return err
	}
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	out, err := os.CreateTemp(folder, ".login-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	if err == nil {
		err = out.Sync()
	}
	err = errors.Join(err, out.Close())
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(out.Name()))
	}
	return nil
}

// Expired says that the token has ended by this machine's clock, in words for its user; nil: it has not, or there is none.
func (f *File) Expired(now time.Time) error {
	if f.Token == "" || f.Expires.IsZero() || now.Before(f.Expires) {
		return nil
	}
	return fmt.Errorf("your login expired at %s: run `hops login` again", f.Expires.Local().Format(time.DateTime))
}

// Dial connects to a server of the cluster with the role, by TLS.
func (f *File) Dial(ctx context.Context, addr string, role authority.Role) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	v := authority.Visitor{Trust: f.trust, Now: time.Now}
	t, _, err := v.Connect(ctx, c, authority.Door{Roles: []authority.Role{role}, Strangers: true}, nil)
	if err != nil {
		return nil, security.Remedy(err) // and no Conn that is nil
	}
	return t, nil
}

// Transport sends requests to servers with the role, by TLS and with the token. It sends nothing in plain, and follows no environment
// variable for proxies. patience is how long the beginning of an answer may take; 0: any time.
func (f *File) Transport(role authority.Role, patience time.Duration) http.RoundTripper {
	return &transport{f, &http.Transport{
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connecting)
			defer cancel()
			return f.Dial(ctx, addr, role)
		},
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: patience,
	}}
}

// connecting bounds connecting to a server.
const connecting = 10 * time.Second

type transport struct {
	login *File
	*http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("%s://%s is not https: the token is not sent there", r.URL.Scheme, r.URL.Host)
	}
	if t.login.Token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.login.Token)
	}
	return t.Transport.RoundTrip(r)
}

// First makes the login of a cluster of which the fingerprint of an authority is known: it connects to a server with the role of
// a namenode, which shows that authority. The login has no token and no addresses but this server's.
func First(ctx context.Context, addr string, fingerprint authority.Fingerprint) (*File, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	v := authority.Visitor{Authority: fingerprint, Now: time.Now}
	t, root, err := v.Connect(ctx, c, authority.Door{Roles: []authority.Role{authority.Namenode}, Strangers: true}, nil)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	roots := []*x509.Certificate{root}
	trust, err := (&authority.Identity{Roots: roots}).Trust()
	if err != nil {
		return nil, err
	}
	f := &File{Version: version, Cluster: trust.Cluster, Authorities: string(authority.MarshalRoots(roots)), Namenodes: []Namenode{{HTTP: addr, IPC: addr}}}
	return f, f.check()
}
