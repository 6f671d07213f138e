package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/search"
	"github.com/gohops/hops/namenode"
)

func operatorSearchCommand() *cli.Command {
	return &cli.Command{
		Name:  "search",
		Usage: "look after the search indexes of the namenodes: status, rebuild",
		Description: "Each namenode with search: true in the section namenode of its configuration has an index of its own. NAMENODE is an IPC address, HOST:PORT;\n" +
			"without one all namenodes of the cluster are meant. docs/how-to/find.md tells more.",
		Subcommands: []*cli.Command{
			{
				Name: "status", Usage: "how the indexes are", ArgsUsage: "[NAMENODE...]",
				Description: "Ends with 1 where a namenode does not answer, or an index does not follow.",
				Flags:       []cli.Flag{confFlag(), outputFlag()}, Action: searchStatus,
			},
			{
				Name: "rebuild", Usage: "make indexes anew, from nothing", ArgsUsage: "[NAMENODE...]",
				Description: "One after the other, each of a checkpoint of its namenode and of the feed of changes behind that. Files are served meanwhile, searches on that\n" +
					"namenode are refused. Ctrl-C ends the waiting, and not the work. Superusers only.",
				Flags: []cli.Flag{confFlag()}, Action: rebuildSearch,
			},
		},
	}
}

// searchNamenodes is a client of the cluster, to be closed, and the addresses of the namenodes that the command line names.
func searchNamenodes(c *cli.Context) (*dfs.Client, []string, error) {
	properties := map[string]string{}
	if dir := c.String("conf"); dir != "" {
		properties["-conf"] = dir
	}
	fs, _, err := dialShell("", properties, c.App.ErrWriter)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range c.Args().Slice() {
		if !slices.Contains(fs.Namenodes(), name) {
			fs.Close()
			return nil, nil, fail(exitUsage, "%q is no namenode of this cluster: there are %s", name, strings.Join(fs.Namenodes(), ", "))
		}
	}
	if c.NArg() > 0 {
		return fs, c.Args().Slice(), nil
	}
	return fs, fs.Namenodes(), nil
}

// searchLine is one of the output of search status as JSON.
type searchLine struct {
	Namenode string `json:"namenode"`
	// Error is why there is no status.
	Error string `json:"error,omitempty"`
	*namenode.SearchStatus
}

func searchStatus(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	fs, addresses, err := searchNamenodes(c)
	if err != nil {
		return err
	}
	defer fs.Close()
	encoder, table := json.NewEncoder(c.App.Writer), newTable(c.App.Writer, "NAMENODE", "INDEX", "ENTRIES", "ON DISK", "BEHIND", "")
	failed := 0
	for _, addr := range addresses {
		line := searchLine{Namenode: addr}
		line.SearchStatus, err = fs.SearchStatusAt(c.Context, addr)
		switch {
		case c.Context.Err() != nil:
			return c.Context.Err()
		case errors.Is(err, metadata.ErrUnsupported):
			line.Error = hadoopMessage(err)
			table.row(addr, "none", "", "", "", line.Error)
		case err != nil:
			failed++
			line.Error = hadoopMessage(err)
			table.row(addr, "unknown", "", "", "", line.Error)
		default:
			state, why := line.State, line.Problem
			if state == string(search.Rebuilding) && why == "" {
				why = searchProgress(line.SearchStatus)
			}
			if state != string(search.Following) {
				failed++
			}
			table.row(addr, state, fmt.Sprint(line.Entries), size.About(line.Bytes), fmt.Sprintf("%d ms", line.Lag), why)
		}
		if asJSON {
			if err := encoder.Encode(line); err != nil {
				return err
			}
		}
	}
	if !asJSON {
		if err := table.flush(); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fail(exitFailed, "%d of %d namenodes cannot be searched at the moment", failed, len(addresses))
	}
	return nil
}

func searchProgress(s *namenode.SearchStatus) string {
	return fmt.Sprintf("%d of about %d files and directories", s.Done, s.Total)
}

func rebuildSearch(c *cli.Context) error {
	fs, addresses, err := searchNamenodes(c)
	if err != nil {
		return err
	}
	defer fs.Close()
	done, failed := 0, 0
	var last error
	for _, addr := range addresses {
		began := time.Now()
		s, err := rebuildSearchAt(c, fs, addr)
		switch {
		case c.Context.Err() != nil:
			return c.Context.Err()
		case errors.Is(err, metadata.ErrUnsupported) && c.NArg() == 0: // another one may have an index
			last = err
		case err != nil:
			failed++
			fmt.Fprintf(c.App.ErrWriter, "%s: %s\n", addr, hadoopMessage(err))
		default:
			done++
			fmt.Fprintf(c.App.Writer, "%s: made anew in %v, %d files and directories\n", addr, time.Since(began).Round(time.Millisecond), s.Entries)
		}
	}
	switch {
	case failed > 0:
		return fail(exitFailed, "of %d search indexes %d were made anew", done+failed, done)
	case done == 0:
		return fail(exitFailed, "no namenode has a search index: %s", hadoopMessage(last))
	}
	return nil
}

// rebuildSearchAt has an index made anew and waits until it follows.
func rebuildSearchAt(c *cli.Context, fs *dfs.Client, addr string) (*namenode.SearchStatus, error) {
	if err := fs.RebuildSearchAt(c.Context, addr); err != nil {
		return nil, err
	}
	told, problem := time.Now(), ""
	for {
		s, err := fs.SearchStatusAt(c.Context, addr)
		switch {
		case err != nil:
			return nil, err
		case s.State == string(search.Following):
			return s, nil
		case s.State == string(search.Failing):
			return nil, errors.New(s.Problem)
		}
		if s.Problem != problem {
			if problem = s.Problem; problem != "" {
				fmt.Fprintf(c.App.ErrWriter, "%s: tries again: %s\n", addr, problem)
			}
		}
		if time.Since(told) > 2*time.Second && isTerminal(c.App.ErrWriter) {
			told = time.Now()
			fmt.Fprintf(c.App.ErrWriter, "%s: %s\n", addr, searchProgress(s))
		}
		if err := pace.Wait(c.Context, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
