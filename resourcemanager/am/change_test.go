package am

import (
	"fmt"
	"log/slog"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/job"
)

// masterOf is a master of a job that speaks to nobody.
func masterOf(t *testing.T, document string) *master {
	t.Helper()
	spec, err := job.Parse([]byte(`{"argv":["x"],` + document + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return newMaster(nil, spec, slog.New(slog.DiscardHandler))
}

// ends has container number of an instance end.
func (m *master) ends(number int64, instance int, exit rm.ExitStatus, why string) {
	m.completed(&pb.Completed{ContainerId: fmt.Sprintf("container_1_0001_01_%06d", number), AskId: "try-1", Instance: int32(instance), ExitStatus: int32(exit), Diagnostics: why})
}

// What a master is told at its registration, before it hears of the containers that have ended, comes to the same as what it is told as it happens.
func TestWhatIsForgivenIsForgivenByTheNextMasterToo(t *testing.T) {
	forgiven := &pb.JobChange{Members: []*pb.MemberChange{{Number: 1, Forgiven: 4}, {Number: 2, Killed: true}}}
	for _, late := range []bool{true, false} {
		m := masterOf(t, `"array":{"to":3},"retry":{"max":1}`)
		if !late {
			m.change(forgiven)
		}
		m.ends(2, 1, 1, "")
		m.ends(4, 1, 1, "")
		m.ends(5, 0, 0, "")
		m.ends(6, 3, 1, "")
		m.ends(7, 3, 1, "the other")
		if late {
			if !m.byNumber[1].failed || m.failed != m.byNumber[1] {
				t.Errorf("%+v", m.byNumber[1])
			}
			m.change(forgiven)
		}
		if i := m.byNumber[1]; i.over() || !m.byNumber[2].over() || m.over() || m.failed != m.byNumber[3] || m.failure == "" {
			t.Errorf("late %v: %+v, failure %q", late, i, m.failure)
		}
		m.ends(8, 1, 1, "") // a first failure again
		if m.byNumber[1].over() {
			t.Errorf("late %v: it has one try", late)
		}
		m.ends(9, 1, 1, "")
		if !m.byNumber[1].failed || !m.over() {
			t.Errorf("late %v: it has all tries in the world", late)
		}
		m.ends(2, 2, 0, "") // a member that was killed, and had no time to hear of it
		if m.byNumber[2].done {
			t.Errorf("late %v: what was killed has succeeded", late)
		}
	}
}

func TestAJobIsOverWithoutWhatIsTooMany(t *testing.T) {
	m := masterOf(t, `"instances":4,"retry":{"on":["failure"]}`)
	for n := range int64(4) {
		m.byNumber[int32(n)].container = fmt.Sprintf("container_1_0001_01_%06d", n+2)
	}
	m.change(&pb.JobChange{Instances: 2})
	m.ends(2, 0, 0, "")
	m.ends(3, 1, 0, "")
	m.ends(4, 2, 1, "") // its failure is nobody's
	if m.over() || m.failure != "" {
		t.Errorf("over while one saves its work: %q", m.failure)
	}
	m.ends(5, 3, rm.ExitAborted, rm.Resized+" to 2 instances")
	if !m.over() || m.failure != "" {
		t.Errorf("not over: %q", m.failure)
	}
	// Wanted again, they run again, with all their tries.
	m.change(&pb.JobChange{Instances: 5})
	if len(m.instances) != 5 || m.over() || m.byNumber[2].over() || !m.byNumber[0].done {
		t.Errorf("%d instances", len(m.instances))
	}
	m.ends(6, 3, rm.ExitAborted, rm.Resized+" to 2 instances") // it was wanted again too late
	if m.failure != "" {
		t.Error(m.failure)
	}
	m.ends(7, 2, 1, "")
	if m.failure == "" {
		t.Error("a failure is forgiven that nobody has forgiven")
	}
}
