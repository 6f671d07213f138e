package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// The manual page has every command that the program has, each at its place, and no line that roff would take for a request
// of its own.
func TestManualHasEveryCommand(t *testing.T) {
	app := newApp(nil, nil, nil)
	page := string(manual(app))
	var walk func(prefix string, commands []*cli.Command)
	walk = func(prefix string, commands []*cli.Command) {
		for _, c := range commands {
			name := prefix + " " + c.Name
			if !c.Hidden && !strings.Contains(page, "\n.SS "+roff(name)) {
				t.Errorf("no section for %s", name)
			}
			if c.Name != "fs" { // its verbs stand in one line
				walk(name, c.Subcommands)
			}
		}
	}
	walk("hops", app.Commands)
	known := map[string]bool{"TH": true, "SH": true, "SS": true, "TP": true, "PP": true, "B": true, "BR": true, "I": true, "RI": true, "nf": true, "fi": true}
	for line := range strings.Lines(page) {
		if request, ok := strings.CutPrefix(line, "."); ok {
			request, _, _ = strings.Cut(strings.TrimSpace(request), " ")
			if !known[request] {
				t.Errorf("an unknown request: %s", line)
			}
		}
	}
}

func TestRoffEscapes(t *testing.T) {
	for text, want := range map[string]string{
		"--conf DIR":  `\-\-conf DIR`,
		`C:\x`:        `C:\ex`,
		".hidden":     `\&.hidden`,
		"'quoted'\nb": `\&'quoted'` + "\nb",
		"a\n\nb":      "a\n\\&\nb",
	} {
		if got := roff(text); got != want {
			t.Errorf("roff(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestManualPassesMandoc(t *testing.T) {
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("mandoc is not installed")
	}
	cmd := exec.Command(mandoc, "-T", "lint", "-W", "error")
	cmd.Stdin = bytes.NewReader(manual(newApp(nil, nil, nil)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("mandoc: %v\n%s", err, out)
	}
}
