package server

import (
	"context"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// maxResizeReason bounds what is said to those who go, in bytes.
const maxResizeReason = 1 << 10

// ResizeJob implements rest.Cluster.
func (s *Server) ResizeJob(ctx context.Context, id rm.ApplicationID, size rm.Size, reason string) (rm.State, error) {
	if err := s.raised("another number of instances"); err != nil {
		return "", err
	}
	r, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_ResizeJob{ResizeJob: &statepb.ResizeJob{
		Application: state.ApplicationID(id), Max: int32(size.Max), Min: int32(size.Min), Reason: cut(reason, maxResizeReason),
		DeadlineMs: int64(s.clock.moment().after(s.config.Preemption.Notice)),
	}}})
	if err != nil {
		return "", err
	}
	s.log.Info("job resized", "app", id, "instances", size.Max, "gang", size.Min, "reason", reason)
	return r.State, nil
}

// ChangeMembers implements rest.Cluster.
func (s *Server) ChangeMembers(ctx context.Context, id rm.ApplicationID, numbers []int, retry bool, reason string) (rm.State, error) {
	if err := s.raised("single members of an array"); err != nil {
		return "", err
	}
	c := &statepb.ChangeMembers{Application: state.ApplicationID(id), Retry: retry, Reason: cut(reason, maxResizeReason)}
	for _, n := range numbers {
		c.Numbers = append(c.Numbers, int32(n))
	}
	r, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_ChangeMembers{ChangeMembers: c}})
	if err != nil {
		return "", err
	}
	return r.State, nil
}
