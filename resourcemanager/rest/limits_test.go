package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/state"
)

// A submission that there is no room for is refused in the words of its dialect, and others' go on.
func TestARefusalForWantOfRoomSaysWhatToDo(t *testing.T) {
	c := newSmallCluster(t, state.Config{MaxBytes: 100 << 10})
	s := serve(t, c, nil)
	fat := fmt.Sprintf(`{"argv": ["x"], "queue": "root.default", "env": {"X": %q}}`, strings.Repeat("x", 20<<10))
	refused := func(method, path, body, kind string) {
		t.Helper()
		code, header, answer := call(t, s, method, path, body)
		if code != http.StatusTooManyRequests || header.Get("Retry-After") != "10" || !strings.Contains(answer, kind) ||
			!strings.Contains(answer, "MiB of job documents") || !strings.Contains(answer, "end some") {
			t.Errorf("%s %s: %d %v %s", method, path, code, header, answer)
		}
	}
	for range 2 {
		if code, _, body := call(t, s, "POST", "/api/v1/jobs?user.name=alice", fat); code != http.StatusCreated {
			t.Fatalf("%d %s", code, body)
		}
	}
	refused("POST", "/api/v1/jobs?user.name=alice", fat, "urn:hops:too-many-applications")
	yarn := fmt.Sprintf(`{"application-id": "application_1_0099", "queue": "root.default", "am-container-spec": {"commands": {"command": "x"},
		"environment": {"entry": [{"key": "X", "value": %q}]}}}`, strings.Repeat("x", 20<<10))
	refused("POST", "/ws/v1/cluster/apps?user.name=alice", yarn, `"exception":"YarnException"`)
	if code, _, body := call(t, s, "POST", "/api/v1/jobs?user.name=bob", fat); code != http.StatusCreated {
		t.Errorf("another user: %d %s", code, body)
	}
}

// pages counts what is written at a time.
type pages struct {
	http.ResponseWriter
	largest int
}

func (p *pages) Write(b []byte) (int, error) {
	p.largest = max(p.largest, len(b))
	return p.ResponseWriter.Write(b)
}

// The list of many applications costs a page of memory, and is the same list.
func TestListsAreWrittenPageByPage(t *testing.T) {
	c := newFakeCluster(t)
	for i := range 500 {
		if _, _, err := c.Submit(t.Context(), metadata.Caller{User: "alice"}, Submission{Name: fmt.Sprint("job-", i), Queue: "root.default", Kind: rm.KindCommand, Document: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	api := New(Config{Cluster: c, Door: security.NewDoor(security.Config{})})
	for path, limit := range map[string]int{"/ws/v1/cluster/apps": 500, "/ws/v1/cluster/apps?limit=7": 7, "/api/v1/jobs": 500, "/api/v1/jobs?limit=7": 7, "/api/v1/jobs?user=nobody": 0} {
		recorder := httptest.NewRecorder()
		w := &pages{ResponseWriter: recorder}
		api.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		var got struct {
			Apps struct{ App []struct{ Name string } }
			Jobs []struct{ Name string }
		}
		if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v in %.200s", path, err, recorder.Body)
		}
		names := append(got.Apps.App, got.Jobs...)
		if len(names) != limit || limit > 0 && names[0].Name != "job-499" {
			t.Errorf("%s: %d elements", path, len(names))
		}
		if w.largest > pageBytes {
			t.Errorf("%s: %d bytes in one write", path, w.largest)
		}
	}
}
