package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/diskplan"
	"github.com/gohops/hops/metadata"
)

// diskVerb is what diskbalancer can be told to do: its options and what is said of it.
type diskVerb struct {
	name, usage, help string
	// takes are its other options, with what their values are called; empty: it has none.
	takes [][3]string
	run   func(t *hadoopTool, a map[string]string) (int, error)
}

var diskVerbs []*diskVerb

func init() { // the help is made of the table, and run by it
	diskVerbs = []*diskVerb{
		{"-plan", "-plan <hostname> [options]", "Creates a plan that describes how much data should be moved between disks.", [][3]string{
			{"-out", "<arg>", "Directory of the filesystem to write the plan to, if not specified defaults will be used."},
			{"-bandwidth", "<arg>", "Maximum disk bandwidth (MB/s) in integer to be consumed by diskBalancer. e.g. 10 MB/s."},
			{"-thresholdPercentage", "<arg>", "Percentage of data skew that is tolerated before disk balancer starts working; default 10."},
			{"-maxerror", "<arg>", "Describes how many errors can be tolerated while copying between a pair of disks."},
			{"-v", "", "Print out the summary of the plan on console"},
		}, planDisks},
		{"-execute", "-execute <planfile> [options]", "Takes a plan file and submits it for execution by the datanode.", [][3]string{
			{"-skipDateCheck", "", "skips the date check and force execute the plan"},
		}, executeDisks},
		{"-query", "-query <hostname,hostname,...> [options]", "Queries the disk balancer status of given datanodes.", [][3]string{
			{"-v", "", "Prints details of the plan that is being executed on the node."},
		}, queryDisks},
		{"-cancel", "-cancel <planFile> | -cancel <planID> -node <hostname:port>", "Cancels a running plan using a plan file, or its ID and the datanode.", [][3]string{
			{"-node", "<arg>", "Cancels a running plan using a plan ID and hostName"},
		}, cancelDisks},
		{"-report", "-report [-top <n>] | -report -node <DataNodeID|IP|Hostname,...>", "List nodes that will benefit from running DiskBalancer, or the volumes of some.", [][3]string{
			{"-top", "<arg>", "specify the number of nodes to be listed which has data imbalance; default 100."},
			{"-node", "<arg>", "Datanode address, it can be DataNodeID, IP or hostname."},
		}, reportDisks},
		{"-help", "-help [plan|execute|query|cancel|report]", "this", nil, helpDisks},
	}
}

func diskBalancerCommand() *cli.Command {
	var text strings.Builder
	text.WriteString("Verbs, options, output and exit status are those of `hdfs diskbalancer`. A datanode moves the replicas by itself, also when this command has ended, and forgets\n" +
		"a plan when it is restarted: what was moved until then stays there. Only superusers may use it.\n\n")
	for _, v := range diskVerbs {
		fmt.Fprintf(&text, "%s\n    %s\n", v.usage, v.help)
		for _, o := range v.takes {
			fmt.Fprintf(&text, "    %-30s %s\n", strings.TrimSpace(o[0]+" "+o[1]), o[2])
		}
	}
	return hadoopCommand("diskbalancer", "even out the volumes of a datanode: the verbs and output of `hdfs diskbalancer`", "-VERB [ARGUMENTS]", text.String(), diskBalancer)
}

const exitDisks = 1

func diskBalancer(t *hadoopTool, args []string) (int, error) {
	verb, a, err := readDiskVerb(args)
	if err == nil && verb == nil {
		_, _ = helpDisks(t, map[string]string{"-help": ""})
		return exitDisks, nil
	}
	if err == nil {
		if verb.name != "-help" {
			if _, err := t.client(); err != nil {
				return 0, err
			}
		}
		var code int
		if code, err = verb.run(t, a); err == nil {
			return code, nil
		}
	}
	fmt.Fprintf(t.errOut, "diskbalancer: %s\n", hadoopMessage(err))
	return exitDisks, nil
}

// readDiskVerb takes the options apart, which may stand in any order, with one dash or two. nil: there is no verb.
func readDiskVerb(args []string) (*diskVerb, map[string]string, error) {
	values := map[string]bool{"-plan": true, "-execute": true, "-query": true, "-cancel": true, "-report": false, "-help": false}
	for _, v := range diskVerbs {
		for _, o := range v.takes {
			values[o[0]] = o[1] != ""
		}
	}
	a, rest := map[string]string{}, []string(nil)
	for len(args) > 0 {
		word, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		if strings.HasPrefix(word, "--") {
			word = word[1:]
		}
		wants, known := values[word]
		switch {
		case !strings.HasPrefix(word, "-") || word == "-":
			rest = append(rest, word)
			continue
		case !known:
			return nil, nil, fmt.Errorf("Unrecognized option: %s", word) //nolint:revive // Hadoop's words
		case wants && !given && len(args) == 0:
			return nil, nil, fmt.Errorf("Missing argument for option: %s", word[1:]) //nolint:revive // Hadoop's words
		case wants && !given:
			value, args = args[0], args[1:]
		case word == "-help" && len(args) > 0 && !strings.HasPrefix(args[0], "-"):
			value, args = args[0], args[1:]
		}
		a[word] = value
	}
	if len(rest) > 0 {
		return nil, nil, fmt.Errorf("Invalid or extra Arguments: [%s]", strings.Join(rest, ", ")) //nolint:revive // Hadoop's words
	}
	var verb *diskVerb
	for _, v := range diskVerbs { // the last one counts, as in Hadoop
		if _, asked := a[v.name]; asked {
			verb = v
		}
	}
	if verb == nil {
		return nil, a, nil
	}
	for _, option := range slices.Sorted(maps.Keys(a)) {
		if option != verb.name && !slices.ContainsFunc(verb.takes, func(o [3]string) bool { return o[0] == option }) {
			return nil, nil, fmt.Errorf("Invalid Arguments found: %s is none of %s", option, verb.name) //nolint:revive // Hadoop's words
		}
	}
	return verb, a, nil
}

func helpDisks(t *hadoopTool, a map[string]string) (int, error) {
	one := strings.TrimPrefix(a["-help"], "-")
	for _, v := range diskVerbs {
		if one != "" && v.name[1:] != one {
			continue
		}
		t.printf("usage: hdfs diskbalancer %s\n%s\n\n", v.usage, v.help)
		for _, o := range v.takes {
			t.printf("    -%-30s %s\n", strings.TrimSpace(o[0]+" "+o[1]), o[2])
		}
		if len(v.takes) > 0 {
			t.printf("\n")
		}
	}
	return 0, nil
}

// diskNode is a datanode whose volumes may be balanced.
type diskNode struct {
	*dfs.DatanodeVolumes
	volumes []diskplan.Volume
}

func (n *diskNode) addr() string { return net.JoinHostPort(n.IP, strconv.Itoa(n.IPCPort)) }

// diskNodes are all datanodes that live.
func (t *hadoopTool) diskNodes() ([]*diskNode, error) {
	all, err := t.fs.DatanodeVolumes(t.ctx)
	if err != nil {
		return nil, err
	}
	var nodes []*diskNode
	for i := range all {
		n := &diskNode{DatanodeVolumes: &all[i]}
		for _, v := range n.Volumes {
			n.volumes = append(n.volumes, diskplan.Volume{
				UUID: string(v.ID), StorageType: v.Type.String(), Capacity: v.Capacity, Used: v.Used, Failed: v.Failed, Transient: v.Type.String() == "RAM_DISK",
			})
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// errNoNode: no datanode is called so.
var errNoNode = errors.New("Unable to find the specified node.") //nolint:revive // Hadoop's words

// nodeNamed finds a datanode by its host's name, IP address, uuid or HOST:IPC_PORT.
func nodeNamed(nodes []*diskNode, name string) (*diskNode, error) {
	var found []*diskNode
	for _, n := range nodes {
		port := strconv.Itoa(n.IPCPort)
		if slices.Contains([]string{n.Hostname, n.IP, n.UUID, net.JoinHostPort(n.Hostname, port), n.addr()}, name) {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%w %s", errNoNode, name)
	case 1:
		return found[0], nil
	}
	var which []string
	for _, n := range found {
		which = append(which, n.addr())
	}
	return nil, fmt.Errorf("%d datanodes are called %s: name one of %s", len(found), name, strings.Join(which, " "))
}

// paths sets where the volumes of a datanode are.
func (t *hadoopTool) paths(n *diskNode) error {
	at, err := t.fs.VolumePaths(t.ctx, n.addr())
	if err != nil {
		return err
	}
	for i := range n.volumes {
		n.volumes[i].Path = at[n.volumes[i].UUID]
	}
	return nil
}

// whole reads an option that is a number from 1 on; 0: it was not given.
func whole(a map[string]string, option string) (int64, error) {
	text, given := a[option]
	if !given {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s %s: want a whole number from 1 on", option, text)
	}
	return n, nil
}

func planDisks(t *hadoopTool, a map[string]string) (int, error) {
	bandwidth, err := whole(a, "-bandwidth")
	if err != nil {
		return 0, err
	}
	most, err := whole(a, "-maxerror")
	if err != nil {
		return 0, err
	}
	threshold := float64(diskplan.DefaultThreshold)
	if text, given := a["-thresholdPercentage"]; given {
		if threshold, err = strconv.ParseFloat(text, 64); err != nil || !(threshold > 0 && threshold <= 100) {
			return 0, fmt.Errorf("-thresholdPercentage %s: want a number above 0, 100 at most", text)
		}
	}
	nodes, err := t.diskNodes()
	if err != nil {
		return 0, err
	}
	node, err := nodeNamed(nodes, a["-plan"])
	if err == nil {
		err = t.paths(node)
	}
	if err != nil {
		return 0, err
	}
	dir := "/system/diskbalancer/" + time.Now().Format("2006-Jan-02-15-04-05")
	if given := a["-out"]; given != "" {
		if dir, err = t.at(given); err != nil {
			return 0, err
		}
	}
	if _, err := t.fs.Stat(t.ctx, dir); err == nil {
		return 0, fmt.Errorf("Another DiskBalancer files already exist at the target location. %s", dir) //nolint:revive // Hadoop's words
	} else if !errors.Is(err, metadata.ErrNotExist) {
		return 0, err
	}
	if err := t.fs.Mkdirs(t.ctx, dir, 0o700, true); err != nil {
		return 0, err
	}
	name := strings.ReplaceAll(a["-plan"], ":", "_") // no name of a file has one
	before, err := json.Marshal(clusterOf(nodes))
	if err == nil {
		err = t.write(path.Join(dir, name+".before.json"), before)
	}
	if err != nil {
		return 0, err
	}
	steps := diskplan.Make(node.volumes, threshold)
	for i := range steps {
		steps[i].Bandwidth, steps[i].MaxErrors = bandwidth, most
	}
	if len(steps) == 0 {
		t.printf("No plan generated. DiskBalancing not needed for node: %s threshold used: %s\n", a["-plan"], javaDouble(threshold))
		return 0, nil
	}
	text, err := json.Marshal(diskplan.Plan{Steps: steps, NodeName: node.Hostname, NodeUUID: node.UUID, Port: node.IPCPort, Time: time.Now().UnixMilli()})
	if err != nil {
		return 0, err
	}
	file := path.Join(dir, name+".plan.json")
	t.printf("Writing plan to:\n%s\n", file)
	if err := t.write(file, text); err != nil {
		return 0, err
	}
	if _, verbose := a["-v"]; verbose {
		line := strings.Repeat("=", 80)
		t.printf("\nPlan :\n\n%s\nSource Disk\t\t Dest.Disk\t\t Move Size\t Type\n ", line)
		for _, s := range steps {
			t.printf("\n%s\t%s\t%s\t%s", s.Source.Path, s.Destination.Path, binarySize(s.Bytes), s.Destination.StorageType)
		}
		t.printf("\n%s\n", line)
	}
	return 0, nil
}

// write makes a file that only its owner may read.
func (t *hadoopTool) write(name string, data []byte) error {
	w, err := t.fs.Create(t.ctx, name, dfs.CreateOptions{Mode: 0o600})
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return errors.Join(err, w.Close())
}

// javaDouble is a number as Java prints a double of this size.
func javaDouble(n float64) string {
	text := strconv.FormatFloat(n, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// binarySize is a size as Hadoop's TraditionalBinaryPrefix.long2String has it with one place: 1.5 G.
func binarySize(n int64) string {
	if n < 1024 {
		return strconv.FormatInt(n, 10)
	}
	at := 0
	for size := n >> 10; size >= 1024 && at < 5; size >>= 10 {
		at++
	}
	return fmt.Sprintf("%.1f %c", float64(n)/math.Pow(1024, float64(at+1)), "KMGTPE"[at])
}

// clusterOf is what the before file holds, DiskBalancerCluster.
func clusterOf(nodes []*diskNode) any {
	type set struct {
		Volumes   []diskplan.Volume `json:"volumes"`
		Type      string            `json:"storageType"`
		ID        string            `json:"setID"`
		Transient bool              `json:"transient"`
	}
	type node struct {
		Density float64        `json:"nodeDataDensity"`
		Sets    map[string]set `json:"volumeSets"`
		UUID    string         `json:"dataNodeUUID"`
		IP      string         `json:"dataNodeIP"`
		Port    int            `json:"dataNodePort"`
		Name    string         `json:"dataNodeName"`
		Count   int            `json:"volumeCount"`
	}
	out := struct {
		Exclude []string `json:"exclusionList"`
		Include []string `json:"inclusionList"`
		Nodes   []node   `json:"nodes"`
	}{Exclude: []string{}, Include: []string{}}
	for _, n := range nodes {
		sets := map[string]set{}
		for _, s := range diskplan.Sets(n.volumes) {
			sets[s[0].StorageType] = set{s, s[0].StorageType, s[0].StorageType, s[0].Transient}
		}
		out.Nodes = append(out.Nodes, node{diskplan.Density(n.volumes), sets, n.UUID, n.IP, n.IPCPort, n.Hostname, len(n.volumes)})
	}
	return out
}

// readPlan reads a plan of the filesystem.
func (t *hadoopTool) readPlan(name string) ([]byte, *diskplan.Plan, error) {
	at, err := t.at(name)
	if err != nil {
		return nil, nil, err
	}
	r, err := t.fs.Open(t.ctx, at)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, diskplan.MaxBytes+1))
	if err != nil {
		return nil, nil, err
	}
	plan, err := diskplan.Parse(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return text, plan, err
}

func executeDisks(t *hadoopTool, a map[string]string) (int, error) {
	text, plan, err := t.readPlan(a["-execute"])
	if err != nil {
		return 0, err
	}
	_, old := a["-skipDateCheck"]
	return 0, t.fs.SubmitDiskPlan(t.ctx, net.JoinHostPort(plan.NodeName, strconv.Itoa(plan.Port)), a["-execute"], text, old)
}

// ipcOf is the IPC address of a datanode that was named HOST:PORT, or by a name that the namenode knows.
func (t *hadoopTool) ipcOf(name string) (string, error) {
	if _, port, err := net.SplitHostPort(name); err == nil {
		if n, err := strconv.Atoi(port); err == nil && n > 0 && n < 1<<16 {
			return name, nil
		}
	}
	nodes, err := t.diskNodes()
	if err != nil {
		return "", err
	}
	n, err := nodeNamed(nodes, name)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(n.Hostname, strconv.Itoa(n.IPCPort)), nil
}

func queryDisks(t *hadoopTool, a map[string]string) (int, error) {
	asked := strings.TrimSpace(a["-query"])
	names := strings.Split(asked, ",")
	slices.Sort(names)
	names = slices.Compact(names)
	_, verbose := a["-v"]
	var out strings.Builder
	if len(names) > 1 { // which Hadoop's takes from 3.5 on
		fmt.Fprintf(&out, "Get current status of the diskbalancer for DataNode(s). These DataNode(s) are parsed from '%s'.\n", asked)
	}
	for _, name := range names {
		addr, err := t.ipcOf(strings.TrimSpace(name))
		if err != nil {
			return 0, err
		}
		s, err := t.fs.DiskPlan(t.ctx, addr)
		if err != nil {
			return 0, err
		}
		if len(names) > 1 {
			fmt.Fprintf(&out, "DataNode: %s\n", addr)
		}
		fmt.Fprintf(&out, "Plan File: %s\nPlan ID: %s\nResult: %v\n", s.File, s.ID, s.Result)
		if verbose {
			work := []byte("[ ]")
			if len(s.Work) > 0 {
				if work, err = json.MarshalIndent(s.Work, "", "  "); err != nil {
					return 0, err
				}
			}
			out.Write(work)
			out.WriteString("\n")
		}
		if len(names) > 1 {
			out.WriteString("\n")
		}
	}
	t.printf("%s", out.String())
	return 0, nil
}

func cancelDisks(t *hadoopTool, a map[string]string) (int, error) {
	if name, given := a["-node"]; given {
		addr, err := t.ipcOf(name)
		if err != nil {
			return 0, err
		}
		return 0, t.fs.CancelDiskPlan(t.ctx, addr, a["-cancel"])
	}
	text, plan, err := t.readPlan(a["-cancel"])
	if err != nil {
		return 0, err
	}
	return 0, t.fs.CancelDiskPlan(t.ctx, net.JoinHostPort(plan.NodeName, strconv.Itoa(plan.Port)), diskplan.ID(text))
}

func (n *diskNode) String() string {
	return fmt.Sprintf("%s[%s:%d] - <%s>: %d volumes with node data density %.2f.", n.Hostname, n.IP, n.IPCPort, n.UUID, len(n.volumes), diskplan.Density(n.volumes))
}

func reportDisks(t *hadoopTool, a map[string]string) (int, error) {
	top, err := whole(a, "-top")
	if err != nil {
		return 0, err
	}
	nodes, err := t.diskNodes()
	if err != nil {
		return 0, err
	}
	t.printf("Processing report command\n")
	if name, given := a["-node"]; given {
		t.printf("Reporting volume information for DataNode(s). These DataNode(s) are parsed from '%s'.\n", name)
		var found []*diskNode
		var missing []string
		for one := range strings.SplitSeq(name, ",") {
			n, err := nodeNamed(nodes, strings.TrimSpace(one))
			switch {
			case errors.Is(err, errNoNode):
				missing = append(missing, strings.TrimSpace(one))
			case err != nil:
				return 0, err
			default:
				found = append(found, n)
			}
		}
		if list := strings.Join(missing, ","); len(missing) > 0 {
			t.printf("The node(s) '%s' not found. Please make sure that '%s' exists in the cluster.\n", list, list)
		}
		for _, n := range found {
			if err := t.paths(n); err != nil {
				return 0, err
			}
			t.printf("%v\n%s\n\n", n, strings.Join(volumeLines(n), "\n"))
		}
		t.printf("\n")
		return 0, nil
	}
	if top == 0 {
		t.printf("No top limit specified, using default top value 100.\n")
		top = 100
	}
	top = min(top, int64(len(nodes)))
	t.printf("Reporting top %d DataNode(s) benefiting from running DiskBalancer.\n", top)
	slices.SortStableFunc(nodes, func(a, b *diskNode) int {
		return cmp.Compare(diskplan.Density(b.volumes), diskplan.Density(a.volumes))
	})
	for i, n := range nodes[:top] {
		t.printf("%d/%d %v\n", i+1, top, n)
	}
	t.printf("\n")
	return 0, nil
}

// volumeLines says how full the volumes of a datanode are.
func volumeLines(n *diskNode) []string {
	is := map[bool]string{true: "True", false: "False"}
	var lines []string
	for _, v := range n.volumes {
		used, free := 0.0, 0.0
		if v.Capacity > 0 {
			used, free = float64(v.Used)/float64(v.Capacity), float64(v.Capacity-v.Used)/float64(v.Capacity)
		}
		lines = append(lines, fmt.Sprintf("[%s: volume-%s] - %.2f used: %d/%d, %.2f free: %d/%d, isFailed: %s, isReadOnly: %s, isSkip: %s, isTransient: %s.",
			v.StorageType, v.Path, used, v.Used, v.Capacity, free, v.Capacity-v.Used, v.Capacity, is[v.Failed], is[v.ReadOnly], is[v.Skip], is[v.Transient]))
	}
	slices.Sort(lines)
	return lines
}
