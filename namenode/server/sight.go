package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/gohops/hops/internal/latest"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/smallfile"
	"github.com/gohops/hops/namenode"
)

// What the pages show lies behind locks that may be held by who waits for a disk: that of the namespace while an entry waits for the checkpoint, those of the search index, of the feed
// and of the small files while they write. Whoever watches a namenode has to be told just then. So each of these is asked for by itself, and what does not come is
// what came last. The rest, which is who leads, how the group is, and where blocks are, waits for no disk.

// sights are what this namenode can be asked for.
type sights struct {
	state  latest.Value[stateSight]
	unseen latest.Value[[]namenode.NodeReport]
	search latest.Value[*namenode.SearchStatus]
	feed   latest.Value[feed.Figures]
	bodies latest.Value[smallfile.Figures]
}

// stateSight is what the pages show of the namespace's state.
type stateSight struct {
	counts            namespace.Counts
	index             uint64
	bodies, bodyBytes uint64
	tiers             int    // how many trees are to have their storage policies satisfied
	policies          string // the enabled erasure coding policies
}

// sight is all of that, as far as it comes.
type sight struct {
	state  latest.Answer[stateSight]
	search latest.Answer[*namenode.SearchStatus]
	feed   latest.Answer[feed.Figures]
	bodies latest.Answer[smallfile.Figures]
	nodes  []namenode.NodeReport
	unseen latest.Answer[[]namenode.NodeReport]
}

// lookPatience is how long something is waited for: half of what the pages have.
const lookPatience = status.Patience / 2

// look asks for everything at the same time.
func (s *Server) look() *sight {
	x, v := &sight{}, &s.sights
	asks := []func(){
		func() { x.state = v.state.Ask(lookPatience, s.lookAtState) },
		func() { x.nodes, x.unseen = s.lookAtDatanodes() },
		func() { x.bodies = v.bodies.Ask(lookPatience, s.bodies.Figures) },
	}
	if s.search.index != nil {
		asks = append(asks, func() { x.search = v.search.Ask(lookPatience, s.search.status) })
	}
	if s.feed != nil {
		asks = append(asks, func() { x.feed = v.feed.Ask(lookPatience, s.feed.Figures) })
	}
	latest.Together(asks...)
	return x
}

func (s *Server) lookAtState() stateSight {
	x := stateSight{counts: s.ns.Counts(), index: s.ns.AppliedIndex(), policies: s.enabledNames()}
	x.bodies, x.bodyBytes = s.ns.Bodies()
	tiers, _ := s.tiersWanted()
	x.tiers = len(tiers)
	return x
}

// lookAtDatanodes is Datanodes, and what is known of those that this namenode has not heard of.
func (s *Server) lookAtDatanodes() (nodes []namenode.NodeReport, unseen latest.Answer[[]namenode.NodeReport]) {
	nodes = s.seen()
	missing := s.missing(nodes)
	if len(missing) == 0 {
		return nodes, unseen
	}
	unseen = s.sights.unseen.Ask(lookPatience, func() []namenode.NodeReport { return s.unseen(s.missing(s.seen())) })
	for _, n := range unseen.Value {
		if slices.Contains(missing, string(n.Node.ID)) {
			nodes = append(nodes, n)
		}
	}
	return nodes, unseen
}

// overdue is something that the pages show and that does not come.
type overdue struct {
	What string `json:"what"`
	// Since is when it was asked for, AsOf when what is shown of it was true; "": nothing is.
	Since string `json:"since"`
	AsOf  string `json:"as_of,omitempty"`

	of time.Duration
}

func overdueOf[T any](all []overdue, what string, a *latest.Answer[T]) []overdue {
	if a.Late.IsZero() {
		return all
	}
	o := overdue{What: what, Since: status.Stamp(a.Late), of: a.Since()}
	if a.Known() {
		o.AsOf = status.Stamp(a.At)
	}
	return append(all, o)
}

// theNamespace is the overdue of which a namenode that waits for it is of no use.
const theNamespace = "namespace"

// late lists what does not come.
func (x *sight) late() (all []overdue) {
	all = overdueOf(all, theNamespace, &x.state)
	all = overdueOf(all, "silent datanodes", &x.unseen)
	all = overdueOf(all, "search", &x.search)
	all = overdueOf(all, "feed", &x.feed)
	return overdueOf(all, "small files", &x.bodies)
}

// String says it in words.
func (o *overdue) String() string {
	text := fmt.Sprintf("%s: what it is like was asked for at %s, and has not come for %.0f s: something that waits for a disk has it locked", o.What, o.Since, o.of.Seconds())
	if o.AsOf != "" {
		text += "; what is shown is of " + o.AsOf
	}
	return text
}

// figures tells how late each of them is.
func (x *sight) figures(to status.Sample) {
	const name, help = "hops_namenode_figures_late_seconds", "For how long what the figures are made of was not to be had, so that they are old or absent; 0: it is of now."
	to.Gauge(name, help, x.state.Since().Seconds(), "of", theNamespace)
	to.Gauge(name, help, x.unseen.Since().Seconds(), "of", "silent datanodes")
	to.Gauge(name, help, x.search.Since().Seconds(), "of", "search")
	to.Gauge(name, help, x.feed.Since().Seconds(), "of", "feed")
	to.Gauge(name, help, x.bodies.Since().Seconds(), "of", "small files")
}
