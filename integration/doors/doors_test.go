// Package doors holds what every port of every server does, and the right that each thing needs, against
// docs/reference/rights.md: whoever adds a route decides about its right where all can see it.
package doors

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	datanode "github.com/gohops/hops/datanode/server"
	"github.com/gohops/hops/internal/security"
	namenode "github.com/gohops/hops/namenode/server"
	nodemanager "github.com/gohops/hops/nodemanager/server"
	resourcemanager "github.com/gohops/hops/resourcemanager/server"
	"github.com/gohops/hops/training/controller"
)

var update = flag.Bool("update", false, "write docs/reference/rights.md")

const page = "../../docs/reference/rights.md"

const head = `# Who may do what

Every port of every server, what it does, and the right that is asked for it. Written by ` + "`go test ./integration/doors -update`" + `;
the test fails when a server does something that is not here, or asks for another right.

| right | who has it |
| --- | --- |
| open | anybody, and nobody asks who |
| anyone | every caller with a name; over HTTP dr.who too |
| named | every caller but dr.who |
| by path | as the permissions of the paths, blocks and leases allow that the request names |
| owner | who owns the application or container, administers its queue, or is a superuser |
| superuser | the servers' user, and the members of the supergroup |
| self | processes of the servers' own user, whatever name they send |
| servers | servers of the cluster, whose machine's certificate names a role that it is for |
| join token | a machine without a certificate that shows a token to join with |
| containers | who has proved the token of a container, for the container's own application |
| block token | who shows a token that a namenode signed for the block and for what is done to it |
| this machine | every process of the same machine, on the datanode's Unix-domain socket, for memory that it shares with the datanode itself |
| job token | who signs with the token of a MapReduce job, for the job's own outputs |

`

func routes() []security.Route {
	all := slices.Concat(namenode.Routes(), datanode.Routes(), resourcemanager.Routes(), nodemanager.Routes(), controller.Routes())
	// cmd/hops/pprof.go, which listens only when HOPS_PPROF is set.
	return append(all, security.Route{Port: "profiler HTTP", Name: "/debug/pprof/", Right: security.Self})
}

func document(t *testing.T) string {
	ports := map[string][]security.Route{}
	seen := map[string]bool{}
	for _, r := range routes() {
		if !r.Right.Valid() || r.Port == "" || r.Name == "" {
			t.Errorf("%+v has no right, port or name", r)
		}
		if key := r.Port + " " + r.Name; seen[key] {
			t.Errorf("%s is there twice", key)
		} else {
			seen[key] = true
		}
		ports[r.Port] = append(ports[r.Port], r)
	}
	var b strings.Builder
	b.WriteString(head)
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		fmt.Fprintf(&b, "## %s\n\n| what | right |\n| --- | --- |\n", port)
		slices.SortFunc(ports[port], func(x, y security.Route) int { return strings.Compare(x.Name, y.Name) })
		for _, r := range ports[port] {
			fmt.Fprintf(&b, "| `%s` | %s |\n", r.Name, r.Right)
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func TestEveryRouteOfEveryPortIsDocumentedWithItsRight(t *testing.T) {
	want := document(t)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) == want {
		return
	}
	inPage, inServers := lines(string(got)), lines(want)
	for l := range inServers {
		if !inPage[l] {
			t.Errorf("the servers do this, and docs/reference/rights.md does not say so: %s", l)
		}
	}
	for l := range inPage {
		if !inServers[l] {
			t.Errorf("docs/reference/rights.md says this, and the servers do not do it: %s", l)
		}
	}
	t.Error("if that was decided: go test ./integration/doors -update")
}

// What is promised names the test that shows it; such a name must not outlive its test. Of TestX/part, the part has to stand in
// quotes in a file that has TestX.
func TestPromisesNameTestsThatExist(t *testing.T) {
	there := map[string][]string{} // the files that have a test
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another test's, which has taken it away
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(b, -1) {
			there[string(m[1])] = append(there[string(m[1])], string(b))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for page, least := range map[string]int{"promises.md": 20, "security.md": 100, "upgrade.md": 15} {
		text, err := os.ReadFile(filepath.Join("../../docs/explanation", page))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)(?:/([^`]+))?`").FindAllStringSubmatch(string(text), -1)
		for _, m := range named {
			if !slices.ContainsFunc(there[m[1]], func(file string) bool { return m[2] == "" || strings.Contains(file, strconv.Quote(m[2])) }) {
				t.Errorf("%s names %s, which does not exist", page, strings.Trim(m[0], "`"))
			}
		}
		if len(named) < least {
			t.Errorf("%s: only %d tests are named", page, len(named))
		}
	}
}

func lines(text string) map[string]bool {
	out := map[string]bool{}
	for l := range strings.Lines(text) {
		out[strings.TrimSpace(l)] = true
	}
	return out
}

// What is open tells only that a server works, and what anyone may call belongs to nobody. Adding to this is a decision.
func TestWhatIsOpen(t *testing.T) {
	var open []string
	for _, r := range routes() {
		if r.Right == security.Open {
			open = append(open, r.Port+" "+r.Name)
		}
	}
	slices.Sort(open)
	want := []string{
		"namenode HTTP GET /api/v1/login", "namenode HTTP POST /api/v1/login", // who logs in has nothing to show yet but what is posted
		"controller HTTP GET /healthz", "datanode HTTP OPTIONS /webhdfs/v1/{path}", "resource manager HTTP GET /isActive",
		"namenode HTTP GET /api/v1/datanodes", // which are there and what space they have, as /metrics says for all of them
	}
	for port, page := range map[string][]string{ // the pages of internal/status, and where Hadoop's users look for them
		"datanode HTTP":         {"/{$}", "/datanode.html", "/index.html"},
		"namenode HTTP":         {"/{$}", "/dfshealth.html", "/explorer.html", "/index.html"},
		"node manager HTTP":     {"/{$}", "/node", "/node/node"},
		"resource manager HTTP": {"/{$}", "/cluster", "/cluster/apps", "/cluster/nodes", "/cluster/scheduler"},
	} {
		for _, path := range append(page, "/health", "/jmx", "/livez", "/metrics", "/readyz") {
			want = append(want, port+" GET "+path)
		}
	}
	slices.Sort(want)
	if !slices.Equal(open, want) {
		t.Errorf("open to anybody:\n%s\nwant:\n%s", strings.Join(open, "\n"), strings.Join(want, "\n"))
	}
}
