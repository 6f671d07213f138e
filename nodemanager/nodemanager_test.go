package nodemanager

import (
	"strings"
	"testing"
)

func TestContainerIDsThatBecomeDirectories(t *testing.T) {
	for id, want := range map[ContainerID]bool{
		"container_1795248047013_0002_01_000002":     true,
		"container_e17_1795248047013_0002_01_000002": true,
		"container_1795248047013_12345_01_000002":    true,
		"":   false,
		"..": false,
		"container_1795248047013_0002_01_000002/..":            false,
		"container_1795248047013_0002_01_000002\n":             false,
		"container_1_2_3_4":                                    false,
		"application_1795248047013_0002":                       false,
		ContainerID("container_1_" + strings.Repeat("1", 200)): false,
	} {
		if id.Valid() != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}

func TestByteSizeSpeaksYARN(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KB", 1536: "1.5 KB", 1 << 30: "1 GB", 1181116006: "1.1 GB", 80 << 30: "80 GB"} {
		if got := ByteSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestSpecMistakesAreNamed(t *testing.T) {
	good := func() *Spec { return &Spec{ID: "container_1795248047013_0002_01_000002", Argv: []string{"true"}} }
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Spec){
		"container id":         func(s *Spec) { s.ID = "../x" },
		"no command":           func(s *Spec) { s.Argv = nil },
		"zero byte":            func(s *Spec) { s.Argv = []string{"a\x00b"} },
		"environment variable": func(s *Spec) { s.Env = map[string]string{"A=B": "c"} },
		"arguments and env":    func(s *Spec) { s.Argv = []string{strings.Repeat("x", MaxSpecText)} },
		"grace":                func(s *Spec) { s.Grace = -1 },
		"negative resources":   func(s *Spec) { s.Resources.Memory = -1 },
		"inline artifacts":     func(s *Spec) { s.Artifacts = []Artifact{{Content: make([]byte, MaxInlineContent+1)}} },
		"the most are":         func(s *Spec) { s.Argv = make([]string, MaxArguments+1); s.Argv[0] = "x" },
	} {
		s := good()
		change(s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestShorten(t *testing.T) {
	for _, test := range []struct {
		text string
		n    int
		want string
	}{
		{"short", 5, "short"}, {"longer than that", 9, "longer…"}, {"ééééé", 6, "é…"}, {"a\xffb", 10, "a\uFFFDb"}, {"abc", 2, "…"},
	} {
		if got := Shorten(test.text, test.n); got != test.want {
			t.Errorf("%q cut to %d is %q, want %q", test.text, test.n, got, test.want)
		}
	}
}
