// Package cli tests the command line: the recorded sessions of Hadoop's shell, and scripts of hops commands.
package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/shell"
	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/metadata"
)

// step is one command of a recorded session.
type step struct {
	line     int
	user     string // "@" is a helper's call
	args     []string
	stdin    string
	status   int
	out, err string
}

type scenario struct {
	name  string
	steps []step
}

// parse reads testdata/fsshell.txt, whose head explains the form.
func parse(t *testing.T) []scenario {
	t.Helper()
	f, err := os.Open("testdata/fsshell.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []scenario
	command := regexp.MustCompile(`^([a-z]*)([$@]) (.*)$`)
	s := bufio.NewScanner(f)
	for n := 1; s.Scan(); n++ {
		line := s.Text()
		if name, ok := strings.CutPrefix(line, "### "); ok {
			all = append(all, scenario{name: name})
			continue
		}
		if len(all) == 0 || line == "" || line[0] == '#' {
			continue
		}
		steps := &all[len(all)-1].steps
		if m := command.FindStringSubmatch(line); m != nil {
			text, stdin, _ := strings.Cut(m[3], " <<< ")
			st := step{line: n, user: m[1], args: words(text), stdin: strings.ReplaceAll(stdin, `\n`, "\n")}
			if m[2] == "@" {
				st.user = "@"
			}
			*steps = append(*steps, st)
			continue
		}
		if len(*steps) == 0 {
			t.Fatalf("line %d: %s", n, line)
		}
		last := &(*steps)[len(*steps)-1]
		kind, rest, _ := strings.Cut(line, " ")
		rest += "\n"
		if text, ok := strings.CutSuffix(rest, "<no newline>\n"); ok {
			rest = text
		}
		switch kind {
		case "exit":
			last.status, _ = strconv.Atoi(strings.TrimSpace(rest))
		case "out|":
			last.out += rest
		case "err|":
			last.err += rest
		default:
			t.Fatalf("line %d: %s", n, line)
		}
	}
	return all
}

// words splits at blanks; "..." keeps them.
func words(text string) []string {
	var out []string
	for i, part := range strings.Split(text, `"`) {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}

// reordered are commands, by their line in fsshell.txt, whose lines come in another order from us, and why.
var reordered = map[int]string{
	252: "HDFS orders names by signed bytes, so that those beyond ASCII come first; we order them by bytes as they are",
}

func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Hadoop's own FsShell was recorded command by command against HDFS; ours must do and say the same.
func TestShellDoesWhatHadoopsShellWasRecordedToDo(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	k := cluster.Start(t, cluster.Config{Datanodes: 2, Properties: map[string]string{
		"dfs.replication": "1", "dfs.namenode.fs-limits.min-block-size": "0",
		"hadoop.proxyuser." + me.Username + ".hosts": "*", "hadoop.proxyuser." + me.Username + ".users": "*",
	}})
	r := &recorded{k: k, me: me.Username}
	for _, sc := range parse(t) {
		t.Run(sc.name, func(t *testing.T) {
			r.begin(t, sc.name)
			for _, st := range sc.steps {
				r.run(t, st)
			}
		})
	}
}

// recorded runs commands in the surroundings that the head of fsshell.txt describes.
type recorded struct {
	k       *cluster.Cluster
	me      string
	remote  string // $H
	local   string // $L
	address string // $NN
}

func (r *recorded) begin(t *testing.T, name string) {
	t.Helper()
	ctx := context.Background()
	fs := r.k.Client("").FS()
	r.remote, r.local, r.address = "/t/"+name, t.TempDir(), r.k.File().Namenodes[0].IPC
	if err := fs.Mkdirs(ctx, r.remote, 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := fs.Mkdirs(ctx, "/user/"+r.me, 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := fs.SetPermission(ctx, "/", 0o755); err != nil {
		t.Fatal(err)
	}
	var lines, big, zipped bytes.Buffer
	for i := range 27 {
		fmt.Fprintf(&lines, "line %02d %s\n", i+1, strings.Repeat("x", 88))
	}
	for i := range 5000 {
		if i%100 == 99 {
			big.WriteByte('\n')
		} else {
			big.WriteByte(byte('a' + (i*7+i/100)%26))
		}
	}
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte("zipped hello\n"))
	_ = z.Close()
	for name, text := range map[string]string{
		"hello.txt": "hello world\n", "empty": "", "lines.txt": lines.String(), "big.bin": big.String(), "hello.gz": zipped.String(),
		"tree/a": "A\n", "tree/b": "BB\n", "tree/sub/c": "CCC\n", "tree/sub/e": "", "out/": "",
	} {
		path := filepath.Join(r.local, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// fill puts the values of this run into a recorded text.
func (r *recorded) fill(text string) string {
	return strings.NewReplacer("$H", r.remote, "$L", r.local, "$NN", r.address,
		"$X255", strings.Repeat("x", 255), "$X256", strings.Repeat("x", 256)).Replace(text)
}

var (
	stamp      = regexp.MustCompile(`\b20(2[4-9]|[3-9]\d)-\d\d-\d\d \d\d:\d\d(:\d\d)?`)
	fullUsage  = regexp.MustCompile(`(?s)Usage: hadoop fs \[generic options\]\n.*\n\n(Usage: )`)
	waiting    = regexp.MustCompile(`\.{3,} done|\.\.\.\nWARNING: the waiting time may be long for DECREASING the number of replications\.\n\.+ done`)
	manyBlanks = regexp.MustCompile(` +`)
)

// plain masks what differs from run to run.
func (r *recorded) plain(text string) string {
	text = stamp.ReplaceAllString(text, "<TIME>")
	text = fullUsage.ReplaceAllString(text, "<FULL USAGE>\n\n$1")
	// Whether the namenode is seen before it has removed a replica too many is a matter of luck.
	text = waiting.ReplaceAllString(text, "... done")
	if r.me != "root" { // the superuser's name is in columns and messages
		text = manyBlanks.ReplaceAllString(strings.ReplaceAll(text, r.me, "root"), " ")
	}
	return text
}

func (r *recorded) run(t *testing.T, st step) {
	t.Helper()
	args := make([]string, len(st.args))
	for i, a := range st.args {
		args[i] = r.fill(a)
	}
	var out, errs string
	status := 0
	if st.user == "@" {
		out = r.helper(t, args)
	} else {
		out, errs, status = r.shell(st.user, st.stdin, args)
	}
	if status != st.status {
		t.Errorf("line %d: %v: exit %d, want %d\n%s%s", st.line, st.args, status, st.status, out, errs)
	}
	for _, c := range []struct{ what, got, want string }{{"out", out, st.out}, {"err", errs, st.err}} {
		got, want := r.plain(c.got), r.plain(r.fill(c.want))
		if reordered[st.line] != "" {
			got, want = sorted(got), sorted(want)
		}
		if got != want {
			t.Errorf("line %d: %v: %s is\n%s\nwant\n%s", st.line, st.args, c.what, got, want)
		}
	}
}

// shell is `hadoop fs` as a user; "" is the superuser.
func (r *recorded) shell(as, stdin string, args []string) (out, errs string, status int) {
	var stdout, stderr bytes.Buffer
	s := &shell.Shell{Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr}
	s.Dial = func(uri string, properties map[string]string) (*dfs.Client, string, error) {
		config := dfs.Config{Namenodes: []string{r.address}, User: r.me, Replication: 1, Logger: slog.New(slog.DiscardHandler)}
		if as != "" {
			config.User, config.RealUser = as, r.me
		}
		if n, err := strconv.ParseInt(properties["dfs.blocksize"], 10, 64); err == nil {
			config.BlockSize = n
		}
		c, err := dfs.New(config)
		return c, "hdfs://" + r.address, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Patience)
	defer cancel()
	status = s.Run(ctx, args)
	return stdout.String(), stderr.String(), status
}

// helper is what FsShell has no command for.
func (r *recorded) helper(t *testing.T, args []string) string {
	t.Helper()
	switch args[0] {
	case "lcat":
		text, err := os.ReadFile(args[1])
		if err != nil {
			t.Error(err)
		}
		return string(text)
	case "lls":
		var out strings.Builder
		err := filepath.WalkDir(args[1], func(path string, _ os.DirEntry, err error) error {
			fmt.Fprintln(&out, path)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return out.String()
	case "lperm":
		info, err := os.Stat(args[1])
		if err != nil {
			t.Error(err)
			return ""
		}
		return metadata.Mode(info.Mode().Perm()).String() + "\n"
	}
	t.Fatalf("unknown helper %v", args)
	return ""
}

func TestMain(m *testing.M) {
	time.Local = time.UTC // as the recordings
	process.Main(m)
}
