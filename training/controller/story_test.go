package controller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// TestStories plays testdata/stories/*.txt on the state machine. A story is blocks of commands, "----" and what they
// print; -update rewrites the latter. Commands:
//
//	experiment JSON               begins, by ann, in /e
//	register C on NODE [server]   an executor in container C
//	next E [slot=N]               an executor asks for work
//	join T/A.R [PORT]             a member of a gang has come
//	report T/A[.R] k=v ...        one event; step= and seq= are counted unless given, by= names another container
//	checkpoint T/A step=N         commits
//	final T/A [acc=V|STATE|error=Type:message] [seq=N]
//	lost E [blame|told] REASON
//	unborn C on NODE REASON       a container ended before its executor began
//	stop USER REASON
//	forgive NODE
//	preempt E [withdrawn]         its container will be taken away, or stays after all
//	suggest JSON | decide T/A REASON | broken REASON | asked      who steers from outside
//	resume APPLICATION USER       another application goes on, without the executors of the last one
//	advance DURATION              time passes; what is due then happens
//	trials | executors | counters | wanted
//
// At the end of each story the journal is read again, from the beginning and from a snapshot taken after every line, and
// has to make the same state.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/stories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &story{t: t, x: experiment.New(), now: 1_700_000_000_000}
			var out strings.Builder
			for i, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
				if i > 0 {
					out.WriteString("\n")
				}
				input, _, _ := strings.Cut(block, "\n----")
				out.WriteString(input + "\n")
				var printed strings.Builder
				commands := false
				for _, line := range strings.Split(input, "\n") {
					if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
						commands = true
						fmt.Fprint(&printed, s.command(line))
					}
				}
				if commands {
					out.WriteString("----\n" + printed.String())
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(strings.TrimSpace(string(text)), strings.TrimSpace(out.String())); diff != "" {
				t.Errorf("-file +got:\n%s", diff)
			}
			s.replay()
		})
	}
}

type story struct {
	t       *testing.T
	x       *experiment.Experiment
	now     training.Millis
	entries []*experiment.Entry
	snaps   [][]byte
	rank    int // of the command
}

// took records an entry, as the controller does.
func (s *story) took(e *experiment.Entry, err error) error {
	if err != nil || e == nil {
		return err
	}
	b, err := e.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	decoded, err := experiment.DecodeEntry(b)
	if err != nil {
		s.t.Fatal(err)
	}
	s.entries = append(s.entries, decoded)
	resting := 0
	for _, t := range s.x.Trials {
		if t.State.Final() || t.State == training.Paused {
			resting++
		}
	}
	if resting != s.x.Concluded {
		s.t.Errorf("entry %d: %d trials have ended or are paused, %d are counted", e.N, resting, s.x.Concluded)
	}
	snap, err := s.x.Snapshot(0)
	if err != nil {
		s.t.Fatal(err)
	}
	s.snaps = append(s.snaps, snap)
	s.x.Take()
	return nil
}

// replay is the crash after every line: the state after it is restored and the rest is applied.
func (s *story) replay() {
	want := s.snaps[len(s.snaps)-1]
	for cut := 0; cut <= len(s.entries); cut++ {
		x := experiment.New()
		if cut > 0 {
			var err error
			if x, _, err = experiment.Restore(s.snaps[cut-1]); err != nil {
				s.t.Fatal(err)
			}
		}
		x.Compare = cut%2 == 0 // the search is deterministic; a controller adopts what is written
		for _, e := range s.entries[cut:] {
			b, _ := json.Marshal(e) // apply may write into an entry
			var c experiment.Entry
			if err := json.Unmarshal(b, &c); err != nil {
				s.t.Fatal(err)
			}
			if err := x.Apply(&c); err != nil {
				s.t.Fatalf("from %d: %v", cut, err)
			}
		}
		got, err := x.Snapshot(0)
		if err != nil {
			s.t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			s.t.Fatalf("the state read from entry %d on differs:\n%s\n%s", cut, want, got)
		}
	}
}

func attempt(s string) (id training.TrialID, n int) {
	a, b, _ := strings.Cut(s, "/")
	k, _ := strconv.Atoi(a)
	n, _ = strconv.Atoi(b)
	return training.TrialID(k), n
}

func (s *story) container(id training.TrialID) string {
	if t := s.x.Trial(id); t != nil {
		if w := s.x.Executor(t.Members[min(s.rank, len(t.Members)-1)].Executor); w != nil {
			return w.Container
		}
	}
	return ""
}

func (s *story) command(line string) string {
	f := strings.Fields(line)
	s.rank = 0
	if len(f) > 1 { // T/A.R is a member of a gang
		if at, rank, ok := strings.Cut(f[1], "."); ok && f[0] != "experiment" {
			f[1] = at
			s.rank, _ = strconv.Atoi(rank)
		}
	}
	show := func(format string, args ...any) string { return fmt.Sprintf(format, args...) + "\n" }
	fail := func(err error) string {
		if re, ok := err.(*experiment.Refusal); ok {
			return show("%d %s: %s", re.Status, re.Code, re.Message)
		}
		return show("error: %v", err)
	}
	switch f[0] {
	case "experiment":
		spec, err := training.ParseSpec([]byte(strings.TrimPrefix(line, "experiment ")), "ann")
		if err != nil {
			return fail(err)
		}
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Created: &experiment.Created{Version: experiment.Version, ID: "app_1", Application: "app", User: "ann", Directory: "/e", Spec: spec}})); err != nil {
			return fail(err)
		}
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Started: &experiment.Started{Attempt: 1}})); err != nil {
			return fail(err)
		}
		return ""
	case "register":
		w, fresh, e, err := s.x.Register(s.now, protocol.RegisterExecutor{ContainerID: f[1], Instance: strings.Join(f[4:], ""), Host: "h-" + f[3]}, f[3], len(f) > 4 && f[4] == "server")
		if err := s.took(e, err); err != nil {
			return fail(err)
		}
		return show("%s new=%v %s", w.ID, fresh, w.State)
	case "next":
		slot := 0
		if len(f) > 2 {
			slot, _ = strconv.Atoi(strings.TrimPrefix(f[2], "slot="))
		}
		n, e, err := s.x.Next(s.now, f[1], slot)
		if err := s.took(e, err); err != nil {
			return fail(err)
		}
		if n.Trial == nil {
			return show("%s: %s %s", f[1], n.Action, n.Reason)
		}
		from := ""
		if n.Trial.Resume != nil {
			from = fmt.Sprintf(" resume %s", strings.TrimPrefix(n.Trial.Resume.URI, "/e/"))
		}
		if g := n.Trial.Gang; g != nil {
			from += fmt.Sprintf(" rank %d of %d, %s %d, %d ports", g.Rank, g.World, g.Role, g.Index, g.Ports)
		}
		return show("%s: %v/%d %d..%d%s", f[1], n.Trial.Trial, n.Trial.Attempt, n.Trial.Budget.From, n.Trial.Budget.To, from)
	case "join":
		id, a := attempt(f[1])
		j := protocol.Join{Rank: s.rank, Host: fmt.Sprintf("10.0.0.%d", s.rank+1)}
		if len(f) > 2 {
			port, _ := strconv.Atoi(f[2])
			j.Ports = []int{port}
		}
		r, e, err := s.x.Join(s.now, s.container(id), id, a, j)
		if err := s.took(e, err); err != nil {
			return fail(err)
		}
		return show("%s.%d: ready=%v %s%s", f[1], s.rank, r.Ready, r.Op, prefixed("MASTER_ADDR=", r.Env["MASTER_ADDR"]))
	case "report":
		id, a := attempt(f[1])
		ev := protocol.MetricEvent{Seq: 1, Step: 1, Metrics: map[string]training.Metric{}}
		by := s.container(id)
		if t := s.x.Trial(id); t != nil {
			m := t.Members[min(s.rank, len(t.Members)-1)]
			ev.Seq = m.Seq + 1
			if m.Step != nil {
				ev.Step = *m.Step + 1
			} else if t.Resume != nil {
				ev.Step = t.Resume.Step + 1
			}
		}
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			n, _ := strconv.ParseInt(v, 10, 64)
			switch k {
			case "step":
				ev.Step = n
			case "seq":
				ev.Seq = n
			case "by":
				by = v
			default:
				var m training.Metric
				if json.Unmarshal([]byte(v), &m) != nil {
					m.Text = v
				}
				ev.Metrics[k] = m
			}
		}
		r, e, err := s.x.Report(s.now, by, id, a, protocol.Report{Rank: s.rank, Events: []protocol.MetricEvent{ev}})
		if err := s.took(e, err); err != nil {
			return fail(err)
		}
		return show("%s: ack %d %s%s", f[1], r.Ack, r.Op, prefixed(" — ", r.Reason))
	case "checkpoint":
		id, a := attempt(f[1])
		n, _ := strconv.ParseInt(strings.TrimPrefix(f[2], "step="), 10, 64)
		c, e, err := s.x.Commit(s.now, s.container(id), id, a, protocol.Commit{Rank: s.rank, Step: n, URI: fmt.Sprintf("/e/%v/checkpoints/%d/step-%d", id, a, n), Files: []training.File{{Name: "m", Size: 1}}})
		if err := s.took(e, err); err != nil {
			return fail(err)
		}
		return show("%s: keep %v delete %v %s", f[1], c.Keep, c.Delete, c.Op)
	case "final":
		id, a := attempt(f[1])
		fin := protocol.Final{Rank: s.rank, Status: training.Completed}
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			switch k {
			case "seq":
				fin.Seq, _ = strconv.ParseInt(v, 10, 64)
			case "acc":
				fin.Metric = new(training.Metric)
				if json.Unmarshal([]byte(v), fin.Metric) != nil {
					fin.Metric.Text = v
				}
			case "error":
				name, message, _ := strings.Cut(v, ":")
				fin.Status, fin.Error = training.Failed, &training.TrialError{Type: name, Message: message}
			default:
				fin.Status = training.State(k)
			}
		}
		r, e, err := s.x.Final(s.now, s.container(id), id, a, fin)
		if err := s.took(e, err); err != nil {
			return fail(err)
		}
		return show("%s: %s%s", f[1], r.State, prefixed(" — ", r.Reason))
	case "lost":
		rest := f[2:]
		l := &experiment.Lost{Executor: f[1]}
		switch rest[0] {
		case "blame":
			l.Blame, rest = true, rest[1:]
		case "told":
			l.Told, rest = true, rest[1:]
		}
		l.Reason = strings.Join(rest, " ")
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Lost: l})); err != nil {
			return fail(err)
		}
		return ""
	case "unborn":
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{NotStarted: &experiment.NotStarted{Container: f[1], Node: f[3], Reason: strings.Join(f[4:], " ")}})); err != nil {
			return fail(err)
		}
		return show("%s%s", s.x.State, prefixed(" — ", s.x.Reason))
	case "stop":
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Stopped: &experiment.Stopped{User: f[1], Reason: strings.Join(f[2:], " ")}})); err != nil {
			return fail(err)
		}
		return ""
	case "resume": // resume APP USER
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Resumed: &experiment.Resumed{Application: f[1], User: f[2]}})); err != nil {
			return fail(err)
		}
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Started: &experiment.Started{Attempt: 1}})); err != nil {
			return fail(err)
		}
		return ""
	case "preempt":
		notice := experiment.Preempted{Executor: f[1], Reason: "another queue is owed it"}
		if len(f) > 2 {
			notice = experiment.Preempted{Executor: f[1], Withdrawn: true}
		}
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Preempted: &notice})); err != nil {
			return fail(err)
		}
		return ""
	case "suggest":
		var in experiment.Suggested
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "suggest ")), &in); err != nil {
			return fail(err)
		}
		s.x.Take()
		if err := s.x.Suggest(s.now, in); err != nil {
			return fail(err)
		}
		return s.steered()
	case "decide":
		id, a := attempt(f[1])
		s.x.Take()
		if err := s.x.Decide(s.now, experiment.Decided{Trial: id, Attempt: a, Reason: strings.Join(f[2:], " ")}); err != nil {
			return fail(err)
		}
		return s.steered()
	case "broken":
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Broken: &experiment.Broken{Reason: strings.Join(f[1:], " ")}})); err != nil {
			return fail(err)
		}
		return ""
	case "asked":
		n, next := s.x.Asked()
		return show("%d from %v", n, next)
	case "forgive":
		if err := s.took(s.x.Propose(s.now, &experiment.Entry{Forgiven: &experiment.Forgiven{Node: f[1]}})); err != nil {
			return fail(err)
		}
		return ""
	case "advance":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
		var out strings.Builder
		silent := f[2:]
		due := s.x.Due(s.now, 10*time.Second, func(id string, slot int) training.Millis {
			if slices.Contains(silent, id) {
				return 0
			}
			return s.now
		}, func(at training.Millis) training.Millis { return at })
		for _, e := range due {
			if err := s.took(s.x.Propose(s.now, e)); err != nil {
				return fail(err)
			}
			out.WriteString(e.What())
			switch {
			case e.Lost != nil:
				fmt.Fprintf(&out, " %s: %s", e.Lost.Executor, e.Lost.Reason)
			case e.Expired != nil:
				fmt.Fprintf(&out, " %v/%d %s", e.Expired.Trial, e.Expired.Attempt, e.Expired.Code)
			}
			out.WriteString("\n")
		}
		return out.String()
	case "trials":
		var out strings.Builder
		for _, t := range s.x.Trials {
			r := s.x.Row(t, false)
			fmt.Fprintf(&out, "%v/%d %s epochs=%d", t.ID, t.Attempt, t.State, r.Epochs)
			if r.Metric != nil {
				fmt.Fprintf(&out, " metric=%g", *r.Metric)
			}
			if len(r.Steps) > 0 {
				fmt.Fprintf(&out, " checkpoints=%v", r.Steps)
			}
			out.WriteString(prefixed(" — ", r.Reason) + "\n")
		}
		fmt.Fprintf(&out, "%s%s", s.x.State, prefixed(" — ", s.x.Reason))
		if b := s.x.BestSoFar(); b != nil {
			fmt.Fprintf(&out, " best %v %g", b.Trial, b.Metric)
		}
		return out.String() + "\n"
	case "executors":
		var out strings.Builder
		for _, w := range s.x.Executors {
			r := s.x.ExecutorRow(w)
			fmt.Fprintf(&out, "%s on %s %s %s%s\n", r.Executor, r.Node, r.State, r.Trial, prefixed(" — ", r.Reason))
		}
		if ex := s.x.Excluded(); len(ex) > 0 {
			fmt.Fprintf(&out, "excluded %v\n", ex)
		}
		return out.String()
	case "counters":
		b, _ := json.Marshal(s.x.Counters)
		return string(b) + "\n"
	case "wanted":
		return show("%d%s", s.x.Wanted(false), prefixed(" servers ", strings.TrimPrefix(fmt.Sprint(s.x.Wanted(true)), "0")))
	}
	s.t.Fatalf("unknown command %q", line)
	return ""
}

// steered records what a call that returns no entry has proposed.
func (s *story) steered() string {
	for _, e := range s.x.Take().Entries {
		if err := s.took(e, nil); err != nil {
			s.t.Fatal(err)
		}
	}
	return ""
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
