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

// TestMovingMakesRoom: a job that wants a whole machine waits for the end of one of two that are scattered, or for one of them to be moved.
func TestMovingMakesRoom(t *testing.T) {
	jobs := []Job{gang("F", "a", 0, 1, 4, 600), gang("A", "a", 1, 1, 4, 20_000), gang("B", "a", 2, 1, 4, 20_000), gang("C", "a", 700, 1, 8, 100)}
	for i := 1; i < 3; i++ {
		jobs[i].Checkpoint = 300 * second
	}
	run := func(p Policy) *Result {
		return simulated(t, Config{Cluster: machines(2), Workload: &Workload{Jobs: jobs}, Queues: tree(t, "a=100"), Policy: p})
	}
	without, with := run(Hops{Preempt: true, Answers: true}), run(Hops{Preempt: true, Answers: true, Defragment: true})
	if without.Moved != 0 || with.Moved != 1 || with.LostToMoving != 0 || with.Finished != 4 {
		t.Errorf("moved %d, %d; %d lost; %d finished", without.Moved, with.Moved, with.LostToMoving, with.Finished)
	}
	if with.Waiting.Max*4 > without.Waiting.Max {
		t.Errorf("the longest wait is %v, without %v", with.Waiting.Max, without.Waiting.Max)
	}
}
