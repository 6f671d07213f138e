package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/glob"
	"github.com/gohops/hops/metadata"
)

// What the verbs do to a cluster is tested in integration/cli, against what Hadoop's shell was recorded to do.

// run executes a command line for which no filesystem may be asked for.
func run(t *testing.T, args ...string) (status int, out, err string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	s := &Shell{Stdout: &stdout, Stderr: &stderr, Dial: func(string, map[string]string) (*dfs.Client, string, error) {
		return nil, "", errors.New("a filesystem was asked for")
	}}
	status = s.Run(t.Context(), args)
	return status, stdout.String(), stderr.String()
}

func TestWrongCommandLinesAreRefusedBeforeAFilesystemIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		args  string
		first string // line of standard error
	}{
		{"", "Usage: hadoop fs [generic options]"},
		{"-D a=b", "Usage: hadoop fs [generic options]"},
		{"-nosuch x", "-nosuch: Unknown command"},
		{"-ls -z", "-ls: Illegal option -z"},
		{"-mkdir", "-mkdir: Not enough arguments: expected 1 but got 0"},
		{"-head a b", "-head: Too many arguments: expected 1 but got 2"},
		{"-touch -t", "-touch: Illegal option -t needs a value"},
		{"-chmod -q 700 f", "-chmod: Illegal option -q"},
		{"-chmod -x", "-chmod: Not enough arguments: expected 2 but got 1"},
		{"-help nosuch", "-help: `nosuch': Unknown command"},
	} {
		status, out, stderr := run(t, strings.Fields(c.args)...)
		first, _, _ := strings.Cut(stderr, "\n")
		if status != ExitUsage || out != "" || first != c.first {
			t.Errorf("%q: status %d, %q, %q", c.args, status, out, first)
		}
	}
}

func TestAFilesystemThatCannotBeHadIsAnErrorOfTheVerb(t *testing.T) {
	for _, args := range []string{"-ls /", "-D a=b -fs hdfs://h:1 -ls /", "ls -- -x", "-chmod -x f"} {
		status, _, stderr := run(t, strings.Fields(args)...)
		if status != ExitError || !strings.HasSuffix(stderr, ": a filesystem was asked for\n") {
			t.Errorf("%q: status %d, %q", args, status, stderr)
		}
	}
}

func TestGenericOptionsReachTheFilesystem(t *testing.T) {
	var uri string
	var properties map[string]string
	s := &Shell{Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer), Dial: func(u string, p map[string]string) (*dfs.Client, string, error) {
		uri, properties = u, p
		return nil, "", errors.New("no")
	}}
	s.Run(t.Context(), strings.Fields("-D a=1 -Db=2=3 -conf file -fs hdfs://h:1 -ls /"))
	if uri != "hdfs://h:1" || properties["a"] != "1" || properties["b"] != "2=3" || properties["-conf"] != "file" {
		t.Errorf("%q %v", uri, properties)
	}
}

// Of properties that nobody knows those are remarked on, to people, that look like one that was meant.
func TestMistypedPropertiesAreRemarkedOn(t *testing.T) {
	for brief, want := range map[bool]string{true: "note: -D dfs.replicaton is read by nobody here (did you mean dfs.replication?)\n", false: ""} {
		var stderr bytes.Buffer
		s := &Shell{Stdout: new(bytes.Buffer), Stderr: &stderr, Brief: brief, Dial: func(string, map[string]string) (*dfs.Client, string, error) {
			return nil, "", errors.New("no")
		}}
		s.Run(t.Context(), strings.Fields("-D dfs.replicaton=1 -D dfs.blocksize=1m -D dfs.client.failover.max.attempts=3 -ls /"))
		if got, _, _ := strings.Cut(stderr.String(), "ls: "); got != want {
			t.Errorf("brief %v: %q, want %q", brief, got, want)
		}
	}
}

func TestOptionsEndAtTheFirstOtherWord(t *testing.T) {
	for _, c := range []struct {
		verb, args, options, rest string
	}{
		{"ls", "-R -h /a -t", "R h", "/a -t"},
		{"rm", "-- -f", "", "-f"},
		{"put", "-f - /x", "f", "- /x"},
		{"cp", "-ptx a b", "p=tx", "a b"},
		{"setfacl", "--set user::rwx /a", "-set", "user::rwx /a"},
		{"setfattr", "-n user.a -v x /f", "n=user.a v=x", "/f"},
		{"chmod", "-R -w,o+x /a", "R", "-w,o+x /a"},
	} {
		s := &Shell{verb: c.verb, options: map[string]string{}}
		rest, err := s.parse(verbs[c.verb], strings.Fields(c.args))
		if err != nil || strings.Join(rest, " ") != c.rest {
			t.Errorf("%s %s: %q, %v", c.verb, c.args, rest, err)
		}
		want := strings.Fields(c.options)
		for _, o := range want {
			name, value, _ := strings.Cut(o, "=")
			if got, ok := s.options[name]; !ok || got != value {
				t.Errorf("%s %s: option %s is %q, %v", c.verb, c.args, name, got, ok)
			}
		}
		if len(s.options) != len(want) {
			t.Errorf("%s %s: options %v", c.verb, c.args, s.options)
		}
	}
}

// TestTheTypesOfCountMayBeAbsent: the word behind -t is its value only where enough are left for the paths.
func TestTheTypesOfCountMayBeAbsent(t *testing.T) {
	for _, c := range []struct {
		args  []string
		types string
		rest  []string
		v     bool
	}{
		{[]string{"-t", "DISK,SSD", "-v", "/d"}, "DISK,SSD", []string{"/d"}, true},
		{[]string{"-v", "-t", "/d"}, "", []string{"/d"}, true},
		{[]string{"-t", "/d"}, "", []string{"/d"}, false},
		{[]string{"-t", "all", "-q", "-v", "/d"}, "all", []string{"/d"}, true},
	} {
		s := &Shell{verb: "count", options: map[string]string{}}
		rest, err := s.parse(verbs["count"], c.args)
		if err != nil || !slices.Equal(rest, c.rest) || s.options["t"] != c.types || !s.option("t") || s.option("v") != c.v {
			t.Errorf("%q: %q %v, %v", c.args, rest, s.options, err)
		}
	}
	if _, err := storageTypes("DISK,BOGUS"); err == nil || err.Error() != "No enum constant org.apache.hadoop.fs.StorageType.BOGUS" {
		t.Error(err)
	}
}

func TestPatternsMatchAsHadoopsDo(t *testing.T) {
	for _, c := range []struct{ pattern, matches, others string }{
		{"a?c", "abc aüc a.c", "ac abbc"},
		{"*.gz", ".gz a.gz", "a.gzx agz"},
		{"[a-c]x", "ax cx", "dx x"},
		{"[^a]", "b ^", "a"},
		{"[!ab]x", "cx !x", "ax bx"},
		{"[a!]", "a !", "b"},
		{"[a^]", "a ^", "b"},
		{`[\]x]`, "] x", `\`},
		{`a\*b`, "a*b", "axb"},
		{"ü[0-9]*", "ü1 ü23", "u1 ü"},
		{"a+(b)|c", "a+(b)|c", "aab"},
	} {
		re, err := glob.Compile(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for _, name := range strings.Fields(c.matches) {
			if !re.MatchString(name) {
				t.Errorf("%s does not match %s", c.pattern, name)
			}
		}
		for _, name := range strings.Fields(c.others) {
			if re.MatchString(name) {
				t.Errorf("%s matches %s", c.pattern, name)
			}
		}
	}
	for pattern, want := range map[string]string{
		"[a":    "Illegal file pattern: error parsing regexp: Unclosed character class at pos 2: `[a`",
		"[a[b]": "Illegal file pattern: error parsing regexp: Unclosed character class at pos 2: `[a[b]`",
		`ab\`:   "Illegal file pattern: error parsing regexp: Missing escaped character at pos 3: `ab\\`",
	} {
		if _, err := glob.Compile(pattern); err == nil || err.Error() != want {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

func TestBracesBecomeAlternatives(t *testing.T) {
	for pattern, want := range map[string]string{
		"/a/b":           "/a/b",
		"/{a,b/c}/d":     "/a/d /b/c/d",
		"{a,b}{1,2}":     "a1 a2 b1 b2",
		"x{a{1,2},}y":    "xa1y xa2y xy",
		`\{a,b}`:         `\{a,b}`,
		"a}b":            "a}b",
		"/{only}/{a,,b}": "/only/a /only/ /only/b",
	} {
		got, err := braces(pattern)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v", pattern, got, err)
		}
	}
	for _, pattern := range []string{"/a/{b,c", strings.Repeat("{a,b}", 20)} {
		if _, err := braces(pattern); err == nil {
			t.Errorf("%s was taken", pattern)
		}
	}
}

func TestModesOfChmod(t *testing.T) {
	for _, c := range []struct {
		text     string
		old      metadata.Mode
		dir      bool
		want     metadata.Mode
		rejected bool
	}{
		{text: "755", old: 0o600, want: 0o755},
		{text: "1777", want: 0o1777},
		{text: "2755", rejected: true},
		{text: "u+x,go-w", old: 0o666, want: 0o744},
		{text: "a=r", old: 0o777, want: 0o444},
		{text: "+X", old: 0o640, want: 0o640},
		{text: "+X", old: 0o640, dir: true, want: 0o751},
		{text: "o+X", old: 0o700, want: 0o701},
		{text: "+t", old: 0o777, want: 0o1777},
		{text: "-t", old: 0o1777, want: 0o777},
		{text: "u+s", rejected: true},
		{text: "+", rejected: true},
		{text: "u=", rejected: true},
		{text: "", rejected: true},
	} {
		change, err := parseMode(c.text)
		if c.rejected {
			if _, ok := errors.AsType[usageError](err); !ok {
				t.Errorf("%q: %v", c.text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		} else if got := change(c.old, c.dir); got != c.want {
			t.Errorf("%q makes %o of %o, want %o", c.text, got, c.old, c.want)
		}
	}
}

func TestEntriesOfAccessControlLists(t *testing.T) {
	got, err := parseACL("user::rw-,default:group:staff:r-x,mask::--x,", true)
	want := []metadata.ACLEntry{
		{Type: metadata.ACLUser, Rights: 6}, {Default: true, Type: metadata.ACLGroup, Name: "staff", Rights: 5}, {Type: metadata.ACLMask, Rights: 1},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = parseACL("user:bob,default:", false); err == nil {
		t.Errorf("default without a type: %+v", got)
	}
	for _, spec := range []string{"", "nobody::r--", "user:bob", "user:bob:rwz", "user:bob:rw", "user:bob:rwx:x"} {
		if got, err := parseACL(spec, true); err == nil {
			t.Errorf("%q is %+v", spec, got)
		}
	}
}

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 1023: "1023", 1024: "1 K", 1536: "1.5 K", 1<<20 - 1: "1.0 M", 64 << 20: "64 M", 5 << 40: "5 T", 1<<63 - 1: "8.0 E",
	} {
		if got := human(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// Whoever keeps what belonged to others must hear that it is theirs no longer.
func TestALocalCopySaysWhyItHasAnotherOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	owner, group := localOwner(info)
	if owner == "" {
		t.Skip("this user has no name")
	}
	for _, c := range []struct{ owner, group, want string }{
		{owner, group, ""},
		{"no-such-user", group, "chown: invalid user: 'no-such-user:" + group + "'"},
		{owner, "no-such-group", "chown: invalid group: '" + owner + ":no-such-group'"},
	} {
		text := ""
		if err := chown(file, c.owner, c.group); err != nil {
			text = err.Error()
		}
		if text != c.want {
			t.Errorf("chown %s:%s: %q, want %q", c.owner, c.group, text, c.want)
		}
	}
}

// The file that -get -crc writes is read by Hadoop's local filesystem.
func TestChecksumFilesAreHadoops(t *testing.T) {
	var one, parts crcWriter
	data := bytes.Repeat([]byte("0123456789"), 100)
	_, _ = one.Write(data)
	for _, part := range [][]byte{data[:1], data[1:511], data[511:513], data[513:]} {
		_, _ = parts.Write(part)
	}
	got := one.file()
	if !bytes.Equal(got, parts.file()) || !bytes.HasPrefix(got, []byte("crc\x00\x00\x00\x02\x00")) || len(got) != 8+2*4 {
		t.Errorf("%x", got)
	}
}

func TestEveryOptionIsExplained(t *testing.T) {
	for name, v := range verbs {
		for _, o := range slices.Concat(v.flags, v.values) {
			if optionText(name, o) == "" {
				t.Errorf("-%s -%s is not explained", name, o)
			}
		}
	}
	for _, args := range [][]string{{"-help", "ls"}, {"-ls", "--help"}, {"ls", "--help"}} {
		if status, out, _ := run(t, args...); status != ExitOK || !strings.Contains(out, "\n  -t               newest first\n") {
			t.Errorf("%v: %d %s", args, status, out)
		}
	}
	for _, arg := range []string{"--help", "-h", "-help"} {
		if status, out, _ := run(t, arg); status != ExitOK || !strings.Contains(out, "-rmdir [--ignore-fail-on-non-empty]") {
			t.Errorf("%v: %d", arg, status)
		}
	}
}

func TestPeopleGetShortErrorsOfUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-lss /":       "-lss: Unknown command (did you mean -ls?); `hops fs -help` lists them\n",
		"-ls -z /":     "-ls: Illegal option -z\nUsage: hops fs -ls [-C] [-d] [-h] [-q] [-R] [-t] [-S] [-r] [-u] [-e] [<path> ...]\n`hops fs -help ls` explains it\n",
		"-mkdir /a:b":  "-mkdir: no name may have a colon in it: a:b\nUsage: hops fs -mkdir [-p] <path> ...\n`hops fs -help mkdir` explains it\n",
		"-ls -o xml /": "-ls: -o wants json\nUsage: hops fs -ls [-C] [-d] [-h] [-q] [-R] [-t] [-S] [-r] [-u] [-e] [<path> ...]\n`hops fs -help ls` explains it\n",
	} {
		var stderr bytes.Buffer
		s := &Shell{Stdout: new(bytes.Buffer), Stderr: &stderr, Brief: true, Dial: func(string, map[string]string) (*dfs.Client, string, error) {
			c, err := dfs.New(dfs.Config{Namenodes: []string{"127.0.0.1:1"}})
			return c, "hdfs://127.0.0.1:1", err
		}}
		if status := s.Run(t.Context(), strings.Fields(args)); status != ExitUsage || stderr.String() != want {
			t.Errorf("%s: %d %q, want %q", args, status, stderr.String(), want)
		}
	}
}

// Sources that cannot be read are told one by one, while others are copied.
func TestEveryMissingSourceIsTold(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-put"}
	for i := range 50 {
		args = append(args, fmt.Sprintf("%s/missing%d", dir, i))
	}
	status, _, stderr := run(t, append(args, "file://"+dir)...)
	if n := strings.Count(stderr, "No such file or directory"); status != ExitError || n != 50 {
		t.Errorf("status %d, %d are told: %s", status, n, stderr)
	}
}

// silent is standard input on which nothing comes, until it is closed.
type silent struct{ asked, closed chan struct{} }

func (s silent) Read([]byte) (int, error) {
	select {
	case s.asked <- struct{}{}:
	case <-s.closed:
	}
	<-s.closed
	return 0, io.EOF
}

// Who ends a copy of standard input need not wait for it to say something.
func TestACopyOfSilentInputCanBeInterrupted(t *testing.T) {
	dir := t.TempDir()
	in := silent{make(chan struct{}), make(chan struct{})}
	defer close(in.closed)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	status := make(chan int, 1)
	go func() {
		s := &Shell{Stdin: in, Stdout: io.Discard, Stderr: io.Discard}
		status <- s.Run(ctx, []string{"-put", "-", "file://" + dir + "/f"})
	}()
	<-in.asked
	cancel()
	select {
	case got := <-status:
		if got != ExitAborted {
			t.Errorf("status %d", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("the copy waits for its input")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// The schemes that there are, said to people: a URI of WebHDFS, say, is one that other clients take.
func TestPeopleAreToldWhichFilesystemsThereAre(t *testing.T) {
	for brief, want := range map[bool]string{
		true:  "ls: No FileSystem for scheme \"webhdfs\": there are hdfs:// and file://\n",
		false: "ls: No FileSystem for scheme \"webhdfs\"\n",
	} {
		var stderr bytes.Buffer
		s := &Shell{Stdout: new(bytes.Buffer), Stderr: &stderr, Brief: brief, Dial: func(string, map[string]string) (*dfs.Client, string, error) {
			c, err := dfs.New(dfs.Config{Namenodes: []string{"127.0.0.1:1"}})
			return c, "hdfs://127.0.0.1:1", err
		}}
		if status := s.Run(t.Context(), []string{"-ls", "webhdfs://127.0.0.1:1/"}); status != ExitError || stderr.String() != want {
			t.Errorf("brief %v: %d %q, want %q", brief, status, stderr.String(), want)
		}
	}
}

// All words of a command line are asked about together; what each means, its messages and their order stay its own.
func TestManyWords(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c", "c/_SUCCESS"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a/_SUCCESS", "file"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("12"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	uri := "file://" + dir + "/"
	words := func(verb string, names ...string) []string {
		args := strings.Fields(verb)
		for _, name := range names {
			args = append(args, uri+name)
		}
		return args
	}
	none := func(verb, name string) string {
		return verb + ": `" + uri + name + "': No such file or directory\n"
	}
	for _, c := range []struct {
		args     []string
		status   int
		out, err string
	}{
		{
			words("-stat %n:%F", "a", "none", "file", "file/below", "a", "*/_SUCCESS", "file/*/x"), ExitError,
			"a:directory\nfile:regular file\na:directory\n_SUCCESS:regular file\n_SUCCESS:directory\n", none("stat", "none") + none("stat", "file/below") + none("stat", "file/*/x"),
		},
		{words("-mkdir", "new", "a", "newer"), ExitError, "", "mkdir: `" + uri + "a': File exists\n"},
		{words("-stat %n", "new", "newer"), ExitOK, "new\nnewer\n", ""},
		{append(words("-find", "a", "file"), "-name", "{_SUC*,f[h-j]le}"), ExitOK, uri + "a/_SUCCESS\n" + uri + "file\n", ""},
		{append(words("-find", "a", "file"), "-iname", "{_suc*,X}"), ExitOK, uri + "a/_SUCCESS\n", ""},
		{append(words("-find", "a"), "-name", "{b"), ExitError, "", "find: Illegal file pattern: error parsing regexp: Unclosed group at pos 2: `{b`\n"},
		{words("-count -u", "a"), ExitOK, "        none             inf            none             inf " + uri + "a\n", ""},
		{words("-count -q -t SSD", "a"), ExitOK, "          none                inf " + uri + "a\n", ""},
		{words("-rm -r -f", "none", "new", "newer", "other"), ExitOK, "Deleted " + uri + "new\nDeleted " + uri + "newer\n", ""},
	} {
		if status, out, err := run(t, c.args...); status != c.status || out != c.out || err != c.err {
			t.Errorf("%q: status %d\n%s%s, want %d\n%s%s", c.args, status, out, err, c.status, c.out, c.err)
		}
	}
}
