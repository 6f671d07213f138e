package main

import (
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
	Priority          int     `json:"priority"`
	StartedTime       int64   `json:"startedTime"`
	FinishedTime      int64   `json:"finishedTime"`
	MemorySeconds     int64   `json:"memorySeconds"`
	VcoreSeconds      int64   `json:"vcoreSeconds"`
	AMHostHTTPAddress string  `json:"amHostHttpAddress"`
	LogAggregation    string  `json:"logAggregationStatus"`
}

func appCommand() *cli.Command {
	return &cli.Command{
		Name:    "app",
		Aliases: []string{"application"},
		Usage:   "applications, as `yarn app` shows them: -list, -status ID, -kill ID",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list applications that have not ended"},
			&cli.StringFlag{Name: "appStates", Usage: "with -list: `STATES` with commas, or ALL"},
			&cli.StringFlag{Name: "appTypes", Usage: "with -list: `TYPES` with commas"},
			&cli.StringFlag{Name: "status", Usage: "describe `APPLICATION`"},
			&cli.StringFlag{Name: "kill", Usage: "end `APPLICATION`"},
			confFlag(), userFlag(), outputFlag(),
		},
		Action: func(c *cli.Context) error {
			if (c.IsSet("list") && c.Bool("list")) && (c.IsSet("status") || c.IsSet("kill")) || c.IsSet("status") && c.IsSet("kill") {
				return fail(exitYarn, "app: give one of -list, -status ID and -kill ID")
			}
			cl, err := dial(c)
			if err != nil {
				return yarnError(err)
			}
			defer cl.Close()
			switch {
			case c.Bool("list"):
				err = listApps(c, cl)
			case c.String("status") != "":
				err = appStatus(c, cl, c.String("status"))
			case c.String("kill") != "":
				err = killApp(c, cl, c.String("kill"))
			default:
				return fail(exitYarn, "app: give -list, -status ID or -kill ID")
			}
			return yarnError(err)
		},
	}
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

func listApps(c *cli.Context, cl *client.Client) error {
	states := []string{"SUBMITTED", "ACCEPTED", "RUNNING"}
	if text := c.String("appStates"); text != "" {
		states = strings.Split(strings.ToUpper(text), ",")
	}
	for _, s := range states {
		if !slices.Contains(yarnStates, s) {
			fmt.Fprintf(c.App.Writer, "The application state %s is invalid.\nThe valid application state can be one of the following: %s\n", s, strings.Join(yarnStates, ","))
			return &statusError{code: exitYarn}
		}
	}
	query := ""
	if !slices.Contains(states, "ALL") {
		query = "?states=" + strings.Join(states, ",")
	}
	var answer struct{ Apps struct{ App []yarnApp } }
	if err := yarn(c, cl, "apps"+query, &answer); err != nil {
		return err
	}
	apps := answer.Apps.App
	if apps == nil {
		apps = []yarnApp{} // in JSON a list, not null
	}
	if types := c.String("appTypes"); types != "" {
		apps = slices.DeleteFunc(apps, func(a yarnApp) bool { return !slices.Contains(strings.Split(types, ","), a.Type) })
	}
	if asJSON, err := wantJSON(c); err != nil {
		return err
	} else if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(apps)
	}
	fmt.Fprintf(c.App.Writer, "Total number of applications (application-types: [%s], states: [%s] and tags: []):%d\n", c.String("appTypes"), strings.Join(states, ", "), len(apps))
	fmt.Fprintf(c.App.Writer, "%30s\t%20s\t%20s\t%10s\t%10s\t%18s\t%18s\t%15s\t%35s\n",
		"Application-Id", "Application-Name", "Application-Type", "User", "Queue", "State", "Final-State", "Progress", "Tracking-URL")
	for _, a := range apps {
		fmt.Fprintf(c.App.Writer, "%30s\t%20s\t%20s\t%10s\t%10s\t%18s\t%18s\t%15s\t%35s\n",
			a.ID, a.Name, a.Type, a.User, a.Queue, a.State, a.FinalStatus, fmt.Sprintf("%.0f%%", a.Progress), orNA(a.TrackingURL))
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
	host := orNA(strings.Split(a.AMHostHTTPAddress, ":")[0])
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
		{"Progress", fmt.Sprintf("%.0f%%", a.Progress)},
		{"State", a.State},
		{"Final-State", a.FinalStatus},
		{"Tracking-URL", orNA(a.TrackingURL)},
		{"RPC Port", "-1"},
		{"AM Host", host},
		{"Aggregate Resource Allocation", fmt.Sprintf("%d MB-seconds, %d vcore-seconds", a.MemorySeconds, a.VcoreSeconds)},
		{"Log Aggregation Status", orNA(a.LogAggregation)},
		{"Diagnostics", a.Diagnostics},
		{"Unmanaged Application", "false"},
	} {
		fmt.Fprintf(c.App.Writer, "\t%s : %s\n", line[0], line[1])
	}
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
