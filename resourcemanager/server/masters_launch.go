package server

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// The limits of launches: of one request, and, in bytes, of one launch and of the tokens in it.
const (
	maxLaunches    = 1_000
	maxLaunchBytes = 512 << 10
	maxLaunchToken = 128 << 10
)

// checkLaunch says whether a launch can be carried out, as far as that is known before a node has it.
//
// Error: metadata.ErrInvalidArgument; metadata.ErrUnsupported while the cluster has not been raised.
func (s *Server) checkLaunch(l *rm.Launch) error {
	bad := func(format string, args ...any) error {
		return metadata.Errorf(metadata.ErrInvalidArgument, format, args...)
	}
	switch {
	case l == nil || len(l.Argv) == 0 || l.Argv[0] == "":
		return bad("there is nothing to run: launch.argv is empty")
	case l.Dialect != rm.DialectOurs && l.Dialect != rm.DialectYARN:
		return bad("dialect %.100q is none", l.Dialect)
	case l.Dialect == rm.DialectYARN && len(l.Argv) != 1:
		return bad("in YARN's dialect argv is one command line, and not %d words", len(l.Argv))
	case len(l.Tokens) > maxLaunchToken:
		return bad("tokens of %d bytes: at most %d", len(l.Tokens), maxLaunchToken)
	}
	size := len(l.Tokens)
	for _, a := range l.Argv {
		size += len(a)
	}
	for _, v := range l.Env {
		if size += len(v.Name) + len(v.Value); v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.Contains(v.Value, "\x00") {
			return bad("env: %.100q is no name of a variable, or its value holds a zero byte", v.Name)
		}
	}
	for _, f := range l.Artifacts {
		if size += len(f.Name) + len(f.URI) + len(f.Content) + len(f.Pattern); !job.LocalName(f.Name) {
			return bad("artifact %.100q is no path inside the work directory", f.Name)
		}
	}
	if size > maxLaunchBytes {
		return bad("the launch has %d bytes, the limit is %d: put large content into the file system and name it among the artifacts", size, maxLaunchBytes)
	}
	if slices.ContainsFunc(l.Artifacts, func(f rm.Artifact) bool { return f.Pattern != "" }) {
		return s.raised("an artifact with a pattern")
	}
	if l.Dialect != rm.DialectOurs || len(l.Tokens) > 0 {
		return s.raised("a launch in YARN's dialect, or with tokens")
	}
	return nil
}

// launchPurpose is of the key by which tokens of launches are sealed in the replicated state.
const launchPurpose = "tokens of launches"

// storedLaunch is a launch as the state keeps it. The same launch gives the same.
func (s *Server) storedLaunch(app rm.ApplicationID, l *rm.Launch) *statepb.Launch {
	p := state.Launch(l)
	if len(l.Tokens) > 0 {
		p.Tokens = s.sealLaunch(app, l.Tokens)
	}
	return p
}

func (s *Server) sealLaunch(app rm.ApplicationID, tokens []byte) []byte {
	return s.config.Credentials.SealAlike(launchPurpose, app.String(), tokens)
}

// launchTokens are what the launch of a container brings, opened; nil: nothing.
func (s *Server) launchTokens(view *state.View, a *rm.Application, c *rm.Container) ([]byte, error) {
	launch, err := s.launch(view, a, c)
	if err != nil {
		return nil, err
	}
	var tokens []byte
	if len(launch.Tokens) > 0 {
		if tokens, err = s.config.Credentials.Open(launchPurpose, a.ID.String(), launch.Tokens); err != nil {
			return nil, metadata.Errorf(metadata.ErrIO, "the tokens of %v do not open: this resource manager has the cluster secret of another cluster", c.ID)
		}
	}
	if speaksYARN(a, c, launch) {
		return s.withMasterToken(c, tokens)
	}
	return tokens, nil
}

// LaunchContainers implements rm.Masters.
func (s *Server) LaunchContainers(ctx context.Context, id rm.AttemptID, launches []rm.ContainerLaunch) ([]error, error) {
	return s.launchContainers(ctx, id, 0, launches)
}

func (s *Server) launchContainers(ctx context.Context, id rm.AttemptID, epoch uint64, launches []rm.ContainerLaunch) ([]error, error) {
	_, a, err := s.master(id)
	if err != nil {
		return nil, err
	}
	if err := s.raised("a launch of containers that are held"); err != nil {
		return nil, err
	}
	if len(launches) > maxLaunches {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%d launches at once: at most %d", len(launches), maxLaunches)
	}
	errs := make([]error, len(launches))
	type entry struct {
		*statepb.ContainerLaunch
		places []int
	}
	var entries []*entry
	known := map[*rm.Launch]*entry{}
	for i, l := range launches {
		e := known[l.Launch]
		if e == nil {
			if errs[i] = s.checkLaunch(l.Launch); errs[i] != nil {
				continue
			}
			e = &entry{ContainerLaunch: &statepb.ContainerLaunch{Launch: s.storedLaunch(id.Application, l.Launch)}}
			known[l.Launch] = e
			entries = append(entries, e)
		}
		e.Containers = append(e.Containers, state.ContainerID(l.Container))
		e.places = append(e.places, i)
	}
	c := &statepb.LaunchContainers{Application: state.ApplicationID(id.Application), Attempt: int32(id.Number), Epoch: epochOf(a, id, epoch)}
	var places []int
	size := 0
	commit := func() error {
		result, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_LaunchContainers{LaunchContainers: c}})
		if err != nil {
			return err
		}
		for i, err := range result.Launches {
			errs[places[i]] = err
		}
		c.Launches, places, size = nil, nil, 0
		return nil
	}
	for i, e := range entries {
		n := proto.Size(e.ContainerLaunch) + 8 // and its frame
		if i > 0 && size+n > s.config.grantBytes {
			if err := commit(); err != nil {
				return nil, err
			}
		}
		c.Launches, places, size = append(c.Launches, e.ContainerLaunch), append(places, e.places...), size+n
	}
	return errs, commit() // which checks the attempt even where there is nothing to launch
}

// endHeld ends the containers that nobody has launched for too long. A master had no chance to while nobody led: time counts from the
// beginning of this reign, or its last standstill.
func (r *reign) endHeld(now moment) {
	within := r.s.config.LaunchWithin
	if now.Sub(r.since()) <= within {
		return
	}
	c := &statepb.Stop{Epoch: r.epoch, Status: int32(rm.ExitAborted), Reason: "not launched within " + within.String() + " of its grant", Held: true}
	for k := range r.s.state.View().Held() {
		if now.passed(k.Granted) <= within || len(c.Containers) == maxLaunches {
			break // those behind it were granted later
		}
		c.Containers = append(c.Containers, state.ContainerID(k.ID))
	}
	if len(c.Containers) == 0 {
		return
	}
	_, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_Stop{Stop: c}})
	if err == nil {
		r.s.log.Info("containers that were not launched in time have ended", "containers", len(c.Containers), "within", within)
	} else if r.ctx.Err() == nil {
		r.s.log.Warn("containers that were not launched in time have not ended yet", "err", err)
	}
}
