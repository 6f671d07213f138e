package differ

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Accident is what HDFS does and nobody can want, and where hops does otherwise on purpose. A sequence that meets one ends
// there, without a difference: what follows would not compare.
type Accident struct {
	Name, Reason string
	// met tells whether the operation that has just answered so is one; nil: it is seen in what operations leave.
	met func(ctx context.Context, r *runner, root string, o Operation, want, got answer) bool
	// left tells whether operations have left two trees that differ by one, of which these are the lines from the first that differs on.
	left func(done []Operation, want, got []string) bool
}

// Accidents are all that are known.
var Accidents = []Accident{
	{
		"ancestors of what could not be made",
		"HDFS makes missing directories one by one and leaves them behind when a quota, the length of the last name, or a name that is reserved stops it; here what fails changes nothing",
		func(ctx context.Context, r *runner, root string, o Operation, want, got answer) bool {
			if !o.flag("parents") || want.class != got.class || !strings.HasSuffix(want.class, "NSQuotaExceededException") && !strings.HasSuffix(want.class, "PathComponentTooLongException") && !strings.Contains(want.message, "is a reserved name") {
				return false
			}
			path := "/" + strings.Trim(strings.ReplaceAll(o.text("src"), "$R", root), "/")
			return strings.Contains(path, "$ID(") || !r.got.exists(ctx, path[:strings.LastIndexByte(path, '/')])
		},
		nil,
	},
	{
		"overwriting in a full directory",
		"HDFS deletes the file and then refuses the new one when a directory above has more than its quota already; here a file replaces another whatever the quota of names",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			switch o.Kind {
			case "create":
				return strings.HasSuffix(want.class, "NSQuotaExceededException") && got.class == "" && got.broken == nil
			case "write", "hold": // what is written into the new file may be too much for the quota of space
				return strings.HasSuffix(want.class, "NSQuotaExceededException") && got.broken == nil &&
					(got.class == "" || strings.HasSuffix(got.class, "DSQuotaExceededException"))
			}
			return false
		},
		nil,
	},
	{
		"rights for the usage of quotas",
		"HDFS asks for READ and EXECUTE of every directory below, and even for sticky bits, before it tells the two numbers that it keeps; here the directory's own rights count",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			return o.Kind == "usage" && strings.HasSuffix(want.class, "AccessControlException") && got.class == "" && got.broken == nil
		},
		nil,
	},
	{
		"a page with names beyond ASCII",
		"HDFS compares the bytes of names with a sign and lists such names first; here they come last, so that a page that is full holds others",
		func(ctx context.Context, r *runner, root string, o Operation, want, got answer) bool {
			return o.Kind == "list" && want.class == "" && got.class == "" && want.broken == nil && got.broken == nil && want.result != got.result &&
				r.want.do(ctx, root, op("walk", "src", o.text("src"))).result == beyondASCII
		},
		nil,
	},
	{
		"a block whose end is not agreed on",
		"HDFS's datanodes sometimes need more than 20 s to agree on the end of a block that was recovered a moment ago; what follows would compare a file in between",
		func(_ context.Context, _ *runner, _ string, _ Operation, want, got answer) bool {
			return strings.HasSuffix(want.result, unsettled) && got.class == want.class && got.broken == nil
		},
		nil,
	},
	{
		"the lease of another user",
		"HDFS lets anybody write on under the name of a client, which its errors tell everybody; here the user who opened a file writes it, because who may write is given tokens for its blocks",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			return o.Kind == "complete" && strings.HasSuffix(got.class, "AccessControlException") && strings.Contains(got.message, "is not the user that opened the file as")
		},
		nil,
	},
	{
		"snapshots of a closed directory",
		"HDFS looks at the rights that a directory had when a snapshot was made, and lists its snapshots without any; here it has to be open now, too",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			inside := strings.Contains(o.text("src"), "/.snapshot") || strings.Contains(o.text("dst"), "/.snapshot") || strings.Contains(o.text("srcs"), "/.snapshot") ||
				strings.Contains(o.text("link"), "/.snapshot") || strings.Contains(o.text("target"), "/.snapshot")
			return inside && strings.HasSuffix(got.class, "AccessControlException") && want.broken == nil
		},
		nil,
	},
	{
		"snapshots by the number of an inode",
		"HDFS does not find a directory by its number when it is to be made snapshottable",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			return (o.Kind == "allowsnapshot" || o.Kind == "disallowsnapshot") && strings.HasPrefix(o.text("src"), "/.reserved/") && want.class != got.class
		},
		nil,
	},
	{
		"where things were at the later of two snapshots",
		"HDFS looks for what was renamed where it is now, even if it was elsewhere, or nowhere, when the later snapshot was made",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			modified := func(a answer) (lines []string) {
				for line := range strings.Lines(a.result) {
					if strings.HasPrefix(line, "M ") || strings.HasPrefix(line, "page M ") {
						lines = append(lines, strings.TrimSuffix(line, "\n"))
					}
				}
				slices.Sort(lines)
				return lines
			}
			return o.Kind == "snapshotdiff" && o.text("from") != "" && o.text("to") != "" && want.class == "" && got.class == "" && want.broken == nil && got.broken == nil &&
				want.result != got.result && slices.Equal(modified(want), modified(got))
		},
		nil,
	},
	{
		"completing what is in a snapshot",
		"HDFS refuses to complete a file in a snapshot before it looks whether there is one",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			return o.Kind == "complete" && strings.HasSuffix(want.class, "SnapshotAccessControlException") && got.class != ""
		},
		nil,
	},
	{
		"rights for differences of snapshots",
		"HDFS asks for READ of every directory below, in either snapshot; here those above a difference count",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			return o.Kind == "snapshotdiff" && strings.HasSuffix(want.class, "AccessControlException") && got.broken == nil
		},
		nil,
	},
	{
		"sticky bit and overwriting rename",
		"HDFS lets anybody replace the files of others in a sticky directory by a rename; POSIX does not, and it would make /tmp unsafe",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			return o.Kind == "rename2" && o.flag("overwrite") && !strings.HasSuffix(want.class, "AccessControlException") && want.broken == nil && strings.HasPrefix(got.message, "Permission denied by sticky bit")
		},
		nil,
	},
	{
		"an attribute that has its value already",
		"HDFS tells of a file whose attribute was set to what it was as of one that has changed; here nothing has",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			if o.Kind != "snapshotdiff" || want.class != "" || got.class != "" || want.broken != nil || got.broken != nil || len(got.result) >= len(want.result) {
				return false
			}
			told := strings.Split(got.result, "\n")
			for line := range strings.SplitSeq(want.result, "\n") {
				if i := slices.Index(told, line); i >= 0 {
					told = slices.Delete(told, i, i+1)
				} else if !strings.HasPrefix(line, "M ") && !strings.HasPrefix(line, "page M ") {
					return false
				}
			}
			return len(told) == 0 || len(told) == 1 && told[0] == ""
		},
		nil,
	},
	{
		"the block of a file that a snapshot has",
		"HDFS goes on with the last block of a file when it is appended to, also when a snapshot has it; here blocks of snapshots never change, and a new one is begun",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			block, status, ok := strings.Cut(got.result, " ")
			_, rest, _ := strings.Cut(status, " ")
			return o.Kind == "reopen" && ok && block == "no" && strings.HasPrefix(want.result, "block of ") && strings.HasSuffix(want.result, rest)
		},
		nil,
	},
	{
		"snapshots of the number of an inode",
		"HDFS finds nothing by the number of an inode when it is asked for its snapshots; here the rights to it count, and it says what it is",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			return o.Kind == "snapshots" && strings.HasPrefix(o.text("src"), "/.reserved/") && strings.HasSuffix(want.class, "FileNotFoundException") && got.class != "" && got.class != want.class
		},
		nil,
	},
	{
		"the end of a block of a file that a snapshot has",
		"what is appended to a file in a snapshot begins a new block here, so that its blocks end elsewhere than HDFS's, and cutting it at the end of one of HDFS's takes a recovery",
		func(ctx context.Context, r *runner, root string, o Operation, want, got answer) bool {
			if o.Kind != "truncate" || want.result != "true" || got.result != "false" || want.class != "" || got.class != "" {
				return false
			}
			blocks := r.got.do(ctx, root, op("locate", "src", o.text("src"), "offset", 0, "length", 1)).result
			return o.number("length") > 0 && blocks != "" && !strings.Contains(blocks, "+") // which are not told when there has been a snapshot
		},
		nil,
	},
	{
		"two files that have had one name",
		"HDFS keeps what has changed by the name that it has now, so that of a file and the one that a rename put in its place it tells one; its own pages tell both",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			if o.Kind != "snapshotdiff" || want.class != "" || got.class != "" || want.broken != nil || got.broken != nil || want.result == got.result {
				return false
			}
			theirs := strings.Split(want.result, "\n")
			for line := range strings.SplitSeq(got.result, "\n") {
				if i := slices.Index(theirs, line); i >= 0 {
					theirs = slices.Delete(theirs, i, i+1)
				} else if !strings.HasPrefix(line, "M ") || !strings.Contains(want.result, "page "+line) {
					return false
				}
			}
			return len(theirs) == 0
		},
		nil,
	},
	{
		"a rename there and back",
		"HDFS tells of what was moved out of a snapshottable directory and back to its name as of one that was renamed, and of its directory as of one that has changed; here neither has",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			if o.Kind != "snapshotdiff" || want.class != "" || got.class != "" || want.broken != nil || got.broken != nil {
				return false
			}
			here := strings.Split(got.result, "\n")
			back := false
			for line := range strings.Lines(want.result) {
				line = strings.TrimSuffix(line, "\n")
				if slices.Contains(here, line) {
					continue
				}
				names := strings.SplitN(line, " ", 3)
				switch {
				case len(names) == 3 && names[0] == "R" && names[1] == names[2]:
					back = true
				case names[0] != "M":
					return false
				}
			}
			for _, line := range here {
				if line != "" && !slices.Contains(strings.Split(want.result, "\n"), line) {
					return false
				}
			}
			return back
		},
		nil,
	},
	{
		"the length of a file in a snapshot that was cut to nothing and replaced",
		"HDFS leaves the bytes of such a file out of the length of its directory, though not out of its space",
		func(_ context.Context, _ *runner, _ string, o Operation, want, got answer) bool {
			if o.Kind != "summary" || want.class != "" || got.class != "" || want.broken != nil || got.broken != nil {
				return false
			}
			theirs, rest := lengthsOf(want.result)
			ours, same := lengthsOf(got.result)
			return theirs < ours && rest != "" && rest == same
		},
		nil,
	},
	{
		"the space of what was appended to a file in a snapshot",
		"HDFS counts what was appended to a file after a snapshot for as long as the snapshot is there, though the file was replaced or cut and nothing has it any more",
		func(ctx context.Context, r *runner, root string, o Operation, want, got answer) bool {
			if o.Kind != "summary" && o.Kind != "usage" || want.class != "" || got.class != "" || want.broken != nil || got.broken != nil {
				return false
			}
			theirs, rest := spaceOf(want.result)
			ours, same := spaceOf(got.result)
			if theirs <= ours || rest != same {
				return false
			}
			for line := range strings.Lines(r.want.do(ctx, root, op("snapshottable", "root", "$R")).result) {
				if _, n, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(n, "0 of ") {
					return true
				}
			}
			return false
		},
		func(_ []Operation, want, got []string) bool {
			for i := range want { // nothing but sums
				if i >= len(got) || want[i] != got[i] && !counts(want[i], got[i]) {
					return false
				}
			}
			return len(want) == len(got) && slices.ContainsFunc(want, func(line string) bool {
				return strings.HasPrefix(strings.TrimSpace(line), "summary ") && strings.Contains(line, " snapshots=")
			})
		},
	},
	{
		"a second rename to the same name",
		"HDFS shows in a snapshot, in place of what was moved out of it, what was moved to the same place later",
		nil,
		func(done []Operation, want, _ []string) bool {
			moved := map[string]int{}
			for _, o := range done {
				if strings.HasPrefix(o.Kind, "rename") && o.Kind != "renamesnapshot" {
					moved[o.text("dst")]++
				}
			}
			twice := false
			for _, n := range moved {
				twice = twice || n > 1
			}
			return twice && strings.Contains(want[0], "/.snapshot/")
		},
	},
	{
		"a block that is being appended to",
		"HDFS has in a snapshot what a block had before it was opened for more; here a snapshot has a file's finished blocks",
		nil,
		func(_ []Operation, want, got []string) bool {
			path, _, _ := strings.Cut(want[0], " ")
			other, _, _ := strings.Cut(got[0], " ")
			unfinished := slices.ContainsFunc(got[:min(4, len(got))], func(line string) bool { return strings.HasSuffix(line, "lastcomplete=false") })
			return path == other && strings.Contains(path, "/.snapshot/") && strings.Contains(got[0], "IS_FILE") && firstDifferent(want[0], got[0]) == "length" && unfinished
		},
	},
	{
		"the last block of an empty file in a snapshot",
		"HDFS says of a file that was empty in a snapshot, and has blocks now, that its last block is complete; here it has none",
		nil,
		func(_ []Operation, want, got []string) bool {
			return strings.TrimSpace(want[0]) == "blocks length=0 open=false lastcomplete=true" && strings.TrimSpace(got[0]) == "blocks length=0 open=false lastcomplete=false"
		},
	},
}

// lengthsOf is the length in a summary, and what is there besides it and the length in snapshots; empty: it is no summary of a tree in which nothing has moved.
func lengthsOf(summary string) (length int64, rest string) {
	var files, directories int64
	if _, err := fmt.Sscanf(summary, "length=%d files=%d directories=%d", &length, &files, &directories); err != nil {
		return 0, ""
	}
	_, between, _ := strings.Cut(summary, " ")
	between, after, _ := strings.Cut(between, " snapshots=")
	_, after, _ = strings.Cut(after, ",")
	return length, between + " " + after
}

// spaceOf is the space in a summary, and what is there besides it.
func spaceOf(summary string) (space int64, rest string) {
	before, after, _ := strings.Cut(summary, " consumed=")
	text, after, _ := strings.Cut(after, " ")
	space, _ = strconv.ParseInt(text, 10, 64)
	return space, before + " " + after
}

// counts reports whether two lines are sums of the same directory.
func counts(x, y string) bool {
	for _, what := range []string{"usage ", "summary "} {
		if strings.HasPrefix(strings.TrimSpace(x), what) && strings.HasPrefix(strings.TrimSpace(y), what) {
			return true
		}
	}
	return false
}

// treeAccident names the accident by which two trees differ.
func treeAccident(done []Operation, want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for len(w) > 0 && len(g) > 0 && w[0] == g[0] {
		w, g = w[1:], g[1:]
	}
	if len(w) == 0 || len(g) == 0 {
		return ""
	}
	for _, a := range Accidents {
		if a.left != nil && a.left(done, w, g) {
			return a.Name
		}
	}
	return ""
}

// accident names the accident that an operation met.
func (r *runner) accident(ctx context.Context, root string, o Operation, want, got answer) string {
	for _, a := range Accidents {
		if a.met != nil && a.met(ctx, r, root, o, want, got) {
			return a.Name
		}
	}
	return ""
}
