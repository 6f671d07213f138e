package server

import (
	"encoding/json"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
)

// proposeItems has the log change items of the register; done is false when one of them has another version than the proposer saw.
func (s *Server) proposeItems(changes []*logpb.ItemChange, done func(bool, error)) {
	s.send(&logpb.Command{Op: &logpb.Command_ChangeRegister{ChangeRegister: &logpb.ChangeRegister{Changes: changes}}},
		func(r *namespace.Result, err error) { done(err == nil && r.OK, err) })
}

// itemChange is a new value of an item of the register; nil removes it.
func itemChange(name string, value any, version uint64) *logpb.ItemChange {
	if value == nil {
		return &logpb.ItemChange{Name: name, Version: version, Remove: true}
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // of our own types
	}
	return &logpb.ItemChange{Name: name, Version: version, Value: text}
}
