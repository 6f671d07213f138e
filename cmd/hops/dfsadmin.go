package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

func dfsadminCommand() *cli.Command {
	var text strings.Builder
	text.WriteString("Options, output and exit status are those of `hdfs dfsadmin`; those at the end are hops' own.\n\n")
	for _, o := range adminOptions {
		fmt.Fprintf(&text, "%s %s\n    %s\n", o.name, o.arguments, o.help)
	}
	return hadoopCommand("dfsadmin", "look after the filesystem: the options and output of `hdfs dfsadmin`", "-OPTION [ARGUMENTS]", text.String(), dfsadmin)
}

// adminOption is an option of dfsadmin.
type adminOption struct {
	name, arguments, help string
	least, most           int // arguments; most -1: any number
	run                   func(t *hadoopTool, o *adminOption, args []string) (int, error)
}

var adminOptions []*adminOption

func init() { // the help is made of the table, and run by it
	adminOptions = []*adminOption{
		{"-report", "[-live] [-dead] [-decommissioning] [-enteringmaintenance] [-inmaintenance] [-slownodes]", "space, blocks and datanodes, or only those of some kind", 0, -1, reportAdmin},
		{"-safemode", "enter | leave | get | wait | forceExit", "whether the namespace may be changed", 1, 1, safemodeAdmin},
		{"-saveNamespace", "", "have each namenode write its state to disk now; in safe mode only", 0, 0, saveAdmin},
		{"-refreshNodes", "", "read dfs.hosts and dfs.hosts.exclude anew", 0, 0, refreshAdmin},
		{"-setQuota", "<quota> <dirname>...<dirname>", "limit the names in directories", 2, -1, quotaAdmin},
		{"-clrQuota", "<dirname>...<dirname>", "take that limit away", 1, -1, quotaAdmin},
		{"-setSpaceQuota", "<quota> [-storageType <storagetype>] <dirname>...<dirname>", "limit the bytes of all replicas in directories, or those that storage policies want on volumes of a type; 10g is 10 GiB", 2, -1, quotaAdmin},
		{"-clrSpaceQuota", "[-storageType <storagetype>] <dirname>...<dirname>", "take that limit away", 1, -1, quotaAdmin},
		{"-metasave", "<filename>", "write what is known of blocks that are not as they should be to a file below the leader's data directory, metasave/<filename>", 1, 1, metasaveAdmin},
		{"-printTopology", "", "the racks, and the datanodes in them", 0, 0, topologyAdmin},
		{"-getDatanodeInfo", "<datanode_host:ipc_port>", "whether a datanode answers, its version and how long it runs", 1, 1, datanodeAdmin},
		{"-triggerBlockReport", "[-incremental] <datanode_host:ipc_port>", "have a datanode report what it has", 1, 2, blockReportAdmin},
		{"-reconfig", "datanode <host:ipc_port> <start|status|properties>", "have a datanode read its configuration anew for its volumes, which it opens and gives back while it works; how far that is; what can be changed so", 3, 3, reconfigAdmin},
		{"-listOpenFiles", "[-blockingDecommission] [-path <path>]", "files that are being written; only those that keep a datanode from being let go", 0, 3, openFilesAdmin},
		{"-setBalancerBandwidth", "<bandwidth in bytes per second>", "how much a datanode sends at most for the balancer", 1, 1, bandwidthAdmin},
		{"-rollingUpgrade", "[<query|prepare|finalize>]", "how far an upgrade of the cluster is; begin one; end one, as `hops cluster finalize` does", 0, 1, upgradeAdmin},
		{"-allowSnapshot", "<snapshotDir>", "have the owner of a directory make snapshots of it", 1, 1, snapshotAdmin},
		{"-disallowSnapshot", "<snapshotDir>", "end that, when there are no snapshots of it", 1, 1, snapshotAdmin},
		{"-help", "[cmd]", "this", 0, 1, helpAdmin},
		{"-decommission", "<host>[:<port>]...", "take datanodes out of service: their blocks are copied elsewhere; -report says when that is done", 1, -1, serviceAdmin},
		{"-maintenance", "<host>[:<port>]... [--for <duration>]", "have datanodes stopped for a while without copying all of their blocks; ends by itself after the duration, as 2h", 1, -1, serviceAdmin},
		{"-recommission", "<host>[:<port>]...", "end that: the datanodes serve again", 1, -1, serviceAdmin},
	}
}

// absentOptions are those of Hadoop's that there is nothing for here.
var absentOptions = map[string]string{
	"-rollEdits": "the namespace has no edit logs", "-restoreFailedStorage": "a namenode has one directory; the others of the group have copies",
	"-finalizeUpgrade": "see docs/how-to/upgrade.md", "-upgrade": "see docs/how-to/upgrade.md",
	"-refreshServiceAcl": "rights are in the configuration of the servers", "-refreshUserToGroupsMappings": "groups are asked for anew by themselves",
	"-refreshSuperUserGroupsConfiguration": "restart the servers", "-refreshCallQueue": "there is one queue for each connection", "-refresh": "",
	"-refreshNamenodes": "", "-deleteBlockPool": "there is one block pool", "-getVolumeReport": "`hops datanode list` shows volumes",
	"-shutdownDatanode": "stop its service", "-evictWriters": "put the datanode into maintenance: writers that begin a block go elsewhere",
	"-getBalancerBandwidth": "", "-fetchImage": "see docs/how-to/backup.md", "-provisionSnapshotTrash": "", "-setStoragePolicy": "",
}

func dfsadmin(t *hadoopTool, args []string) (int, error) {
	if len(args) == 0 {
		t.adminUsage("")
		return exitHadoop, nil
	}
	at := slices.IndexFunc(adminOptions, func(o *adminOption) bool { return o.name == args[0] })
	if at < 0 {
		if why, known := absentOptions[args[0]]; known {
			if why != "" {
				why = ": " + why
			}
			fmt.Fprintf(t.errOut, "%s: not supported%s\n", args[0][1:], why)
			return exitHadoop, nil
		}
		var names []string
		for _, o := range adminOptions {
			names = append(names, o.name)
		}
		fmt.Fprintf(t.errOut, "%s: Unknown command%s\n", strings.TrimPrefix(args[0], "-"), nearest.Hint(args[0], names))
		t.adminUsage("")
		return exitHadoop, nil
	}
	o, rest := adminOptions[at], args[1:]
	if len(rest) < o.least || o.most >= 0 && len(rest) > o.most {
		if strings.HasSuffix(o.name, "Quota") {
			fmt.Fprintf(t.errOut, "%s: Not enough arguments: expected %d but got %d\n", o.name[1:], o.least, len(rest))
		}
		t.adminUsage(o.name)
		return exitHadoop, nil
	}
	if o.name != "-help" {
		if _, err := t.client(); err != nil {
			return 0, err
		}
	}
	return o.run(t, o, rest)
}

// adminUsage is how an option is used, or all are.
func (t *hadoopTool) adminUsage(name string) {
	if name == "" {
		fmt.Fprintln(t.errOut, "Usage: hdfs dfsadmin\nNote: Administrative commands can only be run as the HDFS superuser.")
	}
	for _, o := range adminOptions {
		words := strings.TrimSpace(o.name + " " + o.arguments)
		switch name {
		case "":
			fmt.Fprintf(t.errOut, "\t[%s]\n", words)
		case o.name:
			fmt.Fprintf(t.errOut, "Usage: hdfs dfsadmin [%s]\n", words)
		}
	}
}

func helpAdmin(t *hadoopTool, _ *adminOption, args []string) (int, error) {
	for _, o := range adminOptions {
		if len(args) == 0 || strings.TrimPrefix(args[0], "-") == o.name[1:] {
			t.printf("%s: %s\n", strings.TrimSpace(o.name+" "+o.arguments), o.help)
		}
	}
	return 0, nil
}

func reportAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	kinds := []struct {
		option, name string
		state        dfs.DatanodeState
	}{
		{"-live", "Live", dfs.LiveDatanodes},
		{"-dead", "Dead", dfs.DeadDatanodes},
		{"-decommissioning", "Decommissioning", dfs.DecommissioningDatanodes},
		{"-enteringmaintenance", "Entering maintenance", dfs.EnteringMaintenance},
		{"-inmaintenance", "In maintenance", dfs.InMaintenanceNow},
		{"-slownodes", "Slow", dfs.SlowDatanodes},
	}
	for _, a := range args {
		known := false
		for _, k := range kinds {
			known = known || a == k.option
		}
		if !known {
			t.adminUsage(o.name)
			return exitHadoop, nil
		}
	}
	r, err := t.fs.Report(t.ctx)
	if err != nil {
		return t.failed(o.name, err), nil
	}
	safe, err := t.fs.SafeMode(t.ctx, dfs.SafeModeGet)
	if err != nil {
		return t.failed(o.name, err), nil
	}
	if safe {
		t.printf("Safe mode is ON\n")
	}
	present := r.Used + r.Remaining
	used := "0.00%"
	if present > 0 {
		used = percent(r.Used, present)
	}
	t.printf("Configured Capacity: %d (%s)\nPresent Capacity: %d (%s)\nDFS Remaining: %d (%s)\nDFS Used: %d (%s)\nDFS Used%%: %s\n",
		r.Capacity, bytesOf(r.Capacity), present, bytesOf(present), r.Remaining, bytesOf(r.Remaining), r.Used, bytesOf(r.Used), used)
	t.printf("Replicated Blocks:\n\tUnder replicated blocks: %d\n\tBlocks with corrupt replicas: %d\n\tMissing blocks: %d\n\tMissing blocks (with replication factor 1): %d\n"+
		"\tLow redundancy blocks with highest priority to recover: %d\n\tPending deletion blocks: %d\n", r.Under, r.Corrupt, r.Missing, r.MissingOne, r.Critical, r.PendingDelete)
	t.printf("Erasure Coded Block Groups: \n\tLow redundancy block groups: %d\n\tBlock groups with corrupt internal blocks: %d\n\tMissing block groups: %d\n"+
		"\tLow redundancy blocks with highest priority to recover: %d\n\tPending deletion blocks: %d\n\n",
		r.GroupsUnder, r.GroupsCorrupt, r.GroupsMissing, r.GroupsCritical, r.GroupsPendingDelete)
	t.printf("-------------------------------------------------\n")
	for _, k := range kinds {
		asked := slices.Contains(args, k.option)
		if len(args) > 0 && !asked {
			continue
		}
		nodes, err := t.fs.Datanodes(t.ctx, k.state)
		if err != nil {
			return t.failed(o.name, err), nil
		}
		if len(nodes) > 0 || asked {
			t.printf("%s datanodes (%d):\n\n", k.name, len(nodes))
		}
		for i := range nodes {
			t.printDatanode(&nodes[i])
		}
	}
	return 0, nil
}

// printDatanode is DatanodeInfo.getDatanodeReport.
func (t *hadoopTool) printDatanode(n *dfs.Datanode) {
	name := transferOf(n)
	t.printf("Name: %s", name)
	if host := nameOf(t.ctx, name); host != "" {
		t.printf(" (%s)", host)
	}
	t.printf("\nHostname: %s\n", n.Hostname)
	if n.Rack != namenode.DefaultRack {
		t.printf("Rack: %s\n", n.Rack)
	}
	remaining := "0.00%"
	if n.Capacity > 0 {
		remaining = percent(n.Remaining, n.Capacity)
	}
	t.printf("Decommission Status : %s\nConfigured Capacity: %d (%s)\nDFS Used: %d (%s)\nNon DFS Used: %d (%s)\nDFS Remaining: %d (%s)\nDFS Used%%: %s\nDFS Remaining%%: %s\n",
		n.Admin, n.Capacity, bytesOf(n.Capacity), n.Used, bytesOf(n.Used), n.NonDFS, bytesOf(n.NonDFS), n.Remaining, bytesOf(n.Remaining),
		percent(n.Used, n.Capacity), remaining)
	cacheLeft, cacheUsed, cacheRemaining := n.CacheCapacity-n.CacheUsed, "100.00%", "0.00%"
	if n.CacheCapacity > 0 {
		cacheUsed, cacheRemaining = percent(n.CacheUsed, n.CacheCapacity), percent(cacheLeft, n.CacheCapacity)
	}
	t.printf("Configured Cache Capacity: %d (%s)\nCache Used: %d (%s)\nCache Remaining: %d (%s)\nCache Used%%: %s\nCache Remaining%%: %s\n",
		n.CacheCapacity, bytesOf(n.CacheCapacity), n.CacheUsed, bytesOf(n.CacheUsed), cacheLeft, bytesOf(cacheLeft), cacheUsed, cacheRemaining)
	last := "Never"
	if n.LastReport > 0 {
		last = javaDate(n.LastReport)
	}
	t.printf("Xceivers: %d\nLast contact: %s\nLast Block Report: %s\nNum of Blocks: %d\n\n\n", n.Transfers, javaDate(n.LastContact), last, n.Blocks)
}

// transferOf is the address of a datanode's data transfer.
func transferOf(n *dfs.Datanode) string {
	return (&namenode.Node{IP: n.IP, TransferPort: uint32(n.TransferPort)}).TransferAddr()
}

// upgradeAdmin prints what DFSAdmin.RollingUpgradeCommand does.
func upgradeAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	word := "query"
	if len(args) > 0 {
		word = strings.ToLower(args[0])
	}
	actions := map[string]dfs.UpgradeAction{"query": dfs.UpgradeQuery, "prepare": dfs.UpgradePrepare, "finalize": dfs.UpgradeFinalize}
	action, known := actions[word]
	if !known {
		t.adminUsage(o.name)
		return exitHadoop, nil
	}
	t.printf("%s rolling upgrade ...\n", strings.ToUpper(word))
	u, err := t.fs.RollingUpgrade(t.ctx, action)
	if err != nil {
		return t.failed(o.name, err), nil
	}
	if u == nil {
		t.printf("There is no rolling upgrade in progress or rolling upgrade has already been finalized.\n")
		return 0, nil
	}
	at := func(ms int64, never string) string {
		if ms == 0 {
			return never
		}
		return fmt.Sprintf("%s (=%d)", javaDate(metadata.Time(ms)), ms)
	}
	head := "Proceed with rolling upgrade:"
	if u.Finalized > 0 {
		head = "Rolling upgrade is finalized."
	}
	t.printf("%s\n  Block Pool ID: %s\n     Start Time: %s\n  Finalize Time: %s\n", head, u.BlockPool, at(u.Started, "<NOT STARTED>"), at(u.Finalized, "<NOT FINALIZED>"))
	return 0, nil
}

func safemodeAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	actions := map[string]dfs.SafeModeAction{
		"enter": dfs.SafeModeEnter, "leave": dfs.SafeModeLeave, "get": dfs.SafeModeGet, "wait": dfs.SafeModeGet, "forceexit": dfs.SafeModeForceExit,
	}
	word := strings.ToLower(args[0])
	action, known := actions[word]
	if !known {
		t.adminUsage(o.name)
		return exitHadoop, nil
	}
	ask := func(addr string) error {
		for {
			on, err := t.fs.SafeModeAt(t.ctx, addr, action)
			if err != nil {
				return err
			}
			if word == "wait" && on {
				if err := pause(t.ctx, time.Second); err != nil {
					return err
				}
				continue
			}
			where := ""
			if t.several() {
				where = " in " + javaAddress(addr)
			}
			t.printf("Safe mode is %s%s\n", map[bool]string{true: "ON", false: "OFF"}[on], where)
			return nil
		}
	}
	return t.each(o.name, ask), nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// forEach runs an action on every namenode and says so in Hadoop's words.
func (t *hadoopTool) forEach(o *adminOption, words string, do func(context.Context, string) error) (int, error) {
	return t.each(o.name, func(addr string) error {
		if err := do(t.ctx, addr); err != nil {
			return err
		}
		if t.several() {
			t.printf("%s for %s\n", words, javaAddress(addr))
		} else {
			t.printf("%s\n", words)
		}
		return nil
	}), nil
}

func saveAdmin(t *hadoopTool, o *adminOption, _ []string) (int, error) {
	return t.forEach(o, "Save namespace successful", t.fs.SaveNamespace)
}

func refreshAdmin(t *hadoopTool, o *adminOption, _ []string) (int, error) {
	return t.forEach(o, "Refresh nodes successful", t.fs.RefreshNodes)
}

func quotaAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	names, space := int64(metadata.QuotaKeep), int64(metadata.QuotaKeep)
	kind := namenode.StorageType(0)
	if i := slices.Index(args, "-storageType"); i >= 0 && strings.HasSuffix(o.name, "SpaceQuota") {
		err := errors.New("option -storageType requires 1 argument.") //nolint:revive // Hadoop's words
		if i+1 < len(args) {
			kind, err = quotaType(args[i+1])
			args = slices.Delete(slices.Clone(args), i, i+2)
		}
		if err != nil {
			t.failed(o.name, err)
			t.adminUsage(o.name)
			return exitHadoop, nil
		}
	}
	switch o.name {
	case "-setQuota":
		n, err := hadoopLong(args[0])
		if err == nil && n <= 0 { // FSDirAttrOp.setQuota
			err = fmt.Errorf("Invalid values for quota : %d and %d", n, int64(metadata.QuotaKeep)) //nolint:revive // HDFS's words
		}
		if err != nil {
			t.failed(o.name, err)
			t.adminUsage(o.name)
			return exitHadoop, nil
		}
		names, args = n, args[1:]
	case "-clrQuota":
		names = metadata.QuotaUnset
	case "-setSpaceQuota":
		n, err := hadoopLong(args[0])
		switch {
		case strings.HasPrefix(args[0], "-"): // an option, to it
			err = fmt.Errorf("Illegal option %s", args[0]) //nolint:revive // HDFS's words
		case err != nil:
			err = fmt.Errorf("%q is not a valid value for a quota.", args[0]) //nolint:revive // HDFS's words
		}
		if err != nil {
			t.failed(o.name, err)
			t.adminUsage(o.name)
			return exitHadoop, nil
		}
		space, args = n, args[1:] // 0: nothing may be written any more
	case "-clrSpaceQuota":
		space = metadata.QuotaUnset
	}
	code := 0
	for _, given := range args {
		path, err := t.at(given)
		switch {
		case err != nil:
		case kind == 0:
			err = t.fs.SetQuota(t.ctx, path, names, space)
		case !slices.ContainsFunc(metadata.QuotaTypes[:], func(q metadata.QuotaType) bool { return q.Number == uint32(kind) }):
			err = fmt.Errorf("Don't support Quota for storage type : %v", kind) //nolint:revive // HDFS's words
		case space <= 0 && space != metadata.QuotaUnset:
			err = fmt.Errorf("Invalid values for quota :%d", space) //nolint:revive // HDFS's words
		default:
			err = t.fs.SetTypeQuota(t.ctx, path, kind, space)
		}
		if err != nil {
			code = t.failed(o.name, err)
		}
	}
	return code, nil
}

// quotaType is a type of volumes by its name.
func quotaType(name string) (namenode.StorageType, error) {
	kind := namenode.ParseStorageType(strings.ToUpper(name))
	if !strings.EqualFold(kind.String(), name) {
		return 0, fmt.Errorf("Storage type %s is not available. Available storage types are [SSD, DISK, ARCHIVE, PROVIDED, NVDIMM]", name) //nolint:revive // HDFS's words
	}
	return kind, nil
}

// hadoopLong reads a number with a prefix of 1024, 10m, as Hadoop does (StringUtils.TraditionalBinaryPrefix.string2long), in its words.
func hadoopLong(text string) (int64, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, errors.New(`For input string: ""`) //nolint:revive // Java's words
	}
	last := text[len(text)-1]
	if last >= '0' && last <= '9' {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			err = fmt.Errorf("For input string: %q", text) //nolint:revive // Java's words
		}
		return n, err
	}
	shift := 10 * (1 + strings.IndexByte("kmgtpe", last|0x20))
	if shift == 0 {
		return 0, fmt.Errorf("Invalid size prefix '%c' in '%s'. Allowed prefixes are k, m, g, t, p, e(case insensitive)", last, text) //nolint:revive // Hadoop's words
	}
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("For input string: %q", text[:len(text)-1]) //nolint:revive // Java's words
	}
	if n > math.MaxInt64>>shift || n < math.MinInt64>>shift {
		return 0, fmt.Errorf("%s does not fit in a Long", text)
	}
	return n << shift, nil
}

func metasaveAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	if err := t.fs.MetaSave(t.ctx, args[0]); err != nil {
		return t.failed(o.name, err), nil
	}
	t.printf("Created metasave file %s in the log directory of namenode %s\n", args[0], t.uri)
	return 0, nil
}

func topologyAdmin(t *hadoopTool, o *adminOption, _ []string) (int, error) {
	nodes, err := t.fs.Datanodes(t.ctx, dfs.LiveDatanodes)
	if err != nil {
		return t.failed(o.name, err), nil
	}
	if len(nodes) == 0 {
		t.printf("No DataNodes\n")
	}
	racks := map[string][]*dfs.Datanode{}
	for i := range nodes {
		racks[nodes[i].Rack] = append(racks[nodes[i].Rack], &nodes[i])
	}
	for _, rack := range slices.Sorted(maps.Keys(racks)) {
		t.printf("Rack: %s\n", rack)
		list := racks[rack]
		slices.SortFunc(list, func(a, b *dfs.Datanode) int { return strings.Compare(transferOf(a), transferOf(b)) })
		for _, n := range list {
			t.printf("   %s", transferOf(n))
			if host := nameOf(t.ctx, transferOf(n)); host != "" {
				t.printf(" (%s)", host)
			}
			t.printf(" %s\n", javaAdmin[n.Admin])
		}
		t.printf("\n")
	}
	return 0, nil
}

// javaAdmin are the names of DatanodeInfo.AdminStates.
var javaAdmin = map[namenode.AdminState]string{
	namenode.Normal: "In Service", namenode.DecommissionInProgress: "Decommission In Progress", namenode.Decommissioned: "Decommissioned",
	namenode.EnteringMaintenance: "Entering Maintenance", namenode.InMaintenance: "In Maintenance",
}

func datanodeAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	i, err := t.fs.DatanodeInfo(t.ctx, args[0])
	if err != nil {
		return t.failed(o.name, errors.New("Datanode unreachable. "+hadoopMessage(err))), nil //nolint:revive // HDFS's words
	}
	t.printf("Uptime: %d, Software version: %s, Config version: %s\n", int64(i.Uptime.Seconds()), i.Software, i.Config)
	return 0, nil
}

func blockReportAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	incremental := slices.Contains(args, "-incremental")
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-incremental" })
	if len(args) != 1 {
		t.adminUsage(o.name)
		return exitHadoop, nil
	}
	kind := "a full block report"
	if incremental {
		kind = "an incremental block report"
	}
	t.printf("Triggering %s on %s.\n", kind, args[0])
	if err := t.fs.TriggerBlockReport(t.ctx, args[0], incremental); err != nil {
		return t.failed(o.name, err), nil
	}
	return 0, nil
}

func openFilesAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	blocking, path := false, "/"
	for len(args) > 0 {
		switch {
		case args[0] == "-blockingDecommission":
			blocking, args = true, args[1:]
		case args[0] == "-path" && len(args) > 1:
			path, args = args[1], args[2:]
		default:
			t.adminUsage(o.name)
			return exitHadoop, nil
		}
	}
	t.printf("%-20s\t%-20s\t%s\n", "Client Host", "Client Name", "Open File Path")
	err := t.fs.OpenFiles(t.ctx, path, blocking, func(f dfs.OpenFile) bool {
		t.printf("%-20s\t%-20s\t%20s\n", f.Host, f.Client, f.Path)
		return true
	})
	if err != nil {
		fmt.Fprintln(t.errOut, "List open files failed.")
		return t.failed(o.name, err), nil
	}
	return 0, nil
}

func bandwidthAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	n, err := hadoopLong(args[0])
	if err != nil && !strings.HasPrefix(args[0], "-") {
		t.failed(o.name, err)
		t.adminUsage(o.name)
		return exitHadoop, nil
	}
	if n <= 0 {
		fmt.Fprintf(t.errOut, "Bandwidth should be a non-negative integer\n")
		return exitHadoop, nil
	}
	if err := t.fs.SetBalancerBandwidth(t.ctx, n); err != nil {
		fmt.Fprintln(t.errOut, "Balancer bandwidth is set failed.")
		return t.failed(o.name, err), nil
	}
	t.printf("Balancer bandwidth is set to %d\n", n)
	return 0, nil
}

func snapshotAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	allow := o.name == "-allowSnapshot"
	dir, err := t.at(args[0])
	if err == nil {
		err = t.fs.AllowSnapshot(t.ctx, dir, allow)
	}
	if err != nil {
		return t.failed(o.name, err), nil
	}
	what := "Disallowing"
	if allow {
		what = "Allowing"
	}
	t.printf("%s snapshot on %s succeeded\n", what, args[0])
	return 0, nil
}

// serviceAdmin takes datanodes out of service, or back into it.
func serviceAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	wish := map[string]dfs.ServiceWish{"-decommission": dfs.Decommissioned, "-maintenance": dfs.InMaintenance, "-recommission": dfs.InService}[o.name]
	var names []string
	var life time.Duration
	for len(args) > 0 {
		switch word := strings.TrimLeft(args[0], "-"); {
		case args[0][:min(1, len(args[0]))] != "-":
			names, args = append(names, args[0]), args[1:]
		case word == "for" && wish == dfs.InMaintenance && len(args) > 1:
			d, err := time.ParseDuration(args[1])
			if err != nil || d < time.Millisecond {
				return t.failed(o.name, fmt.Errorf("--for %s: want a duration as 30m or 2h", args[1])), nil
			}
			life, args = d, args[2:]
		default:
			t.adminUsage(o.name)
			return exitHadoop, nil
		}
	}
	if len(names) == 0 {
		t.adminUsage(o.name)
		return exitHadoop, nil
	}
	changed, err := t.fs.SetDatanodes(t.ctx, wish, life, names...)
	if err != nil {
		if errors.Is(err, metadata.ErrPermission) {
			t.failed(o.name, err)
			return exitDenied, nil
		}
		return t.failed(o.name, err), nil
	}
	words := map[dfs.ServiceWish]string{
		dfs.Decommissioned: "is being decommissioned; `hops datanode list` shows when it can be stopped",
		dfs.InMaintenance:  "enters maintenance; `hops datanode list` shows when it can be stopped", dfs.InService: "is in service",
	}[wish]
	for _, name := range changed {
		t.printf("%s %s\n", name, words)
	}
	return 0, nil
}
