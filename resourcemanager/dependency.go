package resourcemanager

import (
	"fmt"
	"strings"
)

// Outcome is what an application waits for of another, in the words of a job document.
type Outcome string

// The outcomes, with what Slurm calls them (sbatch --dependency).
const (
	OutcomeSucceeded Outcome = "succeeded" // afterok
	OutcomeFailed    Outcome = "failed"    // afternotok: it ended, and did not succeed
	OutcomeEnded     Outcome = "ended"     // afterany
	OutcomeStarted   Outcome = "started"   // after: its master has run, or it has ended
)

// Outcomes are all of them.
var Outcomes = []string{string(OutcomeSucceeded), string(OutcomeFailed), string(OutcomeEnded), string(OutcomeStarted)}

// MaxAfter bounds what one application waits for.
const MaxAfter = 100

// Dependency is something that an application waits for before anything of it is started.
type Dependency struct {
	Application ApplicationID
	Outcome     Outcome
}

func (d Dependency) String() string {
	return fmt.Sprintf("%v to have %s", d.Application, d.Outcome)
}

// Settled says whether a, of which the dependency is, has come to the outcome (met), or can never come to it any more (never).
func (d Dependency) Settled(a *Application) (met, never bool) {
	ended := a.State.Final()
	succeeded := a.State == StateFinished && a.Final == FinalSucceeded
	switch d.Outcome {
	case OutcomeStarted:
		return ended || a.Launched > 0, false
	case OutcomeEnded:
		return ended, false
	case OutcomeFailed:
		return ended && !succeeded, succeeded
	}
	return succeeded, ended && !succeeded
}

// maxShown bounds the dependencies that a sentence names.
const maxShown = 3

// AwaitedText says for people what an application still waits for; empty: nothing.
func (a *Application) AwaitedText() string {
	if len(a.After) == 0 || a.State.Final() {
		return ""
	}
	var list []string
	for _, d := range a.After[:min(len(a.After), maxShown)] {
		list = append(list, d.String())
	}
	text := "waits for " + strings.Join(list, ", and for ")
	if more := len(a.After) - maxShown; more > 0 {
		text += fmt.Sprintf(", and for %d more", more)
	}
	return text
}
