package server

import (
	"slices"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// A user whose masters acknowledge nothing gets nothing more, is told why, and gets it when they have.
func TestWhoAcknowledgesNothingGetsNothingMore(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) { c.limits.MaxEndedContainers = 4 })
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	c.raise()
	deaf, other := c.holder(n), c.holder(n)
	var released []rm.ContainerID
	for _, k := range c.hold(deaf, 3) {
		released = append(released, k.ID)
	}
	if err := c.leader().Allocate(t.Context(), deaf, rm.Request{Release: released}); err != nil {
		t.Fatal(err)
	}
	ask := rm.WantedAsk{Ask: rm.Ask{ID: "w", Count: 1, Held: true, Resource: rm.Resource{Memory: 256 << 20, VCores: 1, GPUs: 1}}}
	if err := c.leader().Allocate(t.Context(), other, rm.Request{Asks: []rm.WantedAsk{ask}}); err != nil {
		t.Fatal(err)
	}
	if r := c.awaitReason(other.Application, rm.ReasonUnacknowledged); !strings.Contains(r.Text, "ann") {
		t.Errorf("it says %s", r.Text)
	}
	last := c.leader().View().Application(deaf.Application).LastEvent
	if err := c.leader().Allocate(t.Context(), deaf, rm.Request{Acknowledged: last}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other application to have its container", func() bool {
		return slices.ContainsFunc(c.leader().View().Containers(other.Application), func(k *rm.Container) bool { return k.Held() })
	})
	c.check()
}
