package state

import (
	"iter"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// View is the state at one index. It is immutable and safe for concurrent use; what it returns must not be changed.
type View struct {
	t      tables
	queues *rm.Queues
	most   int // Config.MaxEndedContainers
}

// Index is the log index that the view contains.
func (v *View) Index() uint64 { return v.t.applied }

// Now is the replicated time.
func (v *View) Now() metadata.Time { return v.t.now }

// Cluster is when the first leader began, in milliseconds; 0 before.
func (v *View) Cluster() int64 { return v.t.cluster }

// Ours reports whether an id is one that this cluster gives: its first part is when the cluster began, and one more for every
// series of ids that is used up.
func (v *View) Ours(id rm.ApplicationID) bool {
	return id.Cluster >= v.t.cluster && id.Cluster <= v.t.cluster+v.t.series
}

// Epoch counts the leaders so far.
func (v *View) Epoch() uint64 { return v.t.epoch }

// Leader is who began the present epoch, and the hash of the queues by which it grants (rm.Queues.Hash). Empty: nobody has.
func (v *View) Leader() (id, queuesHash string) { return v.t.leader, v.t.queuesHash }

// Lease is the longest that a node may still hold.
func (v *View) Lease() time.Duration { return v.t.lease }

// Application finds an application; nil: there is none, or it is forgotten.
func (v *View) Application(id rm.ApplicationID) *rm.Application {
	a, _ := v.t.apps.Get(&rm.Application{ID: id})
	return a
}

// HeldBack reports whether nothing more is granted to a user's applications until their masters have acknowledged ends of containers.
func (v *View) HeldBack(user string) bool { return v.t.heldBack(user, v.most) }

// Applications yields all applications, newest first.
func (v *View) Applications() iter.Seq[*rm.Application] {
	return func(yield func(*rm.Application) bool) { v.t.apps.Reverse(yield) }
}

// Live yields the applications that are not final or still have live containers, oldest first.
func (v *View) Live() iter.Seq[*rm.Application] {
	return func(yield func(*rm.Application) bool) {
		v.t.live.Scan(func(id rm.ApplicationID) bool { return yield(v.Application(id)) })
	}
}

// Asks lists what an application still wants, in the order of ids. The master's container is not among it.
func (v *View) Asks(id rm.ApplicationID) []rm.Ask {
	rows := v.t.asksOf(id)
	out := make([]rm.Ask, len(rows))
	for i, r := range rows {
		out[i] = r.Ask
	}
	return out
}

// Launch is what runs in containers with that launch number; nil: no container needs it any more.
func (v *View) Launch(id rm.ApplicationID, number uint64) *rm.Launch {
	row, _ := v.t.launches.Get(launchRow{app: id, number: number})
	return row.launch
}

// Container finds a container; nil: there is none, or it is forgotten.
func (v *View) Container(id rm.ContainerID) *rm.Container {
	c, _ := v.t.containers.Get(&rm.Container{ID: id})
	return c
}

// Containers lists an application's containers in the order of their grants, ended ones included as far as remembered.
func (v *View) Containers(id rm.ApplicationID) []*rm.Container { return v.t.containersOf(id) }

// Held yields the containers that wait for their application to say what runs in them, the longest first.
func (v *View) Held() iter.Seq[*rm.Container] {
	return func(yield func(*rm.Container) bool) {
		v.t.onHold.Scan(func(r heldRow) bool { return yield(v.Container(r.container)) })
	}
}

// Noticed yields the containers that are to go and were not told to end yet, by their deadline.
func (v *View) Noticed() iter.Seq[*rm.Container] {
	return func(yield func(*rm.Container) bool) {
		v.t.noticed.Scan(func(r noticedRow) bool { return yield(v.Container(r.container)) })
	}
}

// Master is the container of an application's current master; nil: it has none yet.
func (v *View) Master(a *rm.Application) *rm.Container {
	t := a.Attempt()
	if t == nil || t.Container.IsZero() {
		return nil
	}
	return v.Container(t.Container)
}

// On lists the live containers of a node.
func (v *View) On(id rm.NodeID) []*rm.Container {
	ids := v.t.liveOn(id)
	out := make([]*rm.Container, len(ids))
	for i, c := range ids {
		out[i] = v.Container(c)
	}
	return out
}

// Credentials lists an application's tokens of the filesystem, the one that containers are given last.
func (v *View) Credentials(id rm.ApplicationID) []*rm.Credential { return v.t.credentialsOf(id) }

// AllCredentials yields those of all applications, also of ended ones whose tokens are not cancelled yet.
func (v *View) AllCredentials() iter.Seq[*rm.Credential] {
	return func(yield func(*rm.Credential) bool) { v.t.credentials.Scan(yield) }
}

// Node finds a node; nil: it never registered.
func (v *View) Node(id rm.NodeID) *rm.Node {
	n, _ := v.t.nodes.Get(&rm.Node{ID: id})
	return n
}

// Labels are those that the cluster knows whether or not a node carries them, sorted. They must not be changed.
func (v *View) Labels() []rm.NodeLabel { return v.t.labels }

// Nodes yields all nodes, lost ones included, by id.
func (v *View) Nodes() iter.Seq[*rm.Node] {
	return func(yield func(*rm.Node) bool) { v.t.nodes.Scan(yield) }
}

// NodesSized is the log index at which a node last came, went or got another size, or one after it: while it stays what it is, so does what
// nodes have.
func (v *View) NodesSized() uint64 { return v.t.sized }

// Events lists what an application's master has not acknowledged, after a sequence number.
func (v *View) Events(id rm.ApplicationID, after uint64) []Event { return v.t.eventsOf(id, after) }

// Ledger yields the grants of GPUs in the order they were made, oldest first.
func (v *View) Ledger() iter.Seq[rm.Grant] {
	return func(yield func(rm.Grant) bool) {
		v.t.ledger.Scan(func(l ledgerRow) bool { return yield(l.Grant) })
	}
}

// Holders maps the devices in live containers to their holders.
func (v *View) Holders() map[string]rm.ContainerID {
	out := map[string]rm.ContainerID{}
	v.t.byNode.Scan(func(r nodeRow) bool {
		for _, u := range v.Container(r.container).GPUs {
			out[u] = r.container
		}
		return true
	})
	return out
}
