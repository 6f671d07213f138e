package namenode

import (
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// Publisher does several things in one go.
type Publisher interface {
	// Publish carries out steps, in their order, each of which sees what those before have done: all of them, or none. Nobody sees a state in between. snapshot is
	// the path of the one that the last step has made.
	//
	// Errors: those of the steps, as a *PublishError; ErrInvalidArgument for what is no publish; ErrUnsupported below release.Publish.
	Publish(c metadata.Caller, retry Retry, steps []PublishStep, done func(snapshot string, err error))
}

// MaxPublishSteps is how many steps a publish has at most. Who decodes a request decodes no more of them.
const MaxPublishSteps = 256

// ManySteps refuses a publish of so many steps.
func ManySteps(n int) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, "publish: there are %d steps, and %d is the most", n, MaxPublishSteps)
}

// PublishVerb is what a step of a publish does.
type PublishVerb uint8

// The verbs.
const (
	// PublishRename is RenameTo.
	PublishRename PublishVerb = iota
	// PublishDelete is Delete, and an error if nothing is there.
	PublishDelete
	PublishSetXAttr
	PublishRemoveXAttr
	// PublishSnapshot makes a snapshot. It is the last step.
	PublishSnapshot
)

// PublishStep is a step of a publish. Fields that mean nothing for its verb are zero.
type PublishStep struct {
	What PublishVerb
	// Path is what the step is about, To where a rename leads to.
	Path, To string
	// Overwrite: a rename may replace a file, or an empty directory.
	Overwrite bool
	// Recursive: a delete is of all that is below, too. IfThere: it does nothing if there is nothing.
	Recursive, IfThere bool
	// Attribute, and whether it may be made, and an existing one replaced.
	Attribute       metadata.XAttr
	Create, Replace bool
	// Name of the snapshot; empty: the namenode names it.
	Name string
}

// PublishError says which step of a publish failed, from 1 on, and why. Nothing was done.
type PublishError struct {
	Step int
	Err  error
}

func (e *PublishError) Error() string { return e.Err.Error() }
func (e *PublishError) Unwrap() error { return e.Err }

// publishCommands are the names that HDFS's audit log has for what steps do.
var publishCommands = [...]string{
	PublishRename: "rename", PublishDelete: "delete", PublishSetXAttr: "setXAttr", PublishRemoveXAttr: "removeXAttr", PublishSnapshot: "createSnapshot",
}

// PublishDecisions are what an audit log keeps of a publish, without caller and port: a line for each of its steps, named as what the step does by itself, or one for the step
// that its caller may not take. An error that is no such decision leaves none.
func PublishDecisions(steps []PublishStep, snapshot string, failed int, err error) []security.Decision {
	if err != nil && (failed < 1 || failed > len(steps) || !security.Refused(err)) {
		return nil
	}
	decision := func(s *PublishStep) security.Decision {
		d := security.Decision{Allowed: err == nil, Command: publishCommands[s.What], Source: s.Path, Target: s.To}
		if s.What == PublishSnapshot {
			d.Target = snapshot
		}
		if err != nil {
			d.Reason = err.Error()
		}
		return d
	}
	if err != nil {
		return []security.Decision{decision(&steps[failed-1])}
	}
	all := make([]security.Decision, len(steps))
	for i := range steps {
		all[i] = decision(&steps[i])
	}
	return all
}
