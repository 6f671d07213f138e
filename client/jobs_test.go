package client

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/resourcemanager/job"
)

// members lists the names of a document's members, those of its parts after a dot.
func members(t reflect.Type, prefix string, out *[]string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		*out = append(*out, prefix+name)
		if name == "resources" || name == "retry" {
			members(f.Type, prefix+name+".", out)
		}
	}
}

// There is one job document: what the server takes can be written here, and nothing else.
func TestTheJobDocumentIsTheServers(t *testing.T) {
	var ours, theirs []string
	members(reflect.TypeFor[Job](), "", &ours)
	members(reflect.TypeFor[job.Spec](), "", &theirs)
	theirs = slices.DeleteFunc(theirs, func(name string) bool { return slices.Contains([]string{"id", "user", "submitted"}, name) })
	slices.Sort(ours)
	slices.Sort(theirs)
	if !slices.Equal(ours, theirs) {
		t.Errorf("members of a job here  %q\nand at the server      %q", ours, theirs)
	}
}

func TestDocumentsAreReadAsTheServerReadsThem(t *testing.T) {
	text := `{"name":"n","run":"make","workdir":"/w.zip","grace":30,"timeout":"2h","instances":4,"gang":"2..4","fencing":"strict",
		"retry":{"max":2,"on":["node_lost"]},"resources":{"memory":1073741824,"gpus":1,"gpu_model":"H100"}}`
	var j Job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	direct, err := job.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	viaUs, err := job.Parse(again)
	if err != nil {
		t.Fatalf("%v: %s", err, again)
	}
	if !reflect.DeepEqual(direct, viaUs) {
		t.Errorf("%+v\nwant %+v", viaUs, direct)
	}
	for _, bad := range []string{`{"comand":[]}`, `{"resources":{"memroy":1}}`, `{"retry":{"mox":1}}`, `{"gang":"x"}`, `{"timeout":"soon"}`} {
		if err := json.Unmarshal([]byte(bad), &j); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}
