package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The map shows a GPU in MIG mode by its instances, and says of one without that nothing of it is granted.
func TestGPUsInMIGMode(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"nodes":[{"id":"n1:8042","open":true,"gpus":[
{"uuid":"GPU-0","model":"A100","island":"i","health":"HEALTHY"},
{"uuid":"MIG-1","model":"A100","profile":"3g.20gb","parent":"GPU-1","health":"HEALTHY","container":"container_1_0001_01_000002"},
{"uuid":"MIG-2","model":"A100","profile":"1g.5gb","parent":"GPU-1","health":"HEALTHY"},
{"uuid":"MIG-3","model":"A100","profile":"1g.5gb","parent":"GPU-2","health":"QUARANTINED","health_reason":"its GPU GPU-2: XID 48"}],
"divided_gpus":[{"uuid":"GPU-1","model":"A100","instances":2,"health":"HEALTHY"},{"uuid":"GPU-2","model":"A100","instances":1,"health":"QUARANTINED","health_reason":"XID 48"},{"uuid":"GPU-3","model":"A100","instances":0,"health":"HEALTHY"}]}]}`)
	}))
	defer s.Close()
	t.Setenv("HOPS_RM", s.URL)
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HOPS_LOGIN", "")
	t.Setenv("HOME", t.TempDir())
	for verb, want := range map[string][]string{
		"gpu map": {
			"n1:8042 . [#.] [!] [] A100, A100 MIG 3g.20gb, A100 MIG 1g.5gb, A100 in MIG mode without instances",
			"1 GPUs and 3 MIG instances: # in use (1), . free (2), ! quarantined (1)",
		},
		"gpu list": {
			"MIG-1 n1:8042 A100 MIG 3g.20gb HEALTHY - - - container_1_0001_01_000002 -", "GPU-1 n1:8042 A100 HEALTHY - - - - in MIG mode: its 2 instances are granted",
			"GPU-2 n1:8042 A100 QUARANTINED - - - - XID 48", "GPU-3 n1:8042 A100 HEALTHY - - - - in MIG mode without instances: nothing of it is granted",
		},
		"gpu list -o json": {`"profile":"3g.20gb","parent":"GPU-1"`, `"uuid":"GPU-3"`, `"instances":0}`},
		"node show n1:8042": {
			"MIG-1 A100 MIG 3g.20gb HEALTHY, held by container_1_0001_01_000002", "GPU-3 A100 HEALTHY, in MIG mode without instances: nothing of it is granted",
		},
	} {
		var out, errs bytes.Buffer
		status := run(append([]string{"hops"}, strings.Fields(verb)...), strings.NewReader(""), &out, &errs)
		got := strings.Join(strings.Fields(out.String()), " ")
		for _, w := range want {
			if status != 0 || !strings.Contains(got, w) {
				t.Errorf("%s lacks %q: %d %s%s", verb, w, status, out.String(), errs.String())
			}
		}
	}
	status, _, errs, sent := jobTool(t, `{"id":"application_1_0001"}`, "run", "-d", "--gpus", "2", "--gpu-profile", "1g.5gb", "--", "train")
	if status != 0 || !strings.Contains(sent, `"gpus":2,"gpu_profile":"1g.5gb"`) {
		t.Errorf("%d %s %s", status, errs, sent)
	}
}

func TestGPUsThatNobodyUses(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"nodes":[{"id":"n1:8042","open":true,"gpus":[
{"uuid":"GPU-0","model":"H100","island":"i","health":"HEALTHY","container":"container_1_0001_01_000002","load":{"utilization":93.4,"memory_used":1073741824,"power":612.2},"use":{"uuid":"GPU-0","held":1000,"busy":900,"idle":0}},
{"uuid":"GPU-1","model":"H100","island":"i","health":"HEALTHY","container":"container_1_0001_01_000002","load":{"memory_used":0},"use":{"uuid":"GPU-1","idle":2640000,"unused":true}},
{"uuid":"GPU-2","model":"H100","island":"i","health":"HEALTHY"}]}]}`)
	}))
	defer s.Close()
	t.Setenv("HOPS_RM", s.URL)
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HOPS_LOGIN", "")
	t.Setenv("HOME", t.TempDir())
	for verb, want := range map[string][]string{
		"list": {"93% 1024 MiB 612 W container_1_0001_01_000002 -", "- 0 MiB - container_1_0001_01_000002 44m0s", "HEALTHY - - -"},
		"map":  {"n1:8042 #_. H100", "# in use (1), _ held, and nothing is done with it (1), . free (1)"},
	} {
		var out, errs bytes.Buffer
		status := run([]string{"hops", "gpu", verb}, strings.NewReader(""), &out, &errs)
		got := strings.Join(strings.Fields(out.String()), " ")
		for _, w := range want {
			if status != 0 || !strings.Contains(got, w) {
				t.Errorf("%s lacks %q: %d %s%s", verb, w, status, out.String(), errs.String())
			}
		}
	}
	status, out, errs, _ := jobTool(t, `{"id":"application_1_0001","phase":"RUNNING","kind":"command","warnings":["container c holds GPU g and has done nothing with it for 44m0s"],
"containers":[{"id":"c","node":"n1:1","state":"RUNNING","gpus":["g"],"gpu_use":[{"uuid":"g","held":10000,"busy":2500,"memory_peak":3145728,"energy":7200,"idle":2640000,"unused":true}]}]}`, "status", "application_1_0001")
	out = strings.Join(strings.Fields(out), " ")
	for _, w := range []string{"warning container c holds GPU g and has done nothing", "c g 25% 3 MiB 2.0 Wh 44m0s"} {
		if status != 0 || !strings.Contains(out, w) {
			t.Errorf("status lacks %q: %d %s%s", w, status, out, errs)
		}
	}
}
