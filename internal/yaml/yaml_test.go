package yaml

import (
	"encoding/json"
	"strings"
	"testing"
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
		"an unknown key":              {"name: a\nnam: b\n", "x.yaml: line 2: unknown field"},
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
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %.300v, want %s", err, test.want)
			}
		})
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
			if err != nil && (!strings.HasPrefix(err.Error(), "x.yaml: ") || strings.Contains(err.Error(), "\n")) {
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
