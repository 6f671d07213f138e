package simulator

import "testing"

// TestPreemptionGivesBack: a queue that comes to its own within two minutes, at the price of what is not saved.
func TestPreemptionGivesBack(t *testing.T) {
	a := bag("A", "a", 0, 2, 4, 1000)
	a.Checkpoint = 300 * second
	b := gang("B", "b", 100, 1, 4, 100)
	run := func(p Policy) *Result {
		return simulated(t, Config{Cluster: machines(1), Workload: &Workload{Jobs: []Job{a, b}}, Queues: tree(t, "a=50", "b=50"), Policy: p})
	}
	without, with, answered := run(Hops{}), run(Hops{Preempt: true}), run(Hops{Preempt: true, Answers: true})
	if without.Preemptions != 0 || with.Preemptions == 0 || answered.Preemptions == 0 {
		t.Errorf("preempted: %d, %d, %d", without.Preemptions, with.Preemptions, answered.Preemptions)
	}
	if with.LostToPreemption <= 0 || answered.LostToPreemption != 0 {
		t.Errorf("lost: %d, %d", with.LostToPreemption, answered.LostToPreemption)
	}
	if with.Finished != 2 || answered.Finished != 2 {
		t.Errorf("finished: %d, %d", with.Finished, answered.Finished)
	}
	if with.Waiting.Max >= without.Waiting.Max {
		t.Errorf("the longest wait is %v, without preemption %v", with.Waiting.Max, without.Waiting.Max)
	}
}
