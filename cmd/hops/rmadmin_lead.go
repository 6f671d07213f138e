package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// named finds a resource manager by its id or address; nil: there is none, and that has been said.
func (t *managerTool) named(name string) *manager {
	var known []string
	for _, m := range t.managers {
		if name == m.id || name == m.address {
			return m
		}
		known = append(known, m.name())
	}
	fmt.Fprintf(t.errOut, "Illegal argument: %s is not a valid serviceId. It should be one of %s \n", name, strings.Join(known, " "))
	return nil
}

// operationFailed says an error as HAAdmin does.
func (t *managerTool) operationFailed(err error) (int, error) {
	fmt.Fprintf(t.errOut, "Operation failed: %s\n", hadoopMessage(err))
	return exitHadoop, nil
}

func managerState(t *managerTool, _ *managerOption, args []string) (int, error) {
	m := t.named(args[0])
	switch {
	case m == nil:
		return exitHadoop, nil
	case m.err != nil:
		return t.operationFailed(m.err)
	}
	t.printf("%s\n", m.health.State)
	return 0, nil
}

func allManagerStates(t *managerTool, _ *managerOption, _ []string) (int, error) {
	code := 0
	for _, m := range t.managers {
		state := m.health.State
		if m.err != nil {
			state, code = "Failed to connect: "+hadoopMessage(m.err), exitHadoop
		}
		t.printf("%-50s %-10s\n", m.address, state)
	}
	return code, nil
}

func managerHealth(t *managerTool, _ *managerOption, args []string) (int, error) {
	m := t.named(args[0])
	if m == nil {
		return exitHadoop, nil
	}
	err := m.err
	if err == nil && !m.health.Ready {
		err = errors.New(m.health.Problem)
	}
	if err != nil {
		fmt.Fprintf(t.errOut, "Health check failed: %s\n", hadoopMessage(err))
		return exitHadoop, nil
	}
	return 0, nil
}

// transfer has another resource manager lead; empty: any.
func (t *managerTool) transfer(to string) error {
	leader := t.leader()
	if leader == nil {
		return errors.New("no resource manager leads: -getAllServiceState shows who runs")
	}
	path := "/api/v1/leader"
	if to != "" {
		path += "?to=" + url.QueryEscape(to)
	}
	_, err := leader.call(t.ctx, http.MethodPost, path, nil)
	return err
}

func transitionManager(t *managerTool, o *managerOption, args []string) (int, error) {
	m := t.named(args[0])
	if m == nil {
		return exitHadoop, nil
	}
	err := m.err
	switch active := m.health.State == "active"; {
	case err != nil:
	case o.name == "-transitionToActive" && !active:
		err = t.transfer(m.id)
	case o.name == "-transitionToStandby" && active:
		err = t.transfer("")
	}
	if err != nil {
		return t.operationFailed(err)
	}
	return 0, nil
}

func failoverManager(t *managerTool, _ *managerOption, args []string) (int, error) {
	from, to := t.named(args[0]), t.named(args[1])
	if from == nil || to == nil {
		return exitHadoop, nil
	}
	var err error
	switch {
	case from == to:
		err = errors.New("Can't failover a service to itself") //nolint:revive // Hadoop's words
	case to.err != nil:
		err = to.err
	case to.health.State == "active":
		t.printf("%s is active already\n", args[1])
		return 0, nil
	case from.health.State != "active":
		err = fmt.Errorf("%s is not active: `rmadmin -getAllServiceState` shows who is", args[0])
	default:
		err = t.transfer(to.id)
	}
	if err != nil {
		fmt.Fprintf(t.errOut, "Failover failed: %s\n", hadoopMessage(err))
		return exitHadoop, nil
	}
	t.printf("Failover from %s to %s successful\n", args[0], args[1])
	return 0, nil
}
