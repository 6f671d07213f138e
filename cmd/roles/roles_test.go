package roles

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/gohops/hops/internal/config"
)

// A client is in use when the list of namenodes changes, and stays so.
func TestACallOutlivesTheListOfNamenodes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			asked <- c
		}
	}()
	at := func(addr string) config.Servers {
		return config.Servers{Namenodes: []config.NamenodeMember{{ID: "a", IPC: addr}}}
	}
	b := &Builder{File: &config.File{}, Logger: slog.New(slog.DiscardHandler), membership: &membership{servers: at(l.Addr().String())}}
	get := b.keptFilesystem()
	before, err := get()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := before.Stat(ctx, "/")
		ended <- err
	}()
	defer (<-asked).Close()
	b.membership.relist(at("127.0.0.1:1"))
	after, err := get()
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	if same, err := get(); err != nil || same != after || after == before {
		t.Errorf("another list has the client of before, or a new one each time: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a call under way ended with %v", err)
	}
}
