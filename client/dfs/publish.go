package dfs

import (
	"context"
	"fmt"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Step is one of the steps of Publish: a RenameStep, DeleteStep, SetXAttrStep, RemoveXAttrStep or SnapshotStep.
type Step interface {
	proto() (*hadooppb.PublishStepProto, error)
}

// RenameStep moves a file or directory to exactly To, whose directory has to be there. Overwrite: it may replace a file, or an empty directory.
type RenameStep struct {
	From, To  string
	Overwrite bool
}

// DeleteStep deletes a file or directory; Recursive: with all that is below. Unless IfThere is set it is an error when nothing is there.
type DeleteStep struct {
	Path               string
	Recursive, IfThere bool
}

// SetXAttrStep sets an extended attribute.
type SetXAttrStep struct {
	Path      string
	Attribute metadata.XAttr
	Flags     XAttrFlags
}

// RemoveXAttrStep removes an extended attribute, which has to be there.
type RemoveXAttrStep struct {
	Path      string
	Attribute metadata.XAttr
}

// SnapshotStep makes a snapshot of a directory; an empty name lets the server choose. It is the last step.
type SnapshotStep struct{ Dir, Name string }

func publishProto(kind hadooppb.PublishStepProto_KindProto, path string) (*hadooppb.PublishStepProto, error) {
	path, err := clean("publish", path)
	return &hadooppb.PublishStepProto{Kind: &kind, Src: &path}, err
}

func (s RenameStep) proto() (*hadooppb.PublishStepProto, error) {
	p, err := publishProto(hadooppb.PublishStepProto_RENAME, s.From)
	if err != nil {
		return nil, err
	}
	to, err := clean("publish", s.To)
	p.Dst, p.Overwrite = &to, &s.Overwrite
	return p, err
}

func (s DeleteStep) proto() (*hadooppb.PublishStepProto, error) {
	p, err := publishProto(hadooppb.PublishStepProto_DELETE, s.Path)
	p.Recursive, p.IfThere = &s.Recursive, &s.IfThere
	return p, err
}

func (s SetXAttrStep) proto() (*hadooppb.PublishStepProto, error) {
	p, err := publishProto(hadooppb.PublishStepProto_SET_XATTR, s.Path)
	p.Xattr, p.Flag = xattrProto(s.Attribute), new(uint32(s.Flags))
	return p, err
}

func (s RemoveXAttrStep) proto() (*hadooppb.PublishStepProto, error) {
	p, err := publishProto(hadooppb.PublishStepProto_REMOVE_XATTR, s.Path)
	a := s.Attribute
	a.Value = nil
	p.Xattr = xattrProto(a)
	return p, err
}

func (s SnapshotStep) proto() (*hadooppb.PublishStepProto, error) {
	p, err := publishProto(hadooppb.PublishStepProto_CREATE_SNAPSHOT, s.Dir)
	p.Name = &s.Name
	return p, err
}

// PublishError is why Publish did nothing: Err is what was wrong with a step, counted from 1 on. errors.Is finds its kind, as of the operation by itself.
type PublishError struct {
	Step int
	Err  error
}

func (e *PublishError) Error() string { return e.Err.Error() }
func (e *PublishError) Unwrap() error { return e.Err }

// Publish carries out steps in their order, all of them or none: nobody ever sees a state in between. Each step sees what those before have done. There may be 256 of them. snapshot is
// the path of the one that a SnapshotStep has made; it may be empty when the answer was lost, and the snapshot was deleted before the request was repeated.
//
// Errors: a *PublishError, of the kind of the operation that the step is; ErrUnsupported where not all of the cluster knows the call.
func (c *Client) Publish(ctx context.Context, steps ...Step) (snapshot string, err error) {
	request := &hadooppb.PublishRequestProto{Steps: make([]*hadooppb.PublishStepProto, len(steps))}
	for i, step := range steps {
		if request.Steps[i], err = step.proto(); err != nil {
			return "", &PublishError{Step: i + 1, Err: fmt.Errorf("step %d of %d: %w", i+1, len(steps), err)}
		}
	}
	if !c.publishes.served() {
		return "", errNoPublish()
	}
	var answer hadooppb.PublishResponseProto
	err = c.rpc.Call(ctx, operatorProtocol, "publish", request, &answer)
	switch failed := int(answer.GetFailed()); {
	case c.publishes.unknown(err):
		return "", errNoPublish()
	case err != nil:
		return "", wrap("publish", "", c.hinted(err))
	case failed > 0:
		return "", &PublishError{Step: failed, Err: wrap("publish", "", &hrpc.RemoteError{Class: answer.GetException(), Message: answer.GetMessage()})}
	}
	return answer.GetSnapshot(), nil
}

// errNoPublish refuses what cannot be done step by step in its place: others would see states in between.
func errNoPublish() error {
	return &Error{Op: "publish", Kind: metadata.ErrUnsupported, Message: "the namenode does not know this call: it is not supported until all namenodes run a version of hops that has it"}
}
