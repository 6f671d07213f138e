package demo

import "testing"

func TestADeviceInTwoContainersIsFound(t *testing.T) {
	at := func(container string, ms int64, gpus ...string) fact {
		return fact{Container: container, TimeMS: ms, GPUs: gpus}
	}
	fine := []fact{at("a", 10, "g1", "g2"), at("b", 11, "g3"), at("a", 20, "g1", "g2"), at("c", 21, "g2"), at("c", 30, "g2"), {Container: "d", TimeMS: 15}}
	if err := doubled(holds(fine)); err != nil {
		t.Error(err)
	}
	if n := len(holds(fine)); n != 3 {
		t.Errorf("%d holds", n)
	}
	if err := doubled(holds(append(fine, at("b", 40, "g3"), at("e", 25, "g3"), at("e", 26, "g3")))); err == nil {
		t.Error("nobody noticed that b and e had the same device")
	}
}
