package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/client"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
)

// decommissioningPause lies between two looks of -client; a variable for tests.
var decommissioningPause = time.Second

// refreshNodes has the leader read its file of excluded nodes.
func refreshNodes(t *managerTool, o *managerOption, args []string) (int, error) {
	timeout, graceful, tracking := int64(-1), false, ""
	for i := 0; i < len(args); i++ {
		switch word := strings.TrimLeft(args[i], "-"); {
		case !strings.HasPrefix(args[i], "-"):
			return t.illegal(o, "Unrecognized option: %s", args[i])
		case word == "g" || word == "graceful":
			graceful = true
			if i+1 < len(args) && (!strings.HasPrefix(args[i+1], "-") || len(args[i+1]) > 1 && args[i+1][1] >= '0' && args[i+1][1] <= '9') {
				i++
				n, err := strconv.ParseInt(args[i], 10, 32)
				if err != nil || n < -1 {
					return t.illegal(o, "Invalid timeout specified : %s", args[i])
				}
				timeout = n
			}
		case word == "client" || word == "server":
			tracking = word
		default:
			return t.illegal(o, "Unrecognized option: %s", args[i])
		}
	}
	if graceful && tracking == "" {
		t.managerUsage(o.name)
		return exitHadoop, nil
	}
	refresh := func(seconds int64) error {
		return t.ask(http.MethodPost, "/api/v1/admin/refresh-nodes?timeout_s="+strconv.FormatInt(seconds, 10), nil, nil)
	}
	if !graceful {
		if err := refresh(0); err != nil {
			return t.failed(o.name, err), nil
		}
		return 0, nil
	}
	if err := refresh(timeout); err != nil {
		return t.failed(o.name, err), nil
	}
	if tracking == "server" {
		return 0, nil
	}
	const grace = 5 // seconds: the leader keeps the time, too
	for waited := int64(0); timeout < 0 || waited < timeout+grace; waited++ {
		if err := pause(t.ctx, decommissioningPause); err != nil {
			return 0, err
		}
		var now struct{ Nodes []client.Node }
		if err := t.ask(http.MethodGet, "/api/v1/nodes", nil, &now); err != nil {
			return t.failed(o.name, err), nil
		}
		var still []string
		for _, n := range now.Nodes {
			if n.State == rm.NodeDecommissioning {
				still = append(still, n.ID)
			}
		}
		if len(still) == 0 {
			t.printf("Graceful decommissioning completed in %d seconds.\n", waited)
			return 0, nil
		}
		t.printf("Nodes '%s' are still decommissioning.\n", strings.Join(still, ","))
	}
	t.printf("Graceful decommissioning not completed in %d seconds, issuing forceful decommissioning command.\n", timeout)
	if err := refresh(0); err != nil {
		return t.failed(o.name, err), nil
	}
	return 0, nil
}

func updateNodeResource(t *managerTool, o *managerOption, args []string) (int, error) {
	if len(args) < 3 || len(args) > 4 {
		fmt.Fprintln(t.errOut, "Number of parameters specified for updateNodeResource is wrong.")
		t.managerUsage(o.name)
		return exitHadoop, nil
	}
	var numbers []int64
	for _, text := range args[1:] {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return t.illegal(o, "For input string: %q", text)
		}
		numbers = append(numbers, n)
	}
	if !strings.Contains(args[0], ":") {
		return t.illegal(o, "Invalid NodeId [%s]. Expected host:port", args[0])
	}
	switch {
	case numbers[0] < 0 || numbers[1] < 0:
		return t.illegal(o, "Invalid resource value: (%d,%d) for updateNodeResource.", numbers[0], numbers[1])
	case numbers[0] == 0 || numbers[1] == 0:
		return t.illegal(o, "a node with nothing takes no work: -decommission takes it out of service")
	case len(numbers) == 3 && numbers[2] != -1:
		return t.failed(o.name, errors.New("not supported: OvercommitTimeout: what runs beyond the new size goes on until it ends")), nil
	}
	return t.resize(o, args[0], numbers[0], numbers[1])
}

func resetNodeResource(t *managerTool, o *managerOption, args []string) (int, error) {
	return t.resize(o, args[0], 0, 0)
}

func (t *managerTool) resize(o *managerOption, node string, memory, vcores int64) (int, error) {
	path := fmt.Sprintf("/api/v1/admin/nodes/%s/resource?memory_mib=%d&vcores=%d", url.PathEscape(node), memory, vcores)
	if err := t.ask(http.MethodPut, path, nil, nil); err != nil {
		return t.failed(o.name, err), nil
	}
	return 0, nil
}

// serveNodes takes nodes out of service, or back into it.
func serveNodes(t *managerTool, o *managerOption, args []string) (int, error) {
	request := rest.AdminRequest{Action: o.name[1:]}
	for len(args) > 0 {
		word := strings.TrimLeft(args[0], "-")
		if word == args[0] {
			request.Nodes, args = append(request.Nodes, word), args[1:]
			continue
		}
		if len(args) < 2 || word != "timeout" && word != "for" || word == "for" && o.name != "-maintenance" || o.name == "-recommission" {
			t.managerUsage(o.name)
			return exitHadoop, nil
		}
		d, err := time.ParseDuration(args[1])
		if err != nil || d < 0 || word == "for" && d < time.Second {
			return t.failed(o.name, fmt.Errorf("--%s %s: want a time as 90s, 30m or 2h", word, args[1])), nil
		}
		seconds := int64((d + time.Second - 1) / time.Second)
		if word == "for" {
			request.For = seconds
		} else {
			request.Timeout = &seconds
		}
		args = args[2:]
	}
	if len(request.Nodes) == 0 {
		t.managerUsage(o.name)
		return exitHadoop, nil
	}
	var changed rest.AdminAnswer
	if err := t.ask(http.MethodPost, "/api/v1/admin/nodes", request, &changed); err != nil {
		return t.failed(o.name, err), nil
	}
	words := map[string]string{
		"-decommission": "is being decommissioned; `hops node -list -all` shows when it can be stopped",
		"-maintenance":  "enters maintenance; `hops node -list -all` shows when it can be stopped", "-recommission": "is in service",
	}[o.name]
	for _, node := range changed.Nodes {
		t.printf("%s %s\n", node, words)
	}
	return 0, nil
}
