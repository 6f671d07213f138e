package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

// One operation is a change, and a search that waits for it and finds it, through RPC.
func BenchmarkFound(b *testing.B) {
	c := newCluster(b, 1, func(conf *Config) { conf.Search = true })
	ctx, fs := b.Context(), c.root()
	eventually(b, "the index follows", func() bool {
		s, err := fs.SearchStatusAt(ctx, c.nodes[0].ipc)
		return err == nil && s.State == "following"
	})
	var lags []time.Duration
	for i := 0; b.Loop(); i++ {
		if err := fs.WriteFile(ctx, fmt.Sprintf("/own-%d", i), nil, false); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		after, err := fs.EventsEnd(ctx)
		if err != nil {
			b.Fatal(err)
		}
		page, err := fs.Find(ctx, metadata.Query{Path: "/", Name: fmt.Sprintf("own-%d", i)}, after)
		if err != nil || len(page.Found) != 1 {
			b.Fatalf("%+v, %v", page, err)
		}
		lags = append(lags, time.Since(began))
	}
	slices.Sort(lags)
	b.ReportMetric(float64(lags[len(lags)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(lags[len(lags)*99/100].Microseconds())/1000, "ms-p99")
}
