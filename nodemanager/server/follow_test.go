package server

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func get(t *testing.T, url string) *http.Response {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	return r
}

func TestOutputIsSeenWhileTheContainerRuns(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	n := run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second; echo err >&2")
	m.start(s)
	log := n.url + "/api/v1/containers/" + s.ContainerId + "/logs/"
	as := "?user.name=" + me()
	live := get(t, log+"stdout"+as+"&follow=true") // perhaps before the command has begun
	if live.StatusCode != http.StatusOK || live.Header.Get("Hops-Log-Offset") != "0" {
		t.Fatalf("%s %v", live.Status, live.Header)
	}
	lines := bufio.NewReader(live.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" { // it still runs: nobody has said go
		t.Fatalf("%q %v", line, err)
	}
	if got, _ := io.ReadAll(get(t, log+"stdout"+as).Body); string(got) != "first\n" {
		t.Errorf("without follow: %q", got)
	}
	if err := os.WriteFile(filepath.Join(work, "containers", s.ContainerId, "work", "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(lines); string(rest) != "second\n" || err != nil {
		t.Errorf("the rest: %q %v", rest, err)
	}
	tail := get(t, log+"stdout"+as+"&follow=1&offset=-4")
	if got, err := io.ReadAll(tail.Body); string(got) != "ond\n" || err != nil || tail.Header.Get("Hops-Log-Offset") != "9" {
		t.Errorf("the end of an ended one: %q %v %v", got, err, tail.Header)
	}
	for url, want := range map[string]int{
		log + "stdout": http.StatusForbidden, log + "stdout?user.name=eve": http.StatusForbidden, log + "stdout" + as + "&offset=99": http.StatusRequestedRangeNotSatisfiable,
		log + "stdout" + as + "&offset=x": http.StatusBadRequest, log + "stdout" + as + "&follow=maybe": http.StatusBadRequest,
		n.url + "/api/v1/containers/container_1_0001_01_000009/logs/stdout" + as: http.StatusNotFound,
	} {
		if got := get(t, url); got.StatusCode != want {
			t.Errorf("%s: %s, want %d", url, got.Status, want)
		}
	}
}

func TestAnOutputThatIsNotCompleteBreaksOff(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	c := baseConfig(t, work, m.address)
	c.NodeID = os.Getenv(nodeVariable)
	n := run(t, c)
	s := spec(t, 2, "sh", "-c", "echo first; sleep 100")
	m.start(s)
	live := get(t, n.url+"/api/v1/containers/"+s.ContainerId+"/logs/stdout?follow=true&user.name="+me())
	lines := bufio.NewReader(live.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" {
		t.Fatalf("%q %v", line, err)
	}
	n.close(false)
	if rest, err := io.ReadAll(lines); err == nil {
		t.Errorf("ended as if complete, with %q", rest)
	}
	again := baseConfig(t, work, m.address)
	again.NodeID = c.NodeID
	run(t, again) // ends the container
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
}

// Between the removal of its files and that of its name a container would have an empty log, which a reader took for all.
func TestAnOutputThatIsBeingRemovedIsNotEmpty(t *testing.T) {
	m := newManager(t, "")
	n := run(t, baseConfig(t, t.TempDir(), m.address))
	c := &container{server: n.Server, dir: t.TempDir(), gone: make(chan struct{}), record: &state.Record{
		Spec: nodemanager.Spec{ID: "container_1_0001_01_000007", User: nodemanager.User(me())}, State: nodemanager.Complete, Forgotten: true,
	}}
	close(c.gone)
	n.Server.mu.Lock()
	n.Server.containers[c.record.Spec.ID] = c
	n.Server.mu.Unlock()
	defer func() {
		n.Server.mu.Lock()
		delete(n.Server.containers, c.record.Spec.ID)
		n.Server.mu.Unlock()
	}()
	for _, follow := range []string{"true", "false"} {
		if got := get(t, n.url+"/api/v1/containers/container_1_0001_01_000007/logs/stdout?follow="+follow+"&user.name="+me()); got.StatusCode != http.StatusNotFound {
			t.Errorf("follow=%s: %s", follow, got.Status)
		}
	}
}

func TestEveryLogReaderHasAPlaceOfALimitedNumber(t *testing.T) {
	var s streams
	var leave func()
	for range maxUserStreams {
		l, ok := s.enter("ann")
		if !ok {
			t.Fatal("refused below the limit")
		}
		leave = l
	}
	if _, ok := s.enter("ann"); ok {
		t.Error("one more of a user")
	}
	if _, ok := s.enter("bob"); !ok {
		t.Error("another user has no place")
	}
	leave()
	if _, ok := s.enter("ann"); !ok {
		t.Error("a place that was left is not free")
	}
}

func TestRefusedOrdersAreAnswered(t *testing.T) {
	m := newManager(t, "")
	run(t, baseConfig(t, t.TempDir(), m.address))
	for _, id := range []string{"container_1700000000000_1000000000000_01_000001", "container_1_-9223372036854775808_01_000001", "../../x"} {
		s := spec(t, 1, "true")
		s.ContainerId = id
		m.start(s)
		if got := m.untilState(id, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -1000 || !strings.Contains(got.Diagnostics, "YARN's form") {
			t.Errorf("%v", got)
		}
		m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: id + "1", ExitStatus: -100, Reason: "released"}}})
		m.untilState(id+"1", rmpb.ContainerStatus_COMPLETE)
		m.order(&rmpb.NodeOrders{Cleanup: []string{id, id + "1"}})
		m.until("oblivion", func(r *rmpb.NodeReport) bool { return find(r, id) == nil && find(r, id+"1") == nil })
	}
}
