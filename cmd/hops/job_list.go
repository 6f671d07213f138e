package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/nearest"
)

// stateFilter is what --state names, as the resource manager's states.
var stateFilter = map[string][]string{
	"pending": {"ACCEPTED", "RUNNING"}, "running": {"RUNNING"}, "succeeded": {"FINISHED"}, "failed": {"FAILED", "FINISHED"}, "killed": {"KILLED"},
}

func listJobs(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	query := url.Values{"limit": {"10000"}}
	var states []string
	if text := c.String("state"); text != "" {
		for word := range strings.SplitSeq(strings.ToLower(text), ",") {
			theirs, ok := stateFilter[word]
			if !ok {
				names := slices.Sorted(maps.Keys(stateFilter))
				return fail(exitUsage, "--state: there is no state %q%s: %s", word, nearest.Hint(word, names), strings.Join(names, ", "))
			}
			states = append(states, strings.ToUpper(word))
			query["state"] = append(query["state"], theirs...)
		}
	}
	if c.Int("limit") < 0 {
		return fail(exitUsage, "--limit %d is not a number of jobs", c.Int("limit"))
	}
	for flag, name := range map[string]string{"of": "user", "queue": "queue"} {
		if v := c.String(flag); v != "" {
			query.Set(name, v)
		}
	}
	if n := c.Int("limit"); n > 0 && len(states) == 0 {
		query.Set("limit", strconv.Itoa(min(n, 10_000)))
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	raw, err := cl.Jobs().Raw(c.Context, http.MethodGet, "/api/v1/jobs?"+query.Encode(), nil)
	if err != nil {
		return explain(err)
	}
	var answer struct{ Jobs []client.JobStatus }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return err
	}
	jobs := answer.Jobs
	if len(states) > 0 {
		jobs = slices.DeleteFunc(jobs, func(j client.JobStatus) bool {
			return !slices.Contains(states, j.Phase)
		})
	}
	if n := c.Int("limit"); n > 0 {
		jobs = jobs[:min(n, len(jobs))]
	}
	switch {
	case c.Bool("quiet"):
		for _, j := range jobs {
			fmt.Fprintln(c.App.Writer, j.ID)
		}
		return nil
	case asJSON:
		return json.NewEncoder(c.App.Writer).Encode(jobs)
	}
	t := newTable(c.App.Writer, "ID", "NAME", "USER", "QUEUE", "KIND", "STATE", "GPUS", "SUBMITTED", "TIME", "REASON")
	for _, j := range jobs {
		why := j.Diagnostics
		if j.PendingReason != nil {
			why = j.PendingReason.Text
		}
		if j.Leaving > 0 {
			why = strings.TrimSuffix(leaving(j.Leaving)+"; "+why, "; ")
		}
		t.row(j.ID, j.Name, j.User, j.Queue, j.Kind, j.Phase, strconv.Itoa(j.Used.GPUs), clock(j.Submitted), ran(j), shortened(why, 60))
	}
	return t.flush()
}

// leaving says that containers of a job have notices.
func leaving(n int) string {
	if n == 1 {
		return "1 container is to go"
	}
	return fmt.Sprintf("%d containers are to go", n)
}

// ran is how long a job has run, "-" if it has not.
func ran(j client.JobStatus) string {
	if j.Started == 0 {
		return "-"
	}
	end := time.Now()
	if j.Finished > 0 {
		end = time.UnixMilli(j.Finished)
	}
	return max(0, end.Sub(time.UnixMilli(j.Started))).Round(time.Second).String()
}

// shortened is the beginning of a text.
func shortened(text string, n int) string {
	text, _, _ = strings.Cut(text, "\n")
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}
