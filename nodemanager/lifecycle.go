package nodemanager

import "fmt"

// State is where a container is in its life on this node.
//
//	          admitted            launched              gone
//	┌─────┐          ┌────────────┐        ┌─────────┐        ┌──────────┐
//	│ NEW ├─────────►│ LOCALIZING ├───────►│ RUNNING ├───────►│ COMPLETE │
//	└──┬──┘          └─────┬──┬───┘        └────┬────┘        └──────────┘
//	   │              stop │  │ gone       stop │                 ▲  ▲
//	   │                   ▼  │                 ▼                 │  │
//	   │             ┌────────┴───┐  launched, stop               │  │
//	   │             │  STOPPING  │◄─┐ (stays)                    │  │
//	   │             └──────┬─────┴──┘           gone             │  │
//	   │ gone               └─────────────────────────────────────┘  │
//	   └─────────────────────────────────────────────────────────────┘
//
// "gone" always means that no process of the container is left. STOPPING is entered on an order; a container that ends by
// itself, or that its supervisor ends (memory, lease, log size), goes from RUNNING to COMPLETE at once.
type State string

// The states.
const (
	New        State = "NEW"
	Localizing State = "LOCALIZING"
	Running    State = "RUNNING"
	Stopping   State = "STOPPING"
	Complete   State = "COMPLETE"
)

// Event moves a container from state to state.
type Event string

// The events.
const (
	// Admitted: the order is valid, recorded on disk, and its GPUs are free.
	Admitted Event = "admitted"
	// Launched: the supervisor has started the command.
	Launched Event = "launched"
	// Stop: somebody asked for the end.
	Stop Event = "stop"
	// Gone: no process is left, the exit status is known and recorded.
	Gone Event = "gone"
)

var transitions = map[State]map[Event]State{
	New:        {Admitted: Localizing, Gone: Complete},
	Localizing: {Launched: Running, Stop: Stopping, Gone: Complete},
	Running:    {Stop: Stopping, Gone: Complete},
	Stopping:   {Launched: Stopping, Stop: Stopping, Gone: Complete},
	Complete:   {Stop: Complete},
}

// Known reports whether s is one of the states.
func (s State) Known() bool { return transitions[s] != nil }

// Next is the state after e in s. An error means that the caller's picture of the container is wrong.
func Next(s State, e Event) (State, error) {
	if next, ok := transitions[s][e]; ok {
		return next, nil
	}
	return s, fmt.Errorf("a container that is %s cannot be %s", s, e)
}
