package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
)

// explainCommand is `hops job explain`, planCommand `hops job plan` with the options of `hops job run` that describe a job.
func explainCommand() *cli.Command {
	return &cli.Command{
		Name: "explain", Usage: "say why a job waits, who is in its way, and what would start now", ArgsUsage: "ID",
		Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()}, Action: explainJob,
	}
}

func planCommand(description []cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "plan", Usage: "say what of a job would start now and where, and submit nothing", ArgsUsage: "-- COMMAND [ARGUMENT ...]",
		Description: "hops job plan --gpus 8 --instances 4 --gang -- python3 train.py\n" +
			"hops job plan -f job.yaml\n\n" +
			"Refuses what `hops job run` would refuse. Exits with 0 when all of it would start now, with 1 when something would wait.",
		Flags: append(slices.Clone(description), confFlag(), userFlag(), outputFlag()), Action: planJob,
	}
}

func explainJob(c *cli.Context) error {
	id, err := oneID(c)
	if err != nil {
		return err
	}
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	raw, err := cl.Jobs().Raw(c.Context, http.MethodGet, "/api/v1/jobs/"+url.PathEscape(id)+"/explain", nil)
	if err != nil {
		return explain(err)
	}
	if asJSON {
		_, err := fmt.Fprintln(c.App.Writer, string(raw))
		return err
	}
	var e rest.ExplainedJob
	if err := json.Unmarshal(raw, &e); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s %s in queue %s: %s\n", e.ID, e.Phase, e.Queue, e.Text)
	for _, x := range e.Asks {
		printExplanation(c.App.Writer, x)
	}
	if e.More > 0 {
		fmt.Fprintf(c.App.Writer, "and %d asks more\n", e.More)
	}
	for _, why := range e.OutOfService {
		fmt.Fprintln(c.App.Writer, "out of service:", why)
	}
	if e.OutOfServiceMore > 0 {
		fmt.Fprintf(c.App.Writer, "and %d nodes more are out of service: hops node list\n", e.OutOfServiceMore)
	}
	return nil
}

func planJob(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	job, err := document(c)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	raw, err := cl.Jobs().Raw(c.Context, http.MethodPost, "/api/v1/jobs?dry_run=true", job)
	if err != nil {
		return explain(err)
	}
	var p rest.Planned
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	waits := error(nil)
	if !p.Starts {
		waits = &statusError{code: exitFailed}
	}
	if asJSON {
		fmt.Fprintln(c.App.Writer, string(raw))
		return waits
	}
	if p.Starts {
		fmt.Fprintf(c.App.Writer, "in queue %s all of it would start now:\n", p.Queue)
	} else {
		fmt.Fprintf(c.App.Writer, "in queue %s not all of it would start now\n", p.Queue)
	}
	if len(p.Placements) > 0 {
		t := newTable(c.App.Writer, "RUNS", "NODE", "GPUS")
		for _, at := range p.Placements {
			runs, gpus := "instance", "-"
			if at.Master {
				runs = "master"
			}
			if len(at.GPUs) > 0 {
				gpus = strings.Join(at.GPUs, ",")
			}
			t.row(runs, at.Node, gpus)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	for _, x := range p.Waits {
		printExplanation(c.App.Writer, x)
	}
	return waits
}

// printExplanation writes an explanation for people.
func printExplanation(w io.Writer, e rest.Explanation) {
	what := "ask " + e.Ask
	if e.Ask == "" {
		what = "the master"
	}
	if e.Waiting > 0 {
		what += fmt.Sprintf(": %d containers of %s", e.Waiting, amountInWords(e.Resources))
		if e.Together > 1 {
			what += fmt.Sprintf(", %d at once", e.Together)
		}
	}
	fmt.Fprintln(w, what)
	fmt.Fprintf(w, "  waits: %s (%s)\n", e.Reason.Text, e.Reason.Code)
	if e.Since > 0 {
		fmt.Fprintf(w, "  since: %s\n", clock(e.Since))
	}
	for i, b := range e.Blockers {
		title := "         "
		if i == 0 {
			title = "  held by:"
		}
		does := "has"
		if b.Reserved {
			does = "waits longer, and room is kept for it:"
		}
		fmt.Fprintf(w, "%-10s %s of %s in queue %s %s %s\n", title, b.Job, b.User, b.Queue, does, quantity(b.Resource, b.Amount))
	}
	for i, v := range e.Preempts {
		title := "         "
		if i == 0 {
			title = "  makes room:"
		}
		fmt.Fprintf(w, "%-13s %s of queue %s on %s, whose last %.0f GPU-seconds are not known to be saved\n", title, v.Container, v.Queue, v.Node, v.LostGPUSeconds)
	}
	if e.NotPreempted != "" {
		fmt.Fprintf(w, "  preempts nobody: %s\n", e.NotPreempted)
	}
	for _, x := range e.WouldStart {
		fmt.Fprintf(w, "  would start now %s\n", x.Text)
	}
	if e.Starts > 0 {
		fmt.Fprintf(w, "  would start at about %s at the latest, by the timeouts of what runs, if nobody else takes the room\n", time.UnixMilli(e.Starts).Format("2006-01-02 15:04:05"))
	}
}

func amountInWords(a rest.Amount) string {
	words := []string{quantity(rm.MemoryName, a.Memory), quantity(rm.VCoresName, int64(a.VCores))}
	if a.GPUs > 0 {
		words = append(words, quantity(rm.GPUName, int64(a.GPUs)))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Other)) {
		words = append(words, quantity(name, a.Other[name]))
	}
	return strings.Join(words, ", ")
}

// quantity is n of a resource by YARN's name; "": of containers or applications.
func quantity(resource string, n int64) string {
	switch resource {
	case "":
		return strconv.FormatInt(n, 10)
	case rm.MemoryName:
		return fmt.Sprintf("%d MiB", n>>20)
	case rm.VCoresName:
		return fmt.Sprintf("%d vcores", n)
	case rm.GPUName:
		return fmt.Sprintf("%d GPUs", n)
	}
	return fmt.Sprintf("%d of %s", n, resource)
}
