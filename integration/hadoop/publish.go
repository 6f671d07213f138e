package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// publishStep is a step as WebHDFS has it.
type publishStep map[string]map[string]any

func pubRename(from, to string, overwrite bool) publishStep {
	return publishStep{"rename": {"source": from, "destination": to, "overwrite": overwrite}}
}

func pubDelete(path string, ifThere bool) publishStep {
	return publishStep{"delete": {"path": path, "recursive": true, "ifThere": ifThere}}
}

func pubSet(path, name, value string) publishStep {
	return publishStep{"setXAttr": {"path": path, "name": name, "value": value}}
}

func pubRemove(path, name string) publishStep {
	return publishStep{"removeXAttr": {"path": path, "name": name}}
}

func pubSnapshot(path, name string) publishStep {
	return publishStep{"createSnapshot": {"path": path, "name": name}}
}

// line is a step as `hops fs -publish` reads it.
func (p publishStep) line() string {
	for verb, what := range p {
		switch verb {
		case "rename":
			flag := ""
			if what["overwrite"] == true {
				flag = "-f "
			}
			return fmt.Sprintf("rename %s%s %s", flag, what["source"], what["destination"])
		case "delete":
			flag := ""
			if what["ifThere"] == true {
				flag = "-f "
			}
			return fmt.Sprintf("rm -r %s%s", flag, what["path"])
		case "setXAttr":
			return fmt.Sprintf("setfattr -n %s -v %s %s", what["name"], what["value"], what["path"])
		case "removeXAttr":
			return fmt.Sprintf("setfattr -x %s %s", what["name"], what["path"])
		case "createSnapshot":
			return fmt.Sprintf("createSnapshot %s %s", what["path"], what["name"])
		}
	}
	return ""
}

// publishClient publishes as a user, and returns all that it is told.
type publishClient struct {
	name    string
	publish func(ctx context.Context, user string, steps []publishStep) (said string, ok bool, err error)
}

// publishRow publishes with curl, with the Python package and with `hops fs`: the same steps, which Apache HDFS does not know, compared with what the pages on it promise.
func (s *suite) publishRow(ctx context.Context, c *cluster) error {
	say("publish")
	row := &row{name: "publish", title: "publish by curl, Python and hops fs"}
	s.rows = append(s.rows, row)
	fs, err := c.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	add := func(name string, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			row.add(name, failed, "  "+shorten(err.Error())+"\n")
		default:
			row.add(name, passed, "")
		}
		return nil
	}
	for _, by := range []publishClient{
		{"curl", func(ctx context.Context, user string, steps []publishStep) (string, bool, error) {
			return s.curlPublish(ctx, c.http[0], user, "", steps)
		}},
		{"Python", func(ctx context.Context, user string, steps []publishStep) (string, bool, error) {
			return s.pythonPublish(ctx, c.http[0], user, "publish", steps)
		}},
		{"hops fs", func(ctx context.Context, user string, steps []publishStep) (string, bool, error) {
			var lines strings.Builder
			for _, step := range steps {
				fmt.Fprintln(&lines, step.line())
			}
			o, err := hopsFS(s.binary)(ctx, c, user, lines.String(), []string{"-publish", "-"})
			return o.stdout + o.stderr, o.status == 0, err
		}},
	} {
		dir := "/publish/" + strings.ReplaceAll(by.name, " ", "-")
		if err := layPublish(ctx, fs, dir); err != nil {
			return err
		}
		for _, p := range publishCases(dir) {
			err := p.run(ctx, fs, by, dir)
			if err := add(by.name+": "+p.name, err); err != nil {
				return err
			}
		}
	}
	for _, p := range []struct {
		name string
		run  func() error
	}{
		{"curl: one requestid three times is once", func() error { return s.publishedOnce(ctx, c, fs) }},
		{"curl: an answer that is lost, and asked for again", func() error { return s.lostAnswer(ctx, c, fs, "curl") }},
		{"Python: an answer that is lost, and asked for again", func() error { return s.lostAnswer(ctx, c, fs, "python") }},
		{"Python: a block that raises does nothing", func() error {
			const dir = "/publish/raises"
			if err := layPublish(ctx, fs, dir); err != nil {
				return err
			}
			said, ok, err := s.pythonPublish(ctx, c.http[0], superuser(), "raise", []publishStep{pubDelete(dir+"/current", false)})
			if err == nil && (ok || !strings.Contains(said, "ZeroDivisionError")) {
				err = errors.New(said)
			}
			return errors.Join(err, holds(ctx, fs, dir, "current/a", "next/b"))
		}},
		{"curl: a body that is none", func() error {
			out, err := command(ctx, []byte(`{"steps": [{"rename": {"source": "a", "destination": "b", "to": "c"}}]}`), "curl", "-sS", "-w", "%{http_code}", "-X", "POST", "--data-binary", "@-",
				"http://"+c.http[0]+"/webhdfs/v1/publish?op=PUBLISH&user.name="+superuser())
			if err == nil && (!strings.HasSuffix(string(out), "400") || !strings.Contains(string(out), `"exception":"HadoopIllegalArgumentException"`) || !strings.Contains(string(out), "unknown field")) {
				err = errors.New(string(out))
			}
			return err
		}},
	} {
		if err := add(p.name, p.run()); err != nil {
			return err
		}
	}
	return clearPublish(ctx, fs)
}

// clearPublish removes what the row has made: others list the directories that have snapshots.
func clearPublish(ctx context.Context, fs *dfs.Client) error {
	dirs, err := fs.SnapshottableDirs(ctx)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		dir := path.Join(d.Parent, d.Status.Name)
		if !strings.HasPrefix(dir, "/publish/") {
			continue
		}
		list, err := fs.Snapshots(ctx, dir)
		for _, s := range list {
			err = errors.Join(err, fs.DeleteSnapshot(ctx, dir, s.Status.Name))
		}
		if err := errors.Join(err, fs.AllowSnapshot(ctx, dir, false)); err != nil {
			return err
		}
	}
	_, err = fs.Delete(ctx, "/publish", true)
	return err
}

// layPublish makes what a publish puts into its place: dir/current/a and dir/next/b, and two files that anybody may change.
func layPublish(ctx context.Context, fs *dfs.Client, dir string) error {
	err := fs.Mkdirs(ctx, dir, 0o755, true)
	for _, name := range []string{"current/a", "next/b", "f", "g"} {
		if err == nil {
			err = fs.Mkdirs(ctx, path.Dir(dir+"/"+name), 0o755, true)
		}
		if err == nil {
			err = fs.WriteFile(ctx, dir+"/"+name, []byte(name), true)
		}
	}
	if err == nil {
		err = fs.AllowSnapshot(ctx, dir, true)
	}
	return err
}

// publishCase publishes once, and says what is there then.
type publishCase struct {
	name  string
	user  string // empty: the superuser
	steps []publishStep
	says  string   // in what the client is told
	fails bool     // it ends in an error
	there []string // below dir
	gone  []string
	value string // of the attribute user.version of current; empty: it has none
}

func publishCases(dir string) []publishCase {
	at := func(name string) string { return dir + "/" + name }
	many := make([]publishStep, 257)
	for i := range many {
		many[i] = pubSet(at("current"), "user.n", fmt.Sprint(i))
	}
	return []publishCase{
		{
			name: "a step that cannot be done, and nothing is", fails: true,
			steps: []publishStep{pubRename(at("current"), at("old"), false), pubSet(at("old"), "user.version", "7"), pubDelete(at("f"), false), pubRename(at("none"), at("current"), false)},
			says:  fmt.Sprintf("step 4 of 4 (rename %s to %s)", at("none"), at("current")), there: []string{"current/a", "next/b", "f"}, gone: []string{"old", "none"},
		},
		{
			name:  "a new version in the place of the present one",
			steps: []publishStep{pubDelete(at("old"), true), pubRename(at("current"), at("old"), false), pubRename(at("next"), at("current"), false), pubSet(at("current"), "user.version", "7"), pubSnapshot(dir, "v7")},
			says:  at(".snapshot/v7"), there: []string{"current/b", "old/a", ".snapshot/v7/current/b"}, gone: []string{"next", "current/a"}, value: "7",
		},
		{
			name:  "each step sees those before it",
			steps: []publishStep{pubRename(at("current"), at("t"), false), pubRemove(at("t"), "user.version"), pubRename(at("t"), at("current"), false), pubSet(at("current"), "user.version", "8")},
			there: []string{"current/b", "old/a"}, gone: []string{"t"}, value: "8",
		},
		{
			name: "without the right", user: "alice", fails: true, steps: []publishStep{pubRename(at("current"), at("mine"), false)}, says: "Permission denied",
			there: []string{"current/b"}, gone: []string{"mine"}, value: "8",
		},
		{
			name: "a file that is there is not replaced", fails: true, steps: []publishStep{pubDelete(at("old"), false), pubRename(at("f"), at("g"), false)}, says: "step 2 of 2",
			there: []string{"old/a", "f", "g"}, value: "8",
		},
		{
			name: "a file that is replaced", steps: []publishStep{pubRename(at("f"), at("g"), true)}, there: []string{"g", "old/a"}, gone: []string{"f"}, value: "8",
		},
		{
			name: "what need not be there has to be otherwise", fails: true, steps: []publishStep{pubDelete(at("none"), true), pubDelete(at("none"), false)}, says: "step 2 of 2",
			there: []string{"g"}, value: "8",
		},
		{name: "too many steps", fails: true, steps: many, says: "256", there: []string{"current/b"}, value: "8"},
	}
}

func (p *publishCase) run(ctx context.Context, fs *dfs.Client, by publishClient, dir string) error {
	user := p.user
	if user == "" {
		user = superuser()
	}
	said, ok, err := by.publish(ctx, user, p.steps)
	switch {
	case err != nil:
		return err
	case ok == p.fails, !strings.Contains(said, p.says):
		return fmt.Errorf("got %q; want %q", said, p.says)
	}
	if err := holds(ctx, fs, dir, p.there...); err != nil {
		return err
	}
	for _, name := range p.gone {
		if _, err := fs.Stat(ctx, dir+"/"+name); !errors.Is(err, metadata.ErrNotExist) {
			return fmt.Errorf("%s is there: %w", name, err)
		}
	}
	all, err := fs.XAttrs(ctx, dir+"/current")
	if err != nil {
		return err
	}
	value := ""
	for _, a := range all {
		if a.FullName() == "user.version" {
			value = string(a.Value)
		}
	}
	if value != p.value {
		return fmt.Errorf("user.version is %q, want %q", value, p.value)
	}
	return nil
}

// holds says which of the paths below dir is not there.
func holds(ctx context.Context, fs *dfs.Client, dir string, names ...string) error {
	for _, name := range names {
		if _, err := fs.Stat(ctx, dir+"/"+name); err != nil {
			return err
		}
	}
	return nil
}

// curlPublish publishes with curl, under a requestid if one is given.
func (s *suite) curlPublish(ctx context.Context, address, user, requestID string, steps []publishStep) (string, bool, error) {
	text, err := json.Marshal(map[string]any{"steps": steps})
	if err != nil {
		return "", false, err
	}
	target := "http://" + address + "/webhdfs/v1/?op=PUBLISH&user.name=" + user
	if requestID != "" {
		target += "&requestid=" + requestID
	}
	out, err := command(ctx, text, "curl", "-sS", "-w", "%{http_code}", "-X", "POST", "--data-binary", "@-", target)
	return string(out), strings.HasSuffix(string(out), "200"), err
}

// pythonPublish publishes with the Python package of hops. what: publish, or raise, for a block that ends with an exception.
func (s *suite) pythonPublish(ctx context.Context, address, user, what string, steps []publishStep) (string, bool, error) {
	text, err := json.Marshal(steps)
	if err != nil {
		return "", false, err
	}
	root := filepath.Dir(filepath.Dir(s.cache.source))
	out, err := command(ctx, text, "env", "PYTHONPATH="+filepath.Join(root, "client", "python"), "PYTHONDONTWRITEBYTECODE=1", "HOPS_WEBHDFS="+address, "HADOOP_USER_NAME="+user,
		"python3", filepath.Join(s.cache.source, "python", "publish_cases.py"), what)
	return string(out), err == nil && strings.HasPrefix(string(out), "published"), err
}

// publishedOnce asks three times for one publish, and then for the same one anew.
func (s *suite) publishedOnce(ctx context.Context, c *cluster, fs *dfs.Client) error {
	const dir, id = "/publish/once", "00112233445566778899aabbccddeeff"
	if err := layPublish(ctx, fs, dir); err != nil {
		return err
	}
	steps := []publishStep{pubRename(dir+"/current", dir+"/old", false), pubRename(dir+"/next", dir+"/current", false), pubSnapshot(dir, "")}
	first := ""
	for try := range 3 {
		said, ok, err := s.curlPublish(ctx, c.http[0], superuser(), id, steps)
		if err != nil {
			return err
		}
		if try == 0 {
			first = said
		}
		if !ok || said != first || !strings.Contains(said, `"steps":3`) || !strings.Contains(said, dir+"/.snapshot/s") {
			return fmt.Errorf("try %d: %s, and first %s", try+1, said, first)
		}
	}
	if err := holds(ctx, fs, dir, "old/a", "current/b"); err != nil {
		return err
	}
	if snapshots, err := fs.List(ctx, dir+"/.snapshot"); err != nil || len(snapshots) != 1 {
		return fmt.Errorf("%d snapshots, want one: %w", len(snapshots), err)
	}
	said, ok, err := s.curlPublish(ctx, c.http[0], "alice", id, steps)
	if err == nil && (ok || !strings.Contains(said, "AccessControlException")) {
		err = fmt.Errorf("another user under the same requestid: %s", said)
	}
	if err != nil {
		return err
	}
	said, ok, err = s.curlPublish(ctx, c.http[0], superuser(), strings.Repeat("ab", 16), steps)
	if err == nil && (ok || !strings.Contains(said, "step 1 of 3")) {
		err = fmt.Errorf("under another requestid: %s", said)
	}
	return err
}

// lossy passes requests on to a namenode. What it answers to the first publishes is lost.
type lossy struct {
	to string

	mu   sync.Mutex
	lose int
	ids  []string // of the publishes
}

func (l *lossy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", l.to, ""
	answer, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	l.mu.Lock()
	lost := err != nil
	if query := r.URL.Query(); query.Get("op") == "PUBLISH" {
		l.ids = append(l.ids, query.Get("requestid"))
		if l.lose > 0 {
			l.lose--
			lost = true
		}
	}
	l.mu.Unlock()
	if lost {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(text)
}

// lostAnswer publishes where the first two answers are lost: curl is called again under its requestid, the Python package does that by itself.
func (s *suite) lostAnswer(ctx context.Context, c *cluster, fs *dfs.Client, client string) error {
	dir := "/publish/lost-" + client
	if err := layPublish(ctx, fs, dir); err != nil {
		return err
	}
	between := &lossy{to: c.http[0], lose: 2}
	server := httptest.NewServer(between)
	server.Config.ErrorLog = nil
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", port)
	steps := []publishStep{pubRename(dir+"/current", dir+"/old", false), pubRename(dir+"/next", dir+"/current", false)}
	var said string
	var ok bool
	if client == "python" {
		said, ok, err = s.pythonPublish(ctx, address, superuser(), "publish", steps)
	} else {
		for range 3 {
			said, ok, err = s.curlPublish(ctx, address, superuser(), strings.Repeat("cd", 16), steps)
		}
	}
	between.mu.Lock()
	defer between.mu.Unlock()
	if err != nil || !ok || len(between.ids) != 3 || len(slices.Compact(slices.Clone(between.ids))) != 1 || len(between.ids[0]) != 32 {
		return fmt.Errorf("it was asked for under %q, and at last says %s: %w", between.ids, said, errors.Join(err, os.ErrInvalid))
	}
	return holds(ctx, fs, dir, "old/a", "current/b")
}
