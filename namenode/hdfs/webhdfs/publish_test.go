package webhdfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Of too many steps those that there may be are decoded, and the others counted: what is wrong in them nobody looks at.
func TestStepsOfAPublishAreCountedWhileTheyAreDecoded(t *testing.T) {
	q := &request{path: "/", op: "PUBLISH"}
	body := func(n int, more ...string) []byte {
		all := more
		for len(all) < n {
			all = append([]string{`{"delete": {"path": "/a"}}`}, all...)
		}
		return []byte(`{"steps": [` + strings.Join(all, ", ") + `]}`)
	}
	if steps, err := q.publishSteps(body(namenode.MaxPublishSteps)); err != nil || len(steps) != namenode.MaxPublishSteps {
		t.Errorf("as many as there may be: %d, %v", len(steps), err)
	}
	for _, last := range []string{`{"delete": {"path": "/a"}}`, `{"delete": 7}`, `{"link": {}}`, `{}`, `null`} {
		_, err := q.publishSteps(body(namenode.MaxPublishSteps+44, last))
		if want := fmt.Sprintf("publish: there are %d steps, and %d is the most", namenode.MaxPublishSteps+44, namenode.MaxPublishSteps); metadata.KindOf(err) != metadata.ErrInvalidArgument || err.Error() != want {
			t.Errorf("%s at the end: %v", last, err)
		}
	}
	for _, bad := range []string{`{"steps": {}}`, `{"steps": 7}`, `{"steps": [{"delete": {"path": "/a"}}`, `{"steps": [{"delete": {"path": "/a", "force": true}}]}`, `{"step": []}`} {
		if _, err := q.publishSteps([]byte(bad)); metadata.KindOf(err) != metadata.ErrInvalidArgument || !strings.HasPrefix(err.Error(), "publish: the body is no JSON of steps: ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if steps, err := q.publishSteps([]byte(`{"steps": [{}, {}], "Steps": null}`)); err != nil || len(steps) > 0 {
		t.Errorf("%d steps, %v: what is said last counts", len(steps), err)
	}
}
