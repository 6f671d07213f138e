package shell

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// runWatch is -watch, which Hadoop's shell does not have: a line for each change, as it happens.
func runWatch(ctx context.Context, s *Shell, args []string) error {
	word := "/"
	if len(args) > 0 {
		word = args[0]
	}
	path, err := s.resolve(word)
	if err != nil {
		return err
	}
	left := -1
	if text, ok := s.options["n"]; ok {
		if left, err = strconv.Atoi(text); err != nil || left < 1 {
			return usageError{fmt.Sprintf("-n %s: want a number from 1", text)}
		}
	}
	var after metadata.Position
	if text, ok := s.options["from"]; ok {
		if after, err = metadata.ParsePosition(text); err != nil {
			return usageError{"-from " + text + ": want a position, as the lines begin with; 0 is the oldest that is kept"}
		}
	} else if after, err = s.client.EventsEnd(ctx); err != nil {
		return err
	}
	options := dfs.EventsOptions{}
	if path != "/" {
		options.Path = path
	}
	return s.client.Watch(ctx, after, options, func(page *metadata.EventPage) bool {
		if page.Missing {
			s.report(fmt.Errorf("watch: events after position %v are not kept any more, the next ones are behind %v", after, page.From))
		}
		for i := range page.Events {
			if left == 0 {
				break
			}
			left--
			if s.json {
				if s.encode(&page.Events[i]) != nil {
					return false
				}
				continue
			}
			s.printf("%s\n", eventLine(&page.Events[i]))
		}
		after = page.Next
		return s.out.Flush() == nil && left != 0
	})
}

// eventLine is an event in words.
func eventLine(e *metadata.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s %v %s", e.Position, e.Time.Time().Format("2006-01-02 15:04:05"), e.Kind, printablePath(e.Path))
	switch e.Kind {
	case metadata.EventCreate:
		kind := "-"
		if e.Dir {
			kind = "d"
		}
		fmt.Fprintf(&b, " %s%v %s %s", kind, e.Mode, e.Owner, e.Group)
	case metadata.EventClose, metadata.EventTruncate:
		fmt.Fprintf(&b, " %d", e.Length)
	case metadata.EventRename:
		b.WriteString(" -> " + printablePath(e.Target))
	case metadata.EventMetadata:
		fmt.Fprintf(&b, " %v", e.Update)
		switch e.Update {
		case metadata.UpdateTimes:
			for _, t := range []struct {
				name string
				time metadata.Time
			}{{"mtime", e.MTime}, {"atime", e.ATime}} {
				if t.time >= 0 {
					fmt.Fprintf(&b, " %s=%d", t.name, t.time)
				}
			}
		case metadata.UpdateReplication:
			fmt.Fprintf(&b, " %d", e.Replication)
		case metadata.UpdateOwner:
			fmt.Fprintf(&b, " %s:%s", e.Owner, e.Group)
		case metadata.UpdatePermission, metadata.UpdateACL:
			fmt.Fprintf(&b, " %v", e.Mode)
			for _, a := range e.ACL {
				b.WriteString(" " + quoted(a.String()))
			}
		case metadata.UpdateXAttrs:
			for _, x := range e.XAttrs {
				if e.Removed {
					b.WriteString(" -" + quoted(x.FullName()))
				} else {
					fmt.Fprintf(&b, " %s=%q", quoted(x.FullName()), x.Value)
				}
			}
		}
	}
	return b.String()
}

// printablePath is a path on a line of its own; "?" where the caller may not know it.
func printablePath(path string) string {
	if path == "" {
		return "?"
	}
	return quoted(path)
}

// quoted is text that others chose, for a terminal.
func quoted(text string) string {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return strconv.Quote(text)
	}
	return text
}
