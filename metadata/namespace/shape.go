package namespace

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// checkShape checks that a command has all the messages that it is made of, and none with something in it that this
// program does not know. What operations do with a command begins from there.
//
// Errors: errNewer; ErrInvalidArgument for a message that is missing, which is the command's answer: every member gives it.
func checkShape(cmd *logpb.Command) error {
	if newer(cmd) || newer(cmd.Caller) { // an unknown operation too
		return errNewer
	}
	op := operation(cmd)
	if op == nil {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Command has no operation: it comes from a faulty program")
	}
	if newer(op) {
		return errNewer
	}
	var err error
	parts(op, func(name string, part protoreflect.ProtoMessage, needed bool) {
		switch {
		case err != nil:
		case newer(part):
			err = errNewer
		case needed && !part.ProtoReflect().IsValid():
			err = metadata.Errorf(metadata.ErrInvalidArgument, "Command %s has no %s: it comes from a faulty program",
				op.ProtoReflect().Descriptor().Name(), name)
		}
	})
	return err
}

// newer reports whether a message, or none, has fields that this program does not know.
func newer(m protoreflect.ProtoMessage) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }

// parts calls visit for the messages that an operation is made of, absent ones too. needed: without that one the
// operation means nothing.
func parts(op protoreflect.ProtoMessage, visit func(name string, part protoreflect.ProtoMessage, needed bool)) {
	if op, ok := op.(interface{ GetTarget() *logpb.Target }); ok {
		visit("target", op.GetTarget(), true)
	}
	switch op := op.(type) {
	case *logpb.Rename:
		visit("source", op.Source, true)
	case *logpb.Concat:
		for _, source := range op.Sources {
			visit("source", source, true)
		}
	case *logpb.Store:
		visit("create", op.Create, true)
		visit("target", op.Create.GetTarget(), true)
		visit("body", op.Body, false) // an empty file has none
	case *logpb.KeepFile:
		visit("body", op.Body, true)
	case *logpb.AddBlock:
		visit("previous", op.Previous, false) // the first block has none
		visit("block", op.Block, true)
	case *logpb.AbandonBlock:
		visit("block", op.Block, true)
	case *logpb.Complete:
		visit("last", op.Last, false) // an empty file has none
	case *logpb.UpdatePipeline:
		visit("old_block", op.OldBlock, true)
		visit("new_block", op.NewBlock, true)
	case *logpb.CommitRecovery:
		visit("block", op.Block, true)
	case *logpb.SealTail:
		visit("tail", op.Tail, true)
	case *logpb.SetXAttr:
		visit("attribute", op.Attribute, true)
	case *logpb.Publish:
		for _, step := range op.Steps {
			visit("step", step, true)
			one := stepOperation(step)
			if visit("step", one, true); one.ProtoReflect().IsValid() {
				parts(one, visit)
			}
		}
	case *logpb.ChangeRegister:
		for _, change := range op.Changes {
			visit("changes", change, true)
		}
	case *logpb.AddCachePool:
		visit("pool", op.Pool, true)
	case *logpb.ModifyCachePool:
		visit("pool", op.Pool, true)
	case *logpb.AddCacheDirective:
		visit("directive", op.Directive, true)
	case *logpb.ModifyCacheDirective:
		visit("directive", op.Directive, true)
	case *logpb.SetACL:
		for _, entry := range op.Entries {
			visit("entries", entry, true)
		}
	}
}

// stepOperation is the message of what a step of a Publish does; an absent one for one that does nothing.
func stepOperation(step *logpb.PublishStep) protoreflect.ProtoMessage {
	switch s := step.GetOp().(type) {
	case *logpb.PublishStep_Rename:
		return s.Rename
	case *logpb.PublishStep_Delete:
		return s.Delete
	case *logpb.PublishStep_SetXattr:
		return s.SetXattr
	case *logpb.PublishStep_RemoveXattr:
		return s.RemoveXattr
	case *logpb.PublishStep_Snapshot:
		return s.Snapshot
	}
	return (*logpb.PublishStep)(nil)
}
