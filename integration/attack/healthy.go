package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// probe is one cheap operation that the healthy client repeats.
type probe struct {
	// Name of the operation, for the result.
	Name string
	// Kind is stat, newstat, write, newwrite or get.
	Kind string
	// Namenodes are for stat and write, over connections that are kept, newstat and newwrite, over new ones each time.
	Namenodes []string
	// Path that is described; writes make files below it.
	Path string
	// URL is for get, over a new connection each time.
	URL string
	// Every is the pause from one start to the next, in milliseconds; an operation that takes longer is followed at once.
	Every int
}

// patience is how long the healthy client waits for one operation.
const patience = 10 * time.Second

// healthyOrder is what it does until it is stopped. User is its name.
type healthyOrder struct {
	User   string
	Probes []probe
}

// waits is what one probe saw. Times are in milliseconds.
type waits struct {
	Name   string  `json:"name"`
	Done   int     `json:"done"`
	Failed int     `json:"failed"`
	Median float64 `json:"median_ms"`
	Worst  float64 `json:"worst_ms"`
	// First is the first failure.
	First string `json:"first_failure,omitempty"`
}

// beHealthy is the task of the healthy client. It tells when every probe has worked once.
func beHealthy(ctx context.Context, p *part, o healthyOrder) ([]waits, error) {
	out := make([]waits, len(o.Probes))
	warm, done := make(chan error, len(o.Probes)), make(chan struct{}, len(o.Probes))
	begin := make(chan struct{})
	for i, pr := range o.Probes {
		go func() {
			defer func() { done <- struct{}{} }()
			out[i] = pr.run(ctx, o.User, warm, begin)
		}()
	}
	for range o.Probes {
		if err := <-warm; err != nil {
			return nil, err
		}
	}
	close(begin)
	p.tell("ready")
	for range o.Probes {
		<-done
	}
	return out, nil
}

// run repeats the operation. The first one, which also makes the connections, does not count.
func (pr probe) run(ctx context.Context, user string, warm chan<- error, begin <-chan struct{}) waits {
	w := waits{Name: pr.Name}
	once, end, err := pr.operation(user)
	if err == nil {
		defer end()
		for range 20 { // a cluster that has just started may refuse for a moment
			if err = bounded(ctx, once); err == nil || ctx.Err() != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	if err != nil {
		warm <- fmt.Errorf("healthy client, %s: %w", pr.Name, err)
		return w
	}
	warm <- nil
	select {
	case <-begin:
	case <-ctx.Done():
		return w
	}
	every := time.Duration(pr.Every) * time.Millisecond
	var all []float64
	for ctx.Err() == nil {
		started := time.Now()
		err := bounded(ctx, once)
		took := time.Since(started)
		if ctx.Err() != nil && err != nil { // the end of the run is not the server's fault, but a wait until then is
			if took > time.Second {
				all = append(all, took.Seconds()*1000)
			}
			break
		}
		all = append(all, took.Seconds()*1000)
		w.Done++
		if err != nil {
			w.Failed++
			if w.First == "" {
				w.First = strings.Join(strings.Fields(err.Error()), " ")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(every - took):
		}
	}
	if len(all) > 0 {
		slices.Sort(all)
		w.Median, w.Worst = all[len(all)/2], all[len(all)-1]
	}
	return w
}

func bounded(ctx context.Context, once func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return once(ctx)
}

// write makes a small file, which is deleted again.
func (pr probe) write(ctx context.Context, c *dfs.Client) error {
	name := fmt.Sprintf("%s/%d", pr.Path, time.Now().UnixNano())
	if err := c.WriteFile(ctx, name, []byte("a small file"), false); err != nil {
		return err
	}
	_, err := c.Delete(ctx, name, false)
	return err
}

// operation makes what is repeated.
func (pr probe) operation(user string) (once func(context.Context) error, end func(), err error) {
	dial := func() (*dfs.Client, error) {
		return dfs.New(dfs.Config{Namenodes: pr.Namenodes, User: user, Logger: slog.New(slog.DiscardHandler)})
	}
	var c *dfs.Client
	if pr.Kind == "stat" || pr.Kind == "write" {
		if c, err = dial(); err != nil {
			return nil, nil, err
		}
	}
	end = func() {
		if c != nil {
			c.Close()
		}
	}
	switch pr.Kind {
	case "stat":
		once = func(ctx context.Context) error {
			_, err := c.Stat(ctx, pr.Path)
			return err
		}
	case "newstat":
		once = func(ctx context.Context) error {
			c, err := dial()
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Stat(ctx, pr.Path)
			return err
		}
	case "write":
		once = func(ctx context.Context) error { return pr.write(ctx, c) }
	case "newwrite":
		once = func(ctx context.Context) error {
			c, err := dial()
			if err != nil {
				return err
			}
			defer c.Close()
			return pr.write(ctx, c)
		}
	case "get":
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext}}
		once = func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, pr.URL, nil)
			if err != nil {
				return err
			}
			answer, err := client.Do(r)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if _, err := io.Copy(io.Discard, answer.Body); err != nil {
				return err
			}
			if answer.StatusCode >= 300 {
				return fmt.Errorf("%s: %s", pr.URL, answer.Status)
			}
			return nil
		}
	default:
		err = fmt.Errorf("there is no probe of kind %q", pr.Kind)
	}
	return once, end, err
}
