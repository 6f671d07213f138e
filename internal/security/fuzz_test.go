package security

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/authority"
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
		found, err := parseDiag(answer)
		if err != nil {
			return
		}
		if len(answer) < diagHeader+72 || binary.NativeEndian.Uint16(answer[4:]) != sockDiagByFamily || found != (diagnosed{
			uid: binary.NativeEndian.Uint32(answer[diagHeader+64:]), orphan: binary.NativeEndian.Uint32(answer[diagHeader+68:]) == 0, listens: answer[diagHeader+1] == tcpListen,
		}) {
			t.Errorf("%+v of %x", found, answer)
		}
	})
}

// Whoever knows no key gets past neither end of a handshake, whatever it sends, and holds nobody up when it stops.
func FuzzHandshake(f *testing.F) {
	server := joined(f, founded(f), authority.Namenode)
	keys := Keyring{Member: server.Member, Token: func(id string) (string, bool) { return "sesame", id == "container_1" }}
	f.Add([]byte{})
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"))
	f.Add(bytes.Repeat([]byte{0xff}, 300))
	f.Fuzz(func(t *testing.T, hostile []byte) {
		for side, handshake := range map[string]func(net.Conn) error{
			"acceptor": func(c net.Conn) error { _, _, err := keys.challenge(c, nil); return err },
			"dialer":   func(c net.Conn) error { _, err := server.Key().prove(t.Context(), c); return err },
		} {
			ours, theirs := net.Pipe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer theirs.Close()
				go io.Copy(io.Discard, theirs)
				theirs.Write(hostile)
			}()
			if err := handshake(ours); err == nil {
				t.Errorf("the %s believes who knows no key", side)
			}
			ours.Close()
			<-done
		}
	})
}
