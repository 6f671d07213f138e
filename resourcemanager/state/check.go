package state

import (
	"fmt"
	"maps"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// Check verifies what must hold of every state and returns every violation. It is for tests and fsck-like tools; its
// cost is that of reading everything.
func (s *State) Check() []error {
	s.mu.Lock()
	t := s.tables.copy()
	have := s.index
	holders, open, uses := len(have.holders), len(have.open), len(have.uses)
	containers, gone := have.containerCount, have.gone.Len()
	held, ended, total, usedBytes := maps.Clone(have.held), [2]int{have.over.count, have.ending.count}, have.total, maps.Clone(have.usedBytes)
	placed, after := maps.Clone(have.placed), have.after.Items()
	s.mu.Unlock()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	again := t.copy()
	counted := again.buildIndex()
	if !slices.Equal(t.untold.Items(), again.untold.Items()) || t.untoldCount != again.untoldCount {
		bad("index: ends that masters have not acknowledged: %v, %d in all, tables: %v, %d", t.untold.Items(), t.untoldCount, again.untold.Items(), again.untoldCount)
	}
	if !maps.Equal(held, counted.held) || total != counted.total || !maps.Equal(usedBytes, counted.usedBytes) {
		bad("index: users hold %v, %v in all, of which for asks %v; tables: %v, %v, %v", held, total, usedBytes, counted.held, counted.total, counted.usedBytes)
	}
	if containers != counted.containerCount || gone != counted.gone.Len() {
		bad("index: %d ended containers, %d of ended applications, tables: %d, %d", containers, gone, counted.containerCount, counted.gone.Len())
	}
	if !maps.Equal(placed, counted.placed) {
		bad("index: live applications by queue and user: %v, tables: %v", placed, counted.placed)
	}
	if !slices.Equal(after, counted.after.Items()) {
		bad("index: who waits for whom: %v, tables: %v", after, counted.after.Items())
	}
	if now := [2]int{counted.over.count, counted.ending.count}; ended != now {
		bad("index: %d ended applications that hold nothing and that do, tables: %d", ended, now)
	}
	devices := map[string]rm.ContainerID{}
	usedOn := map[rm.NodeID]rm.Resource{}
	usedBy := map[rm.ApplicationID]rm.Resource{}
	liveBy := map[rm.ApplicationID]int{}
	wholeOf := map[rm.NodeID]bool{}
	waiting, noticed := 0, 0
	t.containers.Scan(func(c *rm.Container) bool {
		app := c.ID.Attempt.Application
		a, ok := t.apps.Get(&rm.Application{ID: app})
		if !ok {
			bad("%v belongs to no application", c.ID)
		}
		if !c.Live() {
			return true
		}
		if _, ok := t.byNode.Get(nodeRow{c.Node, c.ID}); !ok {
			bad("%v is missing in the list of %s", c.ID, c.Node)
		}
		if len(c.GPUs) != c.Resource.Devices() {
			bad("%v holds %d devices for %v", c.ID, len(c.GPUs), c.Resource)
		}
		for _, u := range c.GPUs {
			if other, ok := devices[u]; ok {
				bad("GPU %s is in two live containers: %v and %v", u, other, c.ID)
			}
			devices[u] = c.ID
		}
		if _, listed := t.onHold.Get(heldRow{c.Granted, c.ID}); listed != c.Held() {
			bad("%v is held: %v, listed as that: %v", c.ID, c.Held(), listed)
		}
		if c.Held() && (c.State != rm.ContainerGranted || c.StopStatus != 0) {
			bad("%v is held in state %s, with an order to stop: %d", c.ID, c.State, c.StopStatus)
		}
		if c.Held() {
			waiting++
		}
		if c.Notice != nil && c.StopStatus == 0 {
			noticed++
			if _, listed := t.noticed.Get(noticedRow{c.Notice.Deadline, c.ID}); !listed || c.Master || c.Held() {
				bad("%v is to go: master %v, held %v, listed %v", c.ID, c.Master, c.Held(), listed)
			}
		}
		if ok && !c.Master && !a.State.Final() && a.Surplus(c.Instance) && c.Notice == nil && c.StopStatus == 0 {
			bad("%v runs instance %d of %d, and is not to go", c.ID, c.Instance, a.Size.Max)
		}
		if c.Launch != 0 {
			if _, ok := t.launches.Get(launchRow{app: app, number: c.Launch}); !ok {
				bad("%v has no launch", c.ID)
			}
		}
		if ok && a.State.Final() && c.StopStatus == 0 && !(c.Master && a.State == rm.StateFinished) {
			bad("%v outlives its application", c.ID)
		}
		wholeOf[c.Node] = wholeOf[c.Node] || c.Exclusive
		usedOn[c.Node] = usedOn[c.Node].Add(c.Resource)
		usedBy[app] = usedBy[app].Add(c.Resource)
		liveBy[app]++
		return true
	})
	t.nodes.Scan(func(n *rm.Node) bool {
		if n.Used != usedOn[n.ID] {
			bad("node %s: used %v, its containers have %v", n.ID, n.Used, usedOn[n.ID])
		}
		if n.Exclusive != wholeOf[n.ID] || n.Exclusive && n.Live > 1 {
			bad("node %s: for one container alone: %v, with %d of them", n.ID, n.Exclusive, n.Live)
		}
		if n.Retired && (!n.Leaves() || n.Live > 0) {
			bad("node %s was let go and has %d containers, wish %v", n.ID, n.Live, n.Wish)
		}
		if n.State == rm.NodeLost && n.Live > 0 {
			bad("node %s is lost and has %d containers", n.ID, n.Live)
		}
		return true
	})
	t.apps.Scan(func(a *rm.Application) bool {
		if a.Used != usedBy[a.ID] || a.Live != liveBy[a.ID] {
			bad("%v: used %v in %d, its containers have %v in %d", a.ID, a.Used, a.Live, usedBy[a.ID], liveBy[a.ID])
		}
		if _, ok := t.live.Get(a.ID); ok != (!a.State.Final() || a.Live > 0) {
			bad("%v: state %s with %d containers, listed as live: %v", a.ID, a.State, a.Live, ok)
		}
		if a.State.Final() && len(a.Document)+len(a.Tokens)+len(a.Members)+len(a.Succeeded) > 0 {
			bad("%v has ended and keeps its document, or its tokens", a.ID)
		}
		for _, d := range a.After {
			on, ok := t.apps.Get(&rm.Application{ID: d.Application})
			if !ok || a.State.Final() || a.Live > 0 {
				bad("%v: state %s with %d containers, waits for %v, which is known: %v", a.ID, a.State, a.Live, d.Application, ok)
			} else if met, never := d.Settled(on); met || never {
				bad("%v waits for %v, which is settled", a.ID, d)
			}
		}
		for _, row := range t.asksOf(a.ID) {
			if trim(a, &row.Ask) {
				bad("%v asks for instances that are wanted no more", a.ID)
			}
		}
		if a.State.Final() && len(t.asksOf(a.ID)) > 0 {
			bad("%v has ended and still asks", a.ID)
		}
		return true
	})
	openBy := map[string]rm.ContainerID{}
	opens := 0
	t.ledger.Scan(func(l ledgerRow) bool {
		if l.To != 0 {
			return true
		}
		opens++
		for _, u := range l.GPUs {
			if other, ok := openBy[u]; ok {
				bad("ledger: GPU %s is granted to %v and %v at once", u, other, l.Container)
			}
			openBy[u] = l.Container
			if devices[u] != l.Container {
				bad("ledger: GPU %s is granted to %v, which does not hold it", u, l.Container)
			}
		}
		return true
	})
	if holders != len(devices) || open != opens {
		bad("index: %d holders, %d open lines; tables: %d, %d", holders, open, len(devices), opens)
	}
	if noticed != t.noticed.Len() {
		bad("%d containers are to go, %d are listed", noticed, t.noticed.Len())
	}
	if waiting != t.onHold.Len() {
		bad("%d containers are held, %d are listed", waiting, t.onHold.Len())
	}
	if uses != t.launches.Len() {
		bad("index: %d launches in use, %d kept", uses, t.launches.Len())
	}
	return errs
}
