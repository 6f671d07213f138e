package am

import (
	"fmt"

	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// change takes all that users have changed of the job: how many instances it has, and what they wish of members of an array.
func (m *master) change(c *pb.JobChange) {
	if n := int(c.GetInstances()); n > 0 {
		m.resize(n, int(c.GangMin))
	}
	for _, w := range c.GetMembers() {
		i := m.byNumber[w.Number]
		if i == nil {
			continue
		}
		if i.killed != w.Killed {
			m.log.Info("a member was killed, or is to run again", "instance", i.number, "killed", w.Killed)
		}
		i.killed, i.forgiven = w.Killed, w.Forgiven
		if i.failed && i.last <= i.forgiven {
			i.failed, i.pardoned = false, i.tries-i.preempted
		}
	}
	if m.failed == nil || m.failed.failed {
		return
	}
	m.failure, m.failed = "", nil // which is forgiven
	for _, i := range m.instances {
		if i.failed {
			m.failure, m.failed = fmt.Sprintf("member %d failed after %d tries", i.number, i.tries), i
			return
		}
	}
}

// resize gives the job n instances, of which least start at once: those with the smallest numbers. Others end by themselves, or by what they are
// told.
func (m *master) resize(n, least int) {
	if n != len(m.instances) || least != m.least {
		m.log.Info("resized", "instances", n, "from", len(m.instances), "gang", least)
	}
	m.least = least
	m.instances = m.instances[:0]
	for number := range int32(n) {
		if m.byNumber[number] == nil {
			m.byNumber[number] = &instance{number: int(number)}
		}
		m.instances = append(m.instances, m.byNumber[number])
	}
	for number, i := range m.byNumber {
		i.surplus = int(number) >= n
	}
}
