package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gohops/hops/nodemanager/shell"
)

// TerminalSize is that of a terminal, in characters.
type TerminalSize = shell.Size

// Terminal is what a program of Exec has in place of standard output and standard error.
type Terminal struct {
	// Kind is for TERM, "xterm-256color"; empty: what the container says.
	Kind string
	Size TerminalSize
	// Resize tells other sizes; may be nil.
	Resize <-chan TerminalSize
}

// ExecOptions say what Exec runs.
type ExecOptions struct {
	// Argv is the command, at most 32 KiB. Argv[0] without a slash is looked up in the container's PATH.
	Argv []string
	// Stdin is the program's standard input; nil: it is empty. A read of it may still wait when Exec has returned.
	Stdin io.Reader
	// Stdout and Stderr take what it writes; with a Terminal all goes to Stdout. nil: it is dropped.
	Stdout, Stderr io.Writer
	// Terminal gives it a terminal; nil: it has none.
	Terminal *Terminal
}

// ExecResult is how a program of Exec has ended.
type ExecResult struct {
	// Status is its exit status: 128 and the signal for one that a signal ended, 126 and 127 for one that did not start.
	Status int
	// Note is for people: why it did not start, or that the container has ended. Mostly empty.
	Note string
}

// Exec runs a program in a container of a job that runs, beside what the container is for: with the same user, limits, GPUs, files and
// environment, in its work directory. It needs the right of the job's user or of an administrator, and speaks with the container's
// node manager itself. An error means that the program was not begun (*Error: what the node manager says), or that the session broke
// off, which ends the program: the context is done, or for 30 seconds nothing was heard.
func (c *Client) Exec(ctx context.Context, k JobContainer, o ExecOptions) (ExecResult, error) {
	if !strings.Contains(k.Node, ":") {
		return ExecResult{}, fmt.Errorf("container %s: no address of node %s", k.ID, k.Node)
	}
	q := shell.Request{Argv: o.Argv, Stdin: o.Stdin != nil}
	s := shell.Streams{Stdin: o.Stdin, Stdout: orDrop(o.Stdout), Stderr: orDrop(o.Stderr)}
	if t := o.Terminal; t != nil {
		q.Terminal, q.Term, q.Size, s.Resize = true, t.Kind, t.Size, t.Resize
	}
	if err := q.Check(); err != nil {
		return ExecResult{}, &Error{Status: http.StatusBadRequest, Title: http.StatusText(http.StatusBadRequest), Message: err.Error()}
	}
	text, err := json.Marshal(q)
	if err != nil {
		return ExecResult{}, err
	}
	address := c.rest.target(c.rest.scheme+"://"+k.Node, "/api/v1/containers/"+url.PathEscape(k.ID)+"/exec")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(text))
	if err != nil {
		return ExecResult{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", shell.Protocol)
	answer, err := c.rest.nodes.Do(request)
	if err != nil {
		return ExecResult{}, fmt.Errorf("the node manager of %s: %w", k.ID, err)
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return ExecResult{}, readError(answer)
	}
	conn, ok := answer.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(answer.Header.Get("Upgrade"), shell.Protocol) {
		return ExecResult{}, errors.Join(fmt.Errorf("the node manager of %s speaks %.40q", k.ID, answer.Header.Get("Upgrade")), answer.Body.Close())
	}
	status, note, err := shell.Attach(ctx, conn, s)
	return ExecResult{status, note}, err
}

func orDrop(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
