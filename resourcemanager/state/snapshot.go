package state

import (
	"bufio"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// version is that of the snapshot's records.
const version = 1

// maxRecord bounds one record: a job document of the size that a submission may have, with room to spare.
const maxRecord = 16 << 20

// Frozen is the state at one index, ready to be written while the state goes on.
type Frozen struct{ t tables }

// freeze is O(1).
func (s *State) freeze() *Frozen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Frozen{s.tables.copy()}
}

// Index is the log index that the snapshot contains.
func (f *Frozen) Index() uint64 { return f.t.applied }

// Release lets go of the copy.
func (f *Frozen) Release() { f.t = tables{applied: f.t.applied} }

// WriteTo writes the records: a header, the tables in the order of their keys, the end with the number of records. Equal
// states give equal bytes.
func (f *Frozen) WriteTo(w io.Writer) (int64, error) {
	e := &recordWriter{w: w}
	t := &f.t
	if t.apps == nil {
		return 0, errors.New("resource manager snapshot was released")
	}
	e.put(&statepb.Record{Item: &statepb.Record_Header{Header: &statepb.Header{
		Version: version, Index: t.applied, NowMs: int64(t.now),
		ClusterMs: t.cluster, Series: t.series, Epoch: t.epoch, LastApplication: t.lastApplication, Registrations: t.registrations, Ended: t.ended,
		Ledger: t.lastLedger, LeaseMs: t.lease.Milliseconds(), Leader: t.leader, QueuesHash: t.queuesHash, Recovered: t.recovered, Level: int32(t.level),
	}}})
	if len(t.excluded) > 0 {
		e.put(&statepb.Record{Item: &statepb.Record_Excluded{Excluded: &statepb.Excluded{Names: t.excluded, By: t.excludedBy}}})
	}
	if len(t.labels) > 0 {
		record := &statepb.ClusterLabels{}
		for _, l := range t.labels {
			record.Labels = append(record.Labels, &statepb.Label{Name: l.Name, Exclusive: l.Exclusive})
		}
		e.put(&statepb.Record{Item: &statepb.Record_Labels{Labels: record}})
	}
	if t.queues.tree != nil {
		e.put(&statepb.Record{Item: &statepb.Record_Queues{Queues: &statepb.QueuesRecord{
			Document: t.queues.document, Version: t.queues.version, By: t.queues.by, SinceMs: int64(t.queues.since),
		}}})
	}
	for _, n := range t.nodes.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Node{Node: Node(n)}})
	}
	for _, a := range t.apps.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Application{Application: Application(a)}})
	}
	for _, l := range t.launches.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Launch{Launch: &statepb.LaunchRecord{
			Application: ApplicationID(l.app),
			Number:      l.number, Launch: Launch(l.launch),
		}}})
	}
	for _, a := range t.asks.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Ask{Ask: &statepb.AskRecord{Application: ApplicationID(a.app), Ask: Ask(a.Ask)}}})
	}
	for _, c := range t.containers.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Container{Container: containerPB(c)}})
	}
	for _, v := range t.events.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Event{Event: eventPB(v)}})
	}
	for _, l := range t.ledger.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Ledger{Ledger: ledgerPB(l)}})
	}
	for _, c := range t.credentials.Items() {
		e.put(&statepb.Record{Item: &statepb.Record_Credential{Credential: Credential(c)}})
	}
	e.put(&statepb.Record{Item: &statepb.Record_End{End: &statepb.End{Records: e.records}}})
	return e.bytes, e.err
}

type recordWriter struct {
	w       io.Writer
	records uint64
	bytes   int64
	err     error
}

func (e *recordWriter) put(r *statepb.Record) {
	if e.err != nil {
		return
	}
	n, err := protodelim.MarshalOptions{MarshalOptions: proto.MarshalOptions{Deterministic: true}}.MarshalTo(e.w, r)
	e.bytes += int64(n)
	e.records++
	e.err = err
}

// Restore replaces everything by a snapshot. When it fails the state is as before. Errors: metadata.ErrCorrupt,
// metadata.ErrUnsupported or release.ErrOlder for a newer version.
func (s *State) Restore(r io.Reader) error {
	t, err := read(bufio.NewReaderSize(r, 1<<16))
	if err != nil {
		return fmt.Errorf("restore the resource manager's state: %w", err)
	}
	s.mu.Lock()
	s.tables = t
	s.index = s.buildIndex()
	s.view, s.made = nil, nil
	s.mu.Unlock()
	if s.config.OnEffects != nil {
		s.config.OnEffects(Effects{Index: t.applied, Restored: true, Schedule: true})
	}
	return nil
}

func read(r *bufio.Reader) (tables, error) {
	t := newTables()
	options := protodelim.UnmarshalOptions{MaxSize: maxRecord}
	for n := uint64(0); ; n++ {
		record := &statepb.Record{}
		if err := options.UnmarshalFrom(r, record); err != nil {
			return t, metadata.Errorf(metadata.ErrCorrupt, "record %d: %v", n, err)
		}
		if unknown(record.ProtoReflect()) {
			return t, fmt.Errorf("record %d is of a newer version of the program: %w", n, release.ErrOlder)
		}
		if header := record.GetHeader(); (header != nil) != (n == 0) {
			return t, metadata.Errorf(metadata.ErrCorrupt, "record %d: the header is the first record and only that", n)
		}
		switch item := record.Item.(type) {
		case *statepb.Record_Header:
			h := item.Header
			if h.Version != version {
				return t, metadata.Errorf(metadata.ErrUnsupported, "the snapshot has version %d, this program reads %d", h.Version, version)
			}
			t.sized = h.Index
			t.applied, t.now, t.cluster, t.series, t.epoch = h.Index, metadata.Time(h.NowMs), h.ClusterMs, h.Series, h.Epoch
			t.lease = time.Duration(h.LeaseMs) * time.Millisecond
			t.leader, t.queuesHash, t.recovered, t.level = h.Leader, h.QueuesHash, h.Recovered, int(h.Level)
			t.lastApplication, t.registrations, t.ended, t.lastLedger = h.LastApplication, h.Registrations, h.Ended, h.Ledger
		case *statepb.Record_Excluded:
			t.excluded, t.excludedBy = item.Excluded.Names, item.Excluded.By
		case *statepb.Record_Labels:
			for _, l := range item.Labels.Labels {
				t.labels = append(t.labels, rm.NodeLabel{Name: l.Name, Exclusive: l.Exclusive})
			}
		case *statepb.Record_Queues:
			row, err := queuesOf(item.Queues)
			if err != nil {
				return t, metadata.Errorf(metadata.ErrCorrupt, "record %d: %v", n, err)
			}
			t.queues = row
		case *statepb.Record_Node:
			t.nodes.Set(nodeOf(item.Node))
		case *statepb.Record_Application:
			t.apps.Set(applicationOf(item.Application))
		case *statepb.Record_Launch:
			t.launches.Set(launchRow{appIDOf(item.Launch.Application), item.Launch.Number, launchOf(item.Launch.Launch)})
		case *statepb.Record_Ask:
			if item.Ask.Ask == nil {
				return t, metadata.Errorf(metadata.ErrCorrupt, "record %d: an ask without its content", n)
			}
			t.asks.Set(askRow{appIDOf(item.Ask.Application), askOf(item.Ask.Ask)})
		case *statepb.Record_Container:
			t.containers.Set(containerOf(item.Container))
		case *statepb.Record_Event:
			t.events.Set(eventOf(item.Event))
		case *statepb.Record_Ledger:
			t.ledger.Set(ledgerOf(item.Ledger))
		case *statepb.Record_Credential:
			t.credentials.Set(credentialOf(item.Credential))
		case *statepb.Record_End:
			if item.End.Records != n {
				return t, metadata.Errorf(metadata.ErrCorrupt, "%d records, the end says %d", n, item.End.Records)
			}
			return t, nil
		default:
			return t, metadata.Errorf(metadata.ErrUnsupported, "record %d is of a kind that this program does not know", n)
		}
	}
}

// Hash is equal on replicas that applied the same log, and with all likelihood only on those.
func (s *State) Hash() uint64 {
	h := fnv.New64a()
	if _, err := s.freeze().WriteTo(h); err != nil {
		panic(err) // a hash takes every byte
	}
	return h.Sum64()
}

// Freeze takes the state as it is now, in O(1).
func (s *State) Freeze() (raftstore.Snapshot, error) { return s.freeze(), nil }
