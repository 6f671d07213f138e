package clientprotocol

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

var publishVerbs = map[pb.PublishStepProto_KindProto]namenode.PublishVerb{
	pb.PublishStepProto_RENAME:          namenode.PublishRename,
	pb.PublishStepProto_DELETE:          namenode.PublishDelete,
	pb.PublishStepProto_SET_XATTR:       namenode.PublishSetXAttr,
	pb.PublishStepProto_REMOVE_XATTR:    namenode.PublishRemoveXAttr,
	pb.PublishStepProto_CREATE_SNAPSHOT: namenode.PublishSnapshot,
}

// publishRequest is a PublishRequestProto of whose steps none is decoded if there are too many.
type publishRequest struct {
	pb.PublishRequestProto
	steps int // that it has
}

func (r *publishRequest) UnmarshalVT(b []byte) error {
	const steps = 1 // of PublishRequestProto
	r.steps = 0
	for rest := b; len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if number == steps {
			r.steps++
		}
		rest = rest[n:]
	}
	if r.steps > namenode.MaxPublishSteps {
		return nil
	}
	return r.PublishRequestProto.UnmarshalVT(b)
}

// publish carries out several things in one go, or none. It answers with the step that failed, unless the client has to ask again or elsewhere.
func (p *protocol) publish(c *hrpc.Call, r *publishRequest) {
	if r.steps > namenode.MaxPublishSteps {
		c.Fail(namenode.ManySteps(r.steps))
		return
	}
	steps := make([]namenode.PublishStep, len(r.GetSteps()))
	for i, s := range r.GetSteps() {
		what, known := publishVerbs[s.GetKind()]
		if !known || len(s.ProtoReflect().GetUnknown()) > 0 {
			c.Fail(metadata.Errorf(metadata.ErrUnsupported, "publish: step %d of %d is none that this namenode knows", i+1, len(steps)))
			return
		}
		steps[i] = namenode.PublishStep{
			What: what, Path: s.GetSrc(), To: s.GetDst(), Overwrite: s.GetOverwrite(), Recursive: s.GetRecursive(), IfThere: s.GetIfThere(),
			Attribute: xattr(s.GetXattr()), Create: s.GetFlag()&flagXAttrCreate != 0, Replace: s.GetFlag()&flagXAttrReplace != 0, Name: s.GetName(),
		}
	}
	p.service.Publish(c.Caller, retry(c), steps, func(snapshot string, err error) {
		answer := publishAnswer{PublishResponseProto: &pb.PublishResponseProto{}, steps: steps, err: err}
		failed, isStep := errors.AsType[*namenode.PublishError](err)
		kind := metadata.KindOf(err)
		switch {
		case err != nil && (!isStep || kind == metadata.ErrRetriable || kind == metadata.ErrStandby || kind == metadata.ErrSafeMode):
			c.Fail(err)
			return
		case err != nil:
			class, message := hdfs.Exception(err)
			answer.Failed, answer.Exception, answer.Message = new(uint32(failed.Step)), &class, &message
		case snapshot != "":
			answer.Snapshot = &snapshot
		}
		c.Reply(answer)
	})
}

// publishAnswer implements hrpc.DecisionsAnswer.
type publishAnswer struct {
	*pb.PublishResponseProto
	steps []namenode.PublishStep
	err   error
}

func (a publishAnswer) Decisions() []security.Decision {
	return namenode.PublishDecisions(a.steps, a.GetSnapshot(), int(a.GetFailed()), a.err)
}
