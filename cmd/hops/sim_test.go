package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command's way from drawn jobs to a comparison of two configurations, twice with the same output, and from what a cluster answers to jobs.
func TestSim(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		if err := os.WriteFile(at(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hops := func(want int, args ...string) (string, string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"hops", "sim"}, args...), strings.NewReader(""), &stdout, &stderr); code != want {
			t.Fatalf("%q: status %d, want %d: %s%s", args, code, want, stdout.String(), stderr.String())
		}
		return stdout.String(), stderr.String()
	}
	hops(0, "generate", "--jobs", at("jobs"), "--cluster", at("cluster.yaml"), "--count", "60", "--days", "1", "--nodes", "4", "--queues", "a,b")
	first, _ := hops(0, "run", "--jobs", at("jobs"), "--cluster", at("cluster.yaml"), "--json", at("r.json"), "--plots", at("plots"))
	if again, _ := hops(0, "run", "--jobs", at("jobs"), "--cluster", at("cluster.yaml")); again != first || !strings.Contains(first, "60 of 60") {
		t.Errorf("two runs differ, or not all ended:\n%s\n%s", first, again)
	}
	if svg, err := os.ReadFile(at("plots/waiting.svg")); err != nil || !bytes.HasPrefix(svg, []byte("<svg")) {
		t.Error("no plot", err)
	}
	write("even.yaml", "queues: {root: {children: {a: {capacity: 50%}, b: {capacity: 50%}}}}\n")
	write("whole.yaml", "cluster: {name: x}\nresourcemanager:\n  http: 1.2.3.4:8088\n  queues: {root: {children: {a: {capacity: 90%}, b: {capacity: 10%}}}}\n")
	write("typo.yaml", "resourcemanager: {queues: {root: {children: {a: {capcity: 100%}}}}}\n")
	write("none.yaml", "cluster: {name: x}\n")
	if out, _ := hops(0, "compare", "--jobs", at("jobs"), "--cluster", at("cluster.yaml"), at("even.yaml"), at("whole.yaml")); !strings.Contains(out, "From even.yaml to whole.yaml, by queue") {
		t.Error(out)
	}
	for _, c := range []struct{ file, want string }{{"typo.yaml", "capcity"}, {"none.yaml", "there is no resourcemanager.queues"}, {"missing.yaml", "no such file"}} {
		if _, text := hops(exitUsage, "run", "--jobs", at("jobs"), "--cluster", at("cluster.yaml"), "--queues", at(c.file)); !strings.Contains(text, c.want) {
			t.Errorf("%s: %s", c.file, text)
		}
	}
	if _, text := hops(exitUsage, "run", "--jobs", at("jobs"), "--cluster", at("cluster.yaml"), "--policy", "hops,lsf"); !strings.Contains(text, `"lsf" is none of hops, yarn, slurm`) {
		t.Error(text)
	}

	answers := map[string]string{
		"/api/v1/jobs": `{"jobs":[{"id":"application_1_0001","submitted":1000,"finished":90000},{"id":"application_1_0002","submitted":1000,"finished":90000}]}`,
		"/api/v1/jobs/application_1_0001": `{"id":"application_1_0001","queue":"root.a","user":"ann","submitted":1000,"finished":90000,"containers":[
			{"id":"c1","master":true,"resources":{"memory":1048576,"vcores":1},"granted":1,"started":2,"finished":90000},
			{"id":"c2","ask":"run","instance":0,"resources":{"memory":1048576,"vcores":1,"gpus":2},"granted":10,"started":20,"finished":60020}]}`,
		"/api/v1/nodes": `{"nodes":[{"id":"h1:8042","host":"h1","rack":"/r1","capacity":{"memory":1073741824,"vcores":4,"gpus":2},"gpus":[{"model":"A100","island":"i"},{"model":"A100","island":"i"}]}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	conf := at("conf")
	if err := os.Mkdir(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	write("conf/core-site.xml", `<configuration><property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:1</value></property></configuration>`)
	write("conf/yarn-site.xml", `<configuration><property><name>yarn.resourcemanager.webapp.address</name><value>`+strings.TrimPrefix(server.URL, "http://")+`</value></property></configuration>`)
	if _, text := hops(0, "record", "--jobs", at("recorded"), "--cluster", at("recorded.yaml"), "--conf", conf); !strings.Contains(text, "skipped 1 jobs: forgotten meanwhile") {
		t.Error(text)
	}
	if out, _ := hops(0, "run", "--policy", "hops", "--jobs", at("recorded"), "--cluster", at("recorded.yaml")); !strings.Contains(out, "1 of 1") || !strings.Contains(out, "root.a") {
		t.Error(out)
	}
}
