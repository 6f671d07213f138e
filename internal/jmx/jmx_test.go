package jmx

import (
	"encoding/json"
	"math"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

var some = []Bean{
	{"Hadoop:service=NameNode,name=NameNodeInfo", "org.FSNamesystem", Pairs("Total", int64(270553174016), "Safemode", "", "PercentUsed", 9.083612e-06, "Nodes", []string{"a", "b"})},
	{"Hadoop:service=NameNode,name=RpcActivityForPort8020", "RpcActivityForPort8020", Pairs("tag.port", "8020", "RpcQueueTimeAvgTime", 3.0, "Ready", true)},
	{"java.lang:type=Memory", "sun.management.MemoryImpl", Pairs("HeapMemoryUsage", Pairs("max", -1, "used", int32(5)), "Empty", []string{}, "None", Attributes{})},
}

func ask(t *testing.T, query string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(func() []Bean { return some }).ServeHTTP(w, httptest.NewRequest("GET", "/jmx"+query, nil))
	if got := w.Header().Get("Content-Type"); got != "application/json; charset=utf8" {
		t.Errorf("%s: %s", query, got)
	}
	return w.Code, w.Body.String()
}

// The text is Hadoop 3.4.3's, byte for byte.
func TestAnswersAreWrittenAsHadoopDoes(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"?get=Hadoop:service=NameNode,name=NameNodeInfo::Total": `{
  "beans" : [ {
    "name" : "Hadoop:service=NameNode,name=NameNodeInfo",
    "modelerType" : "org.FSNamesystem",
    "Total" : 270553174016
  } ]
}
`,
		"?get=Hadoop:service=NameNode,name=NameNodeInfo::Nope": `{
  "beans" : [ {
    "name" : "Hadoop:service=NameNode,name=NameNodeInfo",
    "modelerType" : "org.FSNamesystem",
    "result" : "ERROR",
    "message" : "No attribute with name Nope was found."
  } ]
}
`,
		"?get=a": `{
  "result" : "ERROR",
  "message" : "query format is not as expected."
}
`,
		"?qry=Hadoop:service=Nix": `{
  "beans" : [ ]
}
`,
		"?qry=java.lang:*": `{
  "beans" : [ {
    "name" : "java.lang:type=Memory",
    "modelerType" : "sun.management.MemoryImpl",
    "HeapMemoryUsage" : {
      "max" : -1,
      "used" : 5
    },
    "Empty" : [ ],
    "None" : { }
  } ]
}
`,
	} {
		if code, got := ask(t, query); code != 200 || got != want {
			t.Errorf("%s: %d %s", query, code, got)
		}
	}
}

func TestBeansAreSelectedByPattern(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int{
		"": 3, "*:*": 3, "Hadoop:*": 2, "Hadoop:service=NameNode,name=RpcActivity*": 1, "Hadoop:name=NameNodeInfo,service=NameNode": 1, "Hadoop:service=NameNode": 0,
		"Hadoop:service=NameNode,*": 2, "Ha?oop:service=*,name=*": 2, "*:name=*Info,*": 1, "*a*:type=M*y": 1, "x:*": 0, "Hadoop:service=NameNode,name=?": 0,
		"bad": -1, "a:": -1, "a:b": -1, "a:=c": -1, "a:b=1,b=2": -1, "a:b=" + strings.Repeat("x", maxQuery): -1,
		"a:b=" + strings.Repeat("*", 1000): 0,
	} {
		code, body := ask(t, "?qry="+url.QueryEscape(query))
		var answer struct{ Beans []map[string]any }
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		if want >= 0 && (code != 200 || len(answer.Beans) != want) || want < 0 && code != 400 {
			t.Errorf("%s: %d, %d beans", query, code, len(answer.Beans))
		}
	}
}

func TestDoublesAreWrittenAsJavaDoes(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0.0", 1882: "1882.0", 544.7777777777778: "544.7777777777778", 9.083612e-06: "9.083612E-6", 1e7: "1.0E7", 1234567: "1234567.0", -2.5: "-2.5", 0.001: "0.001",
		1.5e20: "1.5E20", -1e-10: "-1.0E-10", math.Inf(1): `"Infinity"`,
	} {
		if got := string(appendDouble(nil, v)); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	if got := string(appendDouble(nil, math.NaN())); got != `"NaN"` {
		t.Error(got)
	}
}

func TestTheProcessHasAHeap(t *testing.T) {
	t.Parallel()
	for _, b := range Process("1") {
		if b.Name != "java.lang:type=Memory" {
			continue
		}
		for _, a := range b.Attributes {
			if parts, ok := a.Value.(Attributes); ok && a.Name == "HeapMemoryUsage" {
				if parts[0].Name != "committed" || parts[3].Name != "used" || parts[3].Value.(int64) <= 0 || parts[0].Value.(int64) < parts[3].Value.(int64) {
					t.Error(parts)
				}
				return
			}
		}
	}
	t.Error("no heap")
}

func FuzzQuery(f *testing.F) {
	for _, q := range []string{"*:*", "Hadoop:service=NameNode,name=RpcActivity*", "a:b=*?*,*", ":::", "a::b"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		p, ok := parsePattern(query)
		if ok {
			for _, b := range some {
				p.matches(b.Name)
			}
		}
		if len(query) < maxQuery && !glob(query, query) && !strings.ContainsAny(query, "*?") {
			t.Errorf("%q does not match itself", query)
		}
	})
}
