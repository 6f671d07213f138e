package kerberos

import (
	"os"
	"strings"
	"testing"
)

// Rules do what Apache Hadoop's do, as recorded. Two things are otherwise: rules that refuse a name because they are wrong are
// refused themselves, and nobody has an empty name.
func TestRulesAsHadoop(t *testing.T) {
	text, err := os.ReadFile("testdata/auth_to_local.txt")
	if err != nil {
		t.Fatal(err)
	}
	var rules *Rules
	var source string
	var wrong error
	names := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if s, ok := strings.CutPrefix(line, "rules "); ok {
			source = s
			rules, wrong = ParseRules(strings.ReplaceAll(s, `\n`, "\n"), realm)
			continue
		}
		if line == "refused" {
			if wrong == nil {
				t.Errorf("%s: is taken", source)
			}
			continue
		}
		rest, ok := strings.CutPrefix(line, "name ")
		if !ok {
			continue
		}
		name, want, _ := strings.Cut(rest, " ")
		p, err := ParsePrincipal(name)
		if err != nil { // without a realm no ticket is
			continue
		}
		names++
		if rules == nil {
			if !strings.HasPrefix(want, "! ") {
				t.Errorf("%s: %v, and Hadoop takes it", source, wrong)
			}
			continue
		}
		short, err := rules.ShortName(p)
		words, refused := strings.CutPrefix(want, "! ")
		switch {
		case want == "-> ":
			if err == nil {
				t.Errorf("%s: %s has an empty name", source, name)
			}
		case refused:
			if err == nil || !strings.HasPrefix(err.Error(), strings.Split(words, " after")[0]) && !strings.Contains(words, "Non-simple") {
				t.Errorf("%s: %s is %q, %v; Hadoop says %q", source, name, short, err, words)
			}
		case err != nil || short != strings.TrimPrefix(want, "-> "):
			t.Errorf("%s: %s is %q, %v; Hadoop has %q", source, name, short, err, want)
		}
	}
	if names < 45 {
		t.Errorf("only %d names were looked at", names)
	}
}

func TestWrongRules(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no rule", "RULE", `"RULE" is no rule: DEFAULT, or RULE:[n:string](regexp)s/pattern/replacement/g`},
		{"a part that is not there", "RULE:[1:$2]", "$2 is none of $0 to $1"},
		{"lookahead", "RULE:[1:$1]((?=a)s/a/b/", "without lookaround and backreferences"},
		{"a pattern that is none", "RULE:[1:$1](a**)", "invalid nested repetition operator"},
		{"a group that is not there", "RULE:[1:$1]s/a/$1/", "names a group that the pattern does not have"},
		{"too many parts", "RULE:[9:$1]", `"9" is no number of parts`},
		{"too many rules", strings.Repeat("DEFAULT ", maxRules+1), "there are more than 1000 rules"},
		{"too long", strings.Repeat(" ", maxRulesText+1), "rules of 262145 bytes are too long"},
		{"a long pattern", "RULE:[1:$1](" + strings.Repeat("a", maxPattern+1) + ")", "a pattern of 4103 bytes is too long"},
		{"a backslash at the end", `RULE:[1:$1]s/a/\/`, `ends with a backslash`},
	} {
		if _, err := ParseRules(c.text, realm); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	r, err := ParseRules("", realm)
	if err != nil {
		t.Fatal(err)
	}
	if short, err := r.ShortName(principal(t, "alice@"+realm)); err != nil || short != "alice" {
		t.Errorf("no rules make %q, %v", short, err)
	}
}
