package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/namespace"
)

func inspectCheckpointCommand() *cli.Command {
	return &cli.Command{
		Name: "checkpoint", Usage: "the checkpoint of a namenode", ArgsUsage: "DIR",
		Description: "hops operator inspect checkpoint --records --class d /var/lib/hops/namenode/namespace/checkpoint\n\n" +
			"DIR is the directory of the store, or a part of it that was set aside (data.damaged). The server must not run: its lock is respected. All tables, records and the hash\n" +
			"of the state are checked. Tables are read where they are; what is not in them yet is copied to the temporary directory, 100 MB at most as a rule.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "records", Usage: "show the records, in the order of their keys"},
			&cli.StringFlag{Name: "class", Usage: "with --records: those of a `CLASS`, a letter of the table alone"},
			&cli.BoolFlag{Name: "json", Usage: "a JSON object in each line: the records, then the end"},
		},
		Action: inspectCheckpoint,
	}
}

// checkpointLine is one of the output as JSON; one of its fields is set.
type checkpointLine struct {
	Record *namespace.Record `json:"record,omitempty"`
	End    *namespace.Census `json:"end,omitempty"`
}

func inspectCheckpoint(c *cli.Context) (err error) {
	class := c.String("class")
	switch {
	case c.NArg() != 1:
		return fail(exitUsage, "operator inspect checkpoint: give one DIR")
	case class != "" && !c.Bool("records"):
		return fail(exitUsage, "operator inspect checkpoint: --class goes with --records")
	case class != "" && !namespace.ClassKnown(class):
		return fail(exitUsage, "operator inspect checkpoint: there is no class %q", class)
	}
	dir := c.Args().First()
	store, err := badger.Read(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	out := bufio.NewWriterSize(c.App.Writer, 64<<10)
	encoder := json.NewEncoder(out)
	census, err := namespace.InspectCheckpoint(store, func(key, value []byte) error {
		if err := c.Context.Err(); err != nil || !c.Bool("records") || class != "" && class != string(key[:1]) {
			return err
		}
		r := namespace.DescribeRecord(key, value)
		if c.Bool("json") {
			return encoder.Encode(checkpointLine{Record: &r})
		}
		_, err := fmt.Fprintf(out, "%s %s  %s\n", r.Class, r.Key, r.Value)
		return err
	})
	switch {
	case err != nil:
		err = fmt.Errorf("checkpoint %s: %w", dir, err)
	case c.Bool("json"):
		err = encoder.Encode(checkpointLine{End: &census})
	default:
		err = printCensus(out, &census)
	}
	if flushed := out.Flush(); err == nil {
		err = flushed
	}
	return err
}
