package nodemanager

import "fmt"

// State is where a container is in its life on this node. STOPPING is entered on an order; a container that ends by itself, or that
// its supervisor ends (memory, lease, disk), goes from RUNNING to COMPLETE at once.
type State string

// The states.
const (
	New        State = "NEW"
	Localizing State = "LOCALIZING"
	Running    State = "RUNNING"
	Stopping   State = "STOPPING"
	Complete   State = "COMPLETE"
)

// States are all of them, in the order of a life.
var States = []State{New, Localizing, Running, Stopping, Complete}

// Event moves a container from state to state.
type Event string

// The events.
const (
	// Admitted: the order is valid, and its GPUs are free.
	Admitted Event = "admitted"
	// Launched: the supervisor has started the command.
	Launched Event = "launched"
	// Adopted: a node manager that comes after another has found the supervisor alive.
	Adopted Event = "adopted"
	// Unstarted: it has found that nothing of the container ever ran.
	Unstarted Event = "unstarted"
	// Stop: somebody asked for the end.
	Stop Event = "stop"
	// Gone: no process is left, and the exit status is known.
	Gone Event = "gone"
	// Forgotten: the resource manager has recorded the end.
	Forgotten Event = "forgotten"
)

// Events are all of them.
var Events = []Event{Admitted, Launched, Adopted, Unstarted, Stop, Gone, Forgotten}

// Action is what follows from an event besides the next state.
type Action string

// The actions.
const (
	Nothing Action = "nothing"
	// Localize fills the container's directory and starts its supervisor: Launched or Gone comes of it. A container that was stopped
	// meanwhile is not started.
	Localize Action = "localize"
	// Attend stays with the supervisor until the container is gone, and has it end a container that is to stop.
	Attend Action = "attend"
	// Interrupt tells whoever localizes or attends it that the container is to stop.
	Interrupt Action = "interrupt"
	// Release lets go of what only a living container may hold (its trees in the localizer's cache), ships the last of its logs, and
	// tells who waits for the end.
	Release Action = "release"
	// Remove takes away the container's directory, as soon as its logs are shipped.
	Remove Action = "remove"
)

// Step is what becomes of a container by an event.
type Step struct {
	Next State
	Do   Action
}

// lifeCycle is the whole life of a container. A pair that is not in it does not happen: who sees it has a wrong picture. DESIGN.md
// shows it.
var lifeCycle = map[State]map[Event]Step{
	New: {
		Admitted:  {Localizing, Localize},
		Adopted:   {Running, Attend},
		Unstarted: {Localizing, Localize},
		Stop:      {Stopping, Interrupt},
		Gone:      {Complete, Release},
	},
	Localizing: {
		Launched:  {Running, Attend},
		Adopted:   {Running, Attend},
		Unstarted: {Localizing, Localize},
		Stop:      {Stopping, Interrupt},
		Gone:      {Complete, Release},
	},
	Running: {
		Adopted: {Running, Attend},
		Stop:    {Stopping, Interrupt},
		Gone:    {Complete, Release},
	},
	Stopping: {
		Launched:  {Stopping, Attend}, // the stop came when the supervisor was on its way
		Adopted:   {Stopping, Attend},
		Unstarted: {Stopping, Localize}, // which starts nothing any more
		Stop:      {Stopping, Nothing},  // the first order counts
		Gone:      {Complete, Release},
	},
	Complete: {
		Stop:      {Complete, Nothing}, // the order and the end have met
		Forgotten: {Complete, Remove},
	},
}

// Known reports whether s is one of the states.
func (s State) Known() bool { return lifeCycle[s] != nil }

// Next is what e makes of a container that is in s. An error means that the caller's picture of the container is wrong: nothing
// follows, and it stays in s.
func Next(s State, e Event) (Step, error) {
	if step, ok := lifeCycle[s][e]; ok {
		return step, nil
	}
	return Step{s, Nothing}, fmt.Errorf("a container that is %s cannot be %s", s, e)
}
