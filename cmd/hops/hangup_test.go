package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
)

// What a process has open stays open for as long as a disk keeps one of its threads: nobody may take that for a server that is slow.
func TestNobodyWaitsForAProcessThatCannotEnd(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "socket")} {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		ended := make(chan error, 1)
		go func() {
			_, err := client.Read(make([]byte, 1))
			ended <- err
		}()
		time.Sleep(time.Millisecond) // either way it ends
		hangUp()
		if err := <-ended; !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: who is connected hears %v", network, err)
		}
		if c, err := net.Dial(network, l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: who connects: %v, %v", network, c, err)
		}
	}
}

// While the reason is said, which a disk may keep up, more connections come, and parts end because their listeners were shut down: that is no reason.
func TestNobodySaysASecondReason(t *testing.T) {
	defer dying.Store(false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := cause(io.ErrShortWrite, 0); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a part's own reason is %v", err)
	}
	var client, server net.Conn
	var second error
	exited := make(chan int, 1)
	die(func() {
		_, err := l.Accept()
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a listener that was hung up on: %v", err)
		}
		second = cause(err, 0)
		again, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { again.Close() })
		if client, err = net.Dial("tcp", again.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if server, err = again.Accept(); err != nil {
			t.Fatal(err)
		}
	}, func(code int) { exited <- code })
	defer client.Close()
	defer server.Close()
	if code := <-exited; code != exitFailed {
		t.Errorf("exit status %d", code)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("who connected meanwhile hears %v", err)
	}
	var said strings.Builder
	if code := ended(t.Context(), second, &said); code != exitFailed || said.Len() > 0 {
		t.Errorf("the parts' end is status %d, and says %q", code, said.String())
	}
}

// That profiles are not served any more is no error of a process that ends.
func TestNobodyComplainsOfAListenerThatWasHungUpOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hungUp.Store(false)
	var said strings.Builder // of one goroutine, which has ended when it is read
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		logger := slog.New(slog.NewTextHandler(&said, nil))
		serveProfiles(security.NewDoor(security.Config{Logger: logger}), l, logger)
	}()
	for conn, err := net.Dial("tcp", l.Addr().String()); err == nil; conn, err = net.Dial("tcp", l.Addr().String()) { // it is there, and then not
		conn.Close()
		hangUp()
	}
	<-ended
	if said.Len() > 0 {
		t.Errorf("it says %s", said.String())
	}
}
