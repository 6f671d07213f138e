package security

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel's answer names a user only when it is one, of a socket that somebody has.
func FuzzDiag(f *testing.F) {
	answer := make([]byte, diagHeader+72)
	binary.NativeEndian.PutUint16(answer[4:], sockDiagByFamily)
	f.Add(answer)
	owned := bytes.Clone(answer)
	owned[diagHeader+64], owned[diagHeader+68] = 77, 5 // uid, inode
	f.Add(owned)
	missing := bytes.Clone(answer[:diagHeader+4])
	binary.NativeEndian.PutUint16(missing[4:], unix.NLMSG_ERROR)
	binary.NativeEndian.PutUint32(missing[diagHeader:], ^uint32(unix.ENOENT)+1)
	f.Add(missing)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, answer []byte) {
		uid, err := parseDiag(answer)
		if err != nil {
			return
		}
		if len(answer) < diagHeader+72 || binary.NativeEndian.Uint16(answer[4:]) != sockDiagByFamily ||
			binary.NativeEndian.Uint32(answer[diagHeader+68:]) == 0 || binary.NativeEndian.Uint32(answer[diagHeader+64:]) != uid {
			t.Errorf("user %d of %x", uid, answer)
		}
	})
}

// Whoever does not know the secret gets past neither end of a handshake, whatever it sends, and holds nobody up when it
// stops.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 32))
	f.Add(make([]byte, 64))
	f.Add(bytes.Repeat([]byte{0xff}, 96))
	secret := NewSecret()
	f.Add(append(make([]byte, 32), secret.proof("client", make([]byte, 32), make([]byte, 32))...)) // of another nonce
	f.Fuzz(func(t *testing.T, hostile []byte) {
		for _, server := range []bool{true, false} {
			ours, theirs := net.Pipe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer theirs.Close()
				go io.Copy(io.Discard, theirs)
				theirs.Write(hostile)
			}()
			c := &secretConn{Conn: ours, secret: secret, server: server}
			n, err := c.Read(make([]byte, 1))
			if err == nil || n != 0 {
				t.Errorf("server %v: read %d bytes of a peer without the secret", server, n)
			}
			if _, err := c.Write([]byte("x")); err == nil {
				t.Errorf("server %v: wrote to a peer without the secret", server)
			}
			ours.Close()
			<-done
		}
	})
}

// The same two ends understand each other when both know it: what FuzzHandshake shows is not that nothing works.
func TestHandshakeOverAPipe(t *testing.T) {
	secret := NewSecret()
	a, b := net.Pipe()
	client, server := &secretConn{Conn: a, secret: secret}, &secretConn{Conn: b, secret: secret, server: true}
	go client.Write([]byte("hello"))
	buf := make([]byte, 5)
	if _, err := io.ReadFull(server, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%q, %v", buf, err)
	}
	stranger, server2 := net.Pipe()
	go (&secretConn{Conn: stranger, secret: NewSecret()}).Write([]byte("hello"))
	c := &secretConn{Conn: server2, secret: secret, server: true}
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(buf); !errors.Is(err, errProof) {
		t.Errorf("a stranger: %v", err)
	}
}
