package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

func TestParse(t *testing.T) {
	s, err := Parse([]byte(`{"name":"x","argv":["python3","a.py"],"resources":{"memory":"8GiB","vcores":2,"gpus":1},"timeout":"2h","env":{"B":"2","A":"1"},"id":"forged","retry":{"max":3,"on":["node_lost"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Kind != rm.KindCommand || s.Queue != "default" || s.Instances != 1 || s.ID != "" {
		t.Errorf("defaults: %+v", s)
	}
	if got := s.Resources.Amount(); got != (rm.Resource{Memory: 8 << 30, VCores: 2, GPUs: 1}) {
		t.Errorf("resources %v", got)
	}
	if time.Duration(s.Timeout) != 2*time.Hour {
		t.Errorf("timeout %v", s.Timeout)
	}
	l := s.Launch(map[string]string{"C": "3"})
	if want := []rm.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "C", Value: "3"}}; !reflect.DeepEqual(l.Env, want) {
		t.Errorf("env %v", l.Env)
	}
	b, _ := json.Marshal(s)
	again, err := Parse(b)
	if err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("round trip: %v\n%+v\n%+v", err, again, s)
	}
}

func TestDocumentsThatReadersUnderstandDifferentlyAreRefused(t *testing.T) {
	for document, want := range map[string]string{
		`{"argv":["a"],"queue":"a","queue":"b"}`:                                       `"queue" is there twice`,
		"{\"argv\":[\"a\"],\n \"queue\":\"a\",\"QUEUE\":\"b\"}":                        `line 2, column 20: "QUEUE" is there twice`,
		`{"argv":["a"],"user":"ann","u\u017fer":"root"}`:                               "is there twice",
		`{"argv":["a"],"resources":{"gpus":1,"gpus":8}}`:                               `"gpus" is there twice`,
		`{"argv":["a"],"artifacts":[{"name":"x","uri":"/x","Name":"y"}]}`:              `"Name" is there twice`,
		`{"argv":["a"],"env":{"X":"1","X":"2"}}`:                                       `"X" is there twice`,
		`{"kind":"experiment","experiment":{"space":{"lr":{"a":1,"a":2}}}}`:            `"a" is there twice`,
		"{\"argv\":[\"a\"],\n\"name\":\"\xff\"}":                                       "line 2, column 8: byte 0xff is not UTF-8",
		`{"argv":["a"],"env":{"X":"1","x":"2"},"artifacts":[]}`:                        "",
		`{"argv":["a"],"artifacts":[{"name":"x","uri":"/x"},{"name":"y","uri":"/y"}]}`: "",
		`{"argv":["a"],"name":"é"}`:                                                    "",
		`{"kind":"experiment","experiment":{"space":{"n":{"x":1},"N":{"x":1}}}}`:       "",
	} {
		_, err := Parse([]byte(document))
		if want == "" && err != nil || want != "" && (!errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", document, err, want)
		}
	}
}

func TestWorkdirIsWhereTheCommandRuns(t *testing.T) {
	s, err := Parse([]byte(`{"run":"make all","workdir":"/user/ann/src.zip"}`))
	if err != nil {
		t.Fatal(err)
	}
	l := s.Launch(nil)
	if got := strings.Join(l.Argv, "|"); got != `/bin/sh|-c|cd workdir && exec "$@"|sh|/bin/sh|-c|make all` {
		t.Errorf("argv %s", got)
	}
	if a := l.Artifacts[0]; a.Kind != "archive" || a.URI != "/user/ann/src.zip" {
		t.Errorf("artifact %+v", a)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for document, want := range map[string]string{
		``:                               "cannot be read",
		`{}`:                             "argv: a command needs",
		`[]`:                             "cannot be read",
		`{"argv":["a"]} {}`:              "behind",
		`{"argv":["a"],"cpus":1}`:        `unknown field "cpus"`,
		`{"argv":[""]}`:                  "argv",
		`{"argv":["a"],"run":"b"}`:       "give one",
		`{"argv":["a"],"kind":"batch"}`:  "not command, experiment or master",
		`{"kind":"experiment"}`:          "experiment: a job of that kind",
		`{"argv":["a"],"instances":-1}`:  "instances",
		`{"argv":["a"],"timeout":"two"}`: "no duration",
		`{"argv":["a"],"timeout":-1}`:    "no duration",
		`{"argv":["a"],"resources":{"memory":"lots"}}`:                      "not a size",
		`{"argv":["a"],"resources":{"gpus":-1}}`:                            "resources.gpus",
		`{"argv":["a"],"env":{"A=B":"c"}}`:                                  "env",
		`{"argv":["a"],"artifacts":[{"name":"../x","uri":"/x"}]}`:           "no path inside",
		`{"argv":["a"],"artifacts":[{"name":"/x","uri":"/x"}]}`:             "no path inside",
		`{"argv":["a"],"artifacts":[{"name":"x"}]}`:                         "needs a uri or content",
		`{"argv":["a"],"artifacts":[{"name":"job.json","uri":"/x"}]}`:       "taken",
		`{"argv":["a"],"artifacts":[{"name":"x","uri":"/x","kind":"exe"}]}`: "not file, archive or code",
		`{"argv":["a"],"retry":{"max":3,"on":["monday"]}}`:                  "retry.on",
		`{"argv":["a"],"name":"` + strings.Repeat("x", 300) + `"}`:          "name",
		strings.Repeat(" ", MaxBytes+1):                                     "limit",
	} {
		_, err := Parse([]byte(document))
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%.60s: %v, want %q", document, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"argv":["a"],"resources":{"memory":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err != nil {
			if !errors.Is(err, metadata.ErrInvalidArgument) {
				t.Errorf("refused with %v", err)
			}
			return
		}
		s.Launch(nil)
		written, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(written)
		if err != nil && len(written) <= MaxBytes {
			t.Fatalf("%s, written as %s, is refused: %v", b, written, err)
		}
		if twice, _ := json.Marshal(again); err == nil && string(twice) != string(written) {
			t.Errorf("%s\nis read again as\n%s", written, twice)
		}
	})
}

// What is plain says the same to a reader that takes the first of equal keys and to one that takes the last.
func FuzzPlain(f *testing.F) {
	f.Add([]byte(`{"a":1,"env":{"X":[{"a":1},{"a":2}],"x":2},"b":[[],{}]}`))
	f.Add([]byte(`{"a":{"k":1,"\u006b":2}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var tree any
		if Plain(b, "env") != nil || json.Unmarshal(b, &tree) != nil {
			return
		}
		written := 0
		for d := json.NewDecoder(bytes.NewReader(b)); ; written++ {
			if _, err := d.Token(); err != nil {
				break
			}
		}
		// Tokens are: both ends of each object and list, keys, and other values.
		all := 0
		var tokens func(v any)
		tokens = func(v any) {
			switch x := v.(type) {
			case map[string]any:
				all += 2 + len(x)
				for _, e := range x {
					tokens(e)
				}
			case []any:
				all += 2
				for _, e := range x {
					tokens(e)
				}
			default:
				all++
			}
		}
		tokens(tree)
		if all != written {
			t.Errorf("%s: %d tokens, %d in what is kept of it", b, written, all)
		}
	})
}
