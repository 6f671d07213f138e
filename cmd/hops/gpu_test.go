package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

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
