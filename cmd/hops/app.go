package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/jersey"
)

// exitYarn is the status of every failure of the yarn-like commands.
const exitYarn = 255

var yarnStates = []string{"ALL", "NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED"}

// yarnApp is an application as /ws/v1/cluster/apps describes it.
type yarnApp struct {
	ID                string  `json:"id"`
	User              string  `json:"user"`
	Name              string  `json:"name"`
	Queue             string  `json:"queue"`
	State             string  `json:"state"`
	FinalStatus       string  `json:"finalStatus"`
	Progress          float64 `json:"progress"`
	TrackingURL       string  `json:"trackingUrl"`
	Diagnostics       string  `json:"diagnostics"`
	Type              string  `json:"applicationType"`
	Tags              string  `json:"applicationTags"`
	Priority          int     `json:"priority"`
	StartedTime       int64   `json:"startedTime"`
	FinishedTime      int64   `json:"finishedTime"`
	ElapsedTime       int64   `json:"elapsedTime"`
	AllocatedMB       int64   `json:"allocatedMB"`
	AllocatedVCores   int64   `json:"allocatedVCores"`
	ReservedMB        int64   `json:"reservedMB"`
	ReservedVCores    int64   `json:"reservedVCores"`
	RunningContainers int64   `json:"runningContainers"`
	MemorySeconds     int64   `json:"memorySeconds"`
	VcoreSeconds      int64   `json:"vcoreSeconds"`
	ResourceSeconds   amounts `json:"resourceSecondsMap"`
	AMHostHTTPAddress string  `json:"amHostHttpAddress"`
	LogAggregation    string  `json:"logAggregationStatus"`
	AppLabel          string  `json:"appNodeLabelExpression"`
	MasterLabel       string  `json:"amNodeLabelExpression"`
	Timeouts          struct {
		Timeout []yarnTimeout `json:"timeout"`
	} `json:"timeouts"`
}

// amounts are of resources by name.
type amounts struct {
	Entry []amount `json:"entry"`
}

type amount struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// none is nothing of each resource of which an application has used something.
func (a *yarnApp) none() (out amounts) {
	for _, e := range a.ResourceSeconds.Entry {
		out.Entry = append(out.Entry, amount{e.Key, "0"})
	}
	return out
}

type yarnTimeout struct {
	Type      string `json:"type"`
	Expiry    string `json:"expiryTime"`
	Remaining int64  `json:"remainingTimeInSeconds,omitempty"`
}

// spent is what an application has used, in YARN's sentence.
func (a *yarnApp) spent() string {
	text := fmt.Sprintf("%d MB-seconds, %d vcore-seconds", a.MemorySeconds, a.VcoreSeconds)
	for _, e := range a.ResourceSeconds.Entry {
		if e.Key != "memory-mb" && e.Key != "vcores" {
			text += fmt.Sprintf(", %s %s-seconds", e.Value, e.Key)
		}
	}
	return text
}

// yarnPercent is how YARN prints progress, 0 to 100: at most two digits behind the point.
func yarnPercent(f float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", f), "0"), ".") + "%"
}

func appCommand() *cli.Command {
	return &cli.Command{
		Name:    "app",
		Aliases: []string{"application"},
		Usage:   "applications, as `yarn app` shows and changes them: -list, -status ID, -kill ID, -movetoqueue ID -queue QUEUE, -appId ID -updatePriority N",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list applications that have not ended"},
			&cli.StringFlag{Name: "appStates", Usage: "with -list: `STATES` with commas, or ALL"},
			&cli.StringFlag{Name: "appTypes", Usage: "with -list: `TYPES` with commas"},
			&cli.StringFlag{Name: "appTags", Usage: "with -list: `TAGS` with commas, of which one is enough"},
			&cli.StringFlag{Name: "status", Usage: "describe `APPLICATION`"},
			&cli.StringFlag{Name: "kill", Usage: "end `APPLICATION`"},
			&cli.StringFlag{Name: "movetoqueue", Usage: "move `APPLICATION` to -queue, with all that it holds"},
			&cli.StringFlag{Name: "queue", Usage: "with -movetoqueue: `QUEUE` to which it moves"},
			&cli.StringFlag{Name: "appId", Usage: "`APPLICATION` of -changeQueue, -updatePriority and -updateLifetime"},
			&cli.StringFlag{Name: "changeQueue", Usage: "move the application of -appId to `QUEUE`"},
			&cli.IntFlag{Name: "updatePriority", Usage: "set the priority of the application of -appId to `N`, 0 to 10"},
			&cli.Int64Flag{Name: "updateLifetime", Usage: "end the application of -appId in so many `SECONDS` from now"},
			confFlag(), userFlag(), outputFlag(),
		},
		Action: func(c *cli.Context) error {
			do, err := appAction(c)
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return yarnError(err)
			}
			defer cl.Close()
			return yarnError(do(cl))
		},
	}
}

// appAction is what the options of a command line ask for: one thing.
func appAction(c *cli.Context) (do func(*client.Client) error, err error) {
	n := 0
	choose := func(flag string, set bool, f func(*client.Client) error) {
		if c.IsSet(flag) && set {
			n, do = n+1, f
		}
	}
	id := c.String("appId")
	choose("list", c.Bool("list"), func(cl *client.Client) error { return listApps(c, cl) })
	choose("status", true, func(cl *client.Client) error { return appStatus(c, cl, c.String("status")) })
	choose("kill", true, func(cl *client.Client) error { return killApp(c, cl, c.String("kill")) })
	choose("movetoqueue", true, func(cl *client.Client) error { return moveApp(c, cl, c.String("movetoqueue"), c.String("queue")) })
	choose("changeQueue", true, func(cl *client.Client) error { return moveApp(c, cl, id, c.String("changeQueue")) })
	choose("updatePriority", true, func(cl *client.Client) error { return prioritizeApp(c, cl, id, c.Int("updatePriority")) })
	choose("updateLifetime", true, func(cl *client.Client) error { return limitApp(c, cl, id, c.Int64("updateLifetime")) })
	switch {
	case n == 0:
		return nil, fail(exitYarn, "app: give -list, -status ID, -kill ID, -movetoqueue ID, or -appId ID with what is to change")
	case n > 1:
		return nil, fail(exitYarn, "app: give one of -list, -status, -kill, -movetoqueue, -changeQueue, -updatePriority and -updateLifetime")
	case c.IsSet("movetoqueue") != c.IsSet("queue"):
		return nil, fail(exitYarn, "app: -movetoqueue ID and -queue QUEUE come together")
	case (c.IsSet("changeQueue") || c.IsSet("updatePriority") || c.IsSet("updateLifetime")) != c.IsSet("appId"):
		return nil, fail(exitYarn, "app: -changeQueue, -updatePriority and -updateLifetime come with -appId ID, and that with one of them")
	case c.IsSet("updateLifetime") && (c.Int64("updateLifetime") <= 0 || c.Int64("updateLifetime") > 1<<32):
		return nil, fail(exitYarn, "app: -updateLifetime %d is no number of seconds from 1 to %d", c.Int64("updateLifetime"), int64(1<<32))
	}
	return do, nil
}

// yarnError gives every failure the status 255.
func yarnError(err error) error {
	var status *statusError
	if err == nil || errors.As(err, &status) {
		return err
	}
	return &statusError{exitYarn, err}
}

// yarn asks YARN's REST for JSON.
func yarn(c *cli.Context, cl *client.Client, path string, into any) error {
	raw, err := cl.Jobs().Raw(c.Context, http.MethodGet, "/ws/v1/cluster/"+path, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// words are those of a list with commas.
func words(text string) (out []string) {
	for _, w := range strings.Split(text, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

func listApps(c *cli.Context, cl *client.Client) error {
	states := []string{"SUBMITTED", "ACCEPTED", "RUNNING"}
	if wanted := words(strings.ToUpper(c.String("appStates"))); len(wanted) > 0 {
		states = wanted
	}
	for _, s := range states {
		if !slices.Contains(yarnStates, s) {
			fmt.Fprintf(c.App.Writer, "The application state %s is invalid.\nThe valid application state can be one of the following: %s\n", s, strings.Join(yarnStates, ","))
			return &statusError{code: exitYarn}
		}
	}
	types, tags := words(c.String("appTypes")), words(c.String("appTags"))
	query := url.Values{}
	if slices.Contains(states, "ALL") {
		states = yarnStates[1:]
	} else {
		query.Set("states", strings.Join(states, ","))
	}
	if len(types) > 0 {
		query.Set("applicationTypes", strings.Join(types, ","))
	}
	if len(tags) > 0 {
		query.Set("applicationTags", strings.Join(tags, ","))
	}
	var answer struct{ Apps struct{ App []yarnApp } }
	if err := yarn(c, cl, "apps?"+query.Encode(), &answer); err != nil {
		return err
	}
	apps := answer.Apps.App
	if apps == nil {
		apps = []yarnApp{} // in JSON a list, not null
	}
	if asJSON, err := wantJSON(c); err != nil {
		return err
	} else if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(apps)
	}
	slices.SortFunc(states, func(a, b string) int { return slices.Index(yarnStates, a) - slices.Index(yarnStates, b) })
	fmt.Fprintf(c.App.Writer, "Total number of applications (application-types: [%s], states: [%s] and tags: [%s]):%d\n",
		strings.Join(types, ", "), strings.Join(slices.Compact(states), ", "), strings.Join(tags, ", "), len(apps))
	fmt.Fprintf(c.App.Writer, "%30s\t%20s\t%20s\t%10s\t%10s\t%18s\t%18s\t%15s\t%35s\n",
		"Application-Id", "Application-Name", "Application-Type", "User", "Queue", "State", "Final-State", "Progress", "Tracking-URL")
	for _, a := range apps {
		fmt.Fprintf(c.App.Writer, "%30s\t%20s\t%20s\t%10s\t%10s\t%18s\t%18s\t%15s\t%35s\n",
			a.ID, a.Name, a.Type, a.User, a.Queue, a.State, a.FinalStatus, yarnPercent(a.Progress), orNA(a.TrackingURL))
	}
	return nil
}

func orNA(s string) string {
	if s == "" {
		return "N/A"
	}
	return s
}

// oneApp finds an application, or says as YARN does that it is not there.
func oneApp(c *cli.Context, cl *client.Client, id, where string) (yarnApp, error) {
	var answer struct{ App yarnApp }
	err := yarn(c, cl, "apps/"+url.PathEscape(id), &answer)
	var missing *client.Error
	if errors.As(err, &missing) && missing.Status == 404 {
		fmt.Fprintf(c.App.Writer, "Application with id '%s' doesn't exist in %s.\n", id, where)
		return yarnApp{}, &statusError{code: exitYarn}
	}
	return answer.App, err
}

// over are the states in which an application stays.
var over = []string{"FINISHED", "FAILED", "KILLED"}

func appStatus(c *cli.Context, cl *client.Client, id string) error {
	a, err := oneApp(c, cl, id, "RM or Timeline Server")
	if err != nil {
		return err
	}
	if asJSON, err := wantJSON(c); err != nil {
		return err
	} else if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(a)
	}
	host, port, original := "N/A", "-1", "N/A"
	if t, err := lastAttempt(c, cl, id); err != nil {
		return err
	} else if t != nil {
		host, port, original = t.Host, t.Port, t.OriginalURL
	}
	fmt.Fprintf(c.App.Writer, "Application Report : \n")
	for _, line := range [][2]string{
		{"Application-Id", a.ID},
		{"Application-Name", a.Name},
		{"Application-Type", a.Type},
		{"User", a.User},
		{"Queue", a.Queue},
		{"Application Priority", fmt.Sprint(a.Priority)},
		{"Start-Time", fmt.Sprint(a.StartedTime)},
		{"Finish-Time", fmt.Sprint(a.FinishedTime)},
		{"Progress", yarnPercent(a.Progress)},
		{"State", a.State},
		{"Final-State", a.FinalStatus},
		{"Tracking-URL", original},
		{"RPC Port", port},
		{"AM Host", host},
		{"Aggregate Resource Allocation", a.spent()},
		{"Aggregate Resource Preempted", (&yarnApp{ResourceSeconds: a.none()}).spent()},
		{"Log Aggregation Status", orNA(a.LogAggregation)},
		{"Diagnostics", a.Diagnostics},
		{"Unmanaged Application", "false"},
		{"Application Node Label Expression", cmp.Or(a.AppLabel, "<Not set>")},
		{"AM container Node Label Expression", cmp.Or(a.MasterLabel, "<DEFAULT_PARTITION>")},
	} {
		fmt.Fprintf(c.App.Writer, "\t%s : %s\n", line[0], line[1])
	}
	for _, t := range a.Timeouts.Timeout {
		fmt.Fprintf(c.App.Writer, "\tTimeoutType : %s\tExpiryTime : %s\tRemainingTime : %dseconds\n", t.Type, t.Expiry, t.Remaining)
	}
	fmt.Fprintln(c.App.Writer)
	return nil
}

// change sends a change of an application, and reads the answer.
func change(c *cli.Context, cl *client.Client, id, what string, body, into any) error {
	raw, err := cl.Jobs().Raw(c.Context, http.MethodPut, "/ws/v1/cluster/apps/"+url.PathEscape(id)+"/"+what, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

func moveApp(c *cli.Context, cl *client.Client, id, queue string) error {
	a, err := oneApp(c, cl, id, "RM")
	if err != nil {
		return err
	}
	if slices.Contains(over, a.State) {
		fmt.Fprintf(c.App.Writer, "Application %s has already finished \n", id)
		return nil
	}
	fmt.Fprintf(c.App.Writer, "Moving application %s to queue %s\n", id, queue)
	var answer struct{ Queue string }
	if err := change(c, cl, id, "queue", map[string]string{"queue": queue}, &answer); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "Successfully completed move.")
	return nil
}

func prioritizeApp(c *cli.Context, cl *client.Client, id string, priority int) error {
	if _, err := oneApp(c, cl, id, "RM"); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "Updating priority of an application %s\n", id)
	var answer struct{ Priority int }
	if err := change(c, cl, id, "priority", map[string]int{"priority": priority}, &answer); err != nil {
		return err
	}
	if answer.Priority == priority {
		fmt.Fprintf(c.App.Writer, "Successfully updated the application %s with priority '%d'\n", id, priority)
		return nil
	}
	fmt.Fprintf(c.App.Writer, "Updated priority of an application  %s to cluster max priority OR keeping old priority as application is in final states\n", id)
	return nil
}

func limitApp(c *cli.Context, cl *client.Client, id string, seconds int64) error {
	if _, err := oneApp(c, cl, id, "RM"); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "Updating timeout for given timeoutType: LIFETIME of an application %s\n", id)
	want := yarnTimeout{Type: "LIFETIME", Expiry: time.Now().Add(time.Duration(seconds) * time.Second).UTC().Format(jersey.Timeout)}
	var answer struct{ Timeout yarnTimeout }
	if err := change(c, cl, id, "timeout", map[string]yarnTimeout{"timeout": want}, &answer); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "Successfully updated LIFETIME of an application %s. New expiry time is %s\n", id, answer.Timeout.Expiry)
	return nil
}

func killApp(c *cli.Context, cl *client.Client, id string) error {
	a, err := oneApp(c, cl, id, "RM")
	if err != nil {
		return err
	}
	if slices.Contains(over, a.State) {
		fmt.Fprintf(c.App.Writer, "Application %s has already finished \n", id)
		return nil
	}
	fmt.Fprintf(c.App.Writer, "Killing application %s\n", id)
	if _, err := cl.Jobs().Raw(c.Context, http.MethodPut, "/ws/v1/cluster/apps/"+url.PathEscape(id)+"/state", map[string]string{"state": "KILLED"}); err != nil {
		return err
	}
	for {
		if a, err = oneApp(c, cl, id, "RM"); err != nil || slices.Contains(over, a.State) { // it may have ended by itself first
			return err
		}
		select {
		case <-c.Context.Done():
			return c.Context.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
