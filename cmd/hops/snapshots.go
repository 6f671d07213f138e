package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// lsSnapshottableDirCommand is `hdfs lsSnapshottableDir`.
func lsSnapshottableDirCommand() *cli.Command {
	return hadoopCommand("lsSnapshottableDir", "the directories that snapshots may be taken of, as `hdfs lsSnapshottableDir` lists them", "",
		"All of them for the superuser, your own otherwise. The columns are those of `hops fs -ls`, then how many snapshots there are\n"+
			"and may be. `hops dfsadmin -allowSnapshot DIR` adds one.", lsSnapshottableDir)
}

const exitSnapshot = 1 // what the two commands of HDFS end in

func lsSnapshottableDir(t *hadoopTool, args []string) (int, error) {
	if len(args) != 0 {
		fmt.Fprintln(t.errOut, "Usage: \nhops lsSnapshottableDir: \n\tGet the list of snapshottable directories that are owned by the current user.\n"+
			"\tReturn all the snapshottable directories if the current user is a super user.")
		return exitSnapshot, nil
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	dirs, err := fs.SnapshottableDirs(t.ctx)
	if err != nil {
		t.failed("lsSnapshottableDir", err)
		return exitSnapshot, nil
	}
	if len(dirs) == 0 {
		t.printf("\n")
		return 0, nil
	}
	var owner, group, number, limit int
	for _, d := range dirs {
		owner, group = max(owner, len(d.Status.Owner)), max(group, len(d.Status.Group))
		number, limit = max(number, len(strconv.Itoa(d.Snapshots))), max(limit, len(strconv.Itoa(d.Limit)))
	}
	for _, d := range dirs {
		s := &d.Status
		t.printf("d%v %d %-*s %-*s %d %s %*d %*d %s\n", s.Mode, s.Replication, owner, s.Owner, group, s.Group, s.Length,
			time.UnixMilli(int64(s.MTime)).Format("2006-01-02 15:04"), number, d.Snapshots, limit, d.Limit,
			strings.TrimSuffix(d.Parent, "/")+"/"+s.Name)
	}
	return 0, nil
}

// lsSnapshotCommand is `hdfs lsSnapshot`.
func lsSnapshotCommand() *cli.Command {
	return hadoopCommand("lsSnapshot", "the snapshots of a directory, as `hdfs lsSnapshot` lists them", "DIR",
		"The columns are those of `hops fs -ls`, of the directory as it was; then the number of the snapshot, and its path.", lsSnapshot)
}

func lsSnapshot(t *hadoopTool, args []string) (int, error) {
	if len(args) != 1 {
		fmt.Fprintln(t.errOut, "Invalid no of arguments\nUsage: \nhops lsSnapshot <snapshotDir>: \n\tGet the list of snapshots for a snapshottable directory.")
		return exitSnapshot, nil
	}
	dir, err := t.at(args[0])
	if err != nil {
		return 0, err
	}
	all, err := t.fs.Snapshots(t.ctx, dir)
	if err != nil {
		t.failed("lsSnapshot", err)
		return exitSnapshot, nil
	}
	if len(all) == 0 {
		t.printf("\n")
		return 0, nil
	}
	var owner, group, number int
	for _, s := range all {
		owner, group, number = max(owner, len(s.Status.Owner)), max(group, len(s.Status.Group)), max(number, len(strconv.Itoa(int(s.ID))))
	}
	for _, s := range all {
		d := &s.Status
		t.printf("d%v %d %-*s %-*s %d %s %*d ACTIVE %s\n", d.Mode, d.Replication, owner, d.Owner, group, d.Group, d.Length,
			time.UnixMilli(int64(d.MTime)).Format("2006-01-02 15:04"), number, s.ID, strings.TrimSuffix(s.Parent, "/")+"/.snapshot/"+d.Name)
	}
	return 0, nil
}

// snapshotDiffCommand is `hdfs snapshotDiff`.
func snapshotDiffCommand() *cli.Command {
	return hadoopCommand("snapshotDiff", "what is different between two snapshots of a directory, as `hdfs snapshotDiff` says it", "DIR FROM TO",
		"FROM and TO are names of snapshots, with or without .snapshot/ before them, or . for what there is now. M is what was modified,\n"+
			"+ what came, - what went, R what was renamed.", snapshotDiff)
}

func snapshotDiff(t *hadoopTool, args []string) (int, error) {
	if len(args) != 3 {
		fmt.Fprintln(t.errOut, "Usage: \nhops snapshotDiff <snapshotDir> <from> <to>:\n\tGet the difference between two snapshots, \n"+
			"\tor between a snapshot and the current tree of a directory.\n"+
			"\tFor <from>/<to>, users can use \".\" to present the current status,\n"+
			"\tand use \".snapshot/snapshot_name\" to present a snapshot,\n\twhere \".snapshot/\" can be omitted")
		return exitSnapshot, nil
	}
	dir, err := t.at(args[0])
	if err != nil {
		return 0, err
	}
	from, to := snapshotName(args[1]), snapshotName(args[2])
	entries, err := t.fs.SnapshotDiff(t.ctx, dir, from, to)
	if err != nil {
		t.failed("snapshotDiff", err)
		return exitSnapshot, nil
	}
	state := func(name string) string {
		if name == "" {
			return "current directory"
		}
		return "snapshot " + name
	}
	t.printf("Difference between %s and %s under directory %s:\n", state(from), state(to), args[0])
	shown := func(path string) string { return strings.TrimSuffix("./"+path, "/") }
	for _, e := range entries {
		line := e.Type.Label() + "\t" + shown(e.Path)
		if e.Target != "" {
			line += " -> " + shown(e.Target)
		}
		t.printf("%s\n", line)
	}
	t.printf("\n")
	return 0, nil
}

// snapshotName is the name of a snapshot that is written with or without its directory; empty for the present state.
func snapshotName(word string) string {
	if word == "." {
		return ""
	}
	word, _ = strings.CutPrefix(strings.TrimPrefix(word, "/"), ".snapshot/")
	return word
}
