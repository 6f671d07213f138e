package yaml

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

type config struct {
	Name string            `yaml:"name"`
	Size map[string]int    `yaml:"size"`
	List []map[string]bool `yaml:"list"`
}

// brings the library down: it takes the tag's text for a position in the file.
const panics = "gpus:\n  ! 0000000000000000\n00000008: 000000\nA: !0000000\n" +
	"00000000000000000000000000000000000000000000000000000000000000000000000000000000"

func TestErrorsAreOneLineWithTheFilesName(t *testing.T) {
	deep := "list: " + strings.Repeat("[", maxDepth+1)
	for name, test := range map[string]struct{ text, want string }{
		"a panic of the library":      {panics, "x.yaml: "},
		"an unknown key":              {"name: a\nnam: b\n", "x.yaml: line 2: unknown key nam (did you mean name?)"},
		"a type":                      {"name: a\nsize: {a: b}\n", "x.yaml: line 2: "},
		"syntax":                      {"name: [", "x.yaml: line 1: "},
		"too long":                    {strings.Repeat("#", maxBytes+1), "x.yaml: 1048577 bytes, the most that is read is 1048576"},
		"too many words":              {"list: [" + strings.Repeat("a,", maxTokens/2) + "]", "x.yaml: 200"},
		"too many keys":               {strings.Repeat("a:\n", maxKeys+1), "x.yaml: line 10001: more than 10000 keys"},
		"a second document":           {"name: a\n---\nname: b\n", "x.yaml: it holds 2 documents, one is read"},
		"more documents":              {"---\nname: a\n---\nname: b\n", "x.yaml: line 3: a second document begins, one is read"},
		"brackets":                    {deep, "x.yaml: line 1: values are nested more than 100 deep"},
		"lists in lists":              {strings.Repeat("- ", maxDepth+1) + "x", "x.yaml: line 1: values are nested more than 100 deep"},
		"tags":                        {strings.Repeat("!a ", maxDepth+1) + "x", "x.yaml: line 1: values are nested more than 100 deep"},
		"an alias of nothing":         {"name: *a", "x.yaml: its aliases have no end, no anchor"},
		"an alias of what it is part": {"list: &a [*a]", "x.yaml: its aliases have no end"},
		"aliases of aliases":          {laughs(), "x.yaml: its aliases have no end, no anchor, or stand for more than 1000000 values"},
	} {
		t.Run(name, func(t *testing.T) {
			err := UnmarshalStrict("x.yaml", []byte(test.text), new(config))
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || !named(err) {
				t.Errorf("got %.300v, want %s", err, test.want)
			}
		})
	}
}

// named reports whether an error is of one line, or of one line per mistake, each with the file's name.
func named(err error) bool {
	lines := strings.Split(err.Error(), "\n")
	if _, several := errors.AsType[*Mistakes](err); !several && len(lines) > 1 {
		return false
	}
	return !slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "x.yaml: ") })
}

func TestAllMistakesAreToldAtOnceWithTheirLines(t *testing.T) {
	type inner struct {
		Memory string        `yaml:"memory" json:"memory"`
		Wait   time.Duration `yaml:"wait" json:"-"`
		GPUs   int           `yaml:"gpus" json:"gpus"`
	}
	type embedded struct {
		Trials int `json:"trials"`
	}
	type document struct {
		embedded
		Command   []string          `yaml:"command" json:"command"`
		Resources inner             `yaml:"resources" json:"resources"`
		Env       map[string]string `yaml:"env" json:"env"`
		Share     float64           `yaml:"share" json:"share"`
		On        bool              `yaml:"on" json:"on"`
	}
	text := "comand: [true]\nresources:\n  memroy: 1GiB\n  wait: 10\n  gpus: two\ncommand: python3 x.py\nenv: [A]\nshare: half\non: 7\n"
	want := []string{
		"f: line 1: unknown key comand (did you mean command?)",
		"f: line 3: unknown key resources.memroy (did you mean memory?)",
		"f: line 4: resources.wait: 10 is not a duration (examples: 90s, 5m, 2h)",
		`f: line 5: resources.gpus: "two" stands where a whole number is wanted`,
		`f: line 6: command: "python3 x.py" stands where a list, as [python3, x.py], is wanted`,
		"f: line 7: env: a list stands where keys with values is wanted",
		`f: line 8: share: "half" stands where a number is wanted`,
		"f: line 9: on: 7 stands where true or false is wanted",
	}
	err := UnmarshalStrict("f", []byte(text), new(document))
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("%v", err)
	}
	var d document
	if err := UnmarshalJSON("f", []byte("trials: 3\ncommand: [a]\nresources: {gpus: 2}\n"), &d); err != nil || d.Trials != 3 || d.Resources.GPUs != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	err = UnmarshalJSON("f", []byte("trails: 3\ncommand: [1]\nresources: {wait: 1s}\n"), &d)
	if err == nil || err.Error() != "f: line 1: unknown key trails (did you mean trials?)\nf: line 2: command[0]: 1 stands where a text, in quotes, is wanted\nf: line 3: unknown key resources.wait" {
		t.Errorf("%v", err)
	}
}

func laughs() string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := byte('1'); i < '9'; i++ {
		a := "*a" + string(i-1)
		text += "a" + string(i) + ": &a" + string(i) + " [" + strings.Repeat(a+", ", 9) + a + "]\n"
	}
	return text
}

func TestValuesAliasesAndLines(t *testing.T) {
	text := []byte("name: x # comment\nsize:\n  a: &one 1\n  b: *one\nlist:\n- a: true\n- {b: false}\n")
	var c config
	if err := UnmarshalStrict("x", text, &c); err != nil || c.Name != "x" || c.Size["b"] != 1 || !c.List[0]["a"] {
		t.Errorf("%+v, %v", c, err)
	}
	lines, err := ReadLines("x", text)
	if err != nil || lines.Of("$.list[0]") != 6 || lines.Of("$.list[1]") != 7 || lines.Of("$.list[9]") != 0 || lines.Of("][") != 0 {
		t.Error(lines.Of("$.list[0]"), lines.Of("$.list[1]"), err)
	}
	if asJSON, err := ToJSON("x", []byte("a: [1, two]\n")); err != nil || strings.TrimSpace(string(asJSON)) != `{"a": [1, "two"]}` {
		t.Errorf("%s, %v", asJSON, err)
	}
	if _, err := ToJSON("x.yaml", []byte(laughs())); err == nil || !strings.HasPrefix(err.Error(), "x.yaml: ") {
		t.Error(err)
	}
}

// Whatever the text, reading it ends, in a value or in an error of one line; and what is written can be read.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{panics, laughs(), "name: x\nsize: {a: 1}\nlist:\n- a: yes\n- &x {b: no}\n- *x\n", "a: !!binary aGk=\n<<: {b: |\n  x\n}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var c config
		var tree any
		for _, err := range []error{UnmarshalStrict("x.yaml", text, &c), Unmarshal("x.yaml", text, &tree)} {
			if err != nil && !named(err) {
				t.Errorf("error %q", err)
			}
		}
		if lines, err := ReadLines("x.yaml", text); err == nil {
			lines.Of("$.list[0]")
		}
		if asJSON, err := ToJSON("x.yaml", text); err == nil {
			json.Unmarshal(asJSON, &tree)
		}
	})
}
