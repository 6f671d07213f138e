package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
)

// A program in a container does not submit by accident: one that submits itself would do so for ever.
func TestAContainerSubmitsOnlyIfItsJobSaysSo(t *testing.T) {
	submitted := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		submitted++
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":"application_1_0001"}`))
	}))
	defer s.Close()
	t.Setenv("HADOOP_CONF_DIR", "")
	c, err := New(Config{ResourceManagers: []string{strings.TrimPrefix(s.URL, "http://")}, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	study := Study{Spec: training.Spec{Entry: "m:f", Optimizer: training.Optimizer{Type: training.None}}}
	for name, test := range map[string]struct {
		env  map[string]string
		want int
	}{
		"a container":              {map[string]string{"HOPS_CONTAINER_ID": "container_1_0001_01_000002"}, 0},
		"another word for yes":     {map[string]string{"HOPS_CONTAINER_ID": "container_1_0001_01_000002", "HOPS_MAY_SUBMIT": "0"}, 0},
		"a container that may":     {map[string]string{"HOPS_CONTAINER_ID": "container_1_0001_01_000002", "HOPS_MAY_SUBMIT": "1"}, 2},
		"no container of a node's": {nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOPS_CONTAINER_ID", test.env["HOPS_CONTAINER_ID"])
			t.Setenv("HOPS_MAY_SUBMIT", test.env["HOPS_MAY_SUBMIT"])
			submitted = 0
			_, job := c.Jobs().Submit(t.Context(), Job{Argv: []string{"true"}}, "")
			_, experiment := c.Experiments().Submit(t.Context(), study, nil)
			if submitted != test.want {
				t.Errorf("%d were submitted, not %d: %v, %v", submitted, test.want, job, experiment)
			}
			for _, err := range []error{job, experiment} {
				if test.want == 0 && (!errors.Is(err, metadata.ErrPermission) || !strings.Contains(err.Error(), "HOPS_MAY_SUBMIT=1") || !strings.Contains(err.Error(), "container_1_0001_01_000002")) {
					t.Errorf("refused with %v", err)
				}
			}
		})
	}
}
