package release

import (
	"errors"
	"strings"
	"testing"
)

func TestWhichVersionsWorkTogether(t *testing.T) {
	t.Parallel()
	now := Program{Level: 5, Oldest: 3}
	for what, c := range map[string]struct {
		err  error
		want error
	}{
		"a cluster that was not heard of yet":  {now.In(0), nil},
		"a cluster at the program's level":     {now.In(5), nil},
		"a cluster at the oldest level":        {now.In(3), nil},
		"a cluster that has been raised":       {now.In(6), ErrOlder},
		"a cluster far behind":                 {now.In(2), ErrNewer},
		"beside the next":                      {now.Beside(Program{6, 5}), nil},
		"beside the one before":                {now.Beside(Program{3, 1}), nil},
		"beside one that has forgotten it":     {now.Beside(Program{8, 6}), ErrOlder},
		"beside one that it has forgotten":     {now.Beside(Program{2, 1}), ErrNewer},
		"a disk of its own level":              {now.reads("a disk", 5), nil},
		"a disk of a later level":              {now.reads("a disk", 6), ErrOlder},
		"a disk of a level that was forgotten": {now.reads("a disk", 2), ErrNewer},
		"a disk from before there were levels": {Program{1, 1}.reads("a disk", 0), nil},
	} {
		if !errors.Is(c.err, c.want) || c.want == nil && c.err != nil {
			t.Errorf("%s: %v, want %v", what, c.err, c.want)
		}
		if c.err != nil && strings.Contains(c.err.Error(), "\n") {
			t.Errorf("%s: more than a line: %v", what, c.err)
		}
	}
	if Oldest > Level || Oldest < 1 {
		t.Errorf("oldest %d, level %d", Oldest, Level)
	}
}
