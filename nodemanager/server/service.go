package server

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// serve notes what an operator wants of this node, as the resource manager says with its orders; nil: that it serves.
func (s *Server) serve(want *rmpb.NodeService) {
	if had := s.service.Swap(want); !proto.Equal(had, want) {
		s.log.Info("this node's service has changed", "state", want.GetState(), "by", want.GetBy())
	}
}

// leaving says what an operator wants of this node, in a word and in a sentence; empty: that it serves.
func (s *Server) leaving() (state, note string) {
	want := s.service.Load()
	if want == nil {
		return "", ""
	}
	state = strings.ToLower(strings.ReplaceAll(want.GetState(), "_", " "))
	note = fmt.Sprintf("%s, by %s: it gets no work", state, want.GetBy())
	if at := want.GetDeadlineMs(); at > 0 {
		note += ", and what still runs is ended at " + moment(at)
	}
	if at := want.GetUntilMs(); at > 0 {
		note += ", until " + moment(at)
	}
	return state, note
}

func moment(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05 UTC") }
