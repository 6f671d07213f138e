// A master of its own: three containers are asked for, each is told what to run when it is granted, and the job has succeeded when all have ended
// well. Nothing but HTTP and JSON: docs/how-to/masters.md. Submit: hops job run -f examples/master.yaml
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

type object = map[string]any

// client follows no redirect: Go would take the token from the request when the host changes.
var client = &http.Client{
	Timeout: 90 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots()}},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

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
		if err == nil && a.StatusCode < 500 && a.StatusCode != http.StatusTemporaryRedirect { // 307: it does not lead
			text, err := io.ReadAll(a.Body)
			a.Body.Close()
			if err == nil && a.StatusCode < 300 {
				err = json.Unmarshal(text, answer)
			}
			if a.StatusCode >= 300 || err != nil {
				log.Fatalf("%s %s: %s %s %v", method, path, a.Status, text, err) // 410: another attempt goes on
			}
			return
		}
		if err == nil {
			a.Body.Close()
		}
		if try%len(managers) == len(managers)-1 {
			time.Sleep(time.Second)
		}
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
				var launched struct {
					Launches []struct {
						Problem struct{ Detail string }
					}
				}
				call("POST", "/launches", object{"launches": []object{{"containers": []string{e.Container.ID}, "launch": object{"run": "echo I run; date"}}}}, &launched)
				for _, l := range launched.Launches {
					if l.Problem.Detail != "" {
						log.Fatal(e.Container.ID, " is not launched: ", l.Problem.Detail)
					}
				}
			case e.Type == "completed" && e.Container.Exit == 0:
				done++
			case e.Type == "completed":
				log.Fatal(e.Container.ID, " ended with ", e.Container.Exit) // the resource manager starts us again
			}
		}
	}
	call("PUT", "/result", object{"final_status": "SUCCEEDED"}, &ignored)
}
