package controller

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/training/protocol"
)

// signatureVector is a signed request and its answer, for both languages.
type signatureVector struct {
	About         string `json:"about"`
	Token         string `json:"token"`
	Purpose       string `json:"purpose"`
	Method        string `json:"method"`
	Target        string `json:"target"`
	Host          string `json:"host"`
	Container     string `json:"container"`
	Number        int64  `json:"number"`
	Body          string `json:"body"`
	Authorization string `json:"authorization"`
	Answer        struct {
		Status int    `json:"status"`
		Body   string `json:"body"`
		Proof  string `json:"proof"`
	} `json:"answer"`
}

func TestGoldenSignature(t *testing.T) {
	v := signatureVector{
		About: "A signed request of an executor, and the proof in its answer.", Token: "zFV3zXQ0rj2rG7Jt9nq5mA", Purpose: security.ExecutorRequests,
		Method: "POST", Target: "/v1/trials/0007/2/report", Host: "127.0.0.1:40123", Container: "container_e01_1700000000000_0007_01_000003",
		Number: 1700000000123456789, Body: `{"events": []}`,
	}
	v.Answer.Status, v.Answer.Body = 200, `{"ack":4,"op":"continue"}`
	key := security.NewRequestKey(v.Token, v.Purpose)
	r, _ := http.NewRequest(v.Method, "http://"+v.Host+v.Target, nil)
	key.Sign(r, security.Signature{Container: v.Container, Number: v.Number, Body: security.BodySum([]byte(v.Body))})
	v.Authorization = r.Header.Get("Authorization")
	v.Answer.Proof = key.Proof(v.Number, v.Answer.Status, []byte(v.Answer.Body))
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "signature.json")
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Error(diff)
	}
}

// A stranger who listens where a controller was catches what executors send. None of it opens anything, and an answer of
// the controller to what the stranger passes on is none to the executor.
func TestWhatAStrangerCatchesIsOfNoUse(t *testing.T) {
	r, _, _, clients := manual(t, strings.NewReplacer("%d", "1").Replace(randomSpec), 1, fast)
	c := clients[0]
	type caught struct {
		request *http.Request
		body    []byte
	}
	requests := make(chan caught, 1)
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		requests <- caught{r, b}
		io.WriteString(w, `{"action": "trial", "trial": {"trial": "0001", "attempt": 1}}`)
	}))
	defer stranger.Close()
	home := c.base
	c.base = func() string { return stranger.URL }
	if err := c.call(t.Context(), "GET", "/v1/executors/"+c.executor+"/next", nil, nil); err == nil || !strings.Contains(err.Error(), "without proof") {
		t.Errorf("the stranger's answer: %v", err)
	}
	got := <-requests
	for name, values := range got.request.Header {
		if strings.Contains(strings.Join(values, " "), "token-1") {
			t.Errorf("%s shows the token: %q", name, values)
		}
	}
	c.base = home
	replay := func(method, target, host, authorization string, body []byte) (int, string, string) {
		req, err := http.NewRequest(method, r.url+target, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Authorization", authorization)
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get(security.ProofHeader), string(b)
	}
	own := strings.TrimPrefix(r.url, "http://")
	authorization := got.request.Header.Get("Authorization")
	for _, host := range []string{own, got.request.Host} {
		if code, proof, body := replay("GET", got.request.RequestURI, host, authorization, got.body); code != 401 || proof != "" {
			t.Errorf("passed on to the controller with Host %s: %d %q %s", host, code, proof, body)
		}
	}
	// One that the controller itself has seen is not taken twice, and not with another body.
	report := []byte(`{"protocol": 1, "container_id": "` + c.container + `", "instance": "again", "host": "h"}`)
	req, number := c.signed(t.Context(), "POST", "/v1/executors", report)
	authorization = req.Header.Get("Authorization")
	if code, _, body := replay("POST", "/v1/executors", own, authorization, []byte(`{}`)); code != 401 || !strings.Contains(body, "not the one that was signed") {
		t.Errorf("another body: %d %s", code, body)
	}
	code, proof, body := replay("POST", "/v1/executors", own, authorization, report)
	if code != 409 || !strings.Contains(body, protocol.CodeRepeated) || proof != c.key.Proof(number, code, []byte(body)) {
		t.Errorf("again: %d %s", code, body)
	}
	old, _ := http.NewRequest("GET", r.url+"/v1/executors/"+c.executor+"/next", nil)
	c.key.Sign(old, security.Signature{Container: c.container, Number: 1, Body: security.BodySum(nil)})
	if code, _, body := replay("GET", old.URL.RequestURI(), own, old.Header.Get("Authorization"), nil); code != 401 || !strings.Contains(body, protocol.CodeClockSkew) || !strings.Contains(body, "set the clocks") {
		t.Errorf("of 1970: %d %s", code, body)
	}
	var next protocol.Next
	if err := c.call(t.Context(), "GET", "/v1/executors/"+c.executor+"/next", nil, &next); err != nil || next.Action != protocol.ActionTrial {
		t.Errorf("the executor itself: %+v %v", next, err)
	}
}
