package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/outline"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
	nnserver "github.com/gohops/hops/namenode/server"
	rmserver "github.com/gohops/hops/resourcemanager/server"
	"github.com/gohops/hops/resourcemanager/state"
)

// describers say what the commands of a group are.
var describers = map[string]func([]byte) (outline.Command, error){
	nnserver.Group:     namespace.Describe,
	rmserver.GroupName: state.Describe,
}

func inspectLogCommand() *cli.Command {
	return &cli.Command{
		Name: "log", Usage: "the raft log of a group", ArgsUsage: "DIR",
		Description: "hops operator inspect log --commands --from 1000 --to 1010 /var/lib/hops/namenode/raft/namespace\n\n" +
			"DIR is the directory of a group, or a copy of the log in it. First come term, vote and watermark (entries up to it were acknowledged), then a line for each entry:\n" +
			"index, term, kind, bytes, number of commands. All of the log is checked, whichever entries are shown; what is damaged is named with file and offset.\n" +
			"The server may run.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "commands", Usage: "show each command: its operation, and on what"},
			&cli.StringFlag{Name: "group", Usage: "whose log it is, where member.json is not beside it: `NAME`, " + nnserver.Group + " or " + rmserver.GroupName},
			&cli.Uint64Flag{Name: "from", Usage: "show entries from this `INDEX` on"},
			&cli.Uint64Flag{Name: "to", Value: math.MaxUint64, DefaultText: "the last", Usage: "show entries up to this `INDEX`"},
			&cli.BoolFlag{Name: "json", Usage: "a JSON object in each line: head, then entry by entry, then end"},
		},
		Action: inspectLog,
	}
}

// logLine is one of the output as JSON; one of its fields is set.
type logLine struct {
	Head  *raftstore.LogHead     `json:"head,omitempty"`
	Entry *logEntry              `json:"entry,omitempty"`
	End   *raftstore.LogContents `json:"end,omitempty"`
}

type logEntry struct {
	raftstore.LogEntry
	Count    int          `json:"commandCount"`
	Commands []logCommand `json:"commands,omitempty"`
	Wrong    string       `json:"wrong,omitempty"`
}

type logCommand struct {
	outline.Command
	Wrong string `json:"wrong,omitempty"`
}

// logPrinter prints a log as it is read.
type logPrinter struct {
	ctx      context.Context
	out      *bufio.Writer
	asJSON   bool
	commands bool
	group    string
	from, to uint64
	// wrong counts what makes no sense although its checksum fits; why is the first.
	wrong int
	why   error
}

func inspectLog(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "operator inspect log: give one DIR")
	}
	p := logPrinter{
		ctx: c.Context, out: bufio.NewWriterSize(c.App.Writer, 64<<10), asJSON: c.Bool("json"), commands: c.Bool("commands"), group: c.String("group"),
		from: c.Uint64("from"), to: c.Uint64("to"),
	}
	if p.from > p.to {
		return fail(exitUsage, "operator inspect log: --from %d is behind --to %d", p.from, p.to)
	}
	if _, ok := describers[p.group]; p.group != "" && !ok {
		return fail(exitUsage, "operator inspect log: there is no group %q: %s or %s", p.group, nnserver.Group, rmserver.GroupName)
	}
	dir := c.Args().First()
	found, err := raftstore.InspectLog(dir, p.head, p.entry)
	if err == nil {
		err = p.end(found)
	}
	if flushed := p.out.Flush(); err == nil {
		err = flushed
	}
	switch {
	case err != nil:
		return err
	case len(found.Damage) > 0:
		return fail(exitFailed, "%s: the log is damaged in %s", dir, plural(len(found.Damage), "place"))
	case p.wrong > 0:
		return fail(exitFailed, "%s: %s cannot be read by this program, the first because: %w", dir, plural(p.wrong, "entry or command", "entries or commands"), p.why)
	}
	return nil
}

// plural counts things.
func plural(n int, one string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(many) > 0:
		return fmt.Sprintf("%d %s", n, many[0])
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func (p *logPrinter) head(h raftstore.LogHead) error {
	if p.group == "" {
		p.group = h.Group
	}
	if p.commands && describers[p.group] == nil {
		if p.group == "" {
			return fail(exitUsage, "operator inspect log: there is no member.json that says whose log it is: say --group %s or --group %s", nnserver.Group, rmserver.GroupName)
		}
		return fail(exitFailed, "commands of group %q are not known to this program", p.group)
	}
	if p.asJSON {
		return p.line(logLine{Head: &h})
	}
	if h.Group != "" {
		fmt.Fprintf(p.out, "group      %s of cluster %s, member %s\n", outline.Text(h.Group), outline.Text(h.Cluster), outline.Text(h.Member))
	}
	if h.Joining {
		fmt.Fprintln(p.out, "           joining: it gives no votes before it has all that a leader has")
	}
	if h.Damaged != "" {
		fmt.Fprintf(p.out, "           found damaged before: %s\n", outline.Text(h.Damaged))
	}
	vote := "none"
	if h.VoteTerm > 0 {
		vote = fmt.Sprintf("for %s in term %d", outline.Text(h.Vote), h.VoteTerm)
	}
	fmt.Fprintf(p.out, "term       %d\nvote       %s\nwatermark  %d\nfiles      %d of entries, %d spare, %d bytes\n", h.Term, vote, h.Watermark, h.Segments, h.Spares, h.Bytes)
	fmt.Fprintf(p.out, "\n%10s %6s  %-13s %8s %9s\n", "INDEX", "TERM", "KIND", "BYTES", "COMMANDS")
	return nil
}

func (p *logPrinter) line(l logLine) error { return json.NewEncoder(p.out).Encode(l) }

func (p *logPrinter) fault(err error) {
	if p.wrong++; p.why == nil {
		p.why = err
	}
}

func (p *logPrinter) entry(e raftstore.LogEntry) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if e.Wrong != nil {
		p.fault(e.Wrong)
	}
	if e.Index < p.from || e.Index > p.to {
		return nil
	}
	shown := logEntry{LogEntry: e, Count: len(e.Commands)}
	if e.Wrong != nil {
		shown.Wrong = e.Wrong.Error()
	}
	if p.commands {
		for _, raw := range e.Commands {
			described, err := describers[p.group](raw)
			command := logCommand{Command: described}
			if err != nil {
				p.fault(fmt.Errorf("entry %d: %w", e.Index, err))
				command.Wrong = err.Error()
			}
			shown.Commands = append(shown.Commands, command)
		}
	}
	if p.asJSON {
		return p.line(logLine{Entry: &shown})
	}
	return p.text(shown)
}

func (p *logPrinter) text(e logEntry) error {
	count := "-"
	if e.LogEntry.Commands != nil {
		count = fmt.Sprint(e.Count)
	}
	fmt.Fprintf(p.out, "%10d %6d  %-13s %8d %9s", e.Index, e.Term, e.Kind, e.Bytes, count)
	for _, m := range e.Configuration {
		vote := ""
		if !m.Voter {
			vote = " without a vote"
		}
		fmt.Fprintf(p.out, "  %s at %s%s", outline.Text(m.ID), outline.Text(m.Address), vote)
	}
	if e.LogEntry.Wrong != nil {
		fmt.Fprintf(p.out, "  %v", e.LogEntry.Wrong)
	}
	_, err := fmt.Fprintln(p.out)
	for _, command := range e.Commands {
		text := command.String()
		if command.Wrong != "" {
			text = "cannot be read: " + command.Wrong
		}
		_, err = fmt.Fprintln(p.out, strings.Repeat(" ", 19)+text)
	}
	return err
}

func (p *logPrinter) end(found raftstore.LogContents) error {
	if p.asJSON {
		return p.line(logLine{End: &found})
	}
	if found.First == 0 {
		fmt.Fprintln(p.out, "no entries")
	} else {
		fmt.Fprintf(p.out, "\nentries %d to %d, acknowledged up to %d\n", found.First, found.Last, found.Watermark)
	}
	for _, d := range found.Damage {
		fmt.Fprintf(p.out, "damage: %s\n", d)
	}
	return nil
}
