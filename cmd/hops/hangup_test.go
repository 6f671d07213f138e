package main

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
