package state

import (
	"fmt"
	"reflect"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// launchContainers says what runs in containers that are held; from here on they are as any other. The launches do not depend on each
// other: one for which there is an error counts for none of its containers, and the others all the same. A repeat is no error.
//
// Errors: those of current, for all; for one launch metadata.ErrNotExist, rm.ErrLaunched, metadata.ErrPermission, and those of
// roomForBytes.
func (s *State) launchContainers(c *statepb.LaunchContainers) *Result {
	a, _, r := s.current(c.Application, c.Attempt, c.Epoch)
	if r != nil {
		return r
	}
	out := &Result{Application: a.ID, Launches: make([]error, len(c.Launches))}
	for i, l := range c.Launches {
		out.Launches[i] = s.launchGroup(a, l)
	}
	s.setApp(a)
	return out
}

// launchGroup launches some containers with the same.
func (s *State) launchGroup(a *rm.Application, l *statepb.ContainerLaunch) error {
	launch := launchOf(l.Launch)
	var held []*rm.Container
	named := map[rm.ContainerID]bool{}
	for _, p := range l.Containers {
		id := containerIDOf(p)
		c := s.container(id)
		switch {
		case id.Attempt.Application != a.ID:
			return metadata.Errorf(metadata.ErrPermission, "%v is no container of %v", id, a.ID)
		case c == nil:
			return metadata.Errorf(metadata.ErrNotExist, "there is no container %v", id)
		case c.Master:
			return metadata.Errorf(metadata.ErrPermission, "%v is the master's own container", id)
		case !c.Live():
			return metadata.Errorf(metadata.ErrNotExist, "%v has ended: %s", id, c.Diagnostics)
		case c.Held():
			if !named[id] {
				held, named[id] = append(held, c), true
			}
			continue
		}
		if row, ok := s.launches.Get(launchRow{app: a.ID, number: c.Launch}); !ok || !reflect.DeepEqual(row.launch, launch) {
			return fmt.Errorf("%w: %v", rm.ErrLaunched, id)
		}
	}
	if len(held) == 0 {
		return nil
	}
	if err := s.roomForBytes(a, launchBytes(launch)); err != nil {
		return err
	}
	a.LastLaunch++
	s.launches.Set(launchRow{a.ID, a.LastLaunch, launch})
	s.use(a.User, a.ID, launchBytes(launch))
	for _, c := range held {
		s.onHold.Delete(heldRow{c.Granted, c.ID})
		c.Launch = a.LastLaunch
		s.containers.Set(c)
		s.uses[launchKey{a.ID, a.LastLaunch}]++
		s.touch.Nodes[c.Node] = true
	}
	return nil
}
