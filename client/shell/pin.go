package shell

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/namenode"
)

// The verbs that keep files in the memory of datanodes: cache directives, in short. Hadoop's shell does not have them.

// pinPool is the pool of -pin that names none. An administrator makes it.
const pinPool = "default"

func runPin(ctx context.Context, s *Shell, args []string) error {
	pool := cmp.Or(s.options["pool"], pinPool)
	var replication *int
	if text := s.options["n"]; text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1<<15-1 {
			return usageError{fmt.Sprintf("-n %s: want a number of datanodes, 1 to %d", text, 1<<15-1)}
		}
		replication = &n
	}
	return s.walk(ctx, args, func(it item) error {
		there, err := s.client.CacheDirectives(ctx, namenode.CacheFilter{Path: &it.path, Pool: &pool})
		if err != nil {
			return err
		}
		id := int64(0)
		for i := range there {
			if d := &there[i]; !d.Expired && (replication == nil || d.Replication == *replication) {
				id = d.ID
			}
		}
		if id == 0 {
			if id, err = s.client.AddCacheDirective(ctx, namenode.CacheDirectiveChange{Path: &it.path, Pool: &pool, Replication: replication}, false); err != nil {
				return err
			}
		}
		s.printf("Pinned %s: cache directive %d in pool %s\n", it.shown, id, pool)
		if s.option("w") {
			return s.awaitPinned(ctx, it, id)
		}
		return nil
	})
}

// awaitPinned waits until all that a directive wants is in memory, as long as it holds.
func (s *Shell) awaitPinned(ctx context.Context, it item, id int64) error {
	s.printf("Waiting for %s ...", it.shown)
	for asked := false; ; {
		found, err := s.client.CacheDirectives(ctx, namenode.CacheFilter{ID: &id})
		if err != nil {
			s.printf("\n")
			return err
		}
		switch {
		case len(found) == 0:
			s.printf("\n")
			return &pathError{path: it.shown, text: fmt.Sprintf("cache directive %d may not be seen any more", id)}
		case found[0].Expired:
			s.printf("\n")
			return &pathError{path: it.shown, text: fmt.Sprintf("cache directive %d has expired", id)}
		case found[0].BytesCached >= found[0].BytesNeeded && found[0].FilesCached == found[0].FilesNeeded:
			s.printf(" done\n")
			return nil
		}
		if !asked { // who may wait for ever is told why
			asked = true
			nodes, err := s.client.Datanodes(ctx, dfs.LiveDatanodes)
			if err == nil && !slices.ContainsFunc(nodes, func(n dfs.Datanode) bool { return n.CacheCapacity > 0 }) {
				s.out.Flush()
				fmt.Fprintf(s.Stderr, "\npin: no datanode may keep anything in memory, which datanode.locked_memory of its configuration lets it: waiting for one that may\n")
			}
		}
		s.printf(".")
		s.out.Flush()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func runUnpin(ctx context.Context, s *Shell, args []string) error {
	return s.eachNew(ctx, args, func(it item) error { // a directive outlives what was at its path
		filter := namenode.CacheFilter{Path: &it.path}
		if pool := s.options["pool"]; pool != "" {
			filter.Pool = &pool
		}
		found, err := s.client.CacheDirectives(ctx, filter)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return &pathError{path: it.shown, text: "there is no cache directive for this path that you may see"}
		}
		for i := range found {
			if err := s.client.RemoveCacheDirective(ctx, found[i].ID); err != nil {
				return err
			}
			s.printf("Unpinned %s: cache directive %d\n", it.shown, found[i].ID)
		}
		return nil
	})
}
