package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/scheduler"
	"github.com/gohops/hops/resourcemanager/state"
)

// Locations says where files lie.
type Locations interface {
	// Locate adds up what the datanodes have of the files below some paths, with the rights of a user. What it finds before it fails, or before it
	// has looked at enough, counts.
	Locate(ctx context.Context, user string, paths []string) ([]DataNode, error)
}

// DataNode is how many bytes of some files are on a machine of the filesystem.
type DataNode struct {
	Host, IP, Rack string
	Bytes          int64
}

// The bounds of a look at some paths: where all of a large data set lies says little more than where a thousand files of it do.
const (
	maxLocatedFiles  = 1_000
	maxLocatedBlocks = 1_000 // of one file
	maxLocatedDirs   = 100
	locatesAtOnce    = 8 // files of one look
)

// DFSLocations looks where files lie through clients of the filesystem, which the function makes for a user.
func DFSLocations(client func(user string) (*dfs.Client, error)) Locations {
	return dfsLocations(func(user string) (locator, error) { return client(user) })
}

// locator is what is needed of a client of the filesystem.
type locator interface {
	Stat(ctx context.Context, name string) (metadata.FileStatus, error)
	ListPage(ctx context.Context, name, startAfter string) (dfs.Page, error)
	BlockLocations(ctx context.Context, name string, offset, length int64) ([]dfs.BlockLocation, error)
	Close() error
}

type dfsLocations func(user string) (locator, error)

// Locate implements Locations.
func (l dfsLocations) Locate(ctx context.Context, user string, paths []string) ([]DataNode, error) {
	c, err := l(user)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var errs []error
	type file struct {
		name          string
		length, block int64
	}
	var files []file
	for i, path := range paths {
		most := (maxLocatedFiles - len(files)) / (len(paths) - i) // each has its part
		found := 0
		add := func(name string, s metadata.FileStatus) {
			if s.Length > 0 && found < most {
				files = append(files, file{name, s.Length, s.BlockSize})
				found++
			}
		}
		s, err := c.Stat(ctx, path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !s.IsDir() {
			add(path, s)
			continue
		}
		dirs := []string{strings.TrimRight(path, "/")}
		for looked := 0; looked < len(dirs) && looked < maxLocatedDirs && found < most; looked++ {
			page, err := c.ListPage(ctx, dirs[looked]+"/", "") // the first of many say enough
			if err != nil {
				errs = append(errs, err)
				break
			}
			for _, e := range page.Entries {
				if name := dirs[looked] + "/" + e.Name; !e.IsDir() {
					add(name, e)
				} else if len(dirs) < maxLocatedDirs {
					dirs = append(dirs, name)
				}
			}
		}
	}
	var mu sync.Mutex
	sums := map[string]*DataNode{}
	next := make(chan file)
	var wg sync.WaitGroup
	for range min(locatesAtOnce, len(files)) {
		wg.Go(func() {
			for f := range next {
				length := f.length
				if f.block > 0 {
					length = min(length, maxLocatedBlocks*f.block)
				}
				blocks, err := c.BlockLocations(ctx, f.name, 0, length)
				mu.Lock()
				if err != nil && len(errs) < len(paths)+1 {
					errs = append(errs, err)
				}
				for _, b := range blocks[:min(len(blocks), maxLocatedBlocks)] {
					for _, d := range b.Datanodes {
						x := sums[d.UUID]
						if x == nil {
							x = &DataNode{Host: d.Hostname, IP: d.IP, Rack: d.Rack}
							sums[d.UUID] = x
						}
						x.Bytes += b.Length
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, f := range files {
		select {
		case next <- f:
			continue
		case <-ctx.Done():
		}
		mu.Lock()
		errs = append(errs, context.Cause(ctx))
		mu.Unlock()
		break
	}
	close(next)
	wg.Wait()
	out := make([]DataNode, 0, len(sums))
	for _, id := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, *sums[id])
	}
	return out, errors.Join(errs...)
}

// The bounds of what one leader looks up. What is not found in time is a wish that is not fulfilled: the ask goes on without.
const (
	locateTime     = 5 * time.Second // of one look, with the time that it waits for its turn
	lookupsAtOnce  = 16              // of which one user's are half at most
	lookupsWaiting = 1_000           // of which one user's are half at most
	lookupsOfApp   = 100
	// maxLocated is how many hosts a look finds at most: those that have the most.
	maxLocated = 32
)

// located is what became of a lookup.
type located struct {
	done bool
	near rm.NearWords // hosts and racks
	why  error        // it failed, or a part of it
}

// finder looks up where the data of applications lies, once for each leader: it is a preference, and blocks move.
type finder struct {
	r *reign

	mu      sync.Mutex // guards everything below
	found   map[rm.ApplicationID]map[string]*located
	waiting int
	users   map[string]int // waiting
	turns   chan struct{}
	turnsOf map[string]*turns
	wg      sync.WaitGroup
}

// turns are one user's, while somebody uses them.
type turns struct {
	c     chan struct{}
	users int
}

func newFinder(r *reign) *finder {
	return &finder{
		r: r, found: map[rm.ApplicationID]map[string]*located{}, users: map[string]int{}, turns: make(chan struct{}, lookupsAtOnce), turnsOf: map[string]*turns{},
	}
}

var (
	errNoFilesystem = errors.New("this cluster has no filesystem")
	errLocateTime   = errors.New("the filesystem has not said in time where they lie")
)

// resolve puts the hosts and racks of an ask's paths in their place. ok is false while they are looked up.
func (f *finder) resolve(a *rm.Application, ask rm.Ask) (_ rm.Ask, ok bool) {
	if !ask.Near.HasPaths() {
		return ask, true
	}
	words := ask.Near.Words()
	at := f.look(a, words.Paths)
	if !at.done {
		return ask, false
	}
	return withPlaces(ask, words, at.near), true
}

// look is what is known of where some paths lie. It begins a look, if there is none yet.
func (f *finder) look(a *rm.Application, paths []string) located {
	text := strings.Join(paths, "\x00")
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.found[a.ID]
	if at := known[text]; at != nil {
		return *at
	}
	if known == nil {
		known = map[string]*located{}
		f.found[a.ID] = known
	}
	at := &located{}
	switch {
	case len(known) >= lookupsOfApp:
		return located{done: true, why: fmt.Errorf("an application may name %d different lists of paths", lookupsOfApp)}
	case f.r.s.config.Locations == nil:
		at.done, at.why = true, errNoFilesystem
	case f.waiting >= lookupsWaiting || f.users[a.User] >= lookupsWaiting/2 || f.r.ctx.Err() != nil:
		at.done, at.why = true, errors.New("too many paths are being looked up")
	default:
		f.waiting++
		f.users[a.User]++
		f.wg.Go(func() { f.find(a.ID, a.User, paths, at) })
	}
	known[text] = at
	return *at
}

// find looks paths up.
func (f *finder) find(id rm.ApplicationID, user string, paths []string, at *located) {
	ctx, cancel := context.WithTimeoutCause(f.r.ctx, f.r.s.config.locateTime, errLocateTime)
	defer cancel()
	nodes, err := f.ask(ctx, user, paths)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	near := f.near(nodes)
	f.mu.Lock()
	at.done, at.near, at.why = true, near, err
	f.waiting--
	if f.users[user]--; f.users[user] == 0 {
		delete(f.users, user)
	}
	f.mu.Unlock()
	if f.r.ctx.Err() != nil {
		return
	}
	if err != nil {
		f.r.s.log.Info("where the data of an application lies is not resolved", "app", id, "user", user, "paths", paths, "hosts", len(near.Hosts), "err", err)
	}
	f.r.plans.note(state.Effects{Applications: map[rm.ApplicationID]bool{id: true}})
	kick(f.r.wake)
}

// ask asks the filesystem when it is the user's turn.
func (f *finder) ask(ctx context.Context, user string, paths []string) ([]DataNode, error) {
	f.mu.Lock()
	own := f.turnsOf[user]
	if own == nil {
		own = &turns{c: make(chan struct{}, lookupsAtOnce/2)}
		f.turnsOf[user] = own
	}
	own.users++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(f.turnsOf, user)
		}
	}()
	for _, turns := range []chan struct{}{own.c, f.turns} {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return f.r.s.config.Locations.Locate(ctx, user, paths)
}

// resolveNow is resolve for an ask of an application that is not there: it waits for the filesystem.
func (f *finder) resolveNow(ctx context.Context, user string, ask rm.Ask) (_ rm.Ask, err error) {
	if !ask.Near.HasPaths() {
		return ask, nil
	}
	var nodes []DataNode
	words := ask.Near.Words()
	if err = errNoFilesystem; f.r.s.config.Locations != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, f.r.s.config.locateTime, errLocateTime)
		defer cancel()
		nodes, err = f.ask(ctx, user, words.Paths)
	}
	return withPlaces(ask, words, f.near(nodes)), err
}

// withPlaces puts hosts and racks in the place of the paths of an ask.
func withPlaces(ask rm.Ask, words, at rm.NearWords) rm.Ask {
	words.Paths = nil
	words.Hosts = append(words.Hosts, at.Hosts...)
	words.Racks = append(words.Racks, at.Racks...)
	if len(words.Hosts)+len(words.Racks) == 0 {
		words.Wait = 0
	}
	near, err := rm.NewNear(words)
	if err != nil { // names of the filesystem that are none here
		near = rm.Near{}
	}
	ask.Near = near
	return ask
}

// near are the hosts that have the most, by their names here, with the racks of all.
func (f *finder) near(nodes []DataNode) (w rm.NearWords) {
	view := f.r.s.state.View()
	type place struct{ host, rack string }
	here, hosts := map[string]place{}, map[string]place{} // by address, by name
	for n := range view.Nodes() {
		if n.State == rm.NodeLost {
			continue
		}
		for _, address := range []string{n.HTTP, string(n.ID)} {
			if host, _, err := net.SplitHostPort(address); err == nil && host != n.Host {
				here[host] = place{string(n.ID), n.Rack}
			}
		}
		hosts[n.Host] = place{n.Host, n.Rack}
	}
	bytes, racks := map[string]int64{}, map[string]int64{}
	for _, d := range nodes {
		p, ok := hosts[d.Host]
		for _, name := range []string{d.Host, d.IP} {
			if !ok {
				p, ok = here[name]
			}
		}
		switch {
		case ok && d.Bytes > 0:
			bytes[p.host] += d.Bytes
			racks[p.rack] += d.Bytes
		case !ok && d.Bytes > 0:
			racks[d.Rack] += d.Bytes
		}
	}
	names := most(bytes)
	for _, host := range names {
		w.Hosts = append(w.Hosts, rm.NearHost{Host: host, Weight: int(max(1, (bytes[host]*rm.MaxWeight+bytes[names[0]]/2)/bytes[names[0]]))})
	}
	for _, rack := range most(racks) {
		if strings.HasPrefix(rack, "/") && len(rack) > 1 {
			w.Racks = append(w.Racks, rack)
		}
	}
	return w
}

// most are the names with the most, maxLocated at most.
func most(bytes map[string]int64) []string {
	names := slices.Collect(maps.Keys(bytes))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(-cmp.Compare(bytes[a], bytes[b]), cmp.Compare(a, b)) })
	return names[:min(len(names), maxLocated)]
}

// stop waits for the looks under way, which end with the reign.
func (f *finder) stop() {
	f.mu.Lock()   // whoever looks from now on sees that it is over
	f.mu.Unlock() //nolint:staticcheck // see above
	f.wg.Wait()
}

// forget drops what is known of an application.
func (f *finder) forget(id rm.ApplicationID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.found, id)
}

// said is what an application is told of an ask that names paths: that they are looked up, or behind other words why they were not found.
func (f *finder) said(id rm.ApplicationID, ask *rm.Ask) (pending scheduler.Waiting, problem string) {
	paths := ask.Near.Words().Paths
	f.mu.Lock()
	defer f.mu.Unlock()
	switch at := f.found[id][strings.Join(paths, "\x00")]; {
	case at == nil:
	case !at.done:
		return scheduler.Waiting{App: id, Ask: ask.ID, Reason: rm.Reason{Code: rm.ReasonLocality, Text: "looks up where " + strings.Join(paths, ", ") + " lies"}}, ""
	case at.why != nil:
		return scheduler.Waiting{}, unresolvedText(at.why)
	}
	return scheduler.Waiting{}, ""
}

// unresolvedText says why paths were not found, or not all.
func unresolvedText(why error) string {
	first, _, _ := strings.Cut(why.Error(), "\n")
	return "near: not resolved: " + cut(first, maxProblem)
}

// maxProblem bounds what is told of a failed look.
const maxProblem = 500
