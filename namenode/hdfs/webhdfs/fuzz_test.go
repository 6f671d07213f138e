package webhdfs

import (
	"bytes"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// FuzzParameters reads a query. What is accepted says the same when it is written and read again, and numbers lie where
// they have to.
func FuzzParameters(f *testing.F) {
	for _, query := range []string{
		"op=SETACL&aclspec=user::rwx,group::r-x,other::---,default:user:bob:rw-,mask::rwx", "aclspec=default:other::,user:b:",
		"xattr.name=user.x&xattr.value=0x00ff&encoding=hex", "xattr.name=TRUSTED.y&xattr.value=0sAAEC", "xattr.value=\"text\"",
		"destination=/a/b&sources=/c,/d&permission=1777&fsaction=r-x&length=9223372036854775807&overwrite=TRUE",
		"PERMISSION=08&length=-1&offset=null&replication=32768", "%zz", "a;b",
	} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		query, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q := &request{params: paramsOf(query), op: "TEST"}
		for name := range q.params {
			if name != strings.ToLower(name) {
				t.Errorf("a parameter is called %q", name)
			}
		}
		if n, err := q.params.integer("length", 7, 64, 0); err == nil && n < 0 || err != nil && !isParameter(err) {
			t.Errorf("length %d, %v", n, err)
		}
		if n, err := q.params.integer("replication", 1, 16, 1); err == nil && (n < 1 || n > 1<<15-1) {
			t.Errorf("replication %d", n)
		}
		if m, err := q.params.permission("permission", 0); err == nil && m > 0o1777 || err != nil && !isParameter(err) {
			t.Errorf("permission %o, %v", m, err)
		}
		if p, err := q.params.path("destination", q.op); err == nil && !strings.HasPrefix(p, "/") {
			t.Errorf("destination %q", p)
		}
		if a, err := q.params.access("fsaction"); err == nil && a.Symbol() != q.params["fsaction"] {
			t.Errorf("access %q of %q", a.Symbol(), q.params["fsaction"])
		}
		for _, op := range []string{"OPEN", "CREATE", "APPEND"} {
			if err := q.params.checkData(op); err != nil && !isParameter(err) {
				t.Errorf("%s: %v", op, err)
			}
		}
		checkACL(t, q)
		checkXAttr(t, q)
	})
}

func isParameter(err error) bool {
	_, ok := errors.AsType[*parameterError](err)
	return ok
}

func checkACL(t *testing.T, q *request) {
	for _, rights := range []bool{true, false} {
		entries, err := q.aclSpec(rights)
		if err != nil {
			continue
		}
		texts := make([]string, len(entries))
		for i, e := range entries {
			texts[i] = e.String()
		}
		again, err := (&request{params: params{"aclspec": strings.Join(texts, ",")}}).aclSpec(rights)
		if err != nil || !slices.Equal(again, entries) {
			t.Errorf("%q: %v become %v, %v", q.params["aclspec"], entries, again, err)
		}
	}
}

func checkXAttr(t *testing.T, q *request) {
	if a, err := xattrName(q.params["xattr.name"]); err == nil {
		again, err := xattrName(a.FullName())
		if err != nil || again.Namespace != a.Namespace || again.Name != a.Name || a.Name == "" {
			t.Errorf("%q: %+v becomes %+v, %v", q.params["xattr.name"], a, again, err)
		}
	} else if metadata.KindOf(err) != metadata.ErrInvalidArgument {
		t.Errorf("%q: %v", q.params["xattr.name"], err)
	}
	v, err := decodeValue(q.params["xattr.value"])
	if err != nil {
		return
	}
	for _, encoding := range []string{"HEX", "BASE64"} {
		if again, err := decodeValue(encodeValue(v, encoding)); err != nil || !bytes.Equal(again, v) {
			t.Errorf("%x in %s becomes %x, %v", v, encoding, again, err)
		}
	}
}

// FuzzPublishSteps reads the body of a PUBLISH. What is accepted has steps with absolute paths and attributes with names.
func FuzzPublishSteps(f *testing.F) {
	for _, text := range []string{
		`{"steps": [{"rename": {"source": "a", "destination": "/b", "overwrite": true}}, {"delete": {"path": "c", "recursive": true, "ifThere": true}}]}`,
		`{"steps": [{"setXAttr": {"path": "", "name": "user.a", "value": "0x00ff", "flag": "CREATE"}}, {"removeXAttr": {"path": "/", "name": "trusted.b"}}, {"createSnapshot": {"path": "d", "name": "s"}}]}`,
		`{"steps": [{"setXAttr": {"name": "none"}}]}`, `{"steps": [{}]}`, `{"steps": [{"rename": {}, "delete": {}}]}`, `{"steps": [{"link": {}}]}`, `{}{}`, `[]`, `{"steps": null}`, "",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range []string{"/", "/dir"} {
			steps, err := (&request{path: path, op: "PUBLISH"}).publishSteps([]byte(text))
			if err != nil && metadata.KindOf(err) != metadata.ErrInvalidArgument && metadata.KindOf(err) != metadata.ErrIO {
				t.Errorf("%v", err)
			}
			for _, s := range steps {
				if !strings.HasPrefix(s.Path, "/") || s.To != "" && !strings.HasPrefix(s.To, "/") {
					t.Errorf("%+v", s)
				}
				if (s.What == namenode.PublishSetXAttr || s.What == namenode.PublishRemoveXAttr) && (s.Attribute.Name == "" || s.What == namenode.PublishSetXAttr && !s.Create && !s.Replace) {
					t.Errorf("%+v", s)
				}
			}
		}
	})
}
