package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
)

const haUsage = `Usage: haadmin
    [-transitionToActive <serviceId>]
    [-transitionToStandby <serviceId>]
    [-failover <serviceId> <serviceId>]
    [-getServiceState <serviceId>]
    [-getAllServiceState]
    [-checkHealth <serviceId>]
    [-help <command>]
`

func haadminCommand() *cli.Command {
	return hadoopCommand("haadmin", "who of the namenodes leads: the options and output of `hdfs haadmin`", "-OPTION [ARGUMENTS]",
		"A serviceId is one of dfs.ha.namenodes in the clients' configuration, or an IPC address. The namenodes elect one that leads by\n"+
			"themselves; -failover and -transitionToActive have a certain one lead, -transitionToStandby any other one.\n\n"+haUsage, haadmin)
}

func haadmin(t *hadoopTool, args []string) (int, error) {
	arguments := map[string]int{
		"-transitionToActive": 1, "-transitionToStandby": 1, "-failover": 2, "-getServiceState": 1, "-getAllServiceState": 0, "-checkHealth": 1,
	}
	if len(args) > 0 && (args[0] == "-help" || args[0] == "-transitionToObserver") {
		if args[0] == "-transitionToObserver" {
			fmt.Fprintln(t.errOut, "transitionToObserver: not supported: every namenode can lead")
			return exitHadoop, nil
		}
		t.printf("%s", haUsage)
		return 0, nil
	}
	if len(args) == 0 {
		fmt.Fprint(t.errOut, haUsage)
		return exitHadoop, nil
	}
	command := args[0]
	args = slices.DeleteFunc(args[1:], func(a string) bool { return strings.HasPrefix(a, "--force") })
	want, known := arguments[command]
	if !known {
		fmt.Fprintf(t.errOut, "%s: Unknown command\n%s", strings.TrimPrefix(command, "-"), haUsage)
		return exitHadoop, nil
	}
	if len(args) != want {
		fmt.Fprintf(t.errOut, "%s: incorrect number of arguments\n%s", strings.TrimPrefix(command, "-"), haUsage)
		return exitHadoop, nil
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	ids, err := t.namenodeIDs(fs)
	if err != nil {
		return 0, err
	}
	addresses := make([]string, len(args))
	for i, name := range args {
		if addresses[i] = ids[name]; addresses[i] == "" && slices.Contains(fs.Namenodes(), name) {
			addresses[i] = name
		}
		if addresses[i] == "" {
			fmt.Fprintf(t.errOut, "Illegal argument: Unable to determine service address for namenode '%s'\n", name)
			return exitHadoop, nil
		}
	}
	failed := func(err error) (int, error) {
		fmt.Fprintf(t.errOut, "Operation failed: %s\n", hadoopMessage(err))
		return exitHadoop, nil
	}
	switch command {
	case "-getServiceState":
		s, err := fs.ServiceStatus(t.ctx, addresses[0])
		if err != nil {
			return failed(err)
		}
		t.printf("%s\n", s.State)
	case "-getAllServiceState":
		code := 0
		for _, addr := range fs.Namenodes() {
			state := "Failed to connect: "
			if s, err := fs.ServiceStatus(t.ctx, addr); err != nil {
				state += hadoopMessage(err)
				code = exitHadoop
			} else {
				state = s.State
			}
			t.printf("%-50s %-10s\n", addr, state)
		}
		return code, nil
	case "-checkHealth":
		if err := fs.CheckHealth(t.ctx, addresses[0]); err != nil {
			fmt.Fprintf(t.errOut, "Health check failed: %s\n", hadoopMessage(err))
			return exitHadoop, nil
		}
	case "-transitionToActive":
		err = fs.Transition(t.ctx, addresses[0], true)
	case "-transitionToStandby":
		err = fs.Transition(t.ctx, addresses[0], false)
	case "-failover":
		var from, to dfs.ServiceStatus
		if from, err = fs.ServiceStatus(t.ctx, addresses[0]); err == nil {
			to, err = fs.ServiceStatus(t.ctx, addresses[1])
		}
		switch {
		case addresses[0] == addresses[1]:
			err = errors.New("Can't failover a service to itself") //nolint:revive // Hadoop's words
		case err != nil:
		case to.State == "active":
			t.printf("%s is active already\n", args[1])
			return 0, nil
		case from.State != "active":
			err = fmt.Errorf("%s is not active: `haadmin -getAllServiceState` shows who is", args[0])
		default:
			err = fs.Transition(t.ctx, addresses[1], true)
		}
		if err != nil {
			fmt.Fprintf(t.errOut, "Failover failed: %s\n", hadoopMessage(err))
			return exitHadoop, nil
		}
		t.printf("Failover from %s to %s successful\n", args[0], args[1])
	}
	if err != nil {
		return failed(err)
	}
	return 0, nil
}

// namenodeIDs are the IPC addresses of the namenodes by their names in the clients' configuration; those of a login are nn1, nn2, nn3.
func (t *hadoopTool) namenodeIDs(fs *dfs.Client) (map[string]string, error) {
	ids := map[string]string{}
	own, err := t.own()
	if err != nil {
		return nil, err
	}
	if own != nil {
		for i, n := range own.Namenodes {
			ids[fmt.Sprintf("nn%d", i+1)] = n.IPC
		}
		return ids, nil
	}
	conf, err := hadoopConf(t.properties["-conf"])
	if err != nil {
		return nil, err
	}
	for name, value := range conf.Properties {
		rest, ok := strings.CutPrefix(name, "dfs.namenode.rpc-address.")
		if i := strings.LastIndexByte(rest, '.'); ok && i >= 0 && slices.Contains(fs.Namenodes(), value) {
			ids[rest[i+1:]] = value
		}
	}
	return ids, nil
}
