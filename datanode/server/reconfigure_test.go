package server

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What was answered about a reconfiguration stays as it is when the next one begins: it may be on its way to who has asked.
func TestAnswersAboutAReconfigurationStayAsTheyAre(t *testing.T) {
	store, err := blockstore.Open(blockstore.Config{FS: mem.New(1 << 20), Volumes: []blockstore.VolumeConfig{{Path: "/v"}}, Reserve: -1, Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer func() { check(t, store.Shutdown()) }()
	s := &Server{store: store, log: slog.New(slog.DiscardHandler), cfg: Config{Reread: func() ([]Volume, error) { return nil, errors.New("there is no file") }}}
	begin := func() {
		t.Helper()
		_, err := s.startReconfiguration(nil)
		check(t, err)
	}
	begin()
	s.unanswered.Wait()
	m, err := s.reconfigurationStatus(nil)
	check(t, err)
	begin()
	defer s.unanswered.Wait()
	changes := m.(*hadooppb.GetReconfigurationStatusResponseProto).GetChanges()
	if len(changes) != 1 || changes[0].GetOldValue() != "[DISK]/v" || changes[0].GetNewValue() != "" || changes[0].GetErrorMessage() != "there is no file" {
		t.Errorf("the answer has become %v", changes)
	}
}

// A volume that is given back while the datanode registers, and so is named in the registration, is told of by another one, and that again if it fails.
func TestVolumesThatChangeDuringARegistrationAreTold(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	cfg := configOf(t, credentials, t.TempDir(), n)
	cfg.Reread = func() ([]Volume, error) { return cfg.Volumes[:1], nil }
	made := make(chan *Server, 1)
	var mu sync.Mutex
	registered := 0
	n.registering = func() error {
		mu.Lock()
		defer mu.Unlock()
		switch registered++; registered {
		case 1:
			_, err := (<-made).reconfigure()
			return err
		case 2:
			return metadata.Errorf(metadata.ErrRetriable, "not now")
		}
		return nil
	}
	d, _ := runDatanode(t, cfg)
	made <- d
	within(t, "the namenode knows the volumes that are left", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.registers) > 1 && len(n.registers[len(n.registers)-1].Volumes) == 1
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.registers) != 2 || len(n.registers[0].Volumes) != 2 {
		t.Errorf("registered as %v", n.registers)
	}
}

// Of a list of which a part cannot be done, it is said what was done and what was not.
func TestAReconfigurationSaysWhatItDid(t *testing.T) {
	p := newPair(t, 24*time.Hour, nil)
	want := func(err error, words string) {
		t.Helper()
		if err == nil || strings.ReplaceAll(err.Error(), "\n", "; ") != words {
			t.Errorf("%v, want %s", err, words)
		}
	}
	want(p.change([]blockstore.VolumeConfig{{Path: "/a", Type: datanode.SSD}, {Path: "/b", Type: datanode.SSD}}),
		"Changing storage type is not allowed: /a is DISK; nothing was changed")
	want(p.change([]blockstore.VolumeConfig{{Path: "/a", Type: datanode.SSD}, {Path: "/c", Type: datanode.SSD}}),
		"Changing storage type is not allowed: /a is DISK; the rest was done: added /c, gave back /b; the volumes are now [DISK]/a,[SSD]/c")
	err := p.change([]blockstore.VolumeConfig{{Path: "/a", Type: datanode.Disk}, {Path: "", Type: datanode.SSD}})
	if err == nil || !strings.HasPrefix(err.Error(), "FAILED TO ADD: ") || !strings.HasSuffix(err.Error(), "the rest was done: gave back /c; the volumes are now [DISK]/a") {
		t.Error(err)
	}
}
