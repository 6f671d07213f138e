package topology

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func script(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "racks")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// A script that fails, hangs or prints nonsense costs one warning, and nobody waits.
func TestScripts(t *testing.T) {
	for name, c := range map[string]struct{ text, rack, says string }{
		"prints a rack for each":     {`for a; do echo /row/$a; done`, "/row/10.0.0.7", ""},
		"fails":                      {`echo no such row >&2; exit 3`, DefaultRack, "exit status 3 no such row"},
		"hangs":                      {`sleep 1000`, DefaultRack, "did not end within 200ms"},
		"leaves a child that hangs":  {`sleep 1000 & wait`, DefaultRack, "did not end within 200ms"},
		"prints too few":             {`true`, DefaultRack, "prints 0 racks for 1 addresses"},
		"prints too many":            {`echo /a /b`, DefaultRack, "prints 2 racks for 1 addresses"},
		"prints no path":             {`echo rack1`, DefaultRack, `prints "rack1", which is no path of a rack`},
		"prints control characters":  {`printf '/a\001'`, DefaultRack, "which is no path of a rack"},
		"prints without end":         {`yes /a`, DefaultRack, "did not end within"},
		"prints more than is wanted": {`head -c 100000 /dev/zero | tr '\0' x`, DefaultRack, "prints more than a rack for each address"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			limit := 30 * time.Second
			if strings.Contains(c.says, "did not end") {
				limit = 200 * time.Millisecond
			}
			r := New(Config{Script: script(t, c.text), Time: limit, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if got := r.Lookup("10.0.0.7"); got != DefaultRack {
				t.Errorf("before it ran: %s", got)
			}
			r.find(t.Context(), false)
			r.find(t.Context(), false)
			said := strings.ReplaceAll(log.String(), `\"`, `"`)
			if limit < time.Second {
				said = strings.ReplaceAll(said, limit.String(), "200ms")
			}
			if got := r.Lookup("10.0.0.7"); got != c.rack || c.says != "" && (strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, c.says)) || c.says == "" && said != "" {
				t.Errorf("%s, the log %q", got, said)
			}
		})
	}
	t.Run("is not there", func(t *testing.T) {
		var log bytes.Buffer
		r := New(Config{Script: "/nowhere/racks", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r.Lookup("a")
		if r.find(t.Context(), false); !strings.Contains(log.String(), "/nowhere/racks: no such file or directory") {
			t.Error(log.String())
		}
	})
}

// A script gets at most 100 addresses at a time, and who asked hears of the answers.
func TestManyAddressesAndChanges(t *testing.T) {
	racks := filepath.Join(t.TempDir(), "calls")
	heard := map[string]string{}
	r := New(Config{Time: time.Minute, Script: script(t, `echo $# >> `+racks+`; for a; do echo /$a; done`), Changed: func(a, rack string) { heard[a] = rack }})
	for i := range 250 {
		r.Lookup(fmt.Sprintf("node%03d", i))
	}
	r.find(t.Context(), false)
	calls, err := os.ReadFile(racks)
	if err != nil || string(calls) != "100\n100\n50\n" {
		t.Errorf("%q, %v", calls, err)
	}
	if len(heard) != 250 || heard["node249"] != "/node249" {
		t.Errorf("%d were heard of", len(heard))
	}
	r.find(t.Context(), false) // all are known
	if again, _ := os.ReadFile(racks); string(again) != string(calls) {
		t.Errorf("it was asked again: %q", again)
	}
}

func TestTables(t *testing.T) {
	for name, c := range map[string]struct{ text, rack, says string }{
		"two columns":        {"# ours\n10.0.0.6 /a\n\n10.0.0.7\t/b # left\n", "/b", ""},
		"another machine":    {"10.0.0.6 /a\n", DefaultRack, ""},
		"three columns":      {"10.0.0.7 /a b\n", DefaultRack, "line 1 has 3 columns"},
		"no path":            {"10.0.0.7 /a\n10.0.0.8 a\n", DefaultRack, `line 2 has "a"`},
		"a line too long":    {strings.Repeat("x", 1<<20), DefaultRack, "a line is too long"},
		"a path with .. in":  {"10.0.0.7 /a/../b\n", DefaultRack, "no path of a rack"},
		"a rack of no depth": {"10.0.0.7 /\n", DefaultRack, "no path of a rack"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "table")
			if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			r := New(Config{Table: file, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			r.Lookup("10.0.0.7")
			r.find(t.Context(), false)
			if got, said := r.Lookup("10.0.0.7"), strings.ReplaceAll(log.String(), `\"`, `"`); got != c.rack || !strings.Contains(said, c.says) || c.says == "" && said != "" {
				t.Errorf("%s, the log %q", got, said)
			}
		})
	}
}

// A table that is changed is followed.
func TestAChangedTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table")
	check := func(text, want string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		heard := ""
		r := New(Config{Table: file, Changed: func(_, rack string) { heard = rack }})
		r.known["a"] = &standing{rack: "/old"}
		if r.find(t.Context(), true); heard != want {
			t.Errorf("%q was heard, want %q", heard, want)
		}
	}
	check("a /new\n", "/new")
	check("a /old\n", "")
	check("half", "")
}

func TestRunFindsWhatIsAskedFor(t *testing.T) {
	found := make(chan string, 1)
	r := New(Config{Time: time.Minute, Script: script(t, `echo /a`), Changed: func(_, rack string) { found <- rack }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.Lookup("x")
	select {
	case rack := <-found:
		if rack != "/a" {
			t.Error(rack)
		}
	case <-time.After(time.Minute):
		t.Error("it was not found")
	}
	cancel()
	<-done
}

func FuzzTable(f *testing.F) {
	f.Add("10.0.0.7 /a\n# x\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := ParseTable(strings.NewReader(text))
		for a, rack := range table {
			if err != nil || a == "" || Check(rack) != nil {
				t.Errorf("%q: %q, %v", a, rack, err)
			}
		}
	})
}

// A rack that changes again and again is believed after longer and longer: each change makes the cluster count and perhaps copy all that lies on a
// machine. One that changes once is believed at once.
func TestARackThatFlaps(t *testing.T) {
	changes := 0
	r := New(Config{Table: filepath.Join(t.TempDir(), "table"), Logger: slog.New(slog.DiscardHandler), Changed: func(string, string) { changes++ }})
	say := func(rack string) {
		t.Helper()
		if err := os.WriteFile(r.config.Table, []byte("a "+rack+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		r.find(t.Context(), true)
	}
	r.Lookup("a")
	say("/x")
	if say("/y"); r.Lookup("a") != "/y" || changes != 2 {
		t.Fatalf("a change: %s, %d heard", r.Lookup("a"), changes)
	}
	for i := range 600 {
		say([]string{"/x", "/y"}[i%2])
	}
	if changes > 3 {
		t.Errorf("%d changes were heard of a rack that is another one each minute", changes)
	}
	for i := range 600 {
		say([]string{"/x", "/y"}[i/3%2])
	}
	if changes > 5 {
		t.Errorf("%d changes were heard of a rack that is another one every three minutes", changes)
	}
	was := r.Lookup("a")
	next := map[string]string{"/x": "/y", "/y": "/x"}[was]
	for range 64 {
		say(next)
	}
	if r.Lookup("a") != next {
		t.Errorf("what has stood for an hour is not believed: %s", r.Lookup("a"))
	}
	for range calm {
		say(next)
	}
	if say(was); r.Lookup("a") != was {
		t.Error("a change after a quiet day is not believed at once")
	}
}
