package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/resourcemanager/rest"
)

func rmadminCommand() *cli.Command {
	var text strings.Builder
	text.WriteString("Options, output and exit status are those of `yarn rmadmin`; those at the end are hops' own. The resource managers are those of the login,\n" +
		"of HADOOP_CONF_DIR (-conf DIR), or of a server's configuration: -c FILE, default /etc/hops/hops.yaml.\n" +
		"A node is named by its machine, its address, or its id HOST:PORT. Times are as 90s, 30m or 2h.\n\n")
	for _, o := range managerOptions {
		fmt.Fprintf(&text, "%s %s\n    %s\n", o.name, o.arguments, o.help)
	}
	return hadoopCommand("rmadmin", "look after the resource managers and their nodes: the options and output of `yarn rmadmin`", "-OPTION [ARGUMENTS]", text.String(), rmadmin)
}

// managerOption is an option of rmadmin.
type managerOption struct {
	name, arguments, help string
	least, most           int  // arguments; most -1: any number
	ha                    bool // of a group of several resource managers
	run                   func(t *managerTool, o *managerOption, args []string) (int, error)
}

var managerOptions []*managerOption

func init() { // the help is made of the table, and run by it
	managerOptions = []*managerOption{
		{name: "-refreshQueues", arguments: "[-dryRun|-force]", help: "have all resource managers read their queues anew; refused where applications would lose their queue or be beyond a limit, unless forced", most: 1, run: refreshQueues},
		{name: "-refreshNodes", arguments: "[-g|graceful [timeout in seconds] -client|server]", help: "read the file of excluded nodes (yarn.resourcemanager.nodes.exclude-path) anew; with -g, what runs on them has the timeout, or for ever", most: -1, run: refreshNodes},
		{name: "-refreshSuperUserGroupsConfiguration", help: "have all resource managers read anew who may act for others", run: refreshEach("refresh-proxy-users")},
		{name: "-refreshUserToGroupsMappings", help: "have all resource managers ask for users' groups anew", run: refreshEach("refresh-groups")},
		{name: "-refreshAdminAcls", help: "have all resource managers read anew which group's members are superusers", run: refreshEach("refresh-superusers")},
		{name: "-getGroups", arguments: "[username]", help: "the groups of users, as the resource managers know them", most: -1, run: getGroups},
		{name: "-updateNodeResource", arguments: "[NodeID] [MemSize] [vCores]", help: "set a node's memory, in MiB, and vcores in place of what it reports", most: -1, run: updateNodeResource},
		{name: "-addToClusterNodeLabels", arguments: "<\"label1(exclusive=true),label2(exclusive=false),label3\">", help: "have the cluster know labels that no node carries yet", most: -1, run: addLabels},
		{name: "-removeFromClusterNodeLabels", arguments: "<label1,label2,label3> (label splitted by \",\")", help: "forget labels, also those of nodes that were set by an administrator", most: -1, run: removeLabels},
		{name: "-replaceLabelsOnNode", arguments: "<\"node1[:port]=label1,label2 node2[:port]=label1\"> [-failOnUnknownNodes]", help: "set labels of nodes in place of those that their node managers are configured with", most: -1, run: replaceLabels},
		{name: "-transitionToActive", arguments: "<serviceId>", help: "have a resource manager lead", least: 1, most: 1, ha: true, run: transitionManager},
		{name: "-transitionToStandby", arguments: "<serviceId>", help: "have any other resource manager lead", least: 1, most: 1, ha: true, run: transitionManager},
		{name: "-failover", arguments: "<serviceId> <serviceId>", help: "have the second lead in place of the first", least: 2, most: 2, ha: true, run: failoverManager},
		{name: "-getServiceState", arguments: "<serviceId>", help: "active or standby", least: 1, most: 1, ha: true, run: managerState},
		{name: "-getAllServiceState", help: "the states of all resource managers", ha: true, run: allManagerStates},
		{name: "-checkHealth", arguments: "<serviceId>", help: "status 0 while a resource manager is of use", least: 1, most: 1, ha: true, run: managerHealth},
		{name: "-help", arguments: "[cmd]", help: "this", most: 1, run: managerHelp},
		{name: "-decommission", arguments: "<node>... [--timeout <time>]", help: "take nodes out of service: they get nothing new; what runs there may end, until the timeout if there is one", least: 1, most: -1, run: serveNodes},
		{name: "-maintenance", arguments: "<node>... [--timeout <time>] [--for <time>]", help: "the same for a while: it ends by itself after --for", least: 1, most: -1, run: serveNodes},
		{name: "-recommission", arguments: "<node>...", help: "end that: the nodes serve again", least: 1, most: -1, run: serveNodes},
		{name: "-resetNodeResource", arguments: "<NodeID>", help: "end -updateNodeResource: the node has what it reports", least: 1, most: 1, run: resetNodeResource},
	}
}

// absentManagerOptions are those of YARN's that there is nothing for here.
var absentManagerOptions = map[string]string{
	"-refreshNodesResources": "a node's resources are in its own configuration, or set by -updateNodeResource", "-refreshServiceAcl": "rights are fixed: see docs/reference/rights.md",
	"-refreshClusterMaxPriority": "the highest priority is 10", "-directlyAccessNodeLabelStore": "there is no store of labels",
	"-transitionToObserver": "every resource manager can lead",
}

// managerTool is one run of rmadmin.
type managerTool struct {
	*hadoopTool
	managers []*manager
	user     string
}

// manager is one of the resource managers.
type manager struct {
	address string
	id      string // as its configuration or itself says; empty: not known
	call    func(ctx context.Context, method, path string, body any) (json.RawMessage, error)
	// health is what it says of itself; err why it says nothing.
	health struct {
		ID, State, Problem string
		Ready              bool
	}
	err error
}

func (m *manager) name() string {
	if m.id != "" {
		return m.id
	}
	return m.address
}

func rmadmin(tool *hadoopTool, args []string) (int, error) {
	t := &managerTool{hadoopTool: tool}
	file := ""
	if len(args) > 1 && (args[0] == "-c" || args[0] == "--config" || args[0] == "-config") {
		file, args = args[1], args[2:]
	}
	if len(args) == 0 {
		t.managerUsage("")
		return exitHadoop, nil
	}
	at := slices.IndexFunc(managerOptions, func(o *managerOption) bool { return o.name == args[0] })
	if at < 0 {
		if why, known := absentManagerOptions[args[0]]; known {
			fmt.Fprintf(t.errOut, "%s: not supported: %s\n", args[0][1:], why)
			return exitHadoop, nil
		}
		var names []string
		for _, o := range managerOptions {
			names = append(names, o.name)
		}
		fmt.Fprintf(t.errOut, "%s: Unknown command%s\n", strings.TrimPrefix(args[0], "-"), nearest.Hint(args[0], names))
		t.managerUsage("")
		return exitHadoop, nil
	}
	o, rest := managerOptions[at], args[1:]
	if len(rest) < o.least || o.most >= 0 && len(rest) > o.most {
		if o.ha {
			fmt.Fprintf(t.errOut, "%s: incorrect number of arguments\n", o.name[1:])
		}
		t.managerUsage(o.name)
		return exitHadoop, nil
	}
	if o.name != "-help" {
		if err := t.find(file); err != nil {
			return 0, err
		}
		if o.ha && len(t.managers) == 1 {
			t.printf("Cannot run %s when ResourceManager HA is not enabled\n", o.name)
			return exitHadoop, nil
		}
		if o.ha {
			t.look()
		}
	}
	return o.run(t, o, rest)
}

// find learns of the resource managers: from the clients' configuration or login, or from that of a server.
func (t *managerTool) find(file string) error {
	if file == "" {
		c, err := client.New(client.Config{ConfDir: t.properties["-conf"], Logger: clientLogger(t.errOut)})
		if err != nil {
			return err
		}
		t.user = c.User()
		for _, m := range c.Managers() {
			_, address, _ := strings.Cut(m.Address, "://")
			t.managers = append(t.managers, &manager{address: address, call: m.Call})
		}
		if len(t.managers) > 0 {
			return nil
		}
		given := t.properties["-conf"]
		dir, err := findConf(given) // that of a cluster of `hops dev`, or why there is none
		if err == nil && dir != given {
			t.properties["-conf"] = dir
			if err = t.find(""); err == nil {
				return nil
			}
		}
		if err == nil {
			err = fail(exitUsage, "%s names no resource manager: give the directory with the cluster's yarn-site.xml, or a server's configuration by -c", dir)
		}
		if given != "" { // it is that one which is meant
			return err
		}
		file = "/etc/hops/hops.yaml"
		if _, missing := os.Stat(file); missing != nil {
			return err
		}
	}
	f, err := config.Load(file)
	if err != nil {
		return err
	}
	if err := knowServersAs(f.Cluster.Identity, ""); err != nil {
		return err
	}
	if t.user, err = operator("", filepath.Dir(file)); err != nil {
		return err
	}
	for _, m := range f.ResourceManagers {
		t.managers = append(t.managers, &manager{address: m.HTTP, id: m.ID, call: func(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
			return askManager(ctx, m.HTTP, t.user, method, path, body)
		}})
	}
	if len(t.managers) == 0 {
		return fail(exitFailed, "%s has no resource managers", file)
	}
	return nil
}

// askManager sends a request as one of a machine's servers.
func askManager(ctx context.Context, address, as, method, path string, body any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	joiner := "?"
	if strings.Contains(path, "?") {
		joiner = "&"
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+address+path+joiner+"user.name="+url.QueryEscape(as), bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := toServers.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if text, err = io.ReadAll(io.LimitReader(answer.Body, 64<<20)); err != nil || answer.StatusCode == http.StatusOK {
		return text, err
	}
	var said struct {
		Detail          string
		RemoteException struct{ Message string } // of YARN's own paths
	}
	_ = json.Unmarshal(text, &said) // the status says it, too
	return text, &client.Error{Status: answer.StatusCode, Title: answer.Status, Message: cmp.Or(said.Detail, said.RemoteException.Message, answer.Status)}
}

// look asks every resource manager how it is.
func (t *managerTool) look() {
	done := make(chan struct{})
	for _, m := range t.managers {
		go func() {
			ctx, cancel := context.WithTimeout(t.ctx, askTime)
			defer cancel()
			var text json.RawMessage
			if text, m.err = m.call(ctx, http.MethodGet, "/health", nil); m.err == nil {
				if m.err = json.Unmarshal(text, &m.health); m.err == nil && m.id == "" {
					m.id = m.health.ID
				}
			}
			done <- struct{}{}
		}()
	}
	for range t.managers {
		<-done
	}
}

// lookForLeader is look for who needs the leader: it waits for an election.
func (t *managerTool) lookForLeader() {
	untilLed(t.ctx, func() (led, answered bool) {
		t.look()
		return t.leader() != nil, slices.ContainsFunc(t.managers, func(m *manager) bool { return m.err == nil })
	})
}

// leader is the resource manager that leads, which answers what only it may; nil: none does.
func (t *managerTool) leader() *manager {
	for _, m := range t.managers {
		if m.err == nil && m.health.State == "active" {
			return m
		}
	}
	return nil
}

// ask asks the leader, whichever that is.
func (t *managerTool) ask(method, path string, body, into any) error {
	t.lookForLeader()
	m := t.leader()
	if m == nil {
		return errors.New("no resource manager leads: -getAllServiceState shows who runs")
	}
	text, err := m.call(t.ctx, method, path, body)
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

// managerUsage is how an option is used, or all are.
func (t *managerTool) managerUsage(name string) {
	if name == "" {
		fmt.Fprintln(t.errOut, "Usage: yarn rmadmin")
	}
	for _, o := range managerOptions {
		words := strings.TrimSpace(o.name + " " + o.arguments)
		switch name {
		case "":
			fmt.Fprintf(t.errOut, "   %s\n", words)
		case o.name:
			fmt.Fprintf(t.errOut, "Usage: yarn rmadmin [%s]\n", words)
		}
	}
}

func managerHelp(t *managerTool, _ *managerOption, args []string) (int, error) {
	if len(args) == 0 {
		t.printf("rmadmin is the command to execute YARN administrative commands.\n")
	}
	for _, o := range managerOptions {
		if len(args) == 0 || strings.TrimPrefix(args[0], "-") == o.name[1:] {
			t.printf("   %s: %s\n", strings.TrimSpace(o.name+" "+o.arguments), o.help)
		}
	}
	return 0, nil
}

// illegal refuses an argument as RMAdminCLI does.
func (t *managerTool) illegal(o *managerOption, format string, args ...any) (int, error) {
	code := t.failed(o.name, fmt.Errorf(format, args...))
	t.managerUsage(o.name)
	return code, nil
}

// everywhere has every resource manager do something, those that follow first. One that is down reads its configuration when it
// starts; the leader has to do it.
func (t *managerTool) everywhere(o *managerOption, path string) (int, error) {
	leader := t.leader()
	if leader == nil {
		return t.failed(o.name, errors.New("no resource manager leads: -getAllServiceState shows who runs")), nil
	}
	last := slices.DeleteFunc(slices.Clone(t.managers), func(m *manager) bool { return m == leader })
	for _, m := range append(last, leader) {
		if m.err != nil {
			fmt.Fprintf(t.errOut, "%s: %s does not answer, and will read its configuration when it starts\n", o.name[1:], m.name())
			continue
		}
		if _, err := m.call(t.ctx, http.MethodPost, path, nil); err != nil {
			return t.failed(o.name, err), nil
		}
	}
	return 0, nil
}

func refreshEach(what string) func(*managerTool, *managerOption, []string) (int, error) {
	return func(t *managerTool, o *managerOption, _ []string) (int, error) {
		t.lookForLeader()
		return t.everywhere(o, "/api/v1/admin/"+what)
	}
}

// refreshQueues has all resource managers look at their queues before any goes by them.
func refreshQueues(t *managerTool, o *managerOption, args []string) (int, error) {
	force, dry := false, false
	for _, arg := range args {
		switch strings.TrimLeft(arg, "-") {
		case "force":
			force = true
		case "dryRun":
			dry = true
		default:
			return t.illegal(o, "Unrecognized option: %s", arg)
		}
	}
	t.lookForLeader()
	var affected []rest.Affected
	var first *manager
	hash := ""
	for _, m := range t.managers {
		if m.err != nil {
			continue
		}
		text, err := m.call(t.ctx, http.MethodPost, "/api/v1/admin/refresh-queues?check=true&force="+strconv.FormatBool(force), nil)
		var read rest.QueueChange
		if err == nil {
			err = json.Unmarshal(text, &read)
		}
		affected = append(affected, read.Affected...) // the leader says it
		switch {
		case err != nil:
		case first == nil:
			first, hash = m, read.Hash
		case read.Hash != hash:
			err = fmt.Errorf("%s and %s have different queues in their configurations: make resourcemanager.queues alike on all resource managers; nothing was changed", first.name(), m.name())
		}
		if err != nil {
			return t.failed(o.name, err), nil
		}
	}
	for _, a := range affected {
		fmt.Fprintln(t.errOut, a.Text)
	}
	switch {
	case dry:
		return 0, nil
	case force:
		return t.everywhere(o, "/api/v1/admin/refresh-queues?force=true")
	case len(affected) > 0:
		return t.failed(o.name, errors.New("applications are affected; nothing was changed (-force changes the queues all the same)")), nil
	}
	return t.everywhere(o, "/api/v1/admin/refresh-queues")
}

func getGroups(t *managerTool, o *managerOption, args []string) (int, error) {
	if len(args) == 0 {
		args = []string{t.user}
	}
	for _, user := range args {
		var known rest.Groups
		if err := t.ask(http.MethodGet, "/api/v1/groups/"+url.PathEscape(user), nil, &known); err != nil {
			return t.failed(o.name, err), nil
		}
		t.printf("%s\n", strings.Join(append([]string{user + " :"}, known.Groups...), " "))
	}
	return 0, nil
}
