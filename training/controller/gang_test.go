package controller

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/training/protocol"
)

// A gang over HTTP: the last member that asks makes it whole, those that wait in next and join are woken, and a member that falls
// silent is found within the lease of gangs, whatever lease others have. The others are fenced off and get the next attempt.
func TestAGangFindsItselfAndStartsAgain(t *testing.T) {
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	times := fast
	times.Tick, times.Grace = time.Millisecond, 24*time.Hour // that is for executors which a new controller has not heard of yet
	r, rm, fs, c := manual(t, `{"project": "lab", "entry": "m:f", "metric": "acc", "distributed": {"framework": "torch", "workers": 2, "restarts": 1}, "stop_grace": "1s"}`, 2, times,
		func(e *Env) { e.now = func() time.Time { return time.Unix(0, clock.Load()) } })
	rm.mu.Lock()
	if len(rm.asks) == 0 || rm.asks[0].Count != 2 || rm.asks[0].GangMin != 2 {
		t.Errorf("asked with %v", rm.asks)
	}
	rm.mu.Unlock()
	join := func(c *client, a *protocol.Assignment) (out protocol.Joined, err error) {
		j := protocol.Join{Rank: a.Gang.Rank, Host: fmt.Sprintf("10.0.0.%d", a.Gang.Rank+1)}
		for i := range a.Gang.Ports {
			j.Ports = append(j.Ports, 4000+i)
		}
		err = c.insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/join?wait=60", a.Trial, a.Attempt), j, &out)
		return out, err
	}
	type answer struct {
		next   protocol.Next
		joined protocol.Joined
		err    error
	}
	waits := make(chan answer)
	go func() { // long polls, until the other one comes
		var a answer
		a.err = c[0].insist(context.Background(), "GET", "/v1/executors/"+c[0].executor+"/next?wait=60", nil, &a.next)
		if a.err == nil {
			a.joined, a.err = join(c[0], a.next.Trial)
		}
		waits <- a
	}()
	b := c[1].next("60").Trial
	two, err := join(c[1], b)
	one := <-waits
	if err != nil || one.err != nil || !one.joined.Ready || !two.Ready || b.Gang.World != 2 || b.Gang.Rank+one.next.Trial.Gang.Rank != 1 {
		t.Fatalf("%+v %+v %v", one, two, err)
	}
	if two.Env["MASTER_ADDR"] != "10.0.0.1" || one.joined.Env["MASTER_ADDR"] != "10.0.0.1" || two.Env["HOPS_GENERATION"] != "1" {
		t.Errorf("%v %v", one.joined.Env, two.Env)
	}
	report := func(c *client, a *protocol.Assignment) error {
		return c.insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/%d/report", a.Trial, a.Attempt), protocol.Report{Rank: a.Gang.Rank}, nil)
	}
	// The second member falls silent; the first reports on.
	a := one.next.Trial
	for until := time.Now().Add(patience); ; {
		if err := report(c[0], a); codeOf(err) == protocol.CodeStaleAttempt {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if time.Now().After(until) {
			t.Fatal("nobody has found out")
		}
		clock.Add(int64(gangLease / 8))
		time.Sleep(times.Tick)
	}
	if err := report(c[1], b); codeOf(err) != protocol.CodeStaleAttempt {
		t.Errorf("the silent one: %v", err)
	}
	// Another container takes its place, and the gang begins again.
	silent := c[1].container
	var rank protocol.Next
	deadline := time.Now().Add(patience)
	for rank.Trial == nil && time.Now().Before(deadline) {
		rm.mu.Lock()
		var fresh *client
		for id, k := range rm.running {
			if id != c[0].container && id != silent {
				fresh = newClient(t, where(fs), id, k.Token)
			}
		}
		rm.mu.Unlock()
		if fresh == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		t.Cleanup(fresh.http.CloseIdleConnections)
		if _, err := fresh.register(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		rank = fresh.next("5")
		c[1] = fresh
	}
	again := c[0].next("5")
	if rank.Trial == nil || again.Trial == nil || again.Trial.Attempt != 2 || !strings.Contains(rank.Trial.Dirs.Log+again.Trial.Dirs.Log, "output.2.rank-1.log") {
		t.Fatalf("%+v %+v", rank, again)
	}
	for i, a := range []*protocol.Assignment{again.Trial, rank.Trial} {
		if err := c[i].insist(t.Context(), "POST", fmt.Sprintf("/v1/trials/%v/2/final", a.Trial), protocol.Final{Rank: a.Gang.Rank, Status: "COMPLETED"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range c {
		if n := k.next("5"); n.Action != protocol.ActionDrain {
			t.Errorf("%+v", n)
		}
		rm.complete(k.container, 0)
	}
	r.wait()
}
