// Package jerseytest replays recorded exchanges with YARN's servers (Hadoop 3.4.1) and says what is different in the answers.
package jerseytest

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Exchange is a recorded request with its answer.
type Exchange struct {
	Name, Method, Target, Body string
	Header                     http.Header
	Status                     int
	Answer                     string
	Answered                   http.Header
}

// split separates the head from the body.
func split(text string) (lines []string, header http.Header, body string) {
	head, body, _ := strings.Cut(text, "\n\n")
	lines = strings.Split(strings.TrimSpace(head), "\n")
	header = http.Header{}
	for _, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ": ")
		header.Add(name, value)
	}
	return lines, header, strings.TrimSpace(body)
}

// Read reads a recording. replace are pairs of texts, as of strings.NewReplacer, for what is called otherwise here.
func Read(t *testing.T, file string, replace ...string) Exchange {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	request, answer, ok := strings.Cut(string(b), "\nHTTP/1.1 ")
	if !ok {
		t.Fatalf("%s holds no answer", file)
	}
	other := strings.NewReplacer(replace...)
	request, answer = other.Replace(request), other.Replace(answer)
	x := Exchange{Name: strings.TrimSuffix(filepath.Base(file), ".http")}
	var lines []string
	lines, x.Header, x.Body = split(request)
	words := strings.Fields(lines[0])
	x.Method, x.Target = words[0], words[1]
	lines, x.Answered, x.Answer = split(answer)
	fmt.Sscan(lines[0], &x.Status)
	return x
}

// Replay sends a recorded request to a server and returns what is different in its answer. optional are members that need not be there.
func (x Exchange) Replay(t *testing.T, url string, optional []string) (status int, different []string) {
	t.Helper()
	r, err := http.NewRequest(x.Method, url+x.Target, strings.NewReader(x.Body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = x.Header.Clone()
	r.Host = x.Header.Get("Host")
	client := http.Client{
		Transport:     &http.Transport{DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != x.Status {
		return response.StatusCode, []string{fmt.Sprintf("status %d, recorded %d: %.300s", response.StatusCode, x.Status, b)}
	}
	for _, name := range []string{"X-Content-Type-Options", "X-FRAME-OPTIONS", "Vary", "Location", "Cache-Control"} {
		want, have := x.Answered.Get(name), response.Header.Get(name)
		if want != have && (name == "Location" || have == "") {
			different = append(different, fmt.Sprintf("header %s: %q, recorded %q", name, have, want))
		}
	}
	if x.Answer != "" || len(b) > 0 {
		want, _, _ := mime.ParseMediaType(x.Answered.Get("Content-Type"))
		if have, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); want != have {
			different = append(different, fmt.Sprintf("content type %q, recorded %q", have, want))
		}
	}
	return response.StatusCode, append(different, differences(t, x.Answer, string(b), optional)...)
}

var timesAndNumbers = regexp.MustCompile(`\b\d{13}\b|at index \d+`)

// differences compares bodies: errors and plain text word for word, pages not at all, everything else by members and types.
func differences(t *testing.T, want, have string, optional []string) []string {
	t.Helper()
	have = strings.TrimSpace(have)
	switch {
	case strings.Contains(want, "</html>") || strings.HasPrefix(want, "<!DOCTYPE html"):
		if !strings.Contains(have, "<html") && have != "" && !strings.Contains(have, "<a href") {
			return []string{"no page: " + have}
		}
		return nil
	case strings.HasPrefix(want, "<?xml"):
		return Lacks("", Shape(elements(t, want)), Shape(elements(t, have)), optional)
	case strings.HasPrefix(want, "{") && !strings.Contains(want, `"exception":`):
		if !strings.HasPrefix(have, "{") {
			return []string{"not JSON: " + have}
		}
		return Lacks("", Shape(Parse(t, want)), Shape(Parse(t, have)), optional)
	}
	if before, _, ok := strings.Cut(want, `[com.`); ok && strings.Contains(before, "linked exception") { // behind it are the words of Java's parser
		if !strings.HasPrefix(have, before) || !strings.Contains(have, `"javaClassName":"javax.ws.rs.WebApplicationException"`) {
			return []string{fmt.Sprintf("%s, recorded %s…", have, before)}
		}
		return nil
	}
	if before, _, ok := strings.Cut(want, `[javax.`); ok && strings.Contains(before, "linked exception") {
		if !strings.HasPrefix(have, before) {
			return []string{fmt.Sprintf("%s, recorded %s…", have, before)}
		}
		return nil
	}
	if timesAndNumbers.ReplaceAllString(have, "N") != timesAndNumbers.ReplaceAllString(want, "N") {
		return []string{fmt.Sprintf("%q, recorded %q", have, want)}
	}
	return nil
}

// elements makes of an XML document what parse makes of JSON.
func elements(t *testing.T, text string) any {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	var inside func() any
	inside = func() any {
		members := map[string]any{}
		for {
			token, err := d.Token()
			if err != nil {
				t.Fatalf("%v in %.200s", err, text)
			}
			switch e := token.(type) {
			case xml.StartElement:
				list, _ := members[e.Name.Local].([]any)
				members[e.Name.Local] = append(list, inside())
			case xml.EndElement:
				if len(members) == 0 {
					return "text"
				}
				return members
			}
		}
	}
	for {
		token, err := d.Token()
		if err != nil {
			t.Fatalf("%v in %.200s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok {
			return map[string]any{e.Name.Local: inside()}
		}
	}
}

// Shape reduces a value to names and types: every list to the union of its elements.
func Shape(v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range x {
			out[k] = Shape(e)
		}
		return out
	case []any:
		var out any
		for _, e := range x {
			out = merge(out, Shape(e))
		}
		return []any{out}
	case string:
		return "text"
	case json.Number:
		return "number"
	case bool:
		return "bool"
	}
	return "null"
}

func merge(a, b any) any {
	x, ok1 := a.(map[string]any)
	y, ok2 := b.(map[string]any)
	if !ok1 || !ok2 {
		return b
	}
	for k, v := range y {
		x[k] = merge(x[k], v)
	}
	return x
}

// Lacks lists what want has and have has not, or has with another type. Extra fields are allowed, as they are to YARN's
// clients. optional paths may be absent.
func Lacks(path string, want, have any, optional []string) []string {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s: want an object, have %v", path, have)}
		}
		var out []string
		for k, e := range w {
			at := path + "." + k
			if slices.Contains(optional, at) {
				continue
			}
			if _, there := h[k]; !there {
				out = append(out, at+" is missing")
				continue
			}
			if list, ok := h[k].([]any); ok && k == "entry" && len(list) == 1 { // of a map: a repeated member there, a list here
				if _, one := e.(map[string]any); one {
					e = []any{e}
				}
			}
			out = append(out, Lacks(at, e, h[k], optional)...)
		}
		return out
	case []any:
		h, ok := have.([]any)
		if !ok {
			return []string{fmt.Sprintf("%s: want a list, have %v", path, have)}
		}
		if len(w) == 0 || w[0] == nil {
			return nil
		}
		if len(h) == 0 || h[0] == nil {
			return []string{path + ": the list is empty"}
		}
		return Lacks(path+"[]", w[0], h[0], optional)
	}
	if want != have {
		return []string{fmt.Sprintf("%s: want %v, have %v", path, want, have)}
	}
	return nil
}

// Parse decodes JSON with numbers as they are.
func Parse(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %.200s", err, text)
	}
	return v
}

// Deviation is an answer that is another than the recorded one, and why.
type Deviation struct {
	Status int
	Why    string
}

// Check replays recordings in the order of their names: what is not as recorded must be among the deviations, with its status, and what
// agrees must not. before is called before each.
func Check(t *testing.T, files []string, url string, before func(name string), optional map[string][]string, deviations map[string]Deviation, replace ...string) {
	t.Helper()
	slices.Sort(files)
	agree := 0
	rest := maps.Clone(deviations)
	for _, file := range files {
		x := Read(t, file, replace...)
		before(x.Name)
		known, deviates := rest[x.Name]
		delete(rest, x.Name)
		t.Run(x.Name, func(t *testing.T) {
			status, different := x.Replay(t, url, optional[x.Name])
			switch {
			case len(different) == 0:
				agree++
				if deviates {
					t.Error("it agrees with the recording: take it off the list of deviations")
				}
			case !deviates:
				t.Errorf("%s %s:\n\t%s", x.Method, x.Target, strings.Join(different, "\n\t"))
			case status != known.Status:
				t.Errorf("status %d, want %d, because %s:\n\t%s", status, known.Status, known.Why, strings.Join(different, "\n\t"))
			}
		})
	}
	for name := range rest {
		t.Errorf("%s: there is no such recording", name)
	}
	t.Logf("%d of %d recorded exchanges agree, %d deviate on purpose", agree, len(files), len(files)-agree)
}
