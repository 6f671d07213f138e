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

func TestTheCheckpointThatAKilledExecutorDidNotLiveToNote(t *testing.T) {
	killed := &kill{trial: "0003", attempt: 2}
	facts := []fact{
		{Kind: "start", Trial: "0003", Attempt: 1},
		{Kind: "checkpoint", Trial: "0003", Attempt: 1, Step: 3, URI: "/e/0003/checkpoints/step-3"},
		{Kind: "start", Trial: "0003", Attempt: 2, Resume: 3},
		{Kind: "checkpoint", Trial: "0004", Attempt: 2, Step: 9, URI: "/e/0004/checkpoints/step-9"},
	}
	if step, uri := unnoted(facts, killed); step != 4 || uri != "/e/0003/checkpoints/step-4" {
		t.Errorf("killed before its first note: step %d, %s", step, uri)
	}
	facts = append(facts,
		fact{Kind: "checkpoint", Trial: "0003", Attempt: 2, Step: 4, URI: "/e/0003/checkpoints/step-4"},
		fact{Kind: "start", Trial: "0003", Attempt: 3, Resume: 4})
	if step, uri := unnoted(facts, killed); step != 5 || uri != "/e/0003/checkpoints/step-5" {
		t.Errorf("killed after a note: step %d, %s", step, uri)
	}
}
