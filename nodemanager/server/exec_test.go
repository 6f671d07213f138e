package server

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/shell"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// exec asks for a session; conn is nil when there is none.
func (n *node) exec(id, user, document string, header map[string]string) (code int, text string, conn io.ReadWriteCloser) {
	n.t.Helper()
	r, err := http.NewRequest(http.MethodPost, n.url+"/api/v1/containers/"+id+"/exec?user.name="+user, strings.NewReader(document))
	if err != nil {
		n.t.Fatal(err)
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return answer.StatusCode, "", answer.Body.(io.ReadWriteCloser)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), nil
}

func TestSessionsOverHTTP(t *testing.T) {
	m := newManager(t, "")
	n := run(t, baseConfig(t, t.TempDir(), m.address))
	s := spec(t, 2, "sleep", "1000")
	m.start(s)
	id := s.ContainerId
	m.untilState(id, rmpb.ContainerStatus_RUNNING)
	theirs := spec(t, 3, "sleep", "1000")
	theirs.User = "alice"
	m.start(theirs)
	m.untilState(theirs.ContainerId, rmpb.ContainerStatus_RUNNING)
	over := spec(t, 4, "true")
	m.start(over)
	m.untilState(over.ContainerId, rmpb.ContainerStatus_COMPLETE)

	upgrade := map[string]string{"Connection": "Upgrade", "Upgrade": shell.Protocol}
	for _, test := range []struct {
		name, id, user, document string
		header                   map[string]string
		code                     int
		want                     string
	}{
		{"nobody", id, "", `{"argv":["true"]}`, upgrade, 403, "may not run anything in container " + id},
		{"a container that is not here", containerName(99), me(), `{"argv":["true"]}`, upgrade, 404, "no container " + containerName(99)},
		{"no container", "..%2F..", me(), `{"argv":["true"]}`, upgrade, 404, "no container"},
		{"one that has ended", over.ContainerId, me(), `{"argv":["true"]}`, upgrade, 409, "COMPLETE"},
		{"no upgrade", id, me(), `{"argv":["true"]}`, nil, 426, shell.Protocol},
		{"another protocol", id, me(), `{"argv":["true"]}`, map[string]string{"Connection": "Upgrade", "Upgrade": "websocket"}, 426, shell.Protocol},
		{"no command", id, me(), `{}`, upgrade, 400, "no command"},
		{"no JSON", id, me(), `x`, upgrade, 400, "invalid"},
		{"two documents", id, me(), `{"argv":["true"]}{}`, upgrade, 400, "follows"},
		{"a member that there is not", id, me(), `{"argv":["true"],"user":"root"}`, upgrade, 400, "user"},
		{"too large", id, me(), `{"argv":["` + strings.Repeat("x", maxExec) + `"]}`, upgrade, 400, "large"},
	} {
		code, text, conn := n.exec(test.id, test.user, test.document, test.header)
		if conn != nil {
			conn.Close()
		}
		if code != test.code || !strings.Contains(text, test.want) {
			t.Errorf("%s: %d %s, want %d %q", test.name, code, text, test.code, test.want)
		}
	}
	code, text, conn := n.exec(theirs.ContainerId, me(), `{"argv":["sh","-c","cat; exit 7"],"stdin":true}`, upgrade) // an administrator
	if conn == nil {
		t.Fatalf("no session: %d %s", code, text)
	}
	var out bytes.Buffer
	input := strings.Repeat("x", 300_000)
	if status, _, err := shell.Attach(t.Context(), conn, shell.Streams{Stdin: strings.NewReader(input), Stdout: &out, Stderr: io.Discard}); status != 7 || err != nil || out.String() != input {
		t.Errorf("%d %v, %d bytes", status, err, out.Len())
	}

	// What runs when the node manager stops ends, and its container goes on.
	_, _, conn = n.exec(id, me(), `{"argv":["sh","-c","echo $$ > shell; echo ready; exec sleep 1000"]}`, upgrade)
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		_, _, err := shell.Attach(t.Context(), conn, shell.Streams{Stdout: writer(sync.OnceFunc(func() { close(ready) })), Stderr: io.Discard})
		ended <- err
	}()
	<-ready
	pid := pidIn(t, n.config.Work, 2, "shell")
	n.close(false)
	if err := <-ended; err == nil || !strings.Contains(fmt.Sprint(err), "broke off") {
		t.Errorf("the session: %v", err)
	}
	eventually(t, "the program of the session ends", func() bool { return !lives(pid) })
	again := run(t, func() Config { c := baseConfig(t, n.config.Work, m.address); return c }())
	eventually(t, "the container is adopted", func() bool {
		c := again.find(nodemanager.ContainerID(id))
		if c == nil {
			return false
		}
		r, _, _ := c.view()
		return r.State == nodemanager.Running
	})
	_, _, conn = again.exec(id, me(), `{"argv":["true"]}`, upgrade)
	if conn == nil {
		t.Fatal("no session in an adopted container")
	}
	if status, _, err := shell.Attach(t.Context(), conn, shell.Streams{Stdout: io.Discard, Stderr: io.Discard}); status != 0 || err != nil {
		t.Errorf("%d %v", status, err)
	}
}

// writer calls when something is written.
type writer func()

func (w writer) Write(p []byte) (int, error) { w(); return len(p), nil }

// TestASessionIsInTheContainerThatWasThere begins a request before its container is here: who sends the rest of it when somebody else's has
// come under the name gets no session in that.
func TestASessionIsInTheContainerThatWasThere(t *testing.T) {
	m := newManager(t, "")
	n := run(t, baseConfig(t, t.TempDir(), m.address))
	s := spec(t, 2, "sleep", "1000")
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	document := `{"argv":["true"]}`
	fmt.Fprintf(conn, "POST /api/v1/containers/%s/exec?user.name=bob HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %d\r\n"+
		"Expect: 100-continue\r\n\r\n", s.ContainerId, shell.Protocol, len(document))
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil || answer.StatusCode != http.StatusContinue { // the document is read, so the right has been judged
		t.Fatal(answer, err)
	}
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	io.WriteString(conn, document)
	answer, err = http.ReadResponse(in, nil)
	if err != nil || answer.StatusCode != http.StatusNotFound {
		t.Error(answer, err)
	}
}
