package server

import (
	"runtime/debug"

	"github.com/gohops/hops/metadata"
)

// beside runs f, which serves a request, on a goroutine of its own. A panic there fails that request, as one of a handler does, and not the namenode.
func (s *Server) beside(fail func(error), f func()) {
	go func() {
		defer s.caught(fail)
		f()
	}()
}

// caught is deferred where a request is served on a goroutine that is not its handler's. It answers for what has panicked; who has answered already takes no notice of a second answer.
func (s *Server) caught(fail func(error)) {
	if what := recover(); what != nil {
		s.log.Error("a mistake of this program: a request panicked; please report it", "panic", what, "stack", string(debug.Stack()))
		fail(metadata.Errorf(metadata.ErrIO, "a mistake of this program, which its log describes"))
	}
}
