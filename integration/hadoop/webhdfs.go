package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// exchange is one request of testdata/webhdfs.txt, which describes the format, with the answers to it: the namenode's, and
// after a redirect the datanode's.
type exchange struct {
	line         string
	user, method string
	target       string // path and query
	body         *string
	want         []reply
}

// reply is one answer.
type reply struct {
	code        int
	contentType string
	location    string
	query       string // of the location
	json        string
	text        []string
	page        bool // an HTML page, whose text is nobody's business
}

// readExchanges parses the file: exchanges by scenario.
func readExchanges(path string) (names []string, byName map[string][]*exchange, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	byName = map[string][]*exchange{}
	var x *exchange
	var r *reply
	for n, line := range strings.Split(strings.TrimRight(string(data), "\n"), "\n") {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			names = append(names, name)
			continue
		}
		if len(names) == 0 || line == "" {
			continue
		}
		name := names[len(names)-1]
		bad := func() error { return fmt.Errorf("%s:%d: cannot read %q", path, n+1, line) }
		switch {
		case strings.HasPrefix(line, "> "):
			if x, err = readRequest(line); err != nil {
				return nil, nil, bad()
			}
			byName[name] = append(byName[name], x)
			x.want = []reply{{}}
			r = &x.want[0]
		case line == "then":
			x.want = append(x.want, reply{})
			r = &x.want[len(x.want)-1]
		case strings.HasPrefix(line, "< Content-Type: "):
			r.contentType = line[len("< Content-Type: "):]
		case strings.HasPrefix(line, "< Location: "):
			r.location = line[len("< Location: "):]
		case strings.HasPrefix(line, "<~ Location query: "):
			r.query = line[len("<~ Location query: "):]
		case strings.HasPrefix(line, "<~ "):
		case strings.HasPrefix(line, "< json "):
			r.json = line[len("< json "):]
		case strings.HasPrefix(line, "< text "):
			r.text = append(r.text, line[len("< text "):])
		case strings.HasPrefix(line, "< <"):
			r.page = true
		case strings.HasPrefix(line, "< "):
			if r.code, err = strconv.Atoi(line[2:]); err != nil {
				return nil, nil, bad()
			}
		default:
			return nil, nil, bad()
		}
	}
	return names, byName, nil
}

func readRequest(line string) (*exchange, error) {
	x := &exchange{line: line, user: "root"}
	request, body, has := strings.Cut(line[2:], " <<< ")
	if !has {
		request, has = strings.CutSuffix(request, " <<<")
	}
	if has {
		body = strings.ReplaceAll(strings.ReplaceAll(body, `\n`, "\n"), "$BIG", bigBody())
		x.body = &body
	}
	fields := strings.Fields(request)
	if len(fields) == 3 {
		x.user, fields = fields[0], fields[1:]
	}
	if len(fields) != 2 {
		return nil, fmt.Errorf("%q", line)
	}
	x.method, x.target = fields[0], fields[1]
	return x, nil
}

func bigBody() string {
	var b strings.Builder
	for i := range 600 {
		fmt.Fprintf(&b, "%04d\n", i)
	}
	return b.String()
}

// webHDFSRow replays the recorded exchanges against a cluster.
func (s *suite) webHDFSRow(ctx context.Context, name, title string, c *cluster) error {
	names, byName, err := readExchanges(filepath.Join(s.cache.source, "testdata", "webhdfs.txt"))
	if err != nil {
		return err
	}
	say("%s", title)
	row := &row{name: name, title: title}
	s.rows = append(s.rows, row)
	fs, err := c.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	web := &webClient{cluster: c, http: &http.Client{
		Timeout:       time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, scenario := range names {
		web.home = "/w/" + scenario
		if _, err := fs.Delete(ctx, web.home, true); err != nil && !snapshotted(err) {
			return err
		}
		if err := fs.Mkdirs(ctx, web.home, 0o755, true); err != nil {
			return err
		}
		seen := map[string]int{}
		for _, x := range byName[scenario] {
			id := scenario + ": " + x.line
			if seen[id]++; seen[id] > 1 {
				id = fmt.Sprintf("%s (%d)", id, seen[id])
			}
			wrong, answers := web.do(ctx, x)
			if err := ctx.Err(); err != nil {
				return err
			}
			switch {
			case wrong == "":
				row.add(id, passed, "")
			case strings.Contains(answers, "UnsupportedOperationException"):
				row.add(id, unsupported, wrong)
			default:
				row.add(id, failed, wrong)
			}
		}
	}
	return nil
}

// webClient speaks HTTP with a cluster.
type webClient struct {
	cluster *cluster
	http    *http.Client
	home    string
}

// do sends a request and says what is wrong with the answers, and shows them.
func (w *webClient) do(ctx context.Context, x *exchange) (wrong, answers string) {
	target := strings.ReplaceAll(x.target, "$H", w.home)
	raw := strings.HasPrefix(target, "//raw")
	target = strings.TrimPrefix(target, "//raw")
	user := x.user
	if user == "root" {
		user = superuser()
	}
	if user != "-" && !raw {
		separator := "?"
		if strings.Contains(target, "?") {
			separator = "&"
		}
		target += separator + "user.name=" + user
	}
	address := "http://" + w.cluster.http[0] + "/webhdfs/v1" + target
	if raw {
		address = "http://" + w.cluster.http[0] + target
	}
	method := strings.TrimSuffix(x.method, "!")
	follow := !strings.HasSuffix(x.method, "!")
	got, next, err := w.send(ctx, method, address, nil)
	if err != nil {
		return "  " + err.Error() + "\n", ""
	}
	all := []reply{got}
	if next != "" && follow && len(x.want) > 1 {
		got, _, err = w.send(ctx, method, next, x.body)
		if err != nil {
			return "  " + err.Error() + "\n", ""
		}
		all = append(all, got)
	}
	var b strings.Builder
	for i, want := range x.want {
		if i >= len(all) {
			fmt.Fprintf(&b, "  no answer %d\n", i+1)
			break
		}
		b.WriteString(compareReplies(all[i], want))
		answers += all[i].json
	}
	return b.String(), answers
}

// send returns the masked answer and, unmasked, where it redirects to.
func (w *webClient) send(ctx context.Context, method, address string, body *string) (reply, string, error) {
	var r reply
	var content io.Reader
	if body != nil {
		content = strings.NewReader(*body)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, content)
	if err != nil {
		return r, "", err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/octet-stream")
	}
	response, err := w.http.Do(request)
	if err != nil {
		return r, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return r, "", err
	}
	r.code = response.StatusCode
	r.contentType = response.Header.Get("Content-Type")
	next := response.Header.Get("Location")
	if next != "" {
		u, err := url.Parse(next)
		if err != nil {
			return r, "", err
		}
		r.query = strings.NewReplacer(url.QueryEscape(w.cluster.authority), "<NN>", w.cluster.authority, "<NN>").Replace(u.RawQuery)
		if op := u.Query().Get("op"); op != "" {
			u.RawQuery = "op=" + op
		}
		r.location = w.mask(u.String())
	}
	text := w.mask(string(data))
	switch {
	case strings.HasPrefix(r.contentType, "application/json"):
		r.json = text
	case strings.HasPrefix(r.contentType, "text/html"):
		r.page = true
	case text != "":
		r.text = strings.Split(text, "\n")
	}
	return r, next, nil
}

var elsewhere = regexp.MustCompile(`(http|hdfs)://[^/"?$]+`)

func (w *webClient) mask(s string) string {
	s = strings.ReplaceAll(s, w.home, "$H")
	s = strings.ReplaceAll(s, w.cluster.http[0], "$HTTP")
	s = elsewhere.ReplaceAllString(s, "$1://<HOST>")
	if superuser() != "root" {
		s = strings.ReplaceAll(s, `"`+superuser()+`"`, `"root"`)
		s = strings.ReplaceAll(s, "user.name="+superuser(), "user.name=root")
	}
	return s
}

// compareReplies says what differs. Headers without a body, and those that are recorded for information, are not compared.
func compareReplies(got, want reply) string {
	var b strings.Builder
	wrong := func(what, got, want string) {
		fmt.Fprintf(&b, "  %s %s\n  want %s\n", what, shorten(got), shorten(want))
	}
	if got.code != want.code {
		fmt.Fprintf(&b, "  status %d, want %d: %s\n", got.code, want.code, shorten(got.json+strings.Join(got.text, "\n")))
		return b.String()
	}
	if want.contentType != "" && !sameType(got.contentType, want.contentType) {
		wrong("content type", got.contentType, want.contentType)
	}
	if want.location != "" && got.location != want.location {
		wrong("location", got.location, want.location)
	}
	if want.query != "" && got.query != want.query {
		wrong("location query", got.query, want.query)
	}
	if want.page && !got.page {
		wrong("body", got.json, "an HTML page")
	}
	if strings.Join(got.text, "\n") != strings.Join(want.text, "\n") {
		wrong("body", strings.Join(got.text, "\n"), strings.Join(want.text, "\n"))
	}
	if want.json == "" && got.json != "" {
		wrong("body", got.json, "")
	}
	if want.location == "" && got.location != "" {
		wrong("location", got.location, "")
	}
	if want.json != "" {
		var have, should any
		if err := json.Unmarshal([]byte(got.json), &have); err != nil {
			wrong("body", got.json, want.json)
		} else if err := json.Unmarshal([]byte(want.json), &should); err != nil {
			fmt.Fprintf(&b, "  the recording is no JSON: %v\n", err)
		} else if at := sameJSON("", trimmed(have), should); at != "" {
			fmt.Fprintf(&b, "  body differs at %s\n  got  %s\n  want %s\n", at, shorten(got.json), shorten(want.json))
		}
	}
	return b.String()
}

// sameType ignores the blanks and the case of a character set.
func sameType(a, b string) bool {
	clean := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, " ", "")) }
	return clean(a) == clean(b)
}

// trimmed cuts a stack trace off a message, and the query off a location, as the recording does.
func trimmed(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	if e, ok := m["RemoteException"].(map[string]any); ok {
		if message, ok := e["message"].(string); ok {
			e["message"], _, _ = strings.Cut(message, "\n\tat ")
			e["message"] = strings.TrimRight(e["message"].(string), "\n")
		}
	}
	if l, ok := m["Location"].(string); ok {
		m["Location"], _, _ = strings.Cut(l, "&")
	}
	return m
}

// sameJSON compares decoded JSON, taking a mask for anything, and names the place of the first difference.
func sameJSON(at string, got, want any) string {
	switch w := want.(type) {
	case string:
		if w == "<MS>" || w == "<ID>" {
			if got == nil {
				return at
			}
			return ""
		}
		if strings.Contains(w, "<TIME>") || strings.Contains(w, "<ID>") {
			if g, ok := got.(string); ok && maskPattern(w).MatchString(g) {
				return ""
			}
			return at
		}
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return at
		}
		for k := range g {
			if _, there := w[k]; !there {
				return at + "." + k
			}
		}
		for k := range w {
			v, there := g[k]
			if !there {
				return at + "." + k
			}
			if d := sameJSON(at+"."+k, v, w[k]); d != "" {
				return d
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok {
			return at
		}
		if len(w) == 1 && w[0] == "<HOSTS>" {
			if len(g) == 0 {
				return at
			}
			return ""
		}
		if len(g) != len(w) {
			return at + "[]"
		}
		for i := range w {
			if d := sameJSON(fmt.Sprintf("%s[%d]", at, i), g[i], w[i]); d != "" {
				return d
			}
		}
		return ""
	}
	if !reflect.DeepEqual(got, want) {
		return at
	}
	return ""
}

// maskPattern matches a text in which masks stand for anything.
func maskPattern(masked string) *regexp.Regexp {
	return regexp.MustCompile("^" + regexp.MustCompile(`<(TIME|ID|MS|HOST)>`).ReplaceAllString(regexp.QuoteMeta(masked), ".*") + "$")
}
