package state

import (
	"fmt"
	"reflect"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// launchContainers says what runs in containers that are held; from here on they are as any other. They do not depend on each other: one
// for which there is an error stays as it is. A repeat is no error.
//
// Errors: those of current, for all; for one container metadata.ErrNotExist, rm.ErrLaunched, metadata.ErrPermission, and those of
// roomForBytes.
func (s *State) launchContainers(c *statepb.LaunchContainers) *Result {
	a, _, r := s.current(c.Application, c.Attempt, c.Epoch)
	if r != nil {
		return r
	}
	out := &Result{Application: a.ID}
	for _, l := range c.Launches {
		out.Launches = append(out.Launches, s.launchGroup(a, l)...)
	}
	s.setApp(a)
	return out
}

// launchGroup launches some containers with the same, which is stored once.
func (s *State) launchGroup(a *rm.Application, l *statepb.ContainerLaunch) []error {
	launch := launchOf(l.Launch)
	errs := make([]error, len(l.Containers))
	number := uint64(0)
	for i, p := range l.Containers {
		c, err := s.launchable(a, containerIDOf(p), launch)
		if err == nil && c != nil && number == 0 {
			if err = s.roomForBytes(a, launchBytes(launch)); err == nil {
				a.LastLaunch++
				number = a.LastLaunch
				s.launches.Set(launchRow{a.ID, number, launch})
				s.use(a.User, a.ID, launchBytes(launch))
			}
		}
		if errs[i] = err; err != nil || c == nil {
			continue
		}
		s.onHold.Delete(heldRow{c.Granted, c.ID})
		c.Launch = number
		s.containers.Set(c)
		s.uses[launchKey{a.ID, number}]++
		s.touch.Nodes[c.Node] = true
	}
	return errs
}

// launchable finds a container that is held; nil: it runs that launch already.
func (s *State) launchable(a *rm.Application, id rm.ContainerID, launch *rm.Launch) (*rm.Container, error) {
	c := s.container(id)
	switch {
	case id.Attempt.Application != a.ID:
		return nil, metadata.Errorf(metadata.ErrPermission, "%v is no container of %v", id, a.ID)
	case c == nil:
		return nil, metadata.Errorf(metadata.ErrNotExist, "there is no container %v", id)
	case c.Master:
		return nil, metadata.Errorf(metadata.ErrPermission, "%v is the master's own container", id)
	case !c.Live():
		return nil, metadata.Errorf(metadata.ErrNotExist, "%v has ended: %s", id, c.Diagnostics)
	case c.Held():
		return c, nil
	}
	if row, ok := s.launches.Get(launchRow{app: a.ID, number: c.Launch}); !ok || !reflect.DeepEqual(row.launch, launch) {
		return nil, fmt.Errorf("%w: %v", rm.ErrLaunched, id)
	}
	return nil, nil
}
