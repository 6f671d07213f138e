package server

import (
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// Publish implements namenode.Publisher.
func (s *Server) Publish(c metadata.Caller, retry namenode.Retry, steps []namenode.PublishStep, done func(string, error)) {
	if s.group.Level() < release.Publish {
		done("", metadata.Errorf(metadata.ErrUnsupported, "publishing needs a cluster of level %d: raise it (`hops cluster finalize`) when all of it runs a version that knows that level", release.Publish))
		return
	}
	if len(steps) > namenode.MaxPublishSteps { // the command says so, too
		done("", namenode.ManySteps(len(steps)))
		return
	}
	op := &logpb.Publish{Steps: make([]*logpb.PublishStep, len(steps))}
	for i := range steps {
		step, err := s.publishStep(&steps[i])
		if err != nil {
			done("", publishError(i+1, len(steps), err))
			return
		}
		op.Steps[i] = step
	}
	s.publish(surveys+min(len(steps), publishSurveys), c, retry, op, done)
}

// The doors know the limit of the command.
var _ = [1]struct{}{}[namenode.MaxPublishSteps-namespace.MaxPublishSteps]

// publishSurveys is for how many of its steps a publish has trees surveyed: half of the surveys that the cluster has at a time.
const publishSurveys = 32

// publishError is what was wrong with a step before it was proposed.
func publishError(step, of int, err error) error {
	return &namenode.PublishError{Step: step, Err: metadata.Errorf(metadata.KindOf(err), "step %d of %d: %s", step, of, err)}
}

// publishStep is the form in which the command carries a step. Errors: of its paths, and of a protected directory.
func (s *Server) publishStep(step *namenode.PublishStep) (*logpb.PublishStep, error) {
	t, err := target(step.Path)
	if err != nil {
		return nil, err
	}
	a := step.Attribute
	switch step.What {
	case namenode.PublishRename:
		to, err := target(step.To)
		if err == nil {
			err = s.checkProtected(step.Path)
		}
		return &logpb.PublishStep{Op: &logpb.PublishStep_Rename{Rename: &logpb.Rename{Source: t, Target: to, Overwrite: step.Overwrite}}}, err
	case namenode.PublishDelete:
		if step.Recursive {
			err = s.checkProtected(step.Path)
		}
		return &logpb.PublishStep{Op: &logpb.PublishStep_Delete{Delete: &logpb.Delete{Target: t, Recursive: step.Recursive}}, IfThere: step.IfThere}, err
	case namenode.PublishSetXAttr:
		return &logpb.PublishStep{Op: &logpb.PublishStep_SetXattr{SetXattr: &logpb.SetXAttr{
			Target: t, Create: step.Create, Replace: step.Replace, Attribute: &logpb.XAttr{Namespace: logpb.XAttr_Namespace(a.Namespace), Name: a.Name, Value: a.Value},
		}}}, nil
	case namenode.PublishRemoveXAttr:
		return &logpb.PublishStep{Op: &logpb.PublishStep_RemoveXattr{RemoveXattr: &logpb.RemoveXAttr{Target: t, Namespace: logpb.XAttr_Namespace(a.Namespace), Name: a.Name}}}, nil
	case namenode.PublishSnapshot:
		return &logpb.PublishStep{Op: &logpb.PublishStep_Snapshot{Snapshot: &logpb.ChangeSnapshots{Target: t, Change: logpb.ChangeSnapshots_CREATE, Name: step.Name}}},
			namespace.CheckLength("createSnapshot", step.Path)
	}
	return nil, metadata.Errorf(metadata.ErrInvalidArgument, "publish: there is no verb %d", step.What)
}

// publish proposes a publish. Trees that are too large to be looked at inside of the command are surveyed before, one after the other, as those of single
// operations are; left is how often.
func (s *Server) publish(left int, c metadata.Caller, retry namenode.Retry, op *logpb.Publish, done func(string, error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_Publish{Publish: op}
	s.change(&c, retry, e, func(r *namespace.Result, err error) {
		if large(r, err) && left > 0 {
			n, tree := r.Step, &logpb.Target{Base: uint64(r.INode)}
			if surveyOf(op.Steps[n-1]) == 0 && surveyedSteps(op) == publishSurveys {
				s.endSurveys(c, op)
				done("", publishError(n, len(op.Steps), metadata.Errorf(metadata.ErrInvalidArgument,
					"the tree is large, as those of %d steps before are, which is the most: publish fewer of them at a time", publishSurveys)))
				return
			}
			s.aside(c.User, nil, 0, func(err error) {
				if err == nil {
					err = s.surveyStep(c, op.Steps[n-1], tree)
				}
				if err != nil {
					s.endSurveys(c, op)
					done("", publishError(n, len(op.Steps), err))
					return
				}
				s.publish(left-1, c, retry, op, done)
			})
			return
		}
		if err != nil {
			s.endSurveys(c, op)
			if r != nil && r.Step > 0 {
				err = &namenode.PublishError{Step: r.Step, Err: err}
			}
			done("", err)
			return
		}
		done(r.Snapshot, nil)
	})
}

// surveyStep surveys a tree for a step, and tells it what was found.
func (s *Server) surveyStep(c metadata.Caller, step *logpb.PublishStep, tree *logpb.Target) error {
	deletes := step.GetDelete()
	survey, u, err := s.survey(c, tree, deletes != nil)
	if err != nil {
		return err
	}
	types := s.typesOf(survey, u)
	if deletes != nil {
		deletes.Survey, deletes.Names, deletes.Space, deletes.Types = survey, u.Names, u.Space, types
	} else if moves := step.GetRename(); moves != nil {
		moves.Survey, moves.Names, moves.Space, moves.Types = survey, u.Names, u.Space, types
	}
	return nil
}

// surveyOf is the survey that a step has; 0: none.
func surveyOf(step *logpb.PublishStep) uint64 {
	return max(step.GetDelete().GetSurvey(), step.GetRename().GetSurvey())
}

func surveyedSteps(op *logpb.Publish) (n int) {
	for _, step := range op.Steps {
		if surveyOf(step) != 0 {
			n++
		}
	}
	return n
}

// endSurveys ends the surveys of a publish that is given up. They would end by themselves.
func (s *Server) endSurveys(c metadata.Caller, op *logpb.Publish) {
	for _, step := range op.Steps {
		survey := surveyOf(step)
		if survey == 0 {
			continue
		}
		e := newEnvelope()
		e.command.Op = &logpb.Command_SurveyTree{SurveyTree: &logpb.SurveyTree{Target: new(logpb.Target), End: survey}}
		s.simple(&c, namenode.Retry{}, e, func(error) {})
	}
}
