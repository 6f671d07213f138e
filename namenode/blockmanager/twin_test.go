package blockmanager

import (
	"testing"
	"time"

	"github.com/gohops/hops/namenode"
)

func TestTwinsAreTold(t *testing.T) {
	m := New(Config{StaleAfter: 10 * time.Second})
	at := time.Unix(1000, 0)
	here := namenode.Node{ID: "n", IP: "10.0.0.1", TransferPort: 1}
	there := namenode.Node{ID: "n", IP: "10.0.0.2", TransferPort: 1}
	if m.Twin(at, &here, 1) != nil {
		t.Error("one that nobody knows")
	}
	m.Register(at, here, nil, 1)
	for name, c := range map[string]struct {
		info        namenode.Node
		incarnation uint64
		after       time.Duration
		twin        bool
	}{
		"a copy":                {there, 2, time.Second, true},
		"restarted":             {here, 2, time.Second, false},
		"another address of it": {there, 1, time.Second, false},
		"moved":                 {there, 2, 10 * time.Second, false},
		"another one":           {namenode.Node{ID: "o", IP: "10.0.0.2", TransferPort: 1}, 2, time.Second, false},
	} {
		if got := m.Twin(at.Add(c.after), &c.info, c.incarnation); (got != nil) != c.twin {
			t.Errorf("%s: %v", name, got)
		}
	}
}
