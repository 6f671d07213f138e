package server

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// Members of an array run on their own, no more at once than may: one that fails is run again by itself, and ends nobody else.
func TestArrays(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	var mu sync.Mutex
	ran := map[string]int{}
	running, most := 0, 0
	last := make(chan struct{}) // the last member waits for it
	n := c.node("127.0.0.1:1001", 0, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		index := spec.Env["HOPS_ARRAY_INDEX"]
		mu.Lock()
		ran[index]++
		running++
		most = max(most, running)
		again := ran[index] > 1
		mu.Unlock()
		defer func() {
			mu.Lock()
			running--
			mu.Unlock()
		}()
		if spec.Env["HOPS_ARRAY_COUNT"] != "6" || spec.Env["HOPS_ARRAY_FROM"] != "2" || spec.Env["HOPS_ARRAY_TO"] != "13" || spec.Env["HOPS_ARRAY_STEP"] != "2" || spec.Env["HOPS_INSTANCE"] != index {
			return 3
		}
		switch {
		case index == "4" && !again, index == "6": // once; for good
			return 1
		case index == "12":
			select {
			case <-last:
			case <-ctx.Done():
				return 143
			}
		}
		return 0
	}))
	c.awaitOpen(n)
	document := `{"argv":["train"],"array":{"from":2,"to":13,"step":2,"at_once":2},"retry":{"max":1}}`
	var text string
	if code, _ := c.http("POST", "/api/v1/jobs", "ann", document, &text); code != http.StatusBadRequest || !strings.Contains(text, "until the cluster is raised") {
		t.Errorf("before it is raised: %d %s", code, text)
	}
	c.raise()
	id := c.submit("ann", document)
	eventually(t, "all but the last member to end", func() bool {
		m := c.job(id).Members
		return m != nil && m.Total == 6 && m.Running == 1 && m.Succeeded == 4 && m.Failed == 1 && m.Waiting == 0
	})
	close(last)
	j := c.await(id, rm.StateFinished)
	if j.FinalStatus != rm.FinalFailed || !strings.HasPrefix(j.Diagnostics, "1 of 6 members failed (6); member 6 failed after 2 tries") {
		t.Errorf("%s: %s", j.FinalStatus, j.Diagnostics)
	}
	mu.Lock()
	defer mu.Unlock()
	if most > 2 || len(ran) != 6 || ran["4"] != 2 || ran["6"] != 2 || ran["8"] != 1 {
		t.Errorf("%d at once; %v", most, ran)
	}
	var numbers []int
	for _, k := range j.Containers {
		if k.Instance != nil {
			numbers = append(numbers, *k.Instance)
		}
	}
	slices.Sort(numbers)
	if numbers = slices.Compact(numbers); !slices.Equal(numbers, []int{2, 4, 6, 8, 10, 12}) {
		t.Errorf("numbers %v", numbers)
	}
	c.check()
}
