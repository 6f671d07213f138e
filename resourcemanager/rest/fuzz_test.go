package rest

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/jersey"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
)

// Whatever a body of YARN's dialect holds, it is refused or becomes a document that a master reads, with the variables,
// files and resources that it names.
func FuzzYARNSubmission(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(vectors, "*submit*.http"))
	if err != nil || len(files) == 0 {
		f.Fatal("no recorded submissions", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		request, _, _ := strings.Cut(string(b), "\n\nHTTP/1.1 ")
		if _, body, ok := strings.Cut(request, "\n\n"); ok {
			f.Add([]byte(body))
		}
	}
	f.Add([]byte(`{"am-container-spec": {"commands": {"command": ["a", "b"]}, "environment": {"entry": {"key": "X", "value": "1"}}, "local-resources": {"f": {"resource": "/f", "type": "FILE"}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var s yarnSubmission
		if job.Plain(body, "environment", "local-resources") != nil || jersey.Read(body, false, "application-submission-context", jersey.Bare, &s) != nil {
			return
		}
		id := rm.ApplicationID{Cluster: 1, Sequence: 1}
		context, err := s.context(id)
		if err != nil {
			return
		}
		got, err := context.Submission()
		if err != nil {
			return
		}
		spec, err := job.Parse(got.Document)
		if err != nil {
			t.Fatalf("%s: %v", got.Document, err)
		}
		if got.Timeout < 0 || len(got.Type) > 20 || len(got.Tags) > 10 {
			t.Errorf("%+v", got)
		}
		if got.Failure != "" {
			return
		}
		if len(spec.Env) != len(s.Master.Environment) || !maps.Equal(spec.Env, s.Master.Environment) && len(spec.Env) > 0 || len(spec.Artifacts) != len(s.Master.Local) {
			t.Errorf("%s\nbecomes\n%s", body, got.Document)
		}
	})
}
