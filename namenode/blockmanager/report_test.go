package blockmanager

import (
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// reported makes a node with one volume of n replicas that it has reported in full.
func reported(n int) (*Manager, time.Time) {
	m, now := New(Config{}), time.Unix(0, 0)
	m.Register(now, namenode.Node{ID: "dn"}, []namenode.Volume{{ID: "v"}}, 1)
	for id := range n {
		m.Put(now, Block{Block: metadata.Block{ID: metadata.BlockID(1<<30 + id), Generation: 1, Length: 1}, Replication: 1})
	}
	fullReport(m, now, 1, 0, n)
	return m, now
}

// chunk is how many replicas the server hands over at a time.
const chunk = 1000

func fullReport(m *Manager, now time.Time, report uint64, from, to int) {
	var replicas []namenode.Replica
	for id := from; id < to; id++ {
		replicas = append(replicas, namenode.Replica{Block: metadata.Block{ID: metadata.BlockID(1<<30 + id), Generation: 1, Length: 1}, State: namenode.Finalized})
		if len(replicas) == chunk {
			m.Report(now, "dn", report, "v", replicas, false)
			replicas = replicas[:0]
		}
	}
	m.Report(now, "dn", report, "v", replicas, true)
}

// What a full report does not name is forgotten some at a time, and until all of it is, the report does not count: nothing is deleted
// because of replicas that are not there.
func TestAReportThatNamesLittleIsTakenInSteps(t *testing.T) {
	const all, left = 4 * absentPerStep, 10
	m, now := reported(all)
	if st := m.Statistics(); st.Missing != 0 || !m.allReported() {
		t.Fatalf("before: %+v", st)
	}
	now = now.Add(time.Hour)
	m.Register(now, namenode.Node{ID: "dn"}, []namenode.Volume{{ID: "v"}}, 1)
	fullReport(m, now, 2, 0, left)
	back := metadata.Block{ID: 1<<30 + all - 1, Generation: 1, Length: 1}
	m.Changes(now, "dn", []namenode.Change{{Kind: namenode.Received, Volume: "v", Block: back}}) // after the report was made
	for steps := 1; ; steps++ {
		gone := int(m.Statistics().Missing)
		if gone > steps*absentPerStep {
			t.Fatalf("%d forgotten in %d steps", gone, steps)
		}
		if m.allReported() {
			if gone != all-left-1 {
				t.Fatalf("the report counts, and %d are forgotten, want %d", gone, all-left-1)
			}
			return
		}
		if steps > 10 {
			t.Fatal("the report never counts")
		}
		m.Tick(now)
	}
}

// A report in which the datanode registers says nothing of what its rest does not name, and the node has not reported before the next one.
func TestAReportThatARegistrationCutsForgetsNothing(t *testing.T) {
	const all = 20
	m, now := reported(all)
	now = now.Add(time.Hour)
	replica := func(id int) []namenode.Replica {
		return []namenode.Replica{{Block: metadata.Block{ID: metadata.BlockID(1<<30 + id), Generation: 1, Length: 1}, State: namenode.Finalized}}
	}
	m.Report(now, "dn", 2, "v", replica(0), false)
	m.Register(now, namenode.Node{ID: "dn"}, []namenode.Volume{{ID: "v"}}, 1)
	m.Report(now, "dn", 2, "v", replica(1), true)
	if missing := m.Statistics().Missing; missing > 0 || m.allReported() {
		t.Fatalf("%d are forgotten, reported: %t", missing, m.allReported())
	}
	m.check(t)
	fullReport(m, now, 3, 0, all/2)
	if missing := m.Statistics().Missing; missing != all/2 || !m.allReported() {
		t.Fatalf("%d are forgotten by the next one, reported: %t", missing, m.allReported())
	}
	m.check(t)
}

// What is deleted after a report has begun does not come back with its first replicas, however long they take.
func TestAReportThatBeginsEarlyRevivesNothing(t *testing.T) {
	m, now := reported(2)
	now = now.Add(time.Hour)
	m.Report(now, "dn", 2, "", nil, false)
	gone := metadata.Block{ID: 1 << 30, Generation: 1, Length: 1}
	m.Changes(now, "dn", []namenode.Change{{Kind: namenode.Deleted, Volume: "v", Block: gone}})
	now = now.Add(2 * overlap)
	fullReport(m, now, 2, 0, 2)
	if missing := m.Statistics().Missing; missing != 1 || !m.allReported() {
		t.Errorf("%d are missing, reported: %t", missing, m.allReported())
	}
	m.check(t)
}

// BenchmarkFullReport takes in a full report of a million replicas; worst-ms is the longest of its steps, each of which holds the server's mutex.
func BenchmarkFullReport(b *testing.B) {
	const n = 1_000_000
	for name, lost := range map[string]int{"same": 0, "1000 lost": 1000} {
		b.Run(name, func(b *testing.B) {
			m, now := reported(n)
			var chunks [][]namenode.Replica
			for from := 0; from < n-lost; from += chunk {
				var replicas []namenode.Replica
				for id := from; id < min(from+chunk, n-lost); id++ {
					replicas = append(replicas, namenode.Replica{Block: metadata.Block{ID: metadata.BlockID(1<<30 + id), Generation: 1, Length: 1}, State: namenode.Finalized})
				}
				chunks = append(chunks, replicas)
			}
			now = now.Add(time.Hour)
			worst := time.Duration(0)
			b.ResetTimer()
			for i := range b.N {
				for k, c := range chunks {
					start := time.Now()
					m.Report(now, "dn", uint64(i+2), "v", c, k == len(chunks)-1)
					worst = max(worst, time.Since(start))
				}
			}
			b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
		})
	}
}
