package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

// BenchmarkFromSubmissionToStart is the way of a command with nothing before it: submission, its master's grant and start,
// registration, ask, grant, start are seven commits.
func BenchmarkFromSubmissionToStart(b *testing.B) {
	c := newTestCluster(b, 1, nil)
	started := make(chan time.Time, 1)
	c.awaitOpen(c.node("127.0.0.1:1001", 0, programs(c, func(context.Context, *pb.ContainerSpec) int {
		started <- time.Now()
		return 0
	})))
	var sum time.Duration
	for b.Loop() {
		began := time.Now()
		id := c.submit("ann", `{"argv":["true"]}`)
		sum += (<-started).Sub(began)
		b.StopTimer()
		c.await(id, rm.StateFinished)
		b.StartTimer()
	}
	b.ReportMetric(float64(sum.Milliseconds())/float64(b.N), "ms/start")
}

// BenchmarkAskToGrant is how long a master waits from its request to the event of the grant, over each wire: ns/op, and percentiles.
func BenchmarkAskToGrant(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) { benchmarkAskToGrant(b, members) })
	}
}

func benchmarkAskToGrant(b *testing.B, members int) {
	c := newTestCluster(b, members, nil)
	n := c.node("127.0.0.1:1001", 0, untilStopped)
	c.awaitOpen(n)
	c.raise()
	client := &http.Client{}
	report := func(b *testing.B, took []time.Duration) {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	}
	b.Run("REST", func(b *testing.B) {
		m := c.restMaster(n)
		say := func(method, path, body string, into any) {
			a, err := client.Do(m.request(method, path, body))
			if err != nil {
				b.Fatal(err)
			}
			defer a.Body.Close()
			if err := json.NewDecoder(a.Body).Decode(into); err != nil || a.StatusCode != 200 {
				b.Fatal(a.Status, err)
			}
		}
		say("PUT", "/registration", `{}`, &struct{}{})
		var took []time.Duration
		var news rest.Events
		release := ""
		for i := range b.N {
			start := time.Now()
			say("POST", "/requests", fmt.Sprintf(`{"asks":[{"id":"w%d","count":1,"resources":{"memory":"128MiB"}}]%s}`, i, release), &struct{}{})
			for granted := false; !granted; {
				say("GET", fmt.Sprintf("/events?after=%d", news.Last), "", &news)
				for _, e := range news.Events {
					if e.Type == "granted" {
						granted, release = true, fmt.Sprintf(`,"release":[%q]`, e.Container.ID)
					}
				}
			}
			took = append(took, time.Since(start))
		}
		report(b, took)
	})
	b.Run("gRPC", func(b *testing.B) {
		m := c.restMaster(n)
		spec := n.running(true)
		at := slices.IndexFunc(spec, func(s *pb.ContainerSpec) bool { return s.Token == m.token })
		conn, err := grpc.NewClient("passthrough:///"+c.leader().peer(c.leader().config.ID).GRPC, grpc.WithTransportCredentials(tokenKey(c, spec[at].ContainerId, m.token).Credentials()))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		masters := pb.NewApplicationMastersClient(conn)
		id := m.id.Application.String()
		r, err := masters.Register(b.Context(), &pb.RegisterRequest{ApplicationId: id, Attempt: 1})
		if err != nil {
			b.Fatal(err)
		}
		events, err := masters.Events(b.Context(), &pb.EventsRequest{ApplicationId: id, Attempt: 1, Epoch: r.Epoch})
		if err != nil {
			b.Fatal(err)
		}
		var took []time.Duration
		var release []string
		handled := uint64(0)
		for i := range b.N {
			start := time.Now()
			if _, err := masters.Allocate(b.Context(), &pb.AllocateRequest{
				ApplicationId: id, Attempt: 1, Epoch: r.Epoch, Sequence: uint64(i) + 1, Release: release, Acknowledged: handled,
				Asks: []*pb.Ask{{AskId: fmt.Sprint("w", i), Count: 1, Held: true, Resources: &pb.Resources{Memory: 128 << 20, Vcores: 1}}},
			}); err != nil {
				b.Fatal(err)
			}
			for granted := false; !granted; {
				e, err := events.Recv()
				if err != nil {
					b.Fatal(err)
				}
				if handled = max(handled, e.Sequence); e.GetGranted() != nil {
					granted, release = true, []string{e.GetGranted().ContainerId}
				}
			}
			took = append(took, time.Since(start))
		}
		report(b, took)
	})
}
