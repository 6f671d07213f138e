// A master of its own: three containers are asked for, each is told what to run when it is granted, and the job has succeeded when all have ended
// well. Nothing but HTTP and JSON: docs/how-to/masters.md. Submit: hops job run -f examples/master.yaml
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

type object = map[string]any

var client = &http.Client{Timeout: 90 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots()}}}

func roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pem, _ := os.ReadFile(os.Getenv("HOPS_AUTHORITY"))
	pool.AppendCertsFromPEM(pem)
	return pool
}

// call asks one resource manager after the other, until one answers: only one of them leads.
func call(method, path string, body, answer any) {
	token, _ := os.ReadFile(os.Getenv("HOPS_TOKEN"))
	managers := strings.Split(os.Getenv("HOPS_RM"), ",")
	path = "/api/v1/applications/" + os.Getenv("HOPS_APPLICATION_ID") + "/attempts/" + os.Getenv("HOPS_ATTEMPT") + path
	for try := 0; ; try++ {
		url := managers[try%len(managers)]
		if url = "https://" + url + path; strings.HasPrefix(url, "https://127.") {
			url = "http" + url[5:]
		}
		b, _ := json.Marshal(body)
		r, _ := http.NewRequest(method, url, bytes.NewReader(b))
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		r.Header.Set("Content-Type", "application/json")
		a, err := client.Do(r)
		if err == nil && a.StatusCode < 500 {
			defer a.Body.Close()
			if err = json.NewDecoder(a.Body).Decode(answer); a.StatusCode >= 400 || err != nil {
				log.Fatal(method, " ", path, ": ", a.Status, " ", answer, err) // 410: another attempt goes on
			}
			return
		}
		time.Sleep(time.Second)
	}
}

func main() {
	var ignored object
	call("PUT", "/registration", object{}, &ignored)
	call("POST", "/requests", object{"asks": []object{{"id": "workers", "count": 3, "resources": object{"memory": "128MiB"}}}}, &ignored)
	var news struct {
		Events []struct {
			Type      string
			Container struct {
				ID   string
				Exit int `json:"exit_status"`
			}
		}
		Last uint64
	}
	for done := 0; done < 3; {
		call("GET", fmt.Sprint("/events?wait=30s&after=", news.Last), nil, &news)
		for _, e := range news.Events {
			switch {
			case e.Type == "granted":
				call("POST", "/launches", object{"launches": []object{{"containers": []string{e.Container.ID}, "launch": object{"run": "echo I run; date"}}}}, &ignored)
			case e.Type == "completed" && e.Container.Exit == 0:
				done++
			case e.Type == "completed":
				log.Fatal(e.Container.ID, " ended with ", e.Container.Exit) // the resource manager starts us again
			}
		}
	}
	call("PUT", "/result", object{"final_status": "SUCCEEDED"}, &ignored)
}
