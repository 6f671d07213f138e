package client

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestANoticeIsThereUntilItIsWithdrawn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "preemption.json")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOPS_PREEMPTION_FILE", "")
	if n, err := Preempted(); n != nil || err != nil {
		t.Errorf("outside a container: %v, %v", n, err)
	}
	t.Setenv("HOPS_PREEMPTION_FILE", path)
	if n, err := Preempted(); n != nil || err != nil {
		t.Errorf("without a notice: %v, %v", n, err)
	}
	for _, text := range []string{"", "[]", `{"since":1,"reason":"r"}`} {
		write(text)
		if n, err := Preempted(); n != nil || err == nil {
			t.Errorf("%q: %v, %v", text, n, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard, ended := make(chan *PreemptionNotice), make(chan error, 1)
	go func() {
		ended <- watchPreemption(ctx, time.Millisecond, func(n *PreemptionNotice) { heard <- n })
	}()
	write(`{"since":1000,"deadline":61500,"reason":"others"}`)
	if n := <-heard; n == nil || n.Reason != "others" || !n.Since.Equal(time.UnixMilli(1000)) || !n.Deadline.Equal(time.UnixMilli(61500)) {
		t.Errorf("%+v", n)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if n := <-heard; n != nil {
		t.Errorf("withdrawn: %+v", n)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestACheckpointIsToldWithTheContainersOwnName(t *testing.T) {
	jobs, seen := manager(t, says(200, `{}`), says(404, `{"detail":"it has ended"}`))
	c := &Client{rest: jobs.rest}
	t.Setenv("HOPS_CONTAINER_ID", "")
	if err := c.Checkpointed(t.Context(), 7); !errors.Is(err, ErrNoContainer) || len(*seen) != 0 {
		t.Error(err)
	}
	t.Setenv("HOPS_APPLICATION_ID", "application_1_0001")
	t.Setenv("HOPS_ATTEMPT", "2")
	t.Setenv("HOPS_CONTAINER_ID", "container_1_0001_02_000003")
	if err := c.Checkpointed(t.Context(), 7); err != nil || (*seen)[0].URL.Path != "/api/v1/applications/application_1_0001/attempts/2/containers/container_1_0001_02_000003/checkpointed" {
		t.Errorf("%v", err)
	}
	var answer *Error
	if err := c.Checkpointed(t.Context(), 8); !errors.As(err, &answer) || answer.Status != 404 {
		t.Error(err)
	}
}
