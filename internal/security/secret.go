package security

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

const (
	secretBytes      = 32
	secretHeader     = "hops-secret"
	handshakeTimeout = 5 * time.Second
)

// Secret is what the servers of one cluster share. The zero value matches nothing.
type Secret struct{ key []byte }

// NewSecret draws a secret.
func NewSecret() Secret {
	key := make([]byte, secretBytes)
	rand.Read(key) // never fails (crypto/rand)
	return Secret{key}
}

// CreateSecret draws a secret and stores it in a new file of mode 0600. fs.ErrExist: there is one already.
func CreateSecret(path string) (Secret, error) {
	s := NewSecret()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Secret{}, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Secret{}, fmt.Errorf("cluster secret: %w", err)
	}
	_, err = f.WriteString(hex.EncodeToString(s.key) + "\n")
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return Secret{}, fmt.Errorf("cluster secret: %w", err)
	}
	return s, nil
}

// LoadSecret reads a secret's file, which nobody but its owner may read.
func LoadSecret(path string) (Secret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Secret{}, fmt.Errorf("cluster secret: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Secret{}, fmt.Errorf("cluster secret %s has mode %04o and others could read it: chmod 600 it", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Secret{}, fmt.Errorf("cluster secret: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != secretBytes {
		return Secret{}, fmt.Errorf("cluster secret %s is not %d bytes in hexadecimal", path, secretBytes)
	}
	return Secret{key}, nil
}

// LoadOrCreateSecret reads a secret's file, which it makes first if create is set and there is none.
func LoadOrCreateSecret(path string, create bool) (Secret, error) {
	s, err := LoadSecret(path)
	if err != nil && create && errors.Is(err, fs.ErrNotExist) {
		s, err = CreateSecret(path)
		if errors.Is(err, fs.ErrExist) { // another server of this machine was faster
			return LoadSecret(path)
		}
	}
	return s, err
}

// proof is what shows knowledge of the secret for one purpose without telling it.
func (s Secret) proof(purpose string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, s.key)
	io.WriteString(h, purpose)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// maxGRPCHeaders bounds the headers of a gRPC call, in bytes.
const maxGRPCHeaders = 64 << 10

// GRPCServerOptions refuse calls of those who lack the secret, before anything of the message is read. Services named in
// exempt (full names, without methods) authenticate their callers themselves.
func (s Secret) GRPCServerOptions(exempt ...string) []grpc.ServerOption {
	want := hex.EncodeToString(s.proof("grpc"))
	return []grpc.ServerOption{
		grpc.MaxHeaderListSize(maxGRPCHeaders),
		// A tap sees a call when its headers have come; interceptors would see it with its message decoded.
		grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
			for _, service := range exempt {
				if strings.HasPrefix(call.FullMethodName, "/"+service+"/") {
					return ctx, nil
				}
			}
			got := call.Header.Get(secretHeader)
			if len(s.key) == 0 || len(got) != 1 || subtle.ConstantTimeCompare([]byte(got[0]), []byte(want)) != 1 {
				return nil, status.Error(codes.Unauthenticated, "the caller does not know this cluster's secret")
			}
			return ctx, nil
		}),
	}
}

// GRPCDialOptions show the secret to servers that ask for it.
func (s Secret) GRPCDialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(secretCredentials(hex.EncodeToString(s.proof("grpc")))),
	}
}

type secretCredentials string

func (c secretCredentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{secretHeader: string(c)}, nil
}

func (secretCredentials) RequireTransportSecurity() bool { return false }

// WrapListener makes accepted connections prove the secret before their first byte is read or written, and bounds their
// number. Accept itself does not wait for the proof.
func (s Secret) WrapListener(l net.Listener) net.Listener {
	return secretListener{LimitConnections(l, 0), s}
}

type secretListener struct {
	net.Listener
	secret Secret
}

func (l secretListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &secretConn{Conn: c, secret: l.secret, server: true}, nil
}

// Dial connects to a wrapped listener.
func (s Secret) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	sc := &secretConn{Conn: c, secret: s}
	if err := sc.handshake(); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return sc, nil
}

// secretConn proves the secret in both directions before anything else:
//
//	server -> client  nonce S [32]
//	client -> server  nonce C [32] | HMAC(secret, "client" S C)
//	server -> client  HMAC(secret, "server" C S)
type secretConn struct {
	net.Conn
	secret Secret
	server bool
	once   sync.Once
	err    error
}

var errProof = errors.New("the peer does not know this cluster's secret")

func (c *secretConn) handshake() error {
	c.once.Do(func() {
		c.Conn.SetDeadline(time.Now().Add(handshakeTimeout))
		defer c.Conn.SetDeadline(time.Time{})
		if c.server {
			c.err = c.challenge()
		} else {
			c.err = c.respond()
		}
		if c.err != nil {
			c.Conn.Close()
		}
	})
	return c.err
}

func (c *secretConn) challenge() error {
	nonce := make([]byte, 32)
	rand.Read(nonce)
	if _, err := c.Conn.Write(nonce); err != nil {
		return err
	}
	answer := make([]byte, 64)
	if _, err := io.ReadFull(c.Conn, answer); err != nil {
		return err
	}
	if len(c.secret.key) == 0 || !hmac.Equal(answer[32:], c.secret.proof("client", nonce, answer[:32])) {
		return errProof
	}
	_, err := c.Conn.Write(c.secret.proof("server", answer[:32], nonce))
	return err
}

func (c *secretConn) respond() error {
	theirs := make([]byte, 32)
	if _, err := io.ReadFull(c.Conn, theirs); err != nil {
		return err
	}
	nonce := make([]byte, 32)
	rand.Read(nonce)
	if _, err := c.Conn.Write(append(nonce, c.secret.proof("client", theirs, nonce)...)); err != nil {
		return err
	}
	proof := make([]byte, 32)
	if _, err := io.ReadFull(c.Conn, proof); err != nil {
		return errProof
	}
	if !hmac.Equal(proof, c.secret.proof("server", nonce, theirs)) {
		return errProof
	}
	return nil
}

func (c *secretConn) Read(p []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *secretConn) Write(p []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
