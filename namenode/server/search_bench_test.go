package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// One operation is a mkdir of somebody, in a tree of 32,000 directories: while nobody searches, and while a user has 50 searches at a time whose patterns take as
// long as patterns can and find nothing.
func BenchmarkBesideSearches(b *testing.B) {
	c := newCluster(b, 1, func(conf *Config) { conf.Search = true })
	ctx, fs := b.Context(), c.root()
	var makers sync.WaitGroup
	for g := range 32 {
		makers.Go(func() {
			for i := range 1000 {
				if err := fs.Mkdirs(ctx, fmt.Sprintf("/d%d/%s-%d", g, strings.Repeat("ab", 60), i), 0o755, true); err != nil {
					b.Error(err)
				}
			}
		})
	}
	makers.Wait()
	eventually(b, "the index has all of it", func() bool {
		s, err := fs.SearchStatusAt(ctx, c.nodes[0].ipc)
		return err == nil && s.State == "following" && s.Entries > 32_000
	})
	alice := c.client("alice")
	made := 0
	for _, searches := range []int{0, 50} {
		b.Run(fmt.Sprintf("%d", searches), func(b *testing.B) {
			during, stop := context.WithCancel(ctx)
			var storm sync.WaitGroup
			for range searches {
				storm.Go(func() {
					for during.Err() == nil {
						_, _ = alice.Find(during, metadata.Query{Path: "/", Name: strings.Repeat("*a*b", 100) + "x"}, 0) // ends with the storm
					}
				})
			}
			var mkdirs, stats []time.Duration
			for b.Loop() {
				made++
				began := time.Now()
				if err := fs.Mkdirs(ctx, fmt.Sprintf("/own-%d", made), 0o755, true); err != nil {
					b.Fatal(err)
				}
				mkdirs = append(mkdirs, time.Since(began))
				began = time.Now()
				if _, err := fs.Stat(ctx, "/d1"); err != nil {
					b.Fatal(err)
				}
				stats = append(stats, time.Since(began))
			}
			stop()
			storm.Wait()
			slices.Sort(mkdirs)
			slices.Sort(stats)
			b.ReportMetric(float64(mkdirs[len(mkdirs)/2].Microseconds()), "us-mkdir")
			b.ReportMetric(float64(mkdirs[len(mkdirs)*99/100].Microseconds()), "us-mkdir-p99")
			b.ReportMetric(float64(stats[len(stats)/2].Microseconds()), "us-stat")
			b.ReportMetric(float64(stats[len(stats)*99/100].Microseconds()), "us-stat-p99")
		})
	}
}
