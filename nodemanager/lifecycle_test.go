package nodemanager

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// lifeCycleRows writes the life cycle as DESIGN.md shows it.
func lifeCycleRows() []string {
	head := "| |"
	for _, e := range Events {
		head += " " + string(e) + " |"
	}
	rows := []string{head}
	for _, s := range States {
		row := "| **" + string(s) + "** |"
		for _, e := range Events {
			step, err := Next(s, e)
			switch {
			case err != nil:
				row += " – |"
			case step.Do == Nothing:
				row += " " + string(step.Next) + " |"
			default:
				row += " " + string(step.Next) + ", *" + string(step.Do) + "* |"
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// TestLifeCycle holds every pair of a state and an event against what it is meant to be, and against what DESIGN.md shows.
func TestLifeCycle(t *testing.T) {
	localize, attend, release := Step{Localizing, Localize}, Step{Running, Attend}, Step{Complete, Release}
	stop, no := Step{Stopping, Interrupt}, Step{}
	want := map[State][]Step{ // in the order of Events
		New:        {localize, no, attend, localize, stop, release, no},
		Localizing: {no, attend, attend, localize, stop, release, no},
		Running:    {no, no, attend, no, stop, release, no},
		Stopping:   {no, {Stopping, Attend}, {Stopping, Attend}, {Stopping, Localize}, {Stopping, Nothing}, release, no},
		Complete:   {no, no, no, no, {Complete, Nothing}, no, {Complete, Remove}},
	}
	if len(want) != len(States) || len(lifeCycle) != len(States) {
		t.Fatalf("%d states are in the table, %d are named", len(lifeCycle), len(States))
	}
	for _, s := range States {
		for i, e := range Events {
			got, err := Next(s, e)
			switch {
			case want[s][i] == no && (err == nil || got != Step{s, Nothing}):
				t.Errorf("%s, %s: got %v, want an error", s, e, got)
			case want[s][i] != no && (err != nil || got != want[s][i]):
				t.Errorf("%s, %s: got %v, %v, want %v", s, e, got, err, want[s][i])
			}
		}
		if _, err := Next(s, "exploded"); err == nil || !s.Known() {
			t.Errorf("%s has an event that does not exist, or is not known", s)
		}
	}
	if _, err := Next("NOWHERE", Gone); err == nil || State("NOWHERE").Known() {
		t.Error("a state that does not exist has a next one")
	}
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range lifeCycleRows() {
		if !strings.Contains(string(text), row+"\n") {
			t.Errorf("DESIGN.md lacks the row\n%s", row)
		}
	}
}

// TestNoLifeIsWrong goes through many lives: what was released stays released, nothing is localized or attended after the end, what
// was told to stop does not run again, and everybody can end.
func TestNoLifeIsWrong(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		s, released, interrupted := New, 0, 0
		var life []string
		for range 12 {
			e := Events[random.IntN(len(Events))]
			step, err := Next(s, e)
			if err != nil {
				continue
			}
			life = append(life, string(s)+" "+string(e))
			switch step.Do {
			case Release:
				released++
			case Interrupt:
				interrupted++
			case Localize, Attend:
				if released > 0 {
					t.Fatalf("%s after the end: %v", step.Do, life)
				}
			case Remove:
				if released == 0 {
					t.Fatalf("removed before the end: %v", life)
				}
			}
			if released > 1 || interrupted > 1 || (step.Next == Complete) != (released == 1) || interrupted == 1 && step.Next == Running {
				t.Fatalf("released %d times, interrupted %d times: %v", released, interrupted, life)
			}
			s = step.Next
		}
		if _, err := Next(s, Gone); (err != nil) != (s == Complete) {
			t.Fatalf("a container that is %s: %v", s, err)
		}
	}
}
