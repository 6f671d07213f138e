package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/shell"
	"github.com/gohops/hops/nodemanager/supervisor"
)

const (
	// maxExec bounds the document of a session, in bytes: each byte of a command takes six at most.
	maxExec = 256 << 10
	// execPatience is how long a supervisor may take to begin a session.
	execPatience = 30 * time.Second
	// closing is how long a client may take to hear the end of its session and to close the connection.
	closing = 5 * time.Second
)

// exec begins a session in a container and carries its frames between the client and the container's supervisor, which reads them.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), shell.Protocol) || !strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade") {
		w.Header().Set("Upgrade", shell.Protocol)
		w.Header().Set("Connection", "Upgrade")
		problem(w, http.StatusUpgradeRequired, "a session is a connection of HTTP/1.1 that is upgraded to "+shell.Protocol)
		return
	}
	var q shell.Request
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec))
	d.DisallowUnknownFields()
	err := d.Decode(&q)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the document")
		}
	}
	if err == nil {
		err = q.Check()
	}
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	id := nodemanager.ContainerID(r.PathValue("container"))
	c := asked(r)
	if c == nil {
		problem(w, http.StatusNotFound, "this node has no container "+nodemanager.Shorten(string(id), 100))
		return
	}
	if record, _, _ := c.view(); record.State != nodemanager.Running {
		problem(w, http.StatusConflict, fmt.Sprintf("container %s is %s: a session needs one that is %s", id, record.State, nodemanager.Running))
		return
	}
	caller, _ := s.config.Door.HTTPCaller(r)
	leave, ok := s.shells.enter(caller.User)
	if !ok {
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusTooManyRequests, "too many sessions run on this node: end some")
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), execPatience)
	far, err := c.client.Exec(ctx, q)
	cancel()
	if err != nil {
		problem(w, http.StatusConflict, fmt.Sprintf("no session in container %s: %v", id, noSession(err)))
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		problem(w, http.StatusInternalServerError, "this connection cannot be upgraded")
		return
	}
	defer near.Close()
	stop := context.AfterFunc(r.Context(), func() { // this node manager stops
		near.Close()
		far.Close()
	})
	defer stop()
	c.log.Info("session", "caller", caller.User, "terminal", q.Terminal)
	_ = near.SetDeadline(time.Time{}) // the server's are for requests
	if _, err := fmt.Fprintf(near, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", shell.Protocol); err == nil {
		carry(near, buffered.Reader, far)
	}
}

// noSession is in words for people why a supervisor begins no session.
func noSession(err error) error {
	switch {
	case errors.Is(err, supervisor.ErrGone):
		return errors.New("it has ended")
	case strings.HasPrefix(err.Error(), "no such request"):
		return errors.New("it was started by an older version, which has none")
	}
	return err
}

// carry copies both ways until both sides have ended, or the client has gone: one that says nothing for longer than it may is given up
// here too, because nothing may be heard of the supervisor's side while the client takes nothing.
func carry(near net.Conn, in *bufio.Reader, far net.Conn) {
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer near.Close()
		defer far.Close()
		buffer := make([]byte, shell.MaxData)
		for wanted := true; ; {
			if !over.Load() {
				_ = near.SetReadDeadline(time.Now().Add(shell.Patience))
			}
			n, err := in.Read(buffer)
			if n > 0 && wanted {
				_, failed := far.Write(buffer[:n])
				wanted = failed == nil // the program has ended, and its last frame is on its way
			}
			if err != nil {
				return
			}
		}
	}()
	_, _ = io.Copy(near, far)
	// Closing a connection on which frames of the client are unread would take the last one from the client, so it closes first.
	over.Store(true)
	_ = near.SetReadDeadline(time.Now().Add(closing))
	<-ended
}
