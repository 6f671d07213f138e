package security

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func TestKernelKnowsWhoListens(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Logf("%s: %v", at, err) // no IPv6
			continue
		}
		port := l.Addr().(*net.TCPAddr).AddrPort().Port()
		ip := netip.MustParseAddr("127.0.0.1")
		if at == "[::1]:0" {
			ip = netip.MustParseAddr("::1")
		}
		uid, err := ListenerOwner(netip.AddrPortFrom(ip, port))
		if err != nil || uid != uint32(os.Geteuid()) {
			t.Errorf("%s: the listener is of user %d, %v", at, uid, err)
		}
		l.Close()
		if uid, err := ListenerOwner(netip.AddrPortFrom(ip, port)); err == nil {
			t.Errorf("%s: a listener that is gone is of user %d", at, uid)
		}
	}
}

// A Unix-domain socket behind a Door has an owner, a place, and no TLS; the kernel sends files to it.
func TestGuardedLocalSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	raw, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	door := NewDoor(Config{})
	l := door.Guard(raw, Doorway{Name: "test"})
	defer l.Close()
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p := door.Peer(server)
	if p.Err() != nil || p.UID() != uint32(os.Geteuid()) || !p.Local() || p.Refused() != nil || !door.Carries(p) {
		t.Fatalf("peer %+v, %v", p, p.Err())
	}
	if Local(server) == nil || !Plain(server) {
		t.Fatal("the socket is not seen")
	}
	if uid, err := SocketUser(client.(*net.UnixConn)); err != nil || uid != uint32(os.Geteuid()) {
		t.Fatalf("user %d listens, %v", uid, err)
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(5, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	const n = 1<<20 - 100
	go func() {
		sent, err := server.(io.ReaderFrom).ReadFrom(&io.LimitedReader{R: f, N: n})
		if err == nil && sent != n {
			err = io.ErrShortWrite
		}
		server.Close()
		done <- err
	}()
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, want[5:5+n]) {
		t.Errorf("%d bytes came, %v", len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Bytes of TLS's handshake mean nothing on a Unix-domain socket: they are the protocol's.
func TestGuardedLocalSocketTakesNoTLS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	raw, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := NewDoor(Config{}).Guard(raw, Doorway{Name: "test"})
	defer l.Close()
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := client.Write([]byte{tlsHandshake, 3, 1}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(server, got); err != nil || got[0] != tlsHandshake {
		t.Fatalf("%x, %v", got, err)
	}
}
