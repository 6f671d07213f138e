package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/jersey"
)

// yarnContainer is a container as the history describes it, ended ones too.
type yarnContainer struct {
	ID          string `json:"containerId"`
	Node        string `json:"assignedNodeId"`
	Started     int64  `json:"startedTime"`
	Finished    int64  `json:"finishedTime"`
	Diagnostics string `json:"diagnosticsInfo"`
	LogURL      string `json:"logUrl"`
	State       string `json:"containerState"`
	NodeHTTP    string `json:"nodeHttpAddress"`
}

func containerCommand() *cli.Command {
	return &cli.Command{
		Name:  "container",
		Usage: "containers, as `yarn container` shows them: -list ATTEMPT, -status CONTAINER, -signal CONTAINER",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "list", Usage: "list the containers of `ATTEMPT`, ended ones too"},
			&cli.StringFlag{Name: "status", Usage: "describe `CONTAINER`"},
			&cli.StringFlag{Name: "signal", Usage: "signal `CONTAINER`; the argument says how: OUTPUT_THREAD_DUMP, which is the default, GRACEFUL_SHUTDOWN or FORCEFUL_SHUTDOWN"},
			confFlag(), userFlag(),
		},
		ArgsUsage: "[COMMAND]",
		Action: func(c *cli.Context) error {
			n := 0
			for _, f := range []string{"list", "status", "signal"} {
				if c.IsSet(f) {
					n++
				}
			}
			if n != 1 || c.NArg() > 1 || c.NArg() == 1 && !c.IsSet("signal") {
				return fail(exitYarn, "container: give one of -list ATTEMPT, -status CONTAINER and -signal CONTAINER [COMMAND]")
			}
			cl, err := dial(c)
			if err != nil {
				return yarnError(err)
			}
			defer cl.Close()
			switch {
			case c.IsSet("list"):
				err = listContainers(c, cl, c.String("list"))
			case c.IsSet("status"):
				err = containerStatus(c, cl, c.String("status"))
			default:
				err = signalContainer(c, cl, c.String("signal"), c.Args().First())
			}
			return yarnError(err)
		},
	}
}

// containerName takes a container's id apart: application and attempt.
var containerName = regexp.MustCompile(`^container_(?:e\d{2,19}_)?(\d{1,19}_\d{4,19})_(\d{2,10})_\d{6,19}$`)

// past asks the history.
func past(c *cli.Context, cl *client.Client, path string, into any) error {
	raw, err := cl.Jobs().Raw(c.Context, http.MethodGet, "/ws/v1/applicationhistory/"+path, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// date is how YARN prints the time of a container; 0 is none.
func date(ms int64) string {
	if ms <= 0 {
		return "N/A"
	}
	return jersey.FileTime(time.UnixMilli(ms))
}

func listContainers(c *cli.Context, cl *client.Client, attempt string) error {
	app, err := applicationOf(attempt)
	if err != nil {
		return err
	}
	var answer struct{ Container []yarnContainer }
	if err := past(c, cl, "apps/"+url.PathEscape(app)+"/appattempts/"+url.PathEscape(attempt)+"/containers", &answer); isMissing(err) {
		return fail(exitYarn, "Application Attempt with id '%s' doesn't exist in RM.", attempt)
	} else if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "Total number of containers :%d\n", len(answer.Container))
	const pattern = "%30s\t%20s\t%20s\t%20s\t%20s\t%20s\t%35s\n"
	fmt.Fprintf(c.App.Writer, pattern, "Container-Id", "Start Time", "Finish Time", "State", "Host", "Node Http Address", "LOG-URL")
	for _, k := range answer.Container {
		fmt.Fprintf(c.App.Writer, pattern, k.ID, date(k.Started), date(k.Finished), k.State, k.Node, orNA(k.NodeHTTP), k.LogURL)
	}
	return nil
}

func containerStatus(c *cli.Context, cl *client.Client, id string) error {
	m := containerName.FindStringSubmatch(id)
	if m == nil {
		return fail(exitYarn, "Invalid ContainerId: %.100s", id)
	}
	number, _ := strconv.Atoi(m[2])
	app, attempt := "application_"+m[1], fmt.Sprintf("appattempt_%s_%06d", m[1], number)
	var k yarnContainer
	if err := past(c, cl, "apps/"+app+"/appattempts/"+attempt+"/containers/"+url.PathEscape(id), &k); isMissing(err) {
		what := "Container"
		if err := past(c, cl, "apps/"+app, &struct{}{}); isMissing(err) {
			what = "Application for Container"
		}
		fmt.Fprintf(c.App.Writer, "%s with id '%s' doesn't exist in RM or Timeline Server.\n", what, id)
		return &statusError{code: exitYarn}
	} else if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "Container Report : \n\tContainer-Id : %s\n\tStart-Time : %d\n\tFinish-Time : %d\n\tState : %s\n\tExecution-Type : GUARANTEED\n\tLOG-URL : %s\n\tHost : %s\n\tNodeHttpAddress : %s\n\tExposedPorts : \n\tDiagnostics : %s\n",
		k.ID, k.Started, k.Finished, k.State, k.LogURL, k.Node, orNA(k.NodeHTTP), k.Diagnostics)
	return nil
}

func signalContainer(c *cli.Context, cl *client.Client, id, command string) error {
	if command == "" {
		command = "OUTPUT_THREAD_DUMP"
	}
	fmt.Fprintf(c.App.Writer, "Signalling container %s\n", id)
	return cl.Jobs().Do(c.Context, http.MethodPost, "/ws/v1/cluster/containers/"+url.PathEscape(id)+"/signal/"+url.PathEscape(strings.ToUpper(command)), nil)
}
