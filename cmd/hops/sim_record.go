package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/resourcemanager/simulator"
)

// simRecord asks a running cluster for the jobs that it remembers, one after the other, and for its machines.
func simRecord(c *cli.Context) error {
	if c.Duration("since") < 0 {
		return fail(exitUsage, "--since: %v is negative", c.Duration("since"))
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	get := func(path string, into any) error {
		text, err := cl.Jobs().Raw(c.Context, http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		return json.Unmarshal(text, into)
	}
	var list struct {
		Jobs []simulator.Recorded `json:"jobs"`
	}
	if err := get("/api/v1/jobs?limit=10000&state=FINISHED,FAILED,KILLED", &list); err != nil {
		return explain(err)
	}
	var jobs []simulator.Recorded
	forgotten := 0
	for _, j := range list.Jobs {
		if since := c.Duration("since"); since > 0 && j.Submitted < time.Now().Add(-since).UnixMilli() {
			continue
		}
		var whole simulator.Recorded
		if err := get("/api/v1/jobs/"+url.PathEscape(j.ID), &whole); isMissing(err) {
			forgotten++
			continue
		} else if err != nil {
			return explain(err)
		}
		jobs = append(jobs, whole)
	}
	w := simulator.FromRecords(jobs)
	if forgotten > 0 {
		w.Skipped["forgotten meanwhile"] = forgotten
	}
	for _, why := range sorted(w.Skipped) {
		fmt.Fprintf(c.App.ErrWriter, "skipped %d jobs: %s\n", w.Skipped[why], why)
	}
	if len(w.Jobs) == 0 {
		return fail(exitFailed, "the cluster remembers no job that has ended and ran: nothing was written")
	}
	cluster := ""
	if c.String("cluster") != "" {
		var nodes struct {
			Nodes []simulator.RecordedNode `json:"nodes"`
		}
		if err := get("/api/v1/nodes", &nodes); err != nil {
			return explain(err)
		}
		machines := simulator.FromNodes(nodes.Nodes)
		if len(machines.Nodes) == 0 {
			return fail(exitFailed, "the cluster has no node: nothing was written")
		}
		cluster = machines.YAML()
	}
	return writeSimFiles(c, w, cluster, fmt.Sprintf("recorded at %s from %s", time.Now().UTC().Format(time.DateTime), cl.ResourceManagers()))
}
