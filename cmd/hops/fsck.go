package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
)

const fsckUsage = `Usage: hdfs fsck <path> [-list-corruptfileblocks | [-move | -delete | -openforwrite] [-files [-blocks [-locations | -racks | -replicaDetails | -upgradedomains]]]] [-includeSnapshots] [-showprogress] [-storagepolicies] [-maintenance] [-blockId <blk_Id>] [-replicate]
	<path>	start checking from this path
	-move	move corrupted files to /lost+found
	-delete	delete corrupted files
	-files	print out files being checked
	-openforwrite	print out files opened for write
	-includeSnapshots	include snapshot data if the given path indicates a snapshottable directory or there are snapshottable directories under it
	-list-corruptfileblocks	print out list of missing blocks and files they belong to
	-files -blocks	print out block report
	-files -blocks -locations	print out locations for every block
	-files -blocks -racks	print out network topology for data-node locations
	-files -blocks -replicaDetails	print out each replica details 
	-files -blocks -upgradedomains	print out upgrade domains for every block
	-storagepolicies	print out storage policy summary for the blocks
	-maintenance	print out maintenance state node details
	-showprogress	Deprecated. Progress is now shown by default
	-blockId	print out which file this blockId belongs to, locations (nodes, racks) of this block, and other diagnostics info (under replicated, corrupted or not, etc)
	-replicate initiate replication work to make mis-replicated
 blocks satisfy block placement policy

Please Note:

	1. By default fsck ignores files opened for write, use -openforwrite to report such files. They are usually  tagged CORRUPT or HEALTHY depending on their block allocation status
	2. Option -includeSnapshots should not be used for comparing stats, should be used only for HEALTH check, as this may contain duplicates if the same file present in both original fs tree and inside snapshots.
`

func fsckCommand() *cli.Command {
	return hadoopCommand("fsck", "check the blocks of files: the options, output and exit status of `hdfs fsck`", "PATH [OPTIONS]",
		"Ends with 0 if what is below PATH is healthy, with 1 if blocks are corrupt or missing, with 3 if no namenode answers, with 4 if one is not who this user knows or its web server refuses this user (HTTP 401 or 403), with 130 after Ctrl-C. "+
			"If the namenode refuses to look PATH up (it is not there, or this user may not see it) fsck says so and ends with 0, as Hadoop's does. -move copies what can be read of a file that lacks blocks to files in /lost+found/<path>, "+
			"one for each run of blocks without a gap, and leaves the file; with -delete the file is deleted after that, unless something that can be read could not be copied. -move is the superuser's.\n\n"+fsckUsage, fsck)
}

// fsckParameters are the options as the namenode takes them.
var fsckParameters = map[string]string{
	"-delete": "delete", "-files": "files", "-blocks": "blocks", "-locations": "locations", "-racks": "racks", "-replicaDetails": "replicadetails",
	"-openforwrite": "openforwrite", "-list-corruptfileblocks": "listcorruptfileblocks", "-maintenance": "maintenance",
	"-includeSnapshots": "includeSnapshots", "-move": "move", "-replicate": "replicate", "-storagepolicies": "storagepolicies", "-upgradedomains": "upgradedomains",
}

func fsck(t *hadoopTool, args []string) (int, error) {
	query := url.Values{}
	var asked []string // in the order in which Hadoop's client puts it into the URL
	target, ids := "", []string(nil)
	wrong := func(format string, a ...any) (int, error) {
		fmt.Fprintf(t.errOut, "fsck: "+format+"\n", a...)
		fmt.Fprint(t.errOut, fsckUsage)
		return exitHadoop, nil
	}
	if len(args) == 0 {
		fmt.Fprint(t.errOut, fsckUsage)
		return exitHadoop, nil
	}
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case fsckParameters[word] != "":
			query.Set(fsckParameters[word], "1")
			asked = append(asked, fsckParameters[word]+"=1")
		case word == "-showprogress": // Hadoop has deprecated it: progress is always shown
		case word == "-blockId":
			for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				ids, args = append(ids, args[0]), args[1:]
			}
			if len(ids) == 0 {
				return wrong("-blockId needs a block")
			}
		case strings.HasPrefix(word, "-"):
			return wrong("Illegal option '%s'", word)
		case target != "":
			return wrong("can only operate on one path at a time '%s'", word)
		default:
			target = word
		}
	}
	if target == "" {
		target = "/"
	}
	if uri, err := url.Parse(target); err == nil && uri.Scheme == "hdfs" {
		if target = uri.Path; uri.Host != "" { // hdfs:///p is in the default one
			t.filesystem = "hdfs://" + uri.Host
		}
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	name := t.properties["hadoop.user.name"]
	if name == "" {
		name = os.Getenv("HADOOP_USER_NAME")
	}
	if name == "" {
		who, err := user.Current()
		if err != nil {
			return 0, err
		}
		name = who.Username
	}
	if !strings.HasPrefix(target, "/") {
		target = path.Join("/user", name, target)
	}
	target = path.Clean("/" + target)
	if len(ids) > 0 {
		asked = append(asked, "blockId="+url.QueryEscape(strings.Join(ids, " ")))
		query.Set("blockId", "")
	} else if _, err := fs.Stat(t.ctx, target); err != nil && t.ctx.Err() != nil {
		return exitInterrupted, nil
	} else if err != nil {
		message := hadoopMessage(err)
		if errors.Is(err, metadata.ErrNotExist) {
			message = "java.io.FileNotFoundException: File does not exist: " + target
		}
		fmt.Fprintf(t.errOut, "FileSystem is inaccessible due to:\n%s\nDFSck exiting.\n", message)
		if _, answered := errors.AsType[*dfs.Error](err); !answered || errors.Is(err, metadata.ErrStandby) { // Hadoop's takes a cluster that is down for one that is in order
			if notLetIn(err) {
				return exitDenied, nil
			}
			return exitUnreachable, nil
		}
		return 0, nil // as Hadoop's
	}
	pages, address, err := t.activePage()
	if err != nil {
		return 0, err
	}
	link := address + "/fsck?" + strings.Join(slices.Concat([]string{"ugi=" + url.QueryEscape(name)}, asked, []string{"path=" + url.QueryEscape(target)}), "&")
	fmt.Fprintf(t.errOut, "Connecting to namenode via %s\n", link)
	request, err := http.NewRequestWithContext(t.ctx, http.MethodGet, link, nil)
	if err != nil {
		return 0, err
	}
	answer, err := pages.Do(request)
	if err != nil {
		return 0, fail(exitUnreachable, "fsck: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
		fmt.Fprintf(t.errOut, "fsck: %s\n", strings.TrimSpace(string(text)))
		if answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized {
			return exitDenied, nil
		}
		return exitHadoop, nil
	}
	if query.Has("listcorruptfileblocks") && len(ids) == 0 {
		return t.corruptList(target, answer.Body)
	}
	return t.fsckReport(answer.Body)
}

// activePage is the URL of the namenode that leads, without a path, and a client for it.
func (t *hadoopTool) activePage() (*http.Client, string, error) {
	own, err := t.own()
	if err != nil {
		return nil, "", err
	}
	pages := toServers
	var addresses []string
	if own != nil {
		pages = &http.Client{Transport: own.Transport(authority.Namenode, serverPatience)} // a walk takes as long as it takes
		addresses = loggedIn(own).addresses
	} else {
		conf, err := hadoopConf(t.properties["-conf"])
		if err != nil {
			return nil, "", err
		}
		maps.Copy(conf.Properties, t.properties)
		if t.filesystem != "" && strings.TrimSuffix(t.filesystem, "/") != strings.TrimSuffix(conf.DefaultFS(), "/") {
			return nil, "", fail(exitUsage, "fsck: %s is not the filesystem of the configuration, which says where its pages are: give its directory with -conf", t.filesystem)
		}
		for _, address := range namenodePages(conf) {
			addresses = append(addresses, "http://"+address)
		}
	}
	if len(addresses) == 0 {
		return nil, "", noCluster("the configuration of clients names no dfs.namenode.http-address: take the directory that the namenodes write (cluster.conf)")
	}
	leader := ""
	var causes []error
	untilLed(t.ctx, func() (led, answered bool) {
		causes = nil
		for _, address := range addresses {
			var h struct {
				State string `json:"state"`
			}
			if err := getJSONBy(t.ctx, pages, address+"/health", &h); err != nil {
				causes = append(causes, err)
				continue
			}
			if h.State == "active" {
				leader = address
				return true, true
			}
			causes, answered = append(causes, fmt.Errorf("%s does not lead", address)), true
		}
		return false, answered
	})
	if leader == "" {
		return nil, "", fail(exitUnreachable, "no namenode leads: %w", errors.Join(causes...))
	}
	return pages, leader, nil
}

// fsckReport passes a report on. Its last line says how it ends.
func (t *hadoopTool) fsckReport(body io.Reader) (int, error) {
	last := ""
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadString('\n')
		if text := strings.TrimSuffix(line, "\n"); text != "" || line != "" {
			t.printf("%s\n", text)
			last = text
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fail(exitFailed, "fsck: the answer breaks off: %w", err)
		}
	}
	for _, end := range []struct {
		words string
		code  int
	}{
		{"is HEALTHY", 0},
		{"is CORRUPT", 1},
		{"does not exist", 0},
		{"is DECOMMISSIONED", 2},
		{"is DECOMMISSIONING", 3},
		{"is IN MAINTENANCE", 4},
		{"is ENTERING MAINTENANCE", 5},
		{"is STALE", 6},
	} {
		if strings.HasSuffix(last, end.words) {
			return end.code, nil
		}
	}
	if strings.Contains(last, "Incorrect blockId format:") {
		return 0, nil
	}
	return exitHadoop, nil
}

// corruptList is the list of -list-corruptfileblocks as HDFS's client prints it.
func (t *hadoopTool) corruptList(target string, body io.Reader) (int, error) {
	found, ended := 0, false
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "The filesystem under path"):
			ended = true
		case line == "" || strings.HasPrefix(line, "FSCK started by") || strings.HasPrefix(line, "Cookie:"):
		default:
			if found++; found == 1 {
				t.printf("The list of corrupt blocks under path '%s' are:\n", target)
			}
			t.printf("%s\n", line)
		}
	}
	if err := lines.Err(); err != nil || !ended {
		return 0, fail(exitFailed, "fsck: the answer breaks off (%w)", err)
	}
	t.printf("The filesystem under path '%s' has %d CORRUPT blocks\n", target, found)
	if found > 0 {
		return exitHadoop, nil
	}
	return 0, nil
}
