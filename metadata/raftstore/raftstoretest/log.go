package raftstoretest

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata/raftstore/journal"
)

// WriteLog makes a log in a directory: the configuration of a member with a vote and one without, at index 1, an entry of commands, and one of nothing in
// term 2. Its member has voted in term 4.
func WriteLog(t testing.TB, dir string, commands [][]byte) {
	t.Helper()
	j, err := journal.Open(journal.Config{Dir: dir, SegmentBytes: 8 << 10, Deadline: -1, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	batch := binary.AppendUvarint([]byte{1}, uint64(len(commands)))
	for _, c := range commands {
		batch = append(binary.AppendUvarint(batch, uint64(len(c))), c...)
	}
	members := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "one", Address: "one:1"}, {ID: "two", Address: "two:1", Suffrage: raft.Nonvoter}}})
	if err := errors.Join(
		j.StoreLogs([]*raft.Log{
			{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: members},
			{Index: 2, Term: 1, Type: raft.LogCommand, Data: batch, AppendedAt: time.UnixMilli(1700000000000)},
			{Index: 3, Term: 2, Type: raft.LogNoop},
		}),
		j.SetUint64([]byte("CurrentTerm"), 4), j.SetUint64([]byte("LastVoteTerm"), 4), j.Set([]byte("LastVoteCand"), []byte("one:1")), j.Close()); err != nil {
		t.Fatal(err)
	}
}
