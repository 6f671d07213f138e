package main

import (
	"regexp"
	"sort"
	"strings"
)

// masker turns what one command printed into what testdata holds: without times, ids, hosts and folders of this run.
type masker struct {
	cluster *cluster
	home    string // $H
	local   string // $L
}

var (
	// fullUsage is what FsShell prints of all its commands; the last line is that of Hadoop's generic options.
	fullUsage    = regexp.MustCompile(`(?s)Usage: hadoop fs \[generic options\]\n\t\[-append.*?\n(command \[genericOptions\] \[commandOptions\]|Generic options: [^\n]*)\n`)
	recentDate   = regexp.MustCompile(`\b20(2[4-9]|[3-9]\d)-\d\d-\d\d \d\d:\d\d(:\d\d(\.\d+)?)?\b`)
	recentMillis = regexp.MustCompile(`\b(1[7-9]|[2-9]\d)\d{11}\b`)
	recentTouch  = regexp.MustCompile(`\b20(2[4-9]|[3-9]\d)\d{4}:?\d{6}\b`)
	snapshotName = regexp.MustCompile(`\bs20\d{6}-\d{6}\.\d{3}\b`)
	blockID      = regexp.MustCompile(`\bblk_-?\d+(_\d+)?\b`)
	poolID       = regexp.MustCompile(`\bBP-\d+-[\d.]+-\d+\b`)
	leaseHolder  = regexp.MustCompile(`\bDFSClient_[A-Z]+_-?\d+_\d+\b`)
	inodeID      = regexp.MustCompile(`\b(inode|fileId) \d+\b`)
	waitDots     = regexp.MustCompile(`(?m)(^| \.\.\.)[ .]* done$`)
	moreDots     = regexp.MustCompile(`(?m)^(Waiting for .* \.\.\.)\.+$`) // truncate -w prints one a second
	loopback     = regexp.MustCompile(`\b127\.0\.0\.1:\d+\b`)
	callFrom     = regexp.MustCompile(`\bFrom \S+/127\.0\.0\.1 to (localhost|127\.0\.0\.1)\b`)
	dfFigures    = regexp.MustCompile(`(?m)^(hdfs://\S+) +[\d.]+( [KMGTP])? +[\d.]+( [KMGTP])? +[\d.]+( [KMGTP])? +\d+%`)
	dfHead       = regexp.MustCompile(`(?m)^Filesystem +Size +Used +Available +Use%$`)
	stackFrame   = regexp.MustCompile(`(?m)^\tat .*\n|^\t\.\.\. \d+ more\n`)
)

// outcome masks both streams. verb is that of the command.
func (m *masker) outcome(o outcome, verb string) outcome {
	o.stdout, o.stderr = m.text(o.stdout, verb), m.text(o.stderr, verb)
	return o
}

func (m *masker) text(s, verb string) string {
	s = fullUsage.ReplaceAllString(s, "<FULL USAGE>\n")
	s = strings.NewReplacer("\r", "<CR>", "\x00", "<NUL>", "‘", "'", "’", "'").Replace(s) // the quotes of chown, by locale
	s = strings.ReplaceAll(s, m.local, "$L")
	s = strings.ReplaceAll(s, m.home, "$H")
	s = strings.ReplaceAll(s, m.cluster.authority, "$NN")
	s = strings.ReplaceAll(s, "/user/"+superuser(), "/user/$USER")
	for _, l := range longNames {
		s = strings.ReplaceAll(s, l[1], l[0])
	}
	s = stackFrame.ReplaceAllString(s, "")
	s = snapshotName.ReplaceAllString(s, "<TIME>")
	s = recentDate.ReplaceAllString(s, "<TIME>")
	s = recentTouch.ReplaceAllString(s, "<TIME>")
	s = recentMillis.ReplaceAllString(s, "<MS>")
	s = blockID.ReplaceAllString(s, "<ID>")
	s = poolID.ReplaceAllString(s, "<ID>")
	s = leaseHolder.ReplaceAllString(s, "<ID>")
	s = inodeID.ReplaceAllString(s, "$1 <ID>")
	s = callFrom.ReplaceAllString(s, "From <HOST> to <HOST>")
	s = loopback.ReplaceAllString(s, "<HOST>")
	s = waitDots.ReplaceAllString(s, "$1 done")
	s = moreDots.ReplaceAllString(s, "$1")
	s = dfHead.ReplaceAllString(s, "Filesystem Size Used Available Use%")
	s = dfFigures.ReplaceAllString(s, "$1 <N> <N> <N> <N>")
	if verb == "getfattr" {
		s = sortAttributes(s)
	}
	return s
}

// longNames stand for names as long as HDFS allows and one longer; the longer first, because it holds the other.
var longNames = [][2]string{{"$X256", strings.Repeat("x", 256)}, {"$X255", strings.Repeat("x", 255)}}

// expand puts the values of this run into an argument.
func (m *masker) expand(arg string) string {
	for _, l := range longNames {
		arg = strings.ReplaceAll(arg, l[0], l[1])
	}
	return strings.NewReplacer("$DN", m.cluster.datanode, "$H", m.home, "$L", m.local, "$NN", m.cluster.authority, "$USER", superuser()).Replace(arg)
}

// sortAttributes sorts the attributes of each file of -getfattr, whose order means nothing.
func sortAttributes(s string) string {
	lines := strings.SplitAfter(s, "\n")
	for i := 0; i < len(lines); {
		j := i
		for j < len(lines) && lines[j] != "" && lines[j] != "\n" && !strings.HasPrefix(lines[j], "# file:") {
			j++
		}
		sort.Strings(lines[i:j])
		i = j + 1
	}
	return strings.Join(lines, "")
}
