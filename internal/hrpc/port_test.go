package hrpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// askAt makes a call at an address and returns the error that it ends in.
func askAt(t *testing.T, addrs ...string) error {
	t.Helper()
	f, err := NewFailover(FailoverConfig{DialConfig: DialConfig{Protocol: "p", User: "u"}, Addresses: addrs, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = f.Call(ctx, "p", "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/")}, new(hadooppb.GetFileInfoResponseProto))
	if ctx.Err() != nil {
		t.Errorf("%v: still tried after 30 s", addrs)
	}
	return err
}

func listen(t *testing.T, serve func(net.Listener)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go serve(l)
	return l.Addr().String()
}

// greets serves connections with a few words.
func greets(t *testing.T, words string) string {
	t.Helper()
	return listen(t, func(l net.Listener) {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_, _ = io.WriteString(conn, words)
		}
	})
}

func TestOtherKindsOfPortsAreNamedAtOnce(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	web := httptest.NewServer(hello)
	defer web.Close()
	server := grpc.NewServer()
	defer server.Stop()
	for want, addr := range map[string]string{
		"HTTP": web.Listener.Addr().String(),
		"TLS": listen(t, func(l net.Listener) {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				_, _ = conn.Write([]byte{0x15, 3, 1, 0, 2, 2, 70})
			}
		}),
		"HTTP/2 (gRPC)": listen(t, func(l net.Listener) { _ = server.Serve(l) }),
		"SSH":           greets(t, "SSH-2.0-x\r\n"),
		"what the servers of a cluster speak among themselves": greets(t, "HOPS\x02"+strings.Repeat("n", 32)),
		"something else": greets(t, "220 mail.example ESMTP\r\n"),
		"": listen(t, func(l net.Listener) { // as a datanode's data port
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				_, _ = io.ReadFull(conn, make([]byte, 2))
				conn.Close()
			}
		}),
	} {
		err := askAt(t, addr)
		wrong, ok := errors.AsType[*WrongPortError](err)
		if !ok || wrong.Speaks != want || wrong.Addr != addr || !strings.HasPrefix(err.Error(), addr) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestUnknownHostEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := NewFailover(FailoverConfig{
			DialConfig: DialConfig{Protocol: "p", User: "u", Dial: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.DNSError{Err: "no such host", Name: "nohost", IsNotFound: true}
			}},
			Addresses: []string{"nohost:8020"}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		started := time.Now()
		err = f.Call(t.Context(), "p", "m", new(hadooppb.GetFileInfoRequestProto), new(hadooppb.GetFileInfoResponseProto))
		if err == nil || time.Since(started) > 0 {
			t.Errorf("%v after %v", err, time.Since(started))
		}
	})
}

// A single server that nobody has ever heard of is tried for a second; one of several, or one that has answered before, for
// ten. Whoever asks is told what is waited for.
func TestRefusedConnections(t *testing.T) {
	for _, at := range []struct {
		name      string
		addresses []string
		heard     bool
		explicit  time.Duration
		least     time.Duration
		most      time.Duration
		told      int
	}{
		{name: "single", addresses: []string{"a:1"}, least: time.Second, most: 2 * time.Second},
		{name: "several", addresses: []string{"a:1", "b:1"}, least: 10 * time.Second, most: 11 * time.Second, told: 1},
		{name: "known", addresses: []string{"a:1"}, heard: true, least: 10 * time.Second, most: 11 * time.Second, told: 1},
		{name: "as configured", addresses: []string{"a:1"}, explicit: 5 * time.Second, least: 5 * time.Second, most: 6 * time.Second, told: 1},
	} {
		t.Run(at.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told := 0
				f, err := NewFailover(FailoverConfig{
					DialConfig: DialConfig{Protocol: "p", User: "u", Dial: func(context.Context, string, string) (net.Conn, error) {
						return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
					}},
					Addresses: at.addresses, Unreachable: at.explicit, Logger: slog.New(slog.DiscardHandler),
					Waiting: func(why error) {
						told++
						if !errors.Is(why, syscall.ECONNREFUSED) {
							t.Errorf("waiting for %v", why)
						}
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				f.heard.Store(at.heard)
				started := time.Now()
				err = f.Call(t.Context(), "p", "m", new(hadooppb.GetFileInfoRequestProto), new(hadooppb.GetFileInfoResponseProto))
				took := time.Since(started)
				if _, ok := errors.AsType[*UnreachableError](err); !ok || took < at.least || took > at.most || told > 1 || told < at.told {
					t.Errorf("after %v, told %d times: %v", took, told, err)
				}
			})
		})
	}
}
