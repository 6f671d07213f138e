package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
)

// yarnAttempt is one attempt of an application as YARN's REST describes it. Numbers are text there.
type yarnAttempt struct {
	ID          string `json:"appAttemptId"`
	Host        string `json:"host"`
	Port        string `json:"rpcPort"`
	TrackingURL string `json:"trackingUrl"`
	OriginalURL string `json:"originalTrackingUrl"`
	Diagnostics string `json:"diagnosticsInfo"`
	State       string `json:"appAttemptState"`
	Container   string `json:"amContainerId"`
}

func applicationAttemptCommand() *cli.Command {
	return &cli.Command{
		Name:  "applicationattempt",
		Usage: "tries of an application's master, as `yarn applicationattempt` shows them: -list APPLICATION, -status ATTEMPT",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "list", Usage: "list the attempts of `APPLICATION`"},
			&cli.StringFlag{Name: "status", Usage: "describe `ATTEMPT`"},
			confFlag(), userFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.IsSet("list") == c.IsSet("status") {
				return fail(exitYarn, "applicationattempt: give one of -list APPLICATION and -status ATTEMPT")
			}
			cl, err := dial(c)
			if err != nil {
				return yarnError(err)
			}
			defer cl.Close()
			if c.IsSet("list") {
				return yarnError(listAttempts(c, cl, c.String("list")))
			}
			return yarnError(attemptStatus(c, cl, c.String("status")))
		},
	}
}

// attemptName takes an attempt's id apart, or says as YARN does that it is none.
var attemptName = regexp.MustCompile(`^appattempt_(\d{1,19}_\d{4,19})_\d{6,19}$`)

// applicationOf is the application of an attempt.
func applicationOf(attempt string) (string, error) {
	m := attemptName.FindStringSubmatch(attempt)
	if m == nil {
		return "", fail(exitYarn, "Invalid AppAttemptId: %.100s", attempt)
	}
	return "application_" + m[1], nil
}

// isMissing reports whether an error says that something is not there.
func isMissing(err error) bool {
	var answer *client.Error
	return errors.As(err, &answer) && answer.Status == 404
}

// attempts of an application; nil: there is no such application.
func attempts(c *cli.Context, cl *client.Client, id string) ([]yarnAttempt, error) {
	var answer struct {
		List struct {
			Attempt []yarnAttempt `json:"appAttempt"`
		} `json:"appAttempts"`
	}
	path := "apps/" + url.PathEscape(id) + "/appattempts"
	if err := yarn(c, cl, path, &answer); err != nil {
		return nil, err
	}
	out := []yarnAttempt{}
	for _, a := range answer.List.Attempt { // the list lacks most of what a report has
		var report yarnAttempt
		if err := yarn(c, cl, path+"/"+url.PathEscape(a.ID), &report); err != nil {
			return nil, err
		}
		out = append(out, report)
	}
	return out, nil
}

// lastAttempt is the current one; nil: there is none yet.
func lastAttempt(c *cli.Context, cl *client.Client, id string) (*yarnAttempt, error) {
	list, err := attempts(c, cl, id)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[len(list)-1], nil
}

func listAttempts(c *cli.Context, cl *client.Client, id string) error {
	list, err := attempts(c, cl, id)
	if isMissing(err) {
		return fail(exitYarn, "Application with id '%s' doesn't exist in RM.", id)
	}
	if err != nil {
		return err
	}
	const pattern = "%30s\t%20s\t%35s\t%35s\n"
	fmt.Fprintf(c.App.Writer, "Total number of application attempts :%d\n", len(list))
	fmt.Fprintf(c.App.Writer, pattern, "ApplicationAttempt-Id", "State", "AM-Container-Id", "Tracking-URL")
	for _, a := range list {
		fmt.Fprintf(c.App.Writer, pattern, a.ID, a.State, orNA(a.Container), a.TrackingURL)
	}
	return nil
}

func attemptStatus(c *cli.Context, cl *client.Client, id string) error {
	app, err := applicationOf(id)
	if err != nil {
		return err
	}
	if _, err := oneApp(c, cl, app, "RM or Timeline Server"); err != nil {
		return err
	}
	var a yarnAttempt
	if err := yarn(c, cl, "apps/"+url.PathEscape(app)+"/appattempts/"+url.PathEscape(id), &a); isMissing(err) {
		fmt.Fprintf(c.App.Writer, "Application Attempt with id '%s' doesn't exist in RM or Timeline Server.\n", id)
		return &statusError{code: exitYarn}
	} else if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "Application Attempt Report : \n\tApplicationAttempt-Id : %s\n\tState : %s\n\tAMContainer : %s\n\tTracking-URL : %s\n\tRPC Port : %s\n\tAM Host : %s\n\tDiagnostics : %s\n",
		a.ID, a.State, orNA(a.Container), a.TrackingURL, a.Port, a.Host, a.Diagnostics)
	return nil
}
