package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

// resize asks for another size, and answers the status with what was said.
func (c *testCluster) resize(id rm.ApplicationID, user, body string) (int, string) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		var text string
		code, _ := c.http("POST", "/api/v1/jobs/"+id.String()+"/resize", user, body, &text)
		if code != http.StatusGatewayTimeout || time.Now().After(end) { // which says that nobody knows
			return code, text
		}
	}
}

// instances are those of an application that have started and run, as the leader knows, in order.
func (c *testCluster) instances(id rm.ApplicationID) []int {
	out := []int{}
	for _, k := range c.leader().View().Containers(id) {
		if !k.Master && k.State == rm.ContainerRunning && k.StopStatus == 0 && k.Started > 0 {
			out = append(out, k.Instance)
		}
	}
	slices.Sort(out)
	return out
}

func TestAJobIsResized(t *testing.T) {
	c := newTestCluster(t, 3, func(c *Config) { c.Preemption = Preemption{Notice: time.Hour} })
	n := c.node("127.0.0.1:1001", 8, programs(c, untilStopped))
	n.set(func() { n.capacity.Vcores = 64 })
	id := c.submit("ann", `{"argv":["train"],"gang":"2..4","resources":{"gpus":1,"memory":"128MiB"}}`)
	run := func(want ...int) {
		t.Helper()
		eventually(t, fmt.Sprint("instances ", want), func() bool { return slices.Equal(c.instances(id), want) })
	}
	run(0, 1, 2, 3)
	if code, text := c.resize(id, "ann", `{"max":6}`); code != http.StatusBadRequest || !strings.Contains(text, "until the cluster is raised") {
		t.Errorf("before it is raised: %d %s", code, text)
	}
	c.raise()
	for _, wrong := range []struct {
		user, body, why string
		code            int
	}{
		{"bob", `{"max":6}`, "belongs to ann", http.StatusForbidden},
		{"ann", `{"max":0}`, "want 1 to 10000", http.StatusBadRequest},
		{"ann", `{"min":5,"max":4}`, "between 1 and the most", http.StatusBadRequest},
		{"ann", `{"min":5,"max":6}`, "4 run: these would have to end", http.StatusBadRequest},
		{"ann", `{"least":5}`, "unknown field", http.StatusBadRequest},
	} {
		if code, text := c.resize(id, wrong.user, wrong.body); code != wrong.code || !strings.Contains(text, wrong.why) {
			t.Errorf("%s: %d %s", wrong.body, code, text)
		}
	}
	for range 2 { // a repeat is no error
		if code, text := c.resize(id, "ann", `{"max":6}`); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	run(0, 1, 2, 3, 4, 5)
	if code, text := c.resize(id, "ann", `{"max":3}`); code != http.StatusOK || !strings.Contains(text, `{"min":2,"max":3}`) {
		t.Fatalf("%d %s", code, text)
	}
	told := c.noticed()
	c.kill(slices.Index(c.live, c.leader())) // one look: leaders may change
	var going []int
	for _, k := range c.noticed() {
		going = append(going, k.Instance)
		if !k.Notice.For.IsZero() || k.Notice.Resized != "its job was resized to 3 instances by ann" {
			t.Errorf("%+v", k.Notice)
		}
	}
	if slices.Sort(going); !slices.Equal(going, []int{3, 4, 5}) || len(told) != 3 {
		t.Fatalf("instances %v go, %d were told", going, len(told))
	}
	j := c.job(id)
	if j.Size == nil || *j.Size != (rest.Size{Min: 2, Max: 3}) || j.Leaving != 3 {
		t.Errorf("%+v, %d leave", j.Size, j.Leaving)
	}
	for _, k := range told {
		if k.Instance == 5 {
			if code := c.saved(k.ID.String(), k); code != http.StatusOK {
				t.Fatalf("%d", code)
			}
		}
	}
	run(0, 1, 2, 3, 4)
	// Wanted again, they stay.
	if code, text := c.resize(id, "ann", `{"max":4}`); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	if left := c.noticed(); len(left) != 1 || left[0].Instance != 4 {
		t.Errorf("%v go", left)
	}
	if code, text := c.resize(id, "ann", `{"min":4,"max":7}`); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	run(0, 1, 2, 3, 4, 5, 6)
	if len(c.noticed()) != 0 {
		t.Error("somebody goes")
	}
	for _, k := range c.leader().View().Containers(id) {
		if !k.Live() && (k.Exit != rm.ExitAborted || k.Instance != 5) {
			t.Errorf("%v: instance %d ended with %v", k.ID, k.Instance, k.Exit)
		}
	}
	c.check()
}

// What waits is resized too, and a job ends when those have ended that it still has.
func TestAResizedJobEnds(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) { c.Preemption = Preemption{Notice: time.Millisecond} })
	c.raise()
	end := make(chan struct{})
	n := c.node("127.0.0.1:1001", 3, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		select {
		case <-end:
			return 0
		case <-ctx.Done():
			return 143
		}
	}))
	n.set(func() { n.capacity.Vcores = 64 })
	id := c.submit("ann", `{"argv":["train"],"instances":9,"retry":{"max":1,"on":["failure"]},"resources":{"gpus":1,"memory":"128MiB"}}`)
	eventually(t, "three to run", func() bool { return len(c.instances(id)) == 3 })
	asked := func() (count int) {
		for _, a := range c.leader().View().Asks(id) {
			count += a.Count
		}
		return count
	}
	for _, size := range []struct{ max, waits int }{{5, 2}, {12, 9}, {1, 0}, {2, 0}} {
		if code, text := c.resize(id, "ann", fmt.Sprintf(`{"max":%d}`, size.max)); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		eventually(t, fmt.Sprint("a size of ", size.max), func() bool {
			return asked() == size.waits && len(c.instances(id)) == min(size.max, 3) && len(c.noticed()) == 0
		})
	}
	close(end)
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Fatalf("%+v", j)
	}
	if code, text := c.resize(id, "ann", `{"max":3}`); code != http.StatusConflict || !strings.Contains(text, "has ended: FINISHED") {
		t.Errorf("%d %s", code, text)
	}
	c.check()
}

// ofArray asks for something of members of an array, and answers their states by number.
func (c *testCluster) ofArray(method string, id rm.ApplicationID, numbers, user string) (int, map[int]string, string) {
	c.t.Helper()
	var text string
	var found struct{ Members []rest.Member }
	path := "/api/v1/jobs/" + id.String() + "/members/" + numbers
	code, _ := c.http(method, path, user, nil, &text)
	if code == http.StatusOK {
		if err := json.Unmarshal([]byte(text), &found); err != nil {
			c.t.Fatal(err)
		}
	}
	states := map[int]string{}
	for _, m := range found.Members {
		states[m.Number] = m.State
	}
	return code, states, text
}

func TestSingleMembersOfAnArray(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.raise()
	var mu sync.Mutex
	ran := map[string]int{}
	end := map[string]chan int{}
	for i := range 6 {
		end[fmt.Sprint(i)] = make(chan int, 4)
	}
	n := c.node("127.0.0.1:1001", 0, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		index := spec.Env["HOPS_ARRAY_INDEX"]
		mu.Lock()
		ran[index]++
		mu.Unlock()
		select {
		case code := <-end[index]:
			return code
		case <-ctx.Done():
			if index == "0" {
				return 0 // it heeds the signal
			}
			return 143
		}
	}))
	n.set(func() { n.capacity.Vcores = 64 })
	id := c.submit("ann", `{"argv":["train"],"array":{"to":5,"at_once":3},"resources":{"memory":"128MiB"}}`)
	want := func(what string, states map[int]string) {
		t.Helper()
		eventually(t, what, func() bool {
			_, got, _ := c.ofArray("GET", id, "0-5", "bob")
			for number, state := range states {
				if got[number] != state {
					return false
				}
			}
			return true
		})
	}
	want("three to run", map[int]string{0: "RUNNING", 1: "RUNNING", 2: "RUNNING", 3: "WAITING", 4: "WAITING", 5: "WAITING"})
	for _, wrong := range []struct {
		method, numbers, user, why string
		code                       int
	}{
		{"DELETE", "1", "bob", "belongs to ann", http.StatusForbidden},
		{"DELETE", "6", "ann", "there is no member 6: they have 6 numbers from 0 to 5", http.StatusBadRequest},
		{"DELETE", "x", "ann", "want numbers and ranges", http.StatusBadRequest},
		{"GET", "0,9-12", "ann", "there is no member 9-12", http.StatusBadRequest},
	} {
		if code, _, text := c.ofArray(wrong.method, id, wrong.numbers, wrong.user); code != wrong.code || !strings.Contains(text, wrong.why) {
			t.Errorf("%s %s: %d %s", wrong.method, wrong.numbers, code, text)
		}
	}
	// One that runs and two that wait are killed; the place of the first is taken by another.
	if code, states, text := c.ofArray("DELETE", id, "0,4-5", "ann"); code != http.StatusOK || states[5] != "KILLED" {
		t.Fatalf("%d %s", code, text)
	}
	want("the next to run", map[int]string{0: "KILLED", 1: "RUNNING", 2: "RUNNING", 3: "RUNNING", 4: "KILLED", 5: "KILLED"})
	// One that has failed for good, and one that was killed, are run again.
	end["1"] <- 1
	want("a failure", map[int]string{1: "FAILED"})
	if code, _, text := c.ofArray("POST", id, "0-2/retry", "ann"); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	end["2"] <- 0
	end["3"] <- 0
	want("both to run again", map[int]string{0: "RUNNING", 1: "RUNNING", 2: "SUCCEEDED", 3: "SUCCEEDED"})
	if m := c.job(id).Members; m == nil || m.Killed != 2 || m.Running != 2 || m.Succeeded != 2 || m.Failed+m.Waiting != 0 {
		t.Errorf("%+v", m)
	}
	// What has succeeded stays so.
	if _, states, text := c.ofArray("DELETE", id, "2", "ann"); states[2] != "SUCCEEDED" {
		t.Error(text)
	}
	end["0"] <- 0
	end["1"] <- 0
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalKilled || j.Diagnostics != "2 of 6 members were killed (4, 5)" {
		t.Errorf("%s: %s", j.FinalStatus, j.Diagnostics)
	}
	mu.Lock()
	if ran["0"] != 2 || ran["1"] != 2 || ran["2"] != 1 || ran["4"]+ran["5"] != 0 {
		t.Errorf("ran %v", ran)
	}
	mu.Unlock()
	if code, states, text := c.ofArray("GET", id, "1", "ann"); code != http.StatusOK || states[1] != "SUCCEEDED" {
		t.Errorf("%d %s", code, text)
	}
	if code, _, text := c.ofArray("DELETE", id, "1", "ann"); code != http.StatusConflict {
		t.Errorf("%d %s", code, text)
	}
	c.check()
}
