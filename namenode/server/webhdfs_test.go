package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// exchange is one recorded request with the namenode's part of the answer.
type exchange struct {
	line          string
	user, method  string
	target        string
	body          *string
	code          int
	contentType   string
	location      string
	locationQuery string
	json          string
	then          int // the datanode's status, 0 if it was not asked
}

// TestRecordedWebHDFS replays what Apache HDFS answered. The datanode's part is played by writing the file directly.
func TestRecordedWebHDFS(t *testing.T) {
	data, err := os.ReadFile("testdata/webhdfs.txt")
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 1, func(c *Config) {
		c.Properties.Replication = 1
		c.Door = security.NewDoor(security.Config{Supergroup: "supergroup", Groups: func(user string) []string {
			if user == "root" {
				return []string{"supergroup"} // whoever runs the test, the recording's superuser is root
			}
			return nil
		}})
	})
	dn := c.datanode("dn1")
	for _, scenario := range strings.Split(string(data), "\n### ")[1:] {
		name, text, _ := strings.Cut(scenario, "\n")
		t.Run(name, func(t *testing.T) {
			r := &replay{t: t, m: c.leader(), dn: dn, home: "/w/" + name}
			if code := r.send("PUT", r.home+"?op=MKDIRS&permission=755&user.name=root", nil).StatusCode; code != 200 {
				t.Fatalf("MKDIRS: %d", code)
			}
			all := exchanges(t, text)
			if len(all) < 10 {
				t.Fatalf("only %d requests read", len(all))
			}
			for _, x := range all {
				r.do(x)
			}
		})
	}
}

func exchanges(t testing.TB, text string) (out []*exchange) {
	var x *exchange
	for _, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "> "):
			x = &exchange{line: line, user: "root"}
			out = append(out, x)
			request, body, has := strings.Cut(line[2:], " <<< ")
			if !has {
				request, has = strings.CutSuffix(request, " <<<")
			}
			if has {
				body = strings.ReplaceAll(strings.ReplaceAll(body, `\n`, "\n"), "$BIG", big())
				x.body = &body
			}
			f := strings.Fields(request)
			if len(f) == 3 {
				x.user, f = f[0], f[1:]
			}
			x.method, x.target = f[0], f[1]
		case x == nil:
		case strings.HasPrefix(line, "< ") && x.then == 0:
			rest := line[2:]
			if v, ok := strings.CutPrefix(rest, "Content-Type: "); ok {
				x.contentType = v
			} else if v, ok := strings.CutPrefix(rest, "Location: "); ok {
				x.location = v
			} else if v, ok := strings.CutPrefix(rest, "json "); ok {
				x.json = v
			} else if n, err := strconv.Atoi(rest); err == nil {
				x.code = n
			} else {
				t.Fatalf("cannot read %q", line)
			}
		case strings.HasPrefix(line, "<~ Location query: "):
			x.locationQuery = strings.TrimPrefix(line, "<~ Location query: ")
		case line == "then":
			x.then = -1
		case x.then == -1 && strings.HasPrefix(line, "< "):
			x.then, _ = strconv.Atoi(line[2:])
		}
	}
	return out
}

func big() string {
	var b strings.Builder
	for i := range 600 {
		fmt.Fprintf(&b, "%04d\n", i)
	}
	return b.String()
}

type replay struct {
	t    *testing.T
	m    *member
	dn   *datanode
	home string
}

// send does not follow redirects.
func (r *replay) send(method, target string, body io.Reader) *http.Response {
	r.t.Helper()
	path, query, _ := strings.Cut(target, "?")
	request, err := http.NewRequest(method, "http://"+r.m.http+"/webhdfs/v1"+path+"?"+query, body)
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { response.Body.Close() })
	return response
}

var elsewhere = regexp.MustCompile(`http://[^/"]+/`)

func (r *replay) do(x *exchange) {
	t := r.t
	target := strings.ReplaceAll(x.target, "$H", r.home)
	if x.user != "-" {
		separator := "&"
		if !strings.Contains(target, "?") {
			separator = "?"
		}
		target += separator + "user.name=" + x.user
	}
	response := r.send(strings.TrimSuffix(x.method, "!"), target, nil)
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s\n\t%s", x.line, fmt.Sprintf(format, args...))
	}
	if response.StatusCode != x.code {
		fail("status %d, want %d: %s", response.StatusCode, x.code, body)
		return
	}
	if x.contentType != "" && response.Header.Get("Content-Type") != x.contentType {
		fail("content type %q, want %q", response.Header.Get("Content-Type"), x.contentType)
	}
	mask := func(s string) string {
		return elsewhere.ReplaceAllString(strings.ReplaceAll(s, r.home, "$H"), "http://<HOST>/")
	}
	if x.location != "" {
		u, err := url.Parse(response.Header.Get("Location"))
		if err != nil {
			fail("location: %v", err)
			return
		}
		query, nn := u.RawQuery, url.QueryEscape(r.m.ipc)
		u.RawQuery = "op=" + u.Query().Get("op")
		if got := mask(u.String()); got != x.location {
			fail("location %s, want %s", got, x.location)
		}
		if got := strings.ReplaceAll(query, nn, "<NN>"); got != x.locationQuery {
			fail("query %s\nwant  %s", got, x.locationQuery)
		}
	}
	if x.json != "" {
		var got, want any
		if err := json.Unmarshal([]byte(mask(string(body))), &got); err != nil {
			fail("body %q: %v", body, err)
			return
		}
		if err := json.Unmarshal([]byte(x.json), &want); err != nil {
			t.Fatal(err)
		}
		if l, ok := got.(map[string]any)["Location"].(string); ok { // the recording leaves its query out
			got = map[string]any{"Location": l[:strings.Index(l+"&", "&")]}
		}
		if !same(got, want) {
			fail("body %s\nwant  %s", mask(string(body)), x.json)
		}
	}
	if x.then == 201 {
		r.write(target, *x.body)
	}
}

// same compares decoded JSON, taking a mask for anything.
func same(got, want any) bool {
	switch w := want.(type) {
	case string:
		if w == "<MS>" || w == "<ID>" {
			return got != nil
		}
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for k := range w {
			if _, there := g[k]; !there || !same(g[k], w[k]) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if len(w) == 1 && w[0] == "<HOSTS>" {
			return ok && len(g) > 0
		}
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !same(g[i], w[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(got, want)
}

// write does what the datanode's door does with a body.
func (r *replay) write(target, body string) {
	r.t.Helper()
	path, query, _ := strings.Cut(target, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		r.t.Fatal(err)
	}
	number := func(name string, fallback int64, base int) int64 {
		if v := q.Get(name); v != "" {
			fallback, err = strconv.ParseInt(v, base, 64)
			if err != nil {
				r.t.Fatal(err)
			}
		}
		return fallback
	}
	size := number("blocksize", 128<<20, 10)
	root := r.m.config.Door.Caller("root")
	got := make(chan error, 1)
	r.m.Create(root, namenode.CreateRequest{
		Path: path, Mode: metadata.Mode(number("permission", 0o644, 8)), Client: "door", Create: true, Overwrite: q.Get("overwrite") == "true",
		Parents: q.Get("createparent") != "false", Replication: int(number("replication", 1, 10)), BlockSize: size,
	}, func(_ *metadata.FileStatus, err error) { got <- err })
	if err := <-got; err != nil {
		r.t.Fatal(err)
	}
	file := namenode.FileRef{Path: path}
	var last *metadata.Block
	for left := int64(len(body)); left > 0; left -= size {
		r.m.AddBlock(root, namenode.AddBlockRequest{File: file, Client: "door", Previous: last}, func(b *namenode.LocatedBlock, err error) {
			if err == nil {
				last = &b.Block
			}
			got <- err
		})
		if err := <-got; err != nil {
			r.t.Fatal(err)
		}
		last.Length = min(left, size)
		r.dn.has(*last, pb.ReplicaState_FINALIZED)
		r.m.knows(r.t, *last, 1) // the block after the next one waits for that, and not for long
	}
	eventually(r.t, path+" is complete", func() (complete bool) {
		r.m.Complete(root, file, "door", last, func(ok bool, err error) { complete = ok; got <- err })
		if err := <-got; err != nil {
			r.t.Fatal(err)
		}
		return complete
	})
}

func TestWebHDFSOperationsThatHaveNoRecording(t *testing.T) {
	c := newCluster(t, 1, nil)
	r := &replay{t: t, m: c.leader(), home: "/h"}
	user := c.nodes[0].config.Door.Daemon()
	if err := r.m.group.Raise(release.Level); err != nil {
		t.Fatal(err)
	}
	if err := c.root().Mkdirs(t.Context(), "/h/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		method, target string
		code           int
		body           string // part of it
	}{
		{"GET", "/?op=GETHOMEDIRECTORY&user.name=" + user, 200, `{"Path":"/user/` + user + `"}`},
		{"GET", "/?op=GETHOMEDIRECTORY", 200, `{"Path":"/user/dr.who"}`},
		{"GET", "/?op=GETHOMEDIRECTORY&user.name=65533", 200, `{"Path":"/user/65533"}`}, // an id that has no name
		{"GET", "/?op=GETHOMEDIRECTORY&user.name=6x", 400, `Invalid value: \"6x\" does not belong to the domain`},
		{"GET", "/?op=GETTRASHROOT&user.name=" + user, 200, `{"Path":"/user/` + user + `/.Trash"}`},
		{"GET", "/?op=GETSERVERDEFAULTS&user.name=" + user, 200, `"blockSize":134217728,"bytesPerChecksum":512,"checksumType":2`},
		{"GET", "/h?op=CHECKACCESS&fsaction=rwx&user.name=" + user, 200, ""},
		{"GET", "/h?op=CHECKACCESS&fsaction=-w-&user.name=alice", 403, `"exception":"AccessControlException"`},
		{"GET", "/h?op=CHECKACCESS&fsaction=rwz&user.name=" + user, 400, `Invalid value for webhdfs parameter \"fsaction\"`},
		{"GET", "/h?op=GETACLSTATUS&user.name=" + user, 200, `{"AclStatus":{"entries":[],"group":"supergroup"`},
		{"GET", "/h?op=LISTXATTRS&user.name=" + user, 200, `{"XAttrNames":"[]"}`},
		{"GET", "/h?op=GETSTORAGEPOLICY&user.name=" + user, 200, `"id":7,"name":"HOT"`},
		{"PUT", "/h?op=SETSTORAGEPOLICY&storagepolicy=cold&user.name=" + user, 200, ""},
		{"GET", "/h?op=GETSTORAGEPOLICY&user.name=" + user, 200, `"id":2,"name":"COLD"`},
		{"GET", "/h?op=GETFILESTATUS&user.name=" + user, 200, `"storagePolicy":2`},
		{"PUT", "/h?op=SETSTORAGEPOLICY&storagepolicy=lukewarm&user.name=" + user, 400, `Cannot find a block policy with the name lukewarm`},
		{"PUT", "/h?op=SATISFYSTORAGEPOLICY&user.name=" + user, 200, ""},
		{"PUT", "/h?op=SETQUOTABYSTORAGETYPE&storagetype=ssd&storagespacequota=1000&user.name=" + user, 200, ""},
		{"PUT", "/h?op=SETQUOTABYSTORAGETYPE&storagetype=tape&storagespacequota=1000&user.name=" + user, 400, `No enum constant org.apache.hadoop.fs.StorageType.TAPE`},
		{"PUT", "/h?op=SETQUOTABYSTORAGETYPE&storagetype=RAM_DISK&storagespacequota=1000&user.name=" + user, 400, `Don't support Quota for storage type : RAM_DISK`},
		{"PUT", "/h?op=SETQUOTABYSTORAGETYPE&storagetype=SSD&storagespacequota=1000&user.name=alice", 403, `Superuser privilege is required`},
		{"GET", "/h?op=GETQUOTAUSAGE&user.name=" + user, 200, `"typeQuota":{"SSD":{"consumed":0,"quota":1000}}`},
		{"GET", "/h?op=GETCONTENTSUMMARY&user.name=" + user, 200, `"typeQuota":{"SSD":{"consumed":0,"quota":1000}}`},
		{"PUT", "/h?op=SETQUOTABYSTORAGETYPE&storagetype=SSD&storagespacequota=-1&user.name=" + user, 200, ""},
		{"GET", "/h?op=GETQUOTAUSAGE&user.name=" + user, 200, `"typeQuota":{}`},
		{"POST", "/h?op=UNSETSTORAGEPOLICY&user.name=" + user, 200, ""},
		{"GET", "/h?op=GETFILESTATUS&user.name=" + user, 200, `"storagePolicy":0`},
		{"PUT", "/user/alice/.Trash?op=MKDIRS&user.name=" + user, 200, `{"boolean":true}`},
		{"GET", "/?op=GETTRASHROOTS&user.name=" + user, 200, `{"Paths":null}`},
		{"GET", "/?op=GETTRASHROOTS&allusers=true&user.name=" + user, 200, `"path":"/user/alice/.Trash"`},
		{"GET", "/?op=GETECPOLICIES&user.name=" + user, 200, `{"ErasureCodingPolicies":{"ErasureCodingPolicyInfo":[{"state":"DISABLED","policy":{"name":"RS-10-4-1024k",` +
			`"schema":{"codecName":"rs","numDataUnits":10,"numParityUnits":4,"extraOptions":{}},"cellSize":1048576,"id":5,"numDataUnits":10,"numParityUnits":4,"codecName":"rs",` +
			`"replicationPolicy":false,"systemPolicy":true}},{"state":"DISABLED",`},
		{"GET", "/?op=GETECCODECS&user.name=" + user, 200, `{"ErasureCodingCodecs":{"rs":"rs_go","xor":"xor_go"}}`},
		{"POST", "/h?op=UNSETECPOLICY&user.name=" + user, 403, `"exception":"NoECPolicySetException"`},
		{"PUT", "/?op=ENABLEECPOLICY&ecpolicy=XOR-2-1-1024k&user.name=alice", 403, `Superuser privilege is required for operation enableErasureCodingPolicy`},
		{"PUT", "/?op=ENABLEECPOLICY&ecpolicy=XOR-1-1&user.name=" + user, 400, `The policy name XOR-1-1 does not exist`},
		{"PUT", "/h/d?op=SETECPOLICY&ecpolicy=XOR-2-1-1024k&user.name=" + user, 400, `Policy 'XOR-2-1-1024k' does not match any enabled erasure coding policies: [RS-6-3-1024k]. `},
		{"PUT", "/?op=ENABLEECPOLICY&ecpolicy=XOR-2-1-1024k&user.name=" + user, 200, ""},
		{"PUT", "/h/d?op=SETECPOLICY&ecpolicy=XOR-2-1-1024k&user.name=" + user, 200, ""},
		{"GET", "/h/d?op=GETECPOLICY&user.name=" + user, 200, `{"name":"XOR-2-1-1024k","schema":{"codecName":"xor","numDataUnits":2,"numParityUnits":1,"extraOptions":{}},"cellSize":1048576,"id":4,`},
		{"GET", "/h/d?op=GETFILESTATUS&user.name=" + user, 200, `"ecBit":true,"ecPolicy":"XOR-2-1-1024k","ecPolicyObj":{"name":"XOR-2-1-1024k","cellSize":1048576,"numDataUnits":2,` +
			`"numParityUnits":1,"codecName":"xor","id":4,"extraOptions":{}},"fileId":`},
		{"GET", "/h/d?op=GETCONTENTSUMMARY&user.name=" + user, 200, `"ecPolicy":"XOR-2-1-1024k"`},
		{"PUT", "/?op=DISABLEECPOLICY&ecpolicy=XOR-2-1-1024k&user.name=" + user, 200, ""},
		{"GET", "/h/d?op=GETECPOLICY&user.name=" + user, 200, `{"name":"XOR-2-1-1024k"`},
		{"POST", "/h/d?op=UNSETECPOLICY&user.name=" + user, 200, ""},
		{"GET", "/h/d?op=GETECPOLICY&user.name=" + user, 200, `null`},
		{"GET", "/h?op=GETALLSTORAGEPOLICY&user.name=" + user, 200, `"name":"LAZY_PERSIST"`},
		{"PUT", "/h/d?op=SETPERMISSION&permission=1770&user.name=" + user, 200, ""},
		{"GET", "/h/d?op=GETFILESTATUS&user.name=" + user, 200, `"permission":"1770"`},
		{"PUT", "/h/d?op=SETPERMISSION&permission=2000&user.name=" + user, 400, `permission = 2000 > 1777`},
		{"PUT", "/h/d?op=SETOWNER&owner=alice&user.name=" + user, 200, ""},
		{"PUT", "/h/d?op=SETOWNER&user.name=" + user, 400, `Both owner and group are empty.`},
		{"PUT", "/h/d?op=SETOWNER&owner=bob&user.name=alice", 403, `"exception":"AccessControlException"`},
		{"PUT", "/h/d?op=SETTIMES&modificationtime=1000&user.name=" + user, 200, ""},
		{"GET", "/h/d?op=GETFILESTATUS&user.name=" + user, 200, `"modificationTime":1000,"owner":"alice"`},
		{"PUT", "/h/d?op=SETREPLICATION&replication=2&user.name=" + user, 200, `{"boolean":false}`},
		{"PUT", "/h/d?op=MKDIRS&user.name=" + user, 200, `{"boolean":true}`},
		{"PUT", "/x?op=MKDIRS", 403, `"exception":"AccessControlException"`}, // dr.who
		{"PUT", "/h/d?op=SETPERMISSION&permission=1777&user.name=alice", 200, ""},
		{"PUT", "/h/d/x?op=MKDIRS", 403, `a request without user.name may read, and nothing else`},
		{"PUT", "/h/d/x?op=MKDIRS&user.name=dr.who", 403, `a request without user.name may read, and nothing else`},
		{"PUT", "/h/d/x?op=MKDIRS&user.name=bob&User.Name=alice", 403, `the request has user.name more than once`},
		{"PUT", "/h/d/x?op=MKDIRS&user.name=" + strings.Repeat("u", 257), 403, `the name of the user has 257 bytes`},
		{"PUT", "/h/d/x?op=MKDIRS&user.name=a%0Ab", 400, `does not belong to the domain`},
		{"PUT", "/h?op=CREATESNAPSHOT&user.name=" + user, 403, `Directory is not a snapshottable directory: /h`},
		{"PUT", "/h?op=SETXATTR&user.name=" + user, 400, `Required param xattr.name for op: SETXATTR is null or empty`},
		{"PUT", "/h?op=SETXATTR&xattr.name=a&flag=CREATE&user.name=" + user, 400, `An XAttr name must be prefixed with user/trusted/security/system/raw`},
		{"PUT", "/h?op=SETXATTR&xattr.name=user.&flag=CREATE&user.name=" + user, 400, `XAttr name cannot be empty.`},
		{"PUT", "/h?op=SETXATTR&xattr.name=user.a&flag=DESTROY&user.name=" + user, 400, `No enum constant org.apache.hadoop.fs.XAttrSetFlag.DESTROY`},
		{"PUT", "/h?op=SETXATTR&xattr.name=user.a&xattr.value=0x6869&flag=CREATE&user.name=" + user, 200, ""},
		{"PUT", "/h?op=SETXATTR&xattr.name=user.a&xattr.value=x&flag=CREATE&user.name=" + user, 403, `The REPLACE flag must be specified.`},
		{"PUT", "/h?op=SETXATTR&xattr.name=user.b&xattr.value=%22q%22&flag=CREATE,REPLACE&user.name=" + user, 200, ""},
		{"GET", "/h?op=LISTXATTRS&user.name=" + user, 200, `{"XAttrNames":"[\"user.a\",\"user.b\"]"}`},
		{"GET", "/h?op=GETXATTRS&encoding=text&user.name=" + user, 200, `{"XAttrs":[{"name":"user.a","value":"\"hi\""},{"name":"user.b","value":"\"q\""}]}`},
		{"GET", "/h?op=GETXATTRS&xattr.name=user.b&xattr.name=user.a&encoding=hex&user.name=" + user, 200, `[{"name":"user.b","value":"0x71"},{"name":"user.a","value":"0x6869"}]`},
		{"GET", "/h?op=GETXATTRS&xattr.name=user.a&encoding=base64&user.name=" + user, 200, `"0saGk="`},
		{"GET", "/h?op=GETXATTRS&encoding=text&xattr.name=user.c&user.name=" + user, 403, `At least one of the attributes provided was not found.`},
		{"PUT", "/h?op=REMOVEXATTR&xattr.name=user.a&user.name=" + user, 200, ""},
		{"PUT", "/h?op=REMOVEXATTR&xattr.name=user.a&user.name=" + user, 403, `No matching attributes found for remove operation`},
		{"PUT", "/h?op=REMOVEXATTR&xattr.name=user.b&user.name=" + user, 200, ""},
		{"POST", "/h?op=CONCAT&user.name=" + user, 400, `Required param sources for op: CONCAT is null or empty`},
		{"POST", "/h?op=CONCAT&sources=/a,/b&user.name=" + user, 404, `Path is not a file: /h`},
		{"POST", "/h?op=TRUNCATE&user.name=" + user, 400, `Required param newlength for op: TRUNCATE is null or empty`},
		{"POST", "/h?op=TRUNCATE&newlength=5&user.name=" + user, 404, `Path is not a file: /h`},
		{"GET", "/h?op=NOSUCHOP&user.name=" + user, 400, `NOSUCHOP is not a valid GET operation.`},
		{"PATCH", "/h?op=MKDIRS&user.name=" + user, 400, `MKDIRS is not a valid PATCH operation.`},
		{"PUT", "/h/d?op=MKDIRS&doas=bob&user.name=alice", 403, `User: alice is not allowed to impersonate bob`},
		{"PUT", "/h/f?op=CREATE&user.name=" + user, 403, `"exception":"RetriableException","javaClassName":"org.apache.hadoop.ipc.RetriableException","message":"Failed to find datanode`},
		{"PUT", "/h/" + strings.Repeat("x", 256) + "?op=MKDIRS&user.name=" + user, 403, `"exception":"PathComponentTooLongException"`},
		{"PUT", "/h/" + strings.Repeat("x/", 4000) + "?op=MKDIRS&user.name=" + user, 403, `"exception":"IOException"`},
		{"GET", "?op=LISTSTATUS&user.name=" + user, 200, `"pathSuffix":"h"`},
	} {
		response := r.send(x.method, x.target, strings.NewReader(""))
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != x.code || !strings.Contains(string(body), x.body) || x.body == "" && len(body) > 0 {
			t.Errorf("%s %.80s: %d %s\n\twant %d %s", x.method, x.target, response.StatusCode, body, x.code, x.body)
		}
	}
}

func TestListingPagesAreStitchedTogether(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.Properties.ListLimit = 3 })
	r := &replay{t: t, m: c.leader()}
	user := c.nodes[0].config.Door.Daemon()
	for _, name := range []string{"a", "b", "B", "10", "9", "é", "~"} {
		if err := c.root().Mkdirs(t.Context(), "/d/"+name, 0o755, true); err != nil {
			t.Fatal(err)
		}
	}
	names := func(target string) (out []string, remaining int) {
		var l struct {
			FileStatuses     struct{ FileStatus []struct{ PathSuffix string } }
			DirectoryListing struct {
				PartialListing struct {
					FileStatuses struct{ FileStatus []struct{ PathSuffix string } }
				}
				RemainingEntries int
			}
		}
		if err := json.NewDecoder(r.send("GET", target+"&user.name="+user, nil).Body).Decode(&l); err != nil {
			t.Fatal(err)
		}
		for _, f := range append(l.FileStatuses.FileStatus, l.DirectoryListing.PartialListing.FileStatuses.FileStatus...) {
			out = append(out, f.PathSuffix)
		}
		return out, l.DirectoryListing.RemainingEntries
	}
	if got, _ := names("/d?op=LISTSTATUS"); fmt.Sprint(got) != "[10 9 B a b ~ é]" {
		t.Errorf("LISTSTATUS: %v", got)
	}
	if got, left := names("/d?op=LISTSTATUS_BATCH&startAfter=9"); fmt.Sprint(got) != "[B a b]" || left != 2 {
		t.Errorf("LISTSTATUS_BATCH: %v, %d left", got, left)
	}
}

func TestHealthPages(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader := c.leader()
	for _, m := range c.nodes {
		for _, page := range []string{"livez", "readyz", "health"} {
			response, err := http.Get("http://" + m.http + "/" + page)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			state := "standby"
			if m == leader {
				state = "active"
			}
			if response.StatusCode != 200 || page != "livez" && !strings.Contains(string(body), state) {
				t.Errorf("%s of %s: %d %s", page, m.config.ID, response.StatusCode, body)
			}
		}
		if m != leader {
			r := &replay{t: t, m: m}
			response := r.send("GET", "/?op=LISTSTATUS&user.name="+m.config.Door.Daemon(), nil)
			body, _ := io.ReadAll(response.Body)
			if response.StatusCode != 403 || !strings.Contains(string(body), `"javaClassName":"org.apache.hadoop.ipc.StandbyException"`) {
				t.Errorf("WebHDFS of a follower: %d %s", response.StatusCode, body)
			}
		}
	}
	request, err := http.NewRequest("GET", "http://"+leader.http+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "evil.example"
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode == 200 {
		t.Error("a request for another host was served")
	}
}
