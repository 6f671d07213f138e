package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	nnserver "github.com/gohops/hops/namenode/server"
)

func finalizeCommand(file cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "finalize", Usage: "end an upgrade: raise the cluster to the level of the new version, for good",
		Description: "Until then servers write nothing that the version before cannot read, so that it can take over again. It is refused while a server of\n" +
			"an older version runs. docs/how-to/upgrade.md tells more.",
		Flags: []cli.Flag{file, userFlag(), outputFlag(), &cli.BoolFlag{Name: "query", Usage: "change nothing: say how far it is"}},
		Action: func(c *cli.Context) error {
			asJSON, err := wantJSON(c)
			if err != nil {
				return err
			}
			method := http.MethodPost
			if c.Bool("query") {
				method = http.MethodGet
			}
			var l nnserver.Level
			if err := operation(c, method, "/api/v1/cluster/level", nil, &l); err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.App.Writer).Encode(l)
			}
			tellLevel(c.App.Writer, &l)
			return nil
		},
	}
}

// tellLevel says to which level the cluster has been raised, and what it would take to raise it.
func tellLevel(w io.Writer, l *nnserver.Level) {
	fmt.Fprintf(w, "the cluster is at level %d", l.Level.Level)
	if !l.Raised.IsZero() {
		fmt.Fprintf(w, ", finalized %s", l.Raised.UTC().Format(time.RFC3339))
	}
	if !l.Prepared.IsZero() {
		fmt.Fprintf(w, "; an upgrade was prepared %s", l.Prepared.UTC().Format(time.RFC3339))
	}
	if l.Newest > l.Level.Level {
		fmt.Fprintf(w, "; versions run that know level %d", l.Newest)
	}
	fmt.Fprintln(w)
	if behind := l.Behind(); len(behind) > 0 {
		fmt.Fprintf(w, "of an older version: %s\n", strings.Join(texts(behind), "; "))
	}
	if len(l.Silent) > 0 {
		fmt.Fprintf(w, "not heard of: %s\n", strings.Join(l.Silent, ", "))
	}
	if l.Newest > l.Level.Level && len(l.Behind())+len(l.Silent) == 0 {
		fmt.Fprintln(w, "`hops cluster finalize` raises it; until then the older version can take over again")
	}
}

func texts[T fmt.Stringer](all []T) []string {
	var out []string
	for _, one := range all {
		out = append(out, one.String())
	}
	return out
}

// versionsOf are those that run on a machine.
func versionsOf(l *nnserver.Level, machine string) string {
	var out []string
	if l != nil {
		for _, p := range l.Programs {
			if text := fmt.Sprintf("%s (level %d)", p.Version, p.Level); p.Machine == machine && !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	return strings.Join(out, ", ")
}
