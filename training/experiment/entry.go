package experiment

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/rendezvous"
	"github.com/gohops/hops/training/search"
)

// Entry is one line of the journal: an input of the experiment's state machine, never a result. Results follow from the
// specification's seed and the entries before, so that reading the lines again makes the same experiment. What the
// optimizer suggested is an input as well: it is in Assigned, and is adopted, not computed again, when the journal is read.
// Another version of the search, or another machine's floating point, therefore goes on from what was, not from what it
// would have done.
//
// Exactly one of the pointers is set; Kind is its name, for people with grep.
type Entry struct {
	N    int64           `json:"n"`
	Time training.Millis `json:"t"`
	Kind string          `json:"kind"`

	Created    *Created    `json:"created,omitempty"`
	Started    *Started    `json:"started,omitempty"`
	Registered *registered `json:"registered,omitempty"`
	Assigned   *assigned   `json:"assigned,omitempty"`
	Joined     *joined     `json:"joined,omitempty"`
	Reported   *reported   `json:"reported,omitempty"`
	Committed  *committed  `json:"committed,omitempty"`
	Ended      *ended      `json:"ended,omitempty"`
	Lost       *Lost       `json:"lost,omitempty"`
	Expired    *expired    `json:"expired,omitempty"`
	Drained    *drained    `json:"drained,omitempty"`
	Preempted  *Preempted  `json:"preempted,omitempty"`
	Stopped    *Stopped    `json:"stopped,omitempty"`
	Forgiven   *Forgiven   `json:"forgiven,omitempty"`
	NotStarted *NotStarted `json:"not_started,omitempty"`
	Resumed    *Resumed    `json:"resumed,omitempty"`
	Suggested  *Suggested  `json:"suggested,omitempty"`
	Decided    *Decided    `json:"decided,omitempty"`
	Broken     *Broken     `json:"broken,omitempty"`
}

// Created is the first line of every journal.
type Created struct {
	Version     int            `json:"version"` // of this format: 4
	ID          string         `json:"id"`
	Application string         `json:"application"`
	User        string         `json:"user"`
	Directory   string         `json:"directory"`
	Spec        *training.Spec `json:"spec"`
}

// Version is the format that this code writes; it reads nothing newer.
const Version = 4

// Started: an attempt of the application master took over. Containers lists those that still run; executors in others
// are lost.
type Started struct {
	Attempt    int      `json:"attempt"`
	Containers []string `json:"containers"`
}

// registered: an executor process began. An earlier one in the same container is lost.
type registered struct {
	Container string   `json:"container"`
	Instance  string   `json:"instance"`
	Node      string   `json:"node,omitempty"`
	Host      string   `json:"host"`
	GPUs      []string `json:"gpus,omitempty"`
	Serves    bool     `json:"serves,omitempty"` // it is for members of gangs that do not train
}

// assigned: an executor asked and was given something, or it was the last one that a gang needed. Proposed with Trial 0, the
// optimizer is asked and apply writes what it suggested into the entry; without a suggestion the trial is one that has to be done again.
type assigned struct {
	Trial      training.TrialID   `json:"trial"`
	Attempt    int                `json:"attempt"`
	Seats      []seat             `json:"seats"` // by rank
	Suggestion *search.Suggestion `json:"suggestion,omitempty"`
}

// seat is where a member runs. Place is its part in a gang; nil: it runs alone.
type seat struct {
	Executor string             `json:"executor"`
	Slot     int                `json:"slot,omitempty"`
	Place    *rendezvous.Member `json:"place,omitempty"`
}

// joined: a member of a gang is there, with its address.
type joined struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	protocol.Join
}

// reported are events that were new; of another rank than 0 only the last, without its metrics. Decision is what the search or its
// stopper decided because of one of them: apply writes it when the entry is proposed, and adopts it when the entry is read back.
type reported struct {
	Trial    training.TrialID `json:"trial"`
	Attempt  int              `json:"attempt"`
	Rank     int              `json:"rank,omitempty"`
	Events   protocol.Events  `json:"events"`
	LogBytes int64            `json:"log_bytes,omitempty"`
	Decision *decision        `json:"decision,omitempty"`
}

// decision ends an attempt that reported. Op is protocol.OpStop or protocol.OpPause.
type decision struct {
	Seq    int64  `json:"seq"` // of the event
	Op     string `json:"op"`
	Reason string `json:"reason"`
}

// committed: a checkpoint that was found whole.
type committed struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	protocol.Commit
}

// ended: an executor said how its attempt ended.
type ended struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	protocol.Final
}

// Lost: an executor is gone. Blame: its container or its silence counts as a failure of the trial and the node; without
// it the cluster took the container away.
type Lost struct {
	Executor string `json:"executor"`
	Reason   string `json:"reason"`
	Blame    bool   `json:"blame,omitempty"`
	// Told: it had been told to end and did.
	Told bool `json:"told,omitempty"`
	// Silent: nothing was heard of it, and so perhaps of its node.
	Silent bool `json:"silent,omitempty"`
}

// expired: a time limit passed. Code is training.CodeTimeout, CodeNoReport, CodeNotWhole or CodeIdle of an attempt, or CodeNotEnding of the members
// of a gang whose chief has ended; for the whole experiment Trial is 0.
type expired struct {
	Trial   training.TrialID `json:"trial,omitempty"`
	Attempt int              `json:"attempt,omitempty"`
	Code    string           `json:"code"`
}

// drained: an executor is told to end.
type drained struct {
	Executor string `json:"executor"`
	Reason   string `json:"reason"`
}

// Preempted: an executor's container will be taken away. Withdrawn: it may stay after all; such an entry has no Reason, by which programs
// that do not know the word take the notice back as well.
type Preempted struct {
	Executor  string `json:"executor"`
	Reason    string `json:"reason"`
	Withdrawn bool   `json:"withdrawn,omitempty"`
}

// Stopped: a person, or the resource manager, ends the experiment.
type Stopped struct {
	User   string `json:"user"`
	Reason string `json:"reason"`
}

// Forgiven: an excluded node may be used again, because its time is over, or because no other gave a container.
type Forgiven struct {
	Node string `json:"node"`
}

// NotStarted: a container ended before its executor registered.
type NotStarted struct {
	Container string `json:"container"`
	Node      string `json:"node,omitempty"`
	Reason    string `json:"reason"`
	Log       string `json:"log,omitempty"`
}

// Resumed: a person goes on with an experiment that was over, or whose controllers had used up their attempts, as another
// application.
type Resumed struct {
	Application string `json:"application"`
	User        string `json:"user"`
}

// What names the pointer that is set.
func (e *Entry) What() string {
	switch {
	case e.Created != nil:
		return "created"
	case e.Started != nil:
		return "started"
	case e.Registered != nil:
		return "registered"
	case e.Assigned != nil:
		return "assigned"
	case e.Joined != nil:
		return "joined"
	case e.Reported != nil:
		return "reported"
	case e.Committed != nil:
		return "committed"
	case e.Ended != nil:
		return "ended"
	case e.Lost != nil:
		return "lost"
	case e.Expired != nil:
		return "expired"
	case e.Drained != nil:
		return "drained"
	case e.Preempted != nil:
		return "preempted"
	case e.Stopped != nil:
		return "stopped"
	case e.Forgiven != nil:
		return "forgiven"
	case e.NotStarted != nil:
		return "not_started"
	case e.Resumed != nil:
		return "resumed"
	case e.Suggested != nil:
		return "suggested"
	case e.Decided != nil:
		return "decided"
	case e.Broken != nil:
		return "broken"
	}
	return ""
}

// Encode makes the line, with its newline.
func (e *Entry) Encode() ([]byte, error) {
	if line, ok := e.appendReported(nil); ok {
		return line, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, fmt.Errorf("journal entry %d: %w", e.N, err)
	}
	return b.Bytes(), nil
}

// UnknownKind is an entry that a newer program has written: what it did to the experiment is not known here.
type UnknownKind struct {
	N    int64
	Kind string
}

func (e *UnknownKind) Error() string {
	return fmt.Sprintf("entry %d is of kind %.100q, which this program does not know: a newer one has written it", e.N, e.Kind)
}

// DecodeEntry reads a line. A line that is not a whole entry is an error: it was cut by a crash or damaged, or it is an
// *UnknownKind.
func DecodeEntry(line []byte) (*Entry, error) {
	if e, ok := decodeReported(line); ok {
		return e, nil
	}
	var e Entry
	if err := json.Unmarshal(line, &e); err != nil {
		return nil, err
	}
	if e.What() == "" && e.Kind != "" && e.N > 0 {
		return nil, &UnknownKind{e.N, e.Kind}
	}
	if e.Kind != e.What() || e.Kind == "" {
		return nil, fmt.Errorf("entry %d of kind %q has the content of %q", e.N, e.Kind, e.What())
	}
	return &e, nil
}
