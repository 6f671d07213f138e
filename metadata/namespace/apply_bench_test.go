package namespace

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// What a command costs in Apply, by what it does and how deep its paths are, as they came and resolved by the proposer: entries of 64 commands of a user
// who may search all directories above.
func BenchmarkApply(b *testing.B) {
	for _, depth := range []int{3, 10} {
		dir := strings.Repeat("/directory", depth-1)
		file := func(i int) string { return fmt.Sprintf("%s/part-%08d", dir, i) }
		for _, kind := range []struct {
			name         string
			before, what func(i int) *logpb.Command
		}{
			{"mkdir", nil, func(i int) *logpb.Command {
				return command(bob, &logpb.Mkdirs{Target: to(file(i)), Mode: 0o755})
			}},
			{"create", nil, func(i int) *logpb.Command { return command(bob, create(file(i), "c")) }},
			{"rename", func(i int) *logpb.Command { return command(bob, create(file(i), "c")) }, func(i int) *logpb.Command {
				return command(bob, &logpb.Rename{Source: to(file(i)), Target: to(file(i) + "x"), Legacy: true})
			}},
			{"delete", func(i int) *logpb.Command { return command(bob, create(file(i), "c")) }, func(i int) *logpb.Command {
				return command(bob, &logpb.Delete{Target: to(file(i))})
			}},
		} {
			for _, form := range []string{"paths", "resolved"} {
				b.Run(fmt.Sprintf("%s/depth=%d/%s", kind.name, depth, form), func(b *testing.B) {
					benchApply(b, dir, kind.before, kind.what, form == "resolved")
				})
			}
		}
	}
}

func benchApply(b *testing.B, dir string, before, what func(i int) *logpb.Command, resolved bool) {
	ns := benchNamespace(b)
	ns.Apply(2, [][]byte{
		encode(b, command(super, &logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true})),
		encode(b, command(super, &logpb.Mkdirs{Target: &logpb.Target{Base: uint64(metadata.RootID), Path: "first", Version: 1}})), // from which on they are good
	})
	bytes := 0
	entries := func(make func(i int) *logpb.Command) (all [][][]byte) {
		for i := 0; i < b.N && make != nil; i += benchBatch {
			var entry [][]byte
			for k := i; k < min(i+benchBatch, b.N); k++ {
				cmd := make(k)
				if resolved {
					if r := ns.ResolveTargets(bob, cmd); !r.Done() {
						b.Fatal("not resolved")
					}
				}
				entry = append(entry, encode(b, cmd))
				bytes = len(entry[len(entry)-1])
			}
			all = append(all, entry)
		}
		return all
	}
	apply := func(all [][][]byte) {
		for _, e := range all {
			for _, r := range ns.Apply(ns.AppliedIndex()+1, e) {
				if r := r.(*Result); r.Err != nil || !r.OK {
					b.Fatal(r.Err, r.OK)
				}
			}
		}
	}
	apply(entries(before))
	all := entries(what)
	b.ResetTimer()
	b.ReportMetric(float64(bytes), "log-B/op")
	defer cpu(b)()
	apply(all)
}
