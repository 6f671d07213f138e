package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/outline"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/resourcemanager/state"
)

func inspectSnapshotCommand() *cli.Command {
	return &cli.Command{
		Name: "snapshot", Usage: "snapshots of raft", ArgsUsage: "FILE|DIR",
		Description: "FILE is a snapshot (.snap, also one that was sent, or set aside as damaged); DIR the directory of a group, or that of its snapshots, of which all are read.\n" +
			"A namenode's snapshot is most often a reference to a version of its checkpoint, which `hops operator inspect checkpoint` reads; that of a backup has the\n" +
			"state in it. All that is in the file is checked. The server may run.",
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "a JSON object in each line, one for each file"}},
		Action: inspectSnapshots,
	}
}

// snapshotLine is what is said of one file.
type snapshotLine struct {
	File string                  `json:"file"`
	Head *raftstore.SnapshotHead `json:"head,omitempty"`
	// Kind is whose state it has, namespace or resourcemanager; empty: none.
	Kind      string            `json:"kind,omitempty"`
	Namespace *namespace.Census `json:"namespace,omitempty"`
	Manager   []outline.Class   `json:"resourcemanager,omitempty"`
	Wrong     string            `json:"wrong,omitempty"`
}

func inspectSnapshots(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "operator inspect snapshot: give one FILE or DIR")
	}
	path := c.Args().First()
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	paths := []string{path}
	if info.IsDir() {
		if paths, err = raftstore.Snapshots(path); err != nil {
			return err
		}
	}
	var first error
	wrong := 0
	for _, path := range paths {
		if err := c.Context.Err(); err != nil {
			return err
		}
		line := snapshotLine{File: path}
		err := line.read()
		if errors.Is(err, os.ErrNotExist) && len(paths) > 1 {
			continue // a newer one took its place
		}
		if err != nil {
			line.Wrong = err.Error()
			if wrong++; first == nil {
				first = err
			}
		}
		if c.Bool("json") {
			err = json.NewEncoder(c.App.Writer).Encode(line)
		} else {
			err = line.print(c.App.Writer)
		}
		if err != nil {
			return err
		}
	}
	if wrong > 1 {
		return fail(exitFailed, "%d snapshots are damaged or cannot be read, the first because: %w", wrong, first)
	}
	return first
}

func (l *snapshotLine) read() error {
	return raftstore.InspectSnapshot(l.File, func(h raftstore.SnapshotHead) error {
		l.Head = &h
		return nil
	}, func(r io.Reader) error {
		in := bufio.NewReaderSize(r, 64<<10)
		start, err := in.Peek(len(namespace.CopyMagic))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if string(start) == namespace.CopyMagic {
			l.Kind = "namespace"
			census, err := namespace.InspectCopy(in)
			if err == nil {
				l.Namespace = &census
			}
			return err
		}
		l.Kind = "resourcemanager"
		_, l.Manager, err = state.InspectSnapshot(in)
		return err
	})
}

func (l *snapshotLine) print(w io.Writer) error {
	fmt.Fprintln(w, l.File)
	if h := l.Head; h != nil {
		fmt.Fprintf(w, "index      %d of term %d\nstate      %d\nbytes      %d\n", h.Index, h.Term, h.State, h.Bytes)
		for _, m := range h.Configuration {
			vote := "votes"
			if !m.Voter {
				vote = "has no vote"
			}
			fmt.Fprintf(w, "member     %s at %s, %s (entry %d)\n", outline.Text(m.ID), outline.Text(m.Address), vote, h.ConfigIndex)
		}
		if r := h.Reference; r != nil {
			fmt.Fprintf(w, "reference  to version %d of the checkpoint, hash %s, about %d bytes\n", r.Index, r.Hash, r.Bytes)
		}
	}
	switch {
	case l.Wrong != "":
		fmt.Fprintf(w, "damage: %s\n", l.Wrong)
	case l.Namespace != nil:
		fmt.Fprintln(w, "content    a namespace; all of it is sound")
		if err := printCensus(w, l.Namespace); err != nil {
			return err
		}
	case l.Kind != "":
		fmt.Fprintln(w, "content    the state of a resource manager; all of it is sound")
		if err := printClasses(w, l.Manager); err != nil {
			return err
		}
	default:
		fmt.Fprintln(w, "content    none: the checkpoint has it")
	}
	_, err := fmt.Fprintln(w)
	return err
}

func printCensus(w io.Writer, c *namespace.Census) error {
	fmt.Fprintf(w, "cluster    %s\nversion    %d of the format\nindex      %d\nhash       %s\nfiles      %d\nfolders    %d\nblocks     %d\n",
		outline.Text(c.Cluster), c.Version, c.Index, c.Hash, c.Files, c.Directories, c.Blocks)
	if c.Bodies > 0 {
		fmt.Fprintf(w, "bodies     %d of small files, %d bytes\n", c.Bodies, c.BodyBytes)
	}
	if c.BodiesMissing > 0 {
		fmt.Fprintf(w, "missing    %d bodies: whoever made this did not have them\n", c.BodiesMissing)
	}
	fmt.Fprintln(w)
	return printClasses(w, c.Classes)
}

func printClasses(w io.Writer, classes []outline.Class) error {
	t := newTable(w, "CLASS", "RECORDS", "BYTES", "WHAT")
	for _, k := range classes {
		t.row(k.Key, fmt.Sprint(k.Records), fmt.Sprint(k.Bytes), k.Name)
	}
	return t.flush()
}
