package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
	"github.com/gohops/hops/namenode/hostlist"
)

// What operators want of datanodes is in the register, so that every namenode that comes to lead knows it: an item for each datanode
// that was taken out of service by name, one for Hadoop's host lists. How far a datanode has come is soft state of the leader.

const (
	// wishes is the prefix of the items of datanodes, by uuid, and hosts the item of the host lists.
	wishes = "datanode/"
	hosts  = "hosts"
	// wishesAtOnce is how many datanodes one request may name.
	wishesAtOnce = 64
	// longestMaintenance bounds --for.
	longestMaintenance = 365 * 24 * time.Hour
	// largestHosts bounds one of the files of host lists, in bytes.
	largestHosts = 4 << 20
)

// wish is the item of a datanode that is to leave.
type wish struct {
	Admin namenode.AdminState `json:"admin"`
	// Until is when a maintenance ends, in milliseconds since 1970; 0: by hand.
	Until int64 `json:"until,omitempty"`
	// Address is where it was then, for people.
	Address string `json:"address"`
	// Machine it was on; empty: not known.
	Machine string `json:"machine,omitempty"`
	By      string `json:"by"`
	Since   int64  `json:"since"`
}

func (w *wish) over(now time.Time) bool { return w.Until > 0 && now.UnixMilli() >= w.Until }

// admin is what the register says of datanodes, as this namenode has read it last.
type admin struct {
	list    atomic.Pointer[hostlist.List]
	version uint64          // of the register; only the duties look
	wishes  map[string]wish // by uuid; likewise
	until   time.Time       // when one of them is over; zero: none will be
}

func maintenanceReplication(n int) int {
	if n == 0 {
		return blockmanager.NoMaintenanceReplication
	}
	return n
}

// heedWishes tells the block manager what operators want, when that has changed.
func (s *Server) heedWishes(now time.Time) {
	version := s.ns.RegisterVersion() // before it is read: a change in between is seen the next time
	a := &s.admin
	if a.version == version && (a.until.IsZero() || now.Before(a.until)) {
		return
	}
	a.version, a.wishes, a.until = version, map[string]wish{}, time.Time{}
	ends := func(ms int64) {
		if at := time.UnixMilli(ms); ms > 0 && at.After(now) && (a.until.IsZero() || at.Before(a.until)) {
			a.until = at
		}
	}
	for name, value := range s.ns.Items(wishes) {
		var w wish
		if err := json.Unmarshal(value, &w); err != nil {
			s.log.Error("an item of the register cannot be read", "item", name, "error", err)
			continue
		}
		a.wishes[strings.TrimPrefix(name, wishes)] = w
		ends(w.Until)
	}
	var list *hostlist.List
	if value, _ := s.ns.Item(hosts); value != nil {
		list = &hostlist.List{}
		if err := json.Unmarshal(value, list); err != nil {
			s.log.Error("an item of the register cannot be read", "item", hosts, "error", err)
			list = nil
		} else {
			for _, e := range list.Leaving {
				ends(e.Until)
			}
		}
	}
	a.list.Store(list)
	wanted := a.wishes
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	s.soft.m.Administer(func(n *namenode.Node) namenode.AdminState {
		if w, ok := wanted[string(n.ID)]; ok && !w.over(now) {
			return w.Admin
		}
		return list.Wish(n, now.UnixMilli())
	})
}

// admits reports whether the host lists let a datanode serve.
func (s *Server) admits(n *namenode.Node) bool { return s.admin.list.Load().Admits(n) }

// notIncluded is what a datanode hears that is not in dfs.hosts, in HDFS's words (DisallowedDatanodeException).
func notIncluded(n *namenode.Node) error {
	return metadata.Errorf(metadata.ErrPermission, "Datanode denied communication with namenode because the host is not in the include-list: %s", n.TransferAddr())
}

// SetAdmin implements namenode.Cluster.
func (s *Server) SetAdmin(c metadata.Caller, names []string, state namenode.AdminState, life time.Duration, done func([]string, error)) {
	r, err := s.leading()
	if err == nil && !c.Superuser {
		err = metadata.NeedsSuperuser(c.User, "setDatanodeState")
	}
	switch {
	case err != nil:
	case len(names) == 0 || len(names) > wishesAtOnce:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "%d datanodes at once, want 1 to %d", len(names), wishesAtOnce)
	case life < 0 || life > longestMaintenance || life > 0 && state != namenode.InMaintenance:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "a duration of %v: a maintenance takes up to %v, and nothing else ends by itself", life, longestMaintenance)
	}
	if err != nil {
		done(nil, err)
		return
	}
	s.setAdmin(r, c, names, state, life, 5, done)
}

func (s *Server) setAdmin(r *reign, c metadata.Caller, names []string, state namenode.AdminState, life time.Duration, attempts int, done func([]string, error)) {
	now := time.Now()
	var changes []*logpb.ItemChange
	var changed []string
	for _, name := range names {
		found, err := s.named(name, state)
		if err != nil {
			done(nil, err)
			return
		}
		for id, at := range found {
			item := wishes + id
			if slices.ContainsFunc(changes, func(c *logpb.ItemChange) bool { return c.Name == item }) {
				continue
			}
			changed = append(changed, at.address)
			_, version := s.ns.Item(item)
			switch {
			case state != namenode.Normal:
				w := wish{Admin: state, Address: at.address, Machine: at.machine, By: c.User, Since: now.UnixMilli()}
				if life > 0 {
					w.Until = now.Add(life).UnixMilli()
				}
				changes = append(changes, itemChange(item, w, version))
			case version > 0:
				changes = append(changes, itemChange(item, nil, version))
			}
		}
	}
	slices.Sort(changed)
	if len(changes) > wishesAtOnce {
		done(nil, metadata.Errorf(metadata.ErrInvalidArgument, "%d datanodes at once, want 1 to %d", len(changes), wishesAtOnce))
		return
	}
	if len(changes) == 0 {
		done(changed, nil)
		return
	}
	s.proposeItems(changes, func(ok bool, err error) {
		switch {
		case err != nil:
			done(nil, err)
		case ok:
			s.log.Info("datanodes set by an operator", "datanodes", strings.Join(changed, " "), "state", state.Word(), "for", life, "by", c.User)
			done(changed, nil)
		case attempts > 1:
			go s.setAdmin(r, c, names, state, life, attempts-1, done)
		default:
			done(nil, metadata.Errorf(metadata.ErrRetriable, "others change the same at the same time: try again"))
		}
	})
}

// heldBy is where a datanode is: the address of its data transfer, and its machine, if that is known.
type heldBy struct{ address, machine string }

// named finds the datanodes that a name means: a uuid, MACHINE, HOST or HOST:PORT, of the list or, to be taken back, of those that are to
// leave.
func (s *Server) named(name string, state namenode.AdminState) (map[string]heldBy, error) {
	e, err := hostlist.ParseEntry(name)
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%v", err)
	}
	found := map[string]heldBy{}
	byList := false
	for _, n := range s.Datanodes() {
		if name == string(n.Node.ID) || e.Means(n.Node) {
			found[string(n.Node.ID)] = heldBy{n.Node.TransferAddr(), n.Node.Machine}
			byList = byList || s.admin.list.Load().Wish(n.Node, time.Now().UnixMilli()) != namenode.Normal
		}
	}
	if state == namenode.Normal {
		for item, value := range s.ns.Items(wishes) {
			var w wish
			id := strings.TrimPrefix(item, wishes)
			if json.Unmarshal(value, &w) == nil && (name == id || name == w.Address || strings.HasPrefix(w.Address, name+":") || strings.EqualFold(name, w.Machine)) {
				found[id] = heldBy{w.Address, w.Machine}
			}
		}
	}
	switch {
	case len(found) == 0:
		return nil, metadata.Errorf(metadata.ErrNotExist, "no datanode %s: give a machine's name, HOST, HOST:PORT of the data transfer, or a uuid, as `hops datanode list` shows them", name)
	case state == namenode.Normal && byList:
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "datanode %s is in dfs.hosts.exclude: take it off the file, then -refreshNodes", name)
	}
	return found, nil
}

// RefreshNodes implements namenode.Cluster. The leader's files are the cluster's; a follower has nothing to do.
func (s *Server) RefreshNodes(done func(error)) {
	if s.reign.Load() == nil {
		done(nil)
		return
	}
	go func() { done(s.refreshNodes()) }()
}

func (s *Server) refreshNodes() error {
	p := &s.config.Properties
	include, err := readHosts(p.Hosts)
	if err != nil {
		return err
	}
	exclude, err := readHosts(p.HostsExclude)
	if err != nil {
		return err
	}
	list, err := hostlist.Parse(include, exclude)
	if err != nil {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), memberPatience)
	defer cancel()
	for range 5 {
		_, version := s.ns.Item(hosts)
		change := itemChange(hosts, list, version)
		if len(list.Included)+len(list.Leaving) == 0 {
			if version == 0 {
				return nil
			}
			change = itemChange(hosts, nil, version)
		}
		type outcome struct {
			ok  bool
			err error
		}
		out := make(chan outcome, 1)
		s.proposeItems([]*logpb.ItemChange{change}, func(ok bool, err error) { out <- outcome{ok, err} })
		select {
		case o := <-out:
			if o.err != nil || o.ok {
				if o.ok {
					s.log.Info("host lists read", "included", len(list.Included), "leaving", len(list.Leaving))
				}
				return o.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return metadata.Errorf(metadata.ErrRetriable, "others change the same at the same time: try again")
}

// readHosts reads a file of host names; no path and no file are an empty one, as in HDFS.
func readHosts(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, metadata.Errorf(metadata.ErrNotExist, "%s, which the properties name, is not there", path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, largestHosts+1))
	if err == nil && len(text) > largestHosts {
		err = fmt.Errorf("%s is larger than %d bytes", path, largestHosts)
	}
	return text, err
}

// checkHosts reads the host lists of a cluster that has never read any: they count from its beginning on.
func (s *Server) checkHosts(r *reign) {
	p := &s.config.Properties
	if !r.hosts.CompareAndSwap(false, true) || p.Hosts == "" && p.HostsExclude == "" {
		return
	}
	if value, _ := s.ns.Item(hosts); value != nil {
		return
	}
	go func() {
		if err := s.refreshNodes(); err != nil {
			s.log.Error("the host lists were not read; `hdfs dfsadmin -refreshNodes` reads them again", "error", err)
		}
	}()
}

// endMaintenance removes the items of datanodes whose maintenance is over.
func (s *Server) endMaintenance(r *reign, now time.Time) {
	for id, w := range s.admin.wishes {
		value, version := s.ns.Item(wishes + id) // another one may have been begun
		if !w.over(now) || json.Unmarshal(value, &w) != nil || !w.over(now) || !r.ending.CompareAndSwap(false, true) {
			continue
		}
		s.proposeItems([]*logpb.ItemChange{itemChange(wishes+id, nil, version)}, func(ok bool, err error) {
			r.ending.Store(false)
			if ok {
				s.log.Info("a datanode's maintenance is over", "node", id, "address", w.Address)
			}
		})
		return
	}
}
