package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestOptionsOfAdminVerbs(t *testing.T) {
	set := &adminVerb{
		name: "-set", arguments: "-path <path> -policy <policy> [-force]", takes: []string{"-path", "-policy"}, flags: []string{"-force"},
		needs: []neededOption{{"-path", "no path"}, {"-policy", "no policy"}},
	}
	verify := &adminVerb{name: "-verify", rest: "-policy"}
	for _, c := range []struct {
		verb  *adminVerb
		words string
		value map[string]string
		rest  []string
		code  int
		said  string
	}{
		{set, "-path /a -policy P", map[string]string{"-path": "/a", "-policy": "P"}, nil, 0, ""},
		{set, "-policy P -force -path /a", map[string]string{"-path": "/a", "-policy": "P", "-force": ""}, nil, 0, ""},
		{set, "-policy P", nil, nil, exitAdminUsage, "no path\nUsage: [-set -path"},
		{set, "-path /a", nil, nil, exitAdminUsage, "no policy\n"},
		{set, "-path", nil, nil, exitHadoop, "option -path requires 1 argument"},
		{set, "-path /a -policy P /b", nil, nil, exitAdminUsage, "-set: Too many arguments"},
		{verify, "", map[string]string{}, nil, 0, ""},
		{verify, "-policy A B", map[string]string{}, []string{"A", "B"}, 0, ""},
		{verify, "-policy", nil, nil, exitHadoop, "expected 1 but got 0"},
		{verify, "A", nil, nil, exitAdminUsage, "Too many"},
	} {
		var errOut strings.Builder
		a, code := c.verb.read(&hadoopTool{errOut: &errOut}, strings.Fields(c.words))
		if code != c.code || !strings.Contains(errOut.String(), c.said) {
			t.Errorf("%s %q: %d, %q", c.verb.name, c.words, code, errOut.String())
			continue
		}
		if code == 0 && (!maps.Equal(a.value, c.value) || !slices.Equal(a.rest, c.rest)) {
			t.Errorf("%s %q: %v, %v", c.verb.name, c.words, a.value, a.rest)
		}
	}
}
