package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"time"
)

// PreemptionNotice tells the program of a container that it is to make room for others.
type PreemptionNotice struct {
	// Reason is for people.
	Reason string
	Since  time.Time
	// Deadline is when the program gets SIGTERM, unless it says before that its work is saved: Checkpointed.
	Deadline time.Time
}

// maxNotice bounds the file with a notice, in bytes.
const maxNotice = 64 << 10

// Preempted is the notice that there is for the container in which this runs; nil: there is none, or it was withdrawn, or this is no container.
// It costs no more than opening a file ($HOPS_PREEMPTION_FILE).
func Preempted() (*PreemptionNotice, error) {
	path := os.Getenv("HOPS_PREEMPTION_FILE")
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the notice of preemption (HOPS_PREEMPTION_FILE): %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNotice))
	var n struct {
		Since, Deadline int64 // milliseconds
		Reason          string
	}
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err == nil && n.Deadline <= 0 {
		err = errors.New("it has no deadline")
	}
	if err != nil {
		return nil, fmt.Errorf("the notice of preemption (HOPS_PREEMPTION_FILE) %s: %w", path, err)
	}
	return &PreemptionNotice{Reason: n.Reason, Since: time.UnixMilli(n.Since), Deadline: time.UnixMilli(n.Deadline)}, nil
}

// WatchPreemption calls heard with a notice when there is one, and with nil when it was withdrawn, until ctx ends, whose error it answers. It
// looks once a second.
func WatchPreemption(ctx context.Context, heard func(*PreemptionNotice)) error {
	return watchPreemption(ctx, time.Second, heard)
}

func watchPreemption(ctx context.Context, every time.Duration, heard func(*PreemptionNotice)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last *PreemptionNotice
	for {
		now, err := Preempted()
		if err != nil {
			return err
		}
		if (now == nil) != (last == nil) || now != nil && *now != *last {
			last = now
			heard(now)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// ErrNoContainer is the error of what only a program in a container can say.
var ErrNoContainer = errors.New("this is not in a container: HOPS_APPLICATION_ID, HOPS_ATTEMPT and HOPS_CONTAINER_ID are not all set")

// Checkpointed says that the container in which this runs has saved its work up to a step, a number of its own that grows. One that was told to
// go is ended then. Say it after every checkpoint, also without a notice: what runs since makes the container dearer to preempt. It is said with
// the container's own token, which speaks for this container alone.
//
// Errors: ErrNoContainer; ErrUnreachable; *Error, of status 404 when the container has ended.
func (c *Client) Checkpointed(ctx context.Context, step int64) error {
	var words []any
	for _, name := range []string{"HOPS_APPLICATION_ID", "HOPS_ATTEMPT", "HOPS_CONTAINER_ID"} {
		word := os.Getenv(name)
		if word == "" {
			return ErrNoContainer
		}
		words = append(words, url.PathEscape(word))
	}
	var answer struct{}
	return c.rest.call(ctx, http.MethodPost, fmt.Sprintf("/api/v1/applications/%s/attempts/%s/containers/%s/checkpointed", words...), map[string]int64{"step": step}, nil, &answer)
}
