package state

import (
	"crypto/sha256"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// validate refuses commands that lack a part which the operations take for granted, or hold what no leader sends. Such a
// command has no effect; were it to panic, it would do so on every member and at every start.
//
// Error: ErrInvalidArgument.
func validate(c *statepb.Command) error {
	bad := func(format string, args ...any) error {
		return metadata.Errorf(metadata.ErrInvalidArgument, "malformed command: "+format, args...)
	}
	switch op := c.Op.(type) {
	case *statepb.Command_Begin:
		if ms := op.Begin.LeaseMs; ms < 0 || ms > maxLease {
			return bad("a lease of %d ms", ms)
		}
		if len(op.Begin.Leader) > maxName || len(op.Begin.QueuesHash) > maxName {
			return bad("a name of more than %d bytes", maxName)
		}
	case *statepb.Command_SettleLease:
		if ms := op.SettleLease.LeaseMs; ms < 0 || ms > maxLease {
			return bad("a lease of %d ms", ms)
		}
	case *statepb.Command_Submit:
		a := op.Submit.Application
		switch {
		case a == nil:
			return bad("a submission without an application")
		case a.State != "" && a.State != string(rm.StateFailed):
			return bad("an application is submitted as %.20q", a.State)
		case a.Id.GetCluster() < 0 || a.Id.GetSequence() < 0 || a.Id.GetSequence() > rm.MaxSequence:
			return bad("an application's id is %v", appIDOf(a.Id))
		case !sane(a.Master):
			return bad("an application whose master wants %v", a.Master)
		case len(a.After) > rm.MaxAfter:
			return bad("an application that waits for %d", len(a.After))
		case a.DeadlineMs < 0:
			return bad("a deadline of %d ms", a.DeadlineMs)
		}
		for _, d := range a.After {
			if !slices.Contains(rm.Outcomes, d.State) {
				return bad("an application that waits until another has %.20q", d.State)
			}
		}
	case *statepb.Command_RegisterNode:
		n := op.RegisterNode.Node
		switch {
		case n == nil || n.Id == "":
			return bad("a registration without a node")
		case n.State != string(rm.NodeRunning) && n.State != string(rm.NodeUnhealthy):
			return bad("node %.100s registers as %.20q", n.Id, n.State)
		case !sane(n.Capacity):
			return bad("node %.100s has %v", n.Id, n.Capacity)
		}
	case *statepb.Command_AdministerNodes:
		if err := validWish(op.AdministerNodes.Wish); err != nil {
			return err
		}
	case *statepb.Command_ExcludeNodes:
		if n := len(op.ExcludeNodes.Names); n > MaxExcluded {
			return bad("%d excluded nodes", n)
		}
		for _, name := range op.ExcludeNodes.Names {
			if name == "" || len(name) > maxName {
				return bad("the name of an excluded node with %d bytes", len(name))
			}
		}
	case *statepb.Command_ChangeLabels:
		if len(op.ChangeLabels.Add) > rm.MaxLabels || len(op.ChangeLabels.Remove) > rm.MaxLabels {
			return bad("%d labels", max(len(op.ChangeLabels.Add), len(op.ChangeLabels.Remove)))
		}
		for _, l := range op.ChangeLabels.Add {
			if err := rm.ValidLabel(l.GetName()); err != nil {
				return err
			}
		}
	case *statepb.Command_MarkNodes:
		for _, m := range op.MarkNodes.Nodes {
			if m == nil || len(m.Labels.GetNames()) > maxLabelsOfNode || len(m.Set) > rm.MaxAttributes {
				return bad("marks of no node, or too many")
			}
			for _, l := range m.Labels.GetNames() {
				if err := rm.ValidLabel(l); err != nil {
					return err
				}
			}
			if _, err := rm.NewAttributes(m.Set); err != nil {
				return err
			}
		}
	case *statepb.Command_ResizeNode:
		if !sane(op.ResizeNode.Resource) {
			return bad("node %.100s is to have %v", op.ResizeNode.Node, op.ResizeNode.Resource)
		}
	case *statepb.Command_SetQueues:
		if n := len(op.SetQueues.Document); n > MaxQueues {
			return bad("queues with %d bytes", n)
		}
		if len(op.SetQueues.Hash) > maxName || len(op.SetQueues.By) > maxName {
			return bad("a name of more than %d bytes", maxName)
		}
	case *statepb.Command_UpdateApplication:
		u := op.UpdateApplication
		switch {
		case u.Application == nil:
			return bad("an update of no application")
		case u.Priority != nil && (*u.Priority < 0 || *u.Priority > maxApplicationPriority):
			return bad("a priority of %d", *u.Priority)
		case len(u.Queue) > maxName:
			return bad("the path of a queue with %d bytes", len(u.Queue))
		case u.ExpiresMs < 0:
			return bad("an end of %d ms", u.ExpiresMs)
		}
	case *statepb.Command_PreemptContainers:
		p := op.PreemptContainers
		if p.DeadlineMs < 0 || slices.Contains(p.Spared, nil) {
			return bad("a deadline of %d ms, or no container", p.DeadlineMs)
		}
		for _, e := range p.Evictions {
			if e.Application == nil || len(e.Queue) > maxName || e.Queue == "" || len(e.Ask) > maxName || slices.Contains(e.Containers, nil) {
				return bad("an eviction for nobody, or of no container")
			}
		}
	case *statepb.Command_Checkpoint:
		if op.Checkpoint.Application == nil || op.Checkpoint.Step < 0 || slices.Contains(op.Checkpoint.Containers, nil) {
			return bad("a checkpoint of nothing, or of step %d", op.Checkpoint.Step)
		}
	case *statepb.Command_ResizeJob:
		r := op.ResizeJob
		if r.Application == nil || r.Max < 1 || r.Max > maxMembers || r.Min < 0 || r.Min > r.Max || r.DeadlineMs < 0 || r.Reason == "" || len(r.Reason) > maxReason {
			return bad("a size of %d..%d instances, a deadline of %d ms, or a reason with %d bytes", r.Min, r.Max, r.DeadlineMs, len(r.Reason))
		}
	case *statepb.Command_ChangeMembers:
		m := op.ChangeMembers
		if m.Application == nil || len(m.Numbers) == 0 || len(m.Numbers) > maxMembers || slices.Min(m.Numbers) < 0 || len(m.Reason) > maxReason {
			return bad("a wish for %d members, or a reason with %d bytes", len(m.Numbers), len(m.Reason))
		}
	case *statepb.Command_Statuses:
		for _, s := range op.Statuses.Statuses {
			if s.Container == nil {
				return bad("a status of no container")
			}
		}
	case *statepb.Command_Grant:
		for _, g := range op.Grant.Groups {
			for _, p := range g.Placements {
				if !sane(p.Resource) {
					return bad("a placement of %v", p.Resource)
				}
			}
		}
	case *statepb.Command_RegisterMaster:
		if n := len(op.RegisterMaster.HttpCertificate); n != 0 && n != sha256.Size {
			return bad("the SHA-256 of a certificate with %d bytes", n)
		}
	case *statepb.Command_Allocate:
		for _, w := range op.Allocate.Asks {
			if w.Ask == nil || w.Ask.Id == "" || !sane(w.Ask.Resource) {
				return bad("an ask without an id or resources")
			}
			if n := len(w.Ask.Instances); n > 0 && n != int(w.Ask.Count) {
				return bad("ask %.100q wants %d containers and numbers %d", w.Ask.Id, w.Ask.Count, n)
			}
		}
	case *statepb.Command_KeepCredentials:
		for _, k := range op.KeepCredentials.Keep {
			if n := len(k.GetSealed()); k.GetApplication() == nil || k.Number < 1 || n == 0 || n > maxSealed {
				return bad("a token of %v with number %d and %d bytes", appIDOf(k.GetApplication()), k.GetNumber(), n)
			}
		}
		for _, d := range op.KeepCredentials.Drop {
			if d == nil {
				return bad("a token of no application is dropped")
			}
		}
	case *statepb.Command_LaunchContainers:
		for _, l := range op.LaunchContainers.Launches {
			if l.Launch == nil || len(l.Launch.Argv) == 0 || len(l.Containers) == 0 || slices.Contains(l.Containers, nil) {
				return bad("a launch of no container, or of nothing")
			}
		}
	case *statepb.Command_Finish:
		switch rm.FinalStatus(op.Finish.Final) {
		case rm.FinalSucceeded, rm.FinalFailed, rm.FinalKilled:
		default:
			return bad("an application finishes as %.20q", op.Finish.Final)
		}
	}
	return nil
}

// unknown reports whether a message, or one that it is made of, has something in it that this program does not know.
func unknown(m protoreflect.Message) (found bool) {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsMap(): // of scalars only
		case f.IsList():
			for list, i := v.List(), 0; i < list.Len() && !found; i++ {
				found = unknown(list.Get(i).Message())
			}
		default:
			found = unknown(v.Message())
		}
		return !found
	})
	return found
}

func validWish(w *statepb.Wish) error {
	if w != nil && (len(w.By) > maxName || len(w.Reason) > maxName || w.Cordon && (w.Maintenance || w.DeadlineMs != 0) || w.DeadlineMs < 0 || w.UntilMs < 0 || w.Listed) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "malformed command: a wish for nodes that no leader sends")
	}
	return nil
}

// maxLabelsOfNode bounds those of one node.
const maxLabelsOfNode = 100

// MaxExcluded bounds the list of excluded nodes.
const MaxExcluded = 10_000

// maxMembers is how many instances a command has at most; maxReason bounds what is said of it, in bytes.
const (
	maxMembers = 10_000
	maxReason  = 4 << 10
)

// maxName bounds a member's name, in bytes.
const maxName = 1 << 10

// maxApplicationPriority is more than any cluster has for its highest priority.
const maxApplicationPriority = 1 << 20

// maxLease is a year, in milliseconds.
const maxLease = 365 * 24 * 3600 * 1000

// maxAmount is more than any node has, and small enough that sums of it over all containers do not overflow.
const maxAmount = 1 << 50

func sane(r *statepb.Resource) bool {
	for _, n := range []int64{r.GetMemory(), r.GetVcores(), r.GetGpus()} {
		if n < 0 || n > maxAmount {
			return false
		}
	}
	_, err := rm.NewAmounts(r.GetOther())
	return err == nil
}
