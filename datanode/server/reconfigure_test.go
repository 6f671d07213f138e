package server

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What was answered about a reconfiguration stays as it is when the next one begins: it may be on its way to who has asked.
func TestAnswersAboutAReconfigurationStayAsTheyAre(t *testing.T) {
	store, err := blockstore.Open(blockstore.Config{FS: mem.New(1 << 20), Volumes: []blockstore.VolumeConfig{{Path: "/v"}}, Reserve: -1, Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer store.Shutdown()
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
