package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/client/shell"
)

func TestEveryVerbHasACaseOfSuccessAndOneOfError(t *testing.T) {
	_, scenarios, err := readScenarios(filepath.Join("testdata", "fsshell.txt"))
	if err != nil {
		t.Fatal(err)
	}
	succeeds, fails := map[string]bool{}, map[string]bool{}
	for _, sc := range scenarios {
		for _, s := range sc.steps {
			switch {
			case s.api:
			case s.want.status == 0:
				succeeds[s.verb()] = true
			default:
				fails[s.verb()] = true
			}
		}
	}
	for _, verb := range shell.Verbs() {
		if verb == "watch" || verb == "pin" || verb == "unpin" || verb == "publish" { // which Hadoop does not have
			continue
		}
		if !succeeds[verb] && verb != "moveToLocal" { // which Hadoop does not implement
			t.Errorf("-%s has no case of success", verb)
		}
		if !fails[verb] {
			t.Errorf("-%s has no case of error", verb)
		}
	}
}

func TestNumbersOfCasesAreThoseOfTheFiles(t *testing.T) {
	k, err := loadKnown(".")
	if err != nil {
		t.Fatal(err)
	}
	_, scenarios, err := readScenarios(filepath.Join("testdata", "fsshell.txt"))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, sc := range scenarios {
		commands += len(sc.steps)
	}
	steps := func(file string) (n int) {
		_, scenarios, err := readScenarios(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, sc := range scenarios {
			n += len(sc.steps)
		}
		return n
	}
	tools, haTools, cacheTools := steps("tools.txt"), steps("haadmin.txt"), steps("cacheadmin.txt")
	names, exchanges, err := readExchanges(filepath.Join("testdata", "webhdfs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	recorded := 0
	for _, name := range names {
		recorded += len(exchanges[name])
	}
	for row, want := range map[string]int{
		"fsshell": commands, "fsshell-ha": commands, "hopsfs": commands, "hopsfs-stock": commands, "webhdfs": recorded, "webhdfs-stock": recorded,
		"tools": tools, "hopstools": tools, "tools-ha": haTools, "hopstools-ha": haTools,
		"tools-cache": cacheTools, "hopstools-cache": cacheTools,
	} {
		if k.Cases[row] != want {
			t.Errorf("known.yaml says %d cases of %s, there are %d", k.Cases[row], row, want)
		}
	}
}

func TestUnknownRowsAreRefused(t *testing.T) {
	k, err := loadKnown(".")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.has(map[string]bool{"fsshell": true, "typo": true}); err == nil || !strings.Contains(err.Error(), `"typo" is no row: they are across, `) {
		t.Error(err)
	}
	if err := k.has(map[string]bool{"webhdfs-stock": true, "kerberos": true}); err != nil {
		t.Error(err)
	}
	s := &suite{cache: &cache{source: "."}, options: options{cases: "typo"}, rows: []*row{{name: "curl"}}}
	if err := s.report(); err == nil || !strings.Contains(err.Error(), "no case has run") {
		t.Error(err)
	}
}

// A case that is listed twice, or as another row's, would go unseen.
func TestKnownDifferencesAreListedOnce(t *testing.T) {
	k, err := loadKnown(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, d := range k.Differences {
		if d.Reason == "" || len(d.Rows) == 0 || len(d.Cases) == 0 {
			t.Errorf("an incomplete entry: %+v", d)
		}
		for _, row := range d.Rows {
			if _, ok := k.Cases[row]; !ok {
				t.Errorf("%q: %s is no row", d.Reason, row)
			}
			for _, c := range d.Cases {
				if seen[row+c] {
					t.Errorf("%s: %s is listed twice", row, c)
				}
				seen[row+c] = true
			}
		}
	}
}
