package authority

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/internal/release"
)

// Both ends of a connection between members say of which version they are before anything else is said: the dialer by a protocol of ALPN that no
// acceptor chooses, the acceptor in front of its verdict.
const programProtocol = "hops-program/"

// offer are the protocols that a dialer offers.
func (m *Member) offer(protocols []string) []string {
	return append(protocols[:len(protocols):len(protocols)], fmt.Sprintf("%s%d/%d", programProtocol, m.program.Level, m.program.Oldest))
}

// programOf finds what a dialer says of itself; one that says nothing is of the first level.
func programOf(offered []string) release.Program {
	p := release.Program{Level: 1, Oldest: 1}
	for _, o := range offered {
		if text, ok := strings.CutPrefix(o, programProtocol); ok {
			if n, err := fmt.Sscanf(text, "%d/%d", &p.Level, &p.Oldest); n != 2 || err != nil {
				return release.Program{}
			}
		}
	}
	return p
}

// Raise says that the cluster has been raised to a level: members with programs that do not know it are let in no more, and connections to them
// end. A lower level than before changes nothing.
func (m *Member) Raise(level int) {
	m.mu.Lock()
	m.level = max(m.level, level)
	var lost []*Conn
	for c := range m.open {
		if c.program != (release.Program{}) && c.program.In(m.level) != nil {
			lost = append(lost, c)
		}
	}
	m.mu.Unlock()
	for _, c := range lost {
		c.Close()
	}
}

// Program is of which version this member is.
func (m *Member) Program() release.Program { return m.program }

// Level is the one that the cluster has been raised to, as far as this member has heard: nothing of a higher one may be written. At least 1.
func (m *Member) Level() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.level, 1)
}

// suits says whether a connection's other end, which is of a version, can work with this member, in this cluster. Errors: release.ErrOlder and
// release.ErrNewer.
func (m *Member) suits(c *Conn, p release.Program) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.In(m.level); err != nil {
		return err
	}
	if err := p.Beside(m.program); err != nil {
		return err
	}
	c.program = p
	return nil
}
