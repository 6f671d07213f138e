package server

import (
	"context"
	"iter"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode/roster"
)

// register is the namespace's, which every namenode reads and the one that leads changes.
type register struct{ server *Server }

// Item implements roster.Register.
func (g register) Item(name string) (value []byte, version uint64) { return g.server.ns.Item(name) }

// Items implements roster.Register.
func (g register) Items(prefix string) iter.Seq2[string, []byte] { return g.server.ns.Items(prefix) }

// RegisterVersion implements roster.Register.
func (g register) RegisterVersion() uint64 { return g.server.ns.RegisterVersion() }

// Change implements roster.Register. When ctx ends first it is not known whether the changes are done.
func (g register) Change(ctx context.Context, changes ...roster.Change) (bool, error) {
	op := &logpb.ChangeRegister{}
	for _, c := range changes {
		op.Changes = append(op.Changes, &logpb.ItemChange{Name: c.Name, Value: c.Value, Version: c.Version, Remove: c.Value == nil})
	}
	type outcome struct {
		ok  bool
		err error
	}
	done := make(chan outcome, 1)
	g.server.send(&logpb.Command{Op: &logpb.Command_ChangeRegister{ChangeRegister: op}}, func(result *namespace.Result, err error) {
		done <- outcome{err == nil && result.OK, err}
	})
	select {
	case o := <-done:
		return o.ok, o.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
