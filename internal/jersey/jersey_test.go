package jersey

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

type part struct {
	Name  string   `json:"name"`
	None  struct{} `json:"none"`
	Count int64    `json:"count"`
}

type leaf struct {
	Extra bool `json:"extra"`
}

type whole struct {
	Type  string      `json:"type" xml:"type"`
	Share Float       `json:"share"`
	Parts []part      `json:"part"`
	Map   Map[string] `json:"map"`
	Gone  *part       `json:"gone,omitempty"`
	*leaf
}

func TestAnObjectInAllItsForms(t *testing.T) {
	w := whole{Type: "big", Share: 50, Parts: []part{{Name: "a<b", Count: 1 << 60}}, leaf: &leaf{true}}
	w.Map.Put("k", "v")
	for _, test := range []struct {
		d          Dialect
		json, bare string
	}{
		{Natural, `{"whole":{"type":"big","share":50.0,"part":[{"name":"a<b","none":{},"count":1152921504606846976}],"map":{"entry":[{"key":"k","value":"v"}]},"extra":true}}`, ""},
		{Bare, `{"type":"big","share":50.0,"part":[{"name":"a<b","none":{},"count":1152921504606846976}],"map":{"entry":[{"key":"k","value":"v"}]},"extra":true}`, ""},
		{Mapped, `{"type":"big","share":"50.0","part":{"name":"a<b","none":null,"count":"1152921504606846976"},"map":{"entry":{"key":"k","value":"v"}},"extra":"true"}`, ""},
	} {
		if b, err := (Object{"whole", test.d, w}).JSON(); err != nil || string(b) != test.json {
			t.Errorf("%v %s\nwant %s", err, b, test.json)
		}
		want := `<?xml version="1.0" encoding="UTF-8" standalone="yes"?><whole xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="big">` +
			`<share>50.0</share><part><name>a&lt;b</name><none/><count>1152921504606846976</count></part><map><entry><key>k</key><value>v</value></entry></map><extra>true</extra></whole>`
		if b, err := (Object{"whole", test.d, &w}).XML(); err != nil || string(b) != want {
			t.Errorf("%v %s\nwant %s", err, b, want)
		}
	}
	if b, _ := (Object{"whole", Mapped, struct {
		List []part      `json:"list"`
		Map  Map[string] `json:"map"`
	}{}}).JSON(); string(b) != `{"map":null}` {
		t.Errorf("nothing: %s", b)
	}
	if b, _ := (Object{"x", Mapped, part{"a", struct{}{}, 1}}).JSON(); !json.Valid(b) {
		t.Errorf("%s", b)
	}
}

type input struct {
	Name  string            `json:"name"`
	Count int               `json:"count"`
	Yes   bool              `json:"yes"`
	List  []string          `json:"list"`
	Env   map[string]string `json:"env"`
	Inner *struct {
		Memory int64 `json:"memory"`
	} `json:"inner"`
}

func TestBodiesAreReadLiberally(t *testing.T) {
	want := input{Name: "n", Count: 3, Yes: true, List: []string{"a"}, Env: map[string]string{"K": "v", "L": "w"}, Inner: &struct {
		Memory int64 `json:"memory"`
	}{1024}}
	for _, test := range []struct {
		body string
		xml  bool
		d    Dialect
	}{
		{`{"name":"n","count":3,"yes":true,"list":["a"],"env":{"entry":[{"key":"K","value":"v"},{"key":"L","value":"w"}]},"inner":{"memory":1024},"more":{}}`, false, Bare},
		{`{"name":"n","count":"3","yes":"true","list":"a","env":{"K":"v","L":"w"},"inner":{"memory":"1024"}}`, false, Bare},
		{`{"x":{"name":"n","count":3.0,"yes":"TRUE","list":"a","env":{"K":"v","L":"w"},"inner":{"memory":1.024e3}}}`, false, Natural},
		{`<x><name>n</name><count> 3 </count><yes>true</yes><list>a</list><env><entry><key>K</key><value>v</value></entry><entry><key>L</key><value>w</value></entry></env><inner><memory>1024</memory></inner></x>`, true, Mapped},
	} {
		var have input
		if err := Read([]byte(test.body), test.xml, "x", test.d, &have); err != nil || !reflect.DeepEqual(have, want) {
			t.Errorf("%s: %v %+v", test.body, err, have)
		}
	}
	for body, why := range map[string]string{
		`{"count":"many"}`: "count", `{"yes":"perhaps"}`: "yes", `{"inner":5}`: "inner", `{`: "EOF", `{"count":99999999999999999999}`: "range",
		`{} {}`: "more", `{"env":{"entry":[{"key":1}]}}`: "entry", `{"env":[]}`: "map",
	} {
		if err := Read([]byte(body), false, "x", Bare, &input{}); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", body, err)
		}
	}
	deep := strings.Repeat("<x>", 1000)
	for body, why := range map[string]string{
		`<y/>`: "expected", `<x`: "XML", `<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>`: "document type", `<x>&a;</x>`: "XML", deep: "deep", ``: "XML",
	} {
		if err := Read([]byte(body), true, "x", Bare, &input{}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40s: %v", body, err)
		}
	}
}

func FuzzBodiesAreReadOrRefused(f *testing.F) {
	f.Add([]byte(`{"name":"n","count":"3","env":{"entry":[{"key":"K","value":"v"}]}}`), false)
	f.Add([]byte(`<x><name>n</name><list>a</list><list>b</list></x>`), true)
	f.Fuzz(func(t *testing.T, body []byte, asXML bool) {
		var have input
		if Read(body, asXML, "x", Bare, &have) != nil {
			return
		}
		b, err := Object{"x", Natural, have.Name}.XML()
		if err != nil || len(b) == 0 {
			t.Errorf("%v %s", err, b)
		}
	})
}

func TestCallersChooseTheForm(t *testing.T) {
	for accept, want := range map[string]Media{
		"": JSON, "*/*": JSON, "application/json": JSON, "application/xml": XML, "text/html": None, "text/html, */*;q=0.1": JSON,
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": XML, "application/xml;q=0.5, application/json;q=0.4": XML, "application/*": JSON,
		"application/json;q=0, */*": XML, ";;": None,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		if have := Wants(r); have != want {
			t.Errorf("%q: %v, want %v", accept, have, want)
		}
	}
}

func TestAnswersArePackedWhenAsked(t *testing.T) {
	for encoding, packed := range map[string]bool{"": false, "gzip": true, "deflate, gzip;q=1.0": true, "gzip;q=0": false, "identity": false} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Encoding", encoding)
		recorder := httptest.NewRecorder()
		w, done := Compress(recorder, r)
		Write(w, r, http.StatusOK, Object{"x", Bare, part{Name: "hello"}})
		done()
		body := io.Reader(recorder.Body)
		if (recorder.Header().Get("Content-Encoding") == "gzip") != packed {
			t.Errorf("%q: %v", encoding, recorder.Header())
		}
		if packed {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		if b, _ := io.ReadAll(body); !strings.Contains(string(b), "hello") {
			t.Errorf("%q: %s", encoding, b)
		}
	}
}

// What has no body stays so: who reads an answer of no length as a whole one would take a packed nothing for half of one.
func TestAnswersWithoutABodyAreNotPacked(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w, done := Compress(w, r)
		defer done()
		code := http.StatusOK
		if r.URL.Path == "/made" {
			code = http.StatusCreated
		}
		switch r.URL.Path {
		case "/silent":
			return
		case "/flushed":
			http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "hello")
			return
		}
		w.WriteHeader(code)
		_, _ = w.Write(nil)
		if r.URL.Path == "/late" {
			_, _ = io.WriteString(w, "hello")
		}
	}))
	defer server.Close()
	for path, want := range map[string]struct {
		code   int
		packed bool
		body   string
	}{
		"/": {200, false, ""}, "/made": {201, false, ""}, "/silent": {200, false, ""}, "/late": {200, true, "hello"}, "/flushed": {200, true, "hello"},
	} {
		answer, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != want.code || answer.Uncompressed != want.packed || string(b) != want.body || !want.packed && answer.ContentLength != 0 {
			t.Errorf("%s: %d, packed %v, length %d, %q %v", path, answer.StatusCode, answer.Uncompressed, answer.ContentLength, b, err)
		}
	}
}
