package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Of the configuration the volumes can be changed while the datanode works, under Hadoop's name of them: hdfs dfsadmin -reconfig has the file read anew,
// volumes opened that are new in it, or had failed, and those given back that are not in it any more.

const volumesProperty = "dfs.datanode.data.dir"

// reconfiguration is the last one, or the one under way.
type reconfiguration struct {
	mu           sync.Mutex
	begun, ended time.Time
	old, now     string // what the property was and was to be; the same: nothing to do
	err          error
	held         map[string]string // why a volume cannot be given back, by its path
}

// Hold keeps a volume from being given back.
func (s *Server) Hold(path, why string) {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	s.reconfig.mu.Lock()
	defer s.reconfig.mu.Unlock()
	if s.reconfig.held == nil {
		s.reconfig.held = map[string]string{}
	}
	s.reconfig.held[path] = why
}

func (s *Server) startReconfiguration(hrpc.Message) (hrpc.Message, error) {
	if s.cfg.Reread == nil {
		return nil, metadata.Errorf(metadata.ErrIO, "this datanode has no configuration file that could be read anew")
	}
	r := &s.reconfig
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun.IsZero() && r.ended.IsZero() {
		return nil, metadata.Errorf(metadata.ErrIO, "Another reconfiguration task is running.")
	}
	r.begun, r.ended, r.old, r.now, r.err = time.Now(), time.Time{}, "", "", nil
	s.unanswered.Go(func() {
		old := s.volumeText()
		now, err := s.reconfigure()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended, r.old, r.now, r.err = time.Now(), old, now, err
		if err != nil {
			s.log.Warn("the volumes are not as the configuration has them", "err", err)
		}
	})
	return new(hadooppb.StartReconfigurationResponseProto), nil
}

// volumeText is what the property is now, as Hadoop writes it: [DISK]/a,[SSD]/b.
func (s *Server) volumeText() string {
	var all []string
	for _, v := range s.store.Volumes() {
		all = append(all, "["+v.Type.String()+"]"+v.Path)
	}
	return strings.Join(all, ",")
}

// reconfigure makes the volumes those of the configuration and returns what the property was to be. What cannot be done is left out, and said.
func (s *Server) reconfigure() (string, error) {
	list, err := s.cfg.Reread()
	if err != nil {
		return "", err
	}
	wanted, err := volumesOf(list)
	if err == nil && len(wanted) == 0 {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "the configuration has no volumes")
	}
	if err != nil {
		return "", err
	}
	var text []string
	for i := range wanted {
		v := &wanted[i]
		if v.Path, err = filepath.Abs(v.Path); err != nil {
			return "", err
		}
		if v.Type == 0 {
			v.Type = datanode.Disk
		}
		text = append(text, "["+v.Type.String()+"]"+v.Path)
	}
	return strings.Join(text, ","), s.change(wanted)
}

// change opens and gives back volumes until they are the wanted ones. What cannot be done for one keeps nobody from doing the rest, as in HDFS where a volume cannot be opened; the error says what was done.
func (s *Server) change(wanted []blockstore.VolumeConfig) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	var errs []error
	var did []string
	remove := func(v datanode.VolumeStatus) {
		s.reconfig.mu.Lock()
		why := s.reconfig.held[v.Path]
		s.reconfig.mu.Unlock()
		if why != "" && v.Failed == nil {
			errs = append(errs, fmt.Errorf("volume %s cannot be given back: %s", v.Path, why))
			return
		}
		if err := s.store.Remove(v.Path); err != nil {
			errs = append(errs, err)
			return
		}
		s.memory.VolumeFailed(v.ID)
		did = append(did, "gave back "+v.Path)
	}
	before := s.store.Volumes()
	for _, w := range wanted {
		at := slices.IndexFunc(before, func(v datanode.VolumeStatus) bool { return v.Path == w.Path })
		switch {
		case at >= 0 && before[at].Type != w.Type:
			errs = append(errs, fmt.Errorf("Changing storage type is not allowed: %s is %v", w.Path, before[at].Type)) //nolint:revive // Hadoop's words
			continue
		case at >= 0 && before[at].Failed == nil:
			continue
		}
		if err := s.store.Add(w); err != nil {
			errs = append(errs, fmt.Errorf("FAILED TO ADD: %s: %w", w.Path, err)) //nolint:revive // Hadoop's words
			continue
		}
		did = append(did, "added "+w.Path)
	}
	for _, v := range before {
		if !slices.ContainsFunc(wanted, func(w blockstore.VolumeConfig) bool { return v.Path == w.Path }) {
			remove(v)
		}
	}
	if len(did) > 0 {
		s.haveChanged()
	}
	switch {
	case len(errs) == 0:
		return nil
	case len(did) == 0:
		errs = append(errs, errors.New("nothing was changed"))
	default:
		errs = append(errs, fmt.Errorf("the rest was done: %s; the volumes are now %s", strings.Join(did, ", "), s.volumeText()))
	}
	return errors.Join(errs...)
}

// haveChanged lets everybody know that the volumes are not those of before.
func (s *Server) haveChanged() {
	s.replicas.refresh()
	s.deletes.refresh()
	s.caching.refresh()
	s.recovers.refresh()
	s.scrub.Refresh()
	for _, n := range s.all() { // a registration names all volumes, and those that it does not name are gone
		n.renew.Store(true)
		n.reportNow()
	}
}

// reviveEvery is how often it is looked whether a disk answers again.
const reviveEvery = time.Second

// revive takes volumes back whose disk answers again, until ctx is done.
func (s *Server) revive(ctx context.Context) {
	t := pace.NewBeat(reviveEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			t.Next()
		case <-ctx.Done():
			return
		}
		s.changing.Lock()
		if len(s.store.Revive()) > 0 {
			s.haveChanged()
		}
		s.changing.Unlock()
	}
}

func (s *Server) reconfigurationStatus(hrpc.Message) (hrpc.Message, error) {
	r := &s.reconfig
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &hadooppb.GetReconfigurationStatusResponseProto{StartTime: new(int64(0))}
	if r.begun.IsZero() {
		return m, nil
	}
	m.StartTime = new(r.begun.UnixMilli())
	if r.ended.IsZero() {
		return m, nil
	}
	m.EndTime = new(r.ended.UnixMilli())
	if r.old != r.now || r.err != nil {
		change := &hadooppb.GetReconfigurationStatusConfigChangeProto{Name: new(volumesProperty), OldValue: new(r.old), NewValue: new(r.now)} // copies: the answer is written when the lock is free again
		if r.err != nil {
			change.ErrorMessage = new(strings.ReplaceAll(r.err.Error(), "\n", "; "))
		}
		m.Changes = append(m.Changes, change)
	}
	return m, nil
}

func (s *Server) reconfigurable(hrpc.Message) (hrpc.Message, error) {
	return &hadooppb.ListReconfigurablePropertiesResponseProto{Name: []string{volumesProperty}}, nil
}
