package namespace

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// world is a namespace with the log that made it.
type world struct {
	t     testing.TB
	cfg   Config
	ns    *Namespace
	index uint64
	now   metadata.Time
	ahead LogTime    // of log time before now
	log   [][][]byte // log[i] is the entry with index i+1
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	if cfg.Store == nil {
		cfg.Store = mem.New()
	}
	if cfg.Bodies == nil {
		cfg.Bodies = newMemBodies()
	}
	cfg.Owner, cfg.Supergroup, cfg.OnMistake = "hops", "supergroup", mistake(t)
	w := &world{t: t, cfg: cfg, now: 1_000_000}
	w.open()
	return w
}

// mistake fails a test in which the program panics, though it goes on.
func mistake(t interface{ Errorf(string, ...any) }) func(uint64, any, []byte) {
	return func(index uint64, what any, stack []byte) { t.Errorf("panic in entry %d: %v\n%s", index, what, stack) }
}

func (w *world) open() {
	w.t.Helper()
	ns, err := Open(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ns = ns
}

// apply proposes one command in an entry of its own.
func (w *world) apply(cmd *logpb.Command) *Result {
	w.t.Helper()
	cmd.Now, cmd.LogTime = int64(w.now), int64(w.now)+int64(w.ahead)
	data, err := cmd.MarshalVT()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.entry(data)[0].(*Result)
}

func (w *world) entry(commands ...[]byte) []any {
	w.index++
	w.log = append(w.log, commands)
	return w.ns.Apply(w.index, commands)
}

// clock sets the proposer's wall clock, which log time does not notice.
func (w *world) clock(t metadata.Time) {
	w.ahead += LogTime(w.now - t)
	w.now = t
}

// do is apply by a caller.
func (w *world) do(c metadata.Caller, op any) *Result {
	w.t.Helper()
	return w.apply(command(c, op))
}

var (
	super = metadata.Caller{User: "hops", Groups: []string{"supergroup"}, Superuser: true, Host: "127.0.0.1"}
	bob   = metadata.Caller{User: "bob", Groups: []string{"staff"}, Host: "127.0.0.1"}
	alice = metadata.Caller{User: "alice", Groups: []string{"dev", "staff"}, Host: "127.0.0.1"}
)

func command(c metadata.Caller, op any) *logpb.Command {
	cmd := NewCommand(c, nil, -1, 0)
	switch op := op.(type) {
	case *logpb.Mkdirs:
		cmd.Op = &logpb.Command_Mkdirs{Mkdirs: op}
	case *logpb.Create:
		cmd.Op = &logpb.Command_Create{Create: op}
	case *logpb.AddBlock:
		cmd.Op = &logpb.Command_AddBlock{AddBlock: op}
	case *logpb.AbandonBlock:
		cmd.Op = &logpb.Command_AbandonBlock{AbandonBlock: op}
	case *logpb.Complete:
		cmd.Op = &logpb.Command_Complete{Complete: op}
	case *logpb.Append:
		cmd.Op = &logpb.Command_Append{Append: op}
	case *logpb.Fsync:
		cmd.Op = &logpb.Command_Fsync{Fsync: op}
	case *logpb.UpdatePipeline:
		cmd.Op = &logpb.Command_UpdatePipeline{UpdatePipeline: op}
	case *logpb.Rename:
		cmd.Op = &logpb.Command_Rename{Rename: op}
	case *logpb.Delete:
		cmd.Op = &logpb.Command_Delete{Delete: op}
	case *logpb.SetPermission:
		cmd.Op = &logpb.Command_SetPermission{SetPermission: op}
	case *logpb.SetOwner:
		cmd.Op = &logpb.Command_SetOwner{SetOwner: op}
	case *logpb.SetTimes:
		cmd.Op = &logpb.Command_SetTimes{SetTimes: op}
	case *logpb.SetReplication:
		cmd.Op = &logpb.Command_SetReplication{SetReplication: op}
	case *logpb.RenewLease:
		cmd.Op = &logpb.Command_RenewLease{RenewLease: op}
	case *logpb.ReserveIDs:
		cmd.Op = &logpb.Command_ReserveIds{ReserveIds: op}
	case *logpb.StartRecovery:
		cmd.Op = &logpb.Command_StartRecovery{StartRecovery: op}
	case *logpb.CommitRecovery:
		cmd.Op = &logpb.Command_CommitRecovery{CommitRecovery: op}
	case *logpb.Reclaim:
		cmd.Op = &logpb.Command_Reclaim{Reclaim: op}
	case *logpb.SetXAttr:
		cmd.Op = &logpb.Command_SetXattr{SetXattr: op}
	case *logpb.RemoveXAttr:
		cmd.Op = &logpb.Command_RemoveXattr{RemoveXattr: op}
	case *logpb.SetACL:
		cmd.Op = &logpb.Command_SetAcl{SetAcl: op}
	case *logpb.SetQuota:
		cmd.Op = &logpb.Command_SetQuota{SetQuota: op}
	case *logpb.SetStoragePolicy:
		cmd.Op = &logpb.Command_SetStoragePolicy{SetStoragePolicy: op}
	case *logpb.SetErasurePolicy:
		cmd.Op = &logpb.Command_SetErasurePolicy{SetErasurePolicy: op}
	case *logpb.PlaceFiles:
		cmd.Op = &logpb.Command_PlaceFiles{PlaceFiles: op}
	case *logpb.SealTail:
		cmd.Op = &logpb.Command_SealTail{SealTail: op}
	case *logpb.KeepFile:
		cmd.Op = &logpb.Command_KeepFile{KeepFile: op}
	case *logpb.Publish:
		cmd.Op = &logpb.Command_Publish{Publish: op}
	case *logpb.ConvertFile:
		cmd.Op = &logpb.Command_ConvertFile{ConvertFile: op}
	case *logpb.ForgetDatanode:
		cmd.Op = &logpb.Command_ForgetDatanode{ForgetDatanode: op}
	case *logpb.ChangeRegister:
		cmd.Op = &logpb.Command_ChangeRegister{ChangeRegister: op}
	case *logpb.RollTokenKey:
		cmd.Op = &logpb.Command_RollTokenKey{RollTokenKey: op}
	case *logpb.IssueToken:
		cmd.Op = &logpb.Command_IssueToken{IssueToken: op}
	case *logpb.RenewToken:
		cmd.Op = &logpb.Command_RenewToken{RenewToken: op}
	case *logpb.CancelToken:
		cmd.Op = &logpb.Command_CancelToken{CancelToken: op}
	case *logpb.ExpireTokens:
		cmd.Op = &logpb.Command_ExpireTokens{ExpireTokens: op}
	case *logpb.SetSafeMode:
		cmd.Op = &logpb.Command_SetSafeMode{SetSafeMode: op}
	case *logpb.SurveyTree:
		cmd.Op = &logpb.Command_SurveyTree{SurveyTree: op}
	case *logpb.RollBlockKeys:
		cmd.Op = &logpb.Command_RollBlockKeys{RollBlockKeys: op}
	case *logpb.Truncate:
		cmd.Op = &logpb.Command_Truncate{Truncate: op}
	case *logpb.Concat:
		cmd.Op = &logpb.Command_Concat{Concat: op}
	case *logpb.Store:
		cmd.Op = &logpb.Command_Store{Store: op}
	case *logpb.AddCachePool:
		cmd.Op = &logpb.Command_AddCachePool{AddCachePool: op}
	case *logpb.ModifyCachePool:
		cmd.Op = &logpb.Command_ModifyCachePool{ModifyCachePool: op}
	case *logpb.RemoveCachePool:
		cmd.Op = &logpb.Command_RemoveCachePool{RemoveCachePool: op}
	case *logpb.AddCacheDirective:
		cmd.Op = &logpb.Command_AddCacheDirective{AddCacheDirective: op}
	case *logpb.ModifyCacheDirective:
		cmd.Op = &logpb.Command_ModifyCacheDirective{ModifyCacheDirective: op}
	case *logpb.RemoveCacheDirective:
		cmd.Op = &logpb.Command_RemoveCacheDirective{RemoveCacheDirective: op}
	case *logpb.ChangeSnapshots:
		cmd.Op = &logpb.Command_ChangeSnapshots{ChangeSnapshots: op}
	default:
		panic(fmt.Sprintf("no command for %T", op))
	}
	return cmd
}

// to is a target by an absolute path.
func to(path string) *logpb.Target {
	t, err := TargetOf(path)
	if err != nil {
		panic(err)
	}
	return t
}

func create(path, client string) *logpb.Create {
	return &logpb.Create{
		Target: to(path), Mode: 0o644, ClientName: client, Create: true, CreateParent: true,
		Replication: 3, BlockSize: 1 << 20,
	}
}

// snapshot writes a checkpoint and returns its stream.
func (w *world) snapshot() []byte {
	w.t.Helper()
	s, err := w.ns.Freeze()
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Release()
	var buf bytes.Buffer
	if _, err := s.WriteTo(&buf); err != nil {
		w.t.Fatal(err)
	}
	w.ns.Retain([]uint64{s.Index()})
	return buf.Bytes()
}

// reopen is a stop and a start: a checkpoint, and nothing in memory afterwards.
func (w *world) reopen() {
	w.t.Helper()
	if w.ns.AppliedIndex() > 0 {
		w.snapshot()
	}
	w.open()
}

// replay brings a namespace up to the end of the log.
func (w *world) replay(ns *Namespace) {
	for i, commands := range w.log {
		ns.Apply(uint64(i+1), commands)
	}
}

func (w *world) check() {
	w.t.Helper()
	checkSound(w.t, w.ns)
}

func checkSound(t testing.TB, ns *Namespace) {
	t.Helper()
	for _, err := range ns.Check() {
		t.Errorf("check: %v", err)
	}
}

// fresh opens a namespace over a store.
func fresh(t testing.TB, store kv.Store, memory int64) *Namespace {
	t.Helper()
	ns, err := Open(Config{Store: store, Owner: "hops", Supergroup: "supergroup", Memory: memory, OnMistake: mistake(t)})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func restore(t testing.TB, stream []byte) *Namespace {
	t.Helper()
	ns := fresh(t, mem.New(), 0)
	if err := ns.Restore(bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	return ns
}

func takeSnapshot(t failer, ns *Namespace, w io.Writer) {
	t.Helper()
	s, err := ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if _, err := s.WriteTo(w); err != nil {
		t.Fatal(err)
	}
}

// failer is what testing.TB and *rapid.T have in common.
type failer interface {
	Helper()
	Fatal(args ...any)
}
