package namespace

import (
	"fmt"
	"strings"
	"testing"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// What a command costs in Apply, by what it does and how deep its paths are: entries of 64 commands of a user who may search all directories above.
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
			{"rename", func(i int) *logpb.Command { return command(bob, &logpb.Mkdirs{Target: to(file(i)), Mode: 0o755}) }, func(i int) *logpb.Command {
				return command(bob, &logpb.Rename{Source: to(file(i)), Target: to(file(i) + "x"), Legacy: true})
			}},
			{"delete", func(i int) *logpb.Command { return command(bob, create(file(i), "c")) }, func(i int) *logpb.Command {
				return command(bob, &logpb.Delete{Target: to(file(i))})
			}},
		} {
			b.Run(fmt.Sprintf("%s/depth=%d", kind.name, depth), func(b *testing.B) {
				ns := benchNamespace(b)
				ns.Apply(2, [][]byte{encode(b, command(super, &logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true}))})
				entries := func(make func(i int) *logpb.Command) (all [][][]byte) {
					for i := 0; i < b.N && make != nil; i += benchBatch {
						var entry [][]byte
						for k := i; k < min(i+benchBatch, b.N); k++ {
							entry = append(entry, encode(b, make(k)))
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
				apply(entries(kind.before))
				all := entries(kind.what)
				b.ResetTimer()
				defer cpu(b)()
				apply(all)
			})
		}
	}
}
