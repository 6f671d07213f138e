package namespace

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// txn is one command while it is applied.
type txn struct {
	caller caller
	index  uint64 // of the entry
	result *Result
}

func (t *txn) fail(err error) { t.result.Err = err }

func (t *txn) failf(kind *metadata.Kind, format string, args ...any) {
	t.result.Err = metadata.Errorf(kind, format, args...)
}

// Field numbers of the operations whose answers the retry cache keeps: those that must not be done twice. Everything
// else can be repeated or detects its repetition.
const (
	opCreate         = 11
	opAppend         = 15
	opUpdatePipeline = 17
	opRename         = 18
	opDelete         = 19
	opSetXAttr       = 29
	opRemoveXAttr    = 30
	opTruncate       = 33
	opConcat         = 34
	opSnapshots      = 46
	opSetErasure     = 47
	opStore          = 48
	opSealTail       = 50
	opConvertFile    = 51

	opAddCachePool    = 53
	opModifyCachePool = 54
	opRemoveCachePool = 55
	opAddDirective    = 56
	opModifyDirective = 57
	opRemoveDirective = 58

	opKeepFile = 59
	opPublish  = 60
)

// Waiting readers get a turn after so many commands, and after so many inodes that were changed, encoded, or taken apart: some
// hundred microseconds' work.
const (
	commandsPerTurn = 32
	changesPerTurn  = 64
)

// keptCommands is for how many commands memory is kept to decode the next entry into.
const keptCommands = 1024

// pause lets those who wait for the lock have it. The state is consistent then: it is called between commands and between the inodes that are
// taken apart or settled at their ends. What this entry has touched stays in memory, because it is not saved.
func (ns *Namespace) pause() {
	loading := ns.loading
	ns.loading = never // nobody else reads the store with the lock held
	ns.mu.Unlock()
	ns.mu.Lock()
	ns.loading = loading
}

// Apply applies the commands of one log entry and returns a *Result for each. An entry that is already in the state
// gives nil results.
//
// It panics when the entry cannot be applied: a command of a newer version, damaged bytes, or a checkpoint that cannot be
// read. The process must end then, because skipping a committed command would make this member differ from the others. A
// command that no member can make sense of is no such case: it is answered, and changes nothing. Nor is a panic in an
// operation that has not changed anything yet: it comes on every member, and would at every start.
func (ns *Namespace) Apply(index uint64, commands [][]byte) []any {
	results := make([]any, len(commands))
	ns.mu.Lock()
	if ns.broken != nil {
		defer ns.mu.Unlock()
		panic(fatal{fmt.Errorf("namespace: cannot apply entry %d: %w", index, ns.broken)})
	}
	if index <= ns.applied {
		ns.mu.Unlock()
		return results
	}
	ns.mu.Unlock()
	// All of it is decoded before any of it is applied, and without the lock: it needs nothing of the state.
	slab := make([]Result, len(commands))
	decoded := ns.decoded
	if cap(decoded) < len(commands) {
		decoded = make([]logpb.Command, len(commands))
	}
	decoded = decoded[:len(commands)]
	for i, data := range commands {
		ns.decodeOne(index, data, &decoded[i], &slab[i])
		results[i] = &slab[i]
	}
	ns.mu.Lock()
	ns.applying = true
	turn, touched := 0, 0
	for i := range decoded {
		if turn++; turn > commandsPerTurn || len(ns.touched)-touched > changesPerTurn {
			ns.pause()
			turn, touched = 1, len(ns.touched)
		}
		if decoded[i].Op != nil { // else it was answered
			ns.number = i
			ns.applyOne(index, &decoded[i], &slab[i])
		}
	}
	ns.settle()
	ns.applied, ns.applying = index, false
	ns.evict(looksPerTurn + 4*len(commands))
	effects := ns.effects
	ns.effects = Effects{}
	events, logTime := ns.events, ns.meta.logTime
	if ns.events = ns.events[:0]; cap(events) > keptEvents {
		ns.events = nil
	}
	arriving, gone := ns.arriving, ns.goneBodies
	ns.mu.Unlock()
	if clear(decoded); len(decoded) <= keptCommands { // nothing refers to a command itself once it was applied
		ns.decoded = decoded
	}

	ns.handOver(arriving, gone)
	if ns.cfg.OnEffects != nil && !effects.empty() {
		effects.Index = index
		ns.cfg.OnEffects(effects)
	}
	if len(events) > 0 {
		ns.cfg.OnEvents(index, logTime, events)
	}
	return results
}

var errNewer = fmt.Errorf("command of a newer version of the program (%w): install the one that the leader runs", release.ErrOlder)

// decode parses a command into an empty one. Errors: errNewer for one that has something in it that this program does not know (it would
// do something else than the members that do), or that the bytes are damaged.
func (ns *Namespace) decode(data []byte, cmd *logpb.Command) error {
	caller, rest := ns.callers.take(data)
	err := cmd.UnmarshalVT(rest)
	if err == nil && caller != nil && cmd.Caller != nil { // a second one, which would have to be merged
		caller = nil
		cmd.Reset()
		err = cmd.UnmarshalVT(data)
	}
	if err != nil {
		return fmt.Errorf("damaged command: %w", err)
	}
	if caller != nil {
		cmd.Caller = caller
	}
	return checkShape(cmd)
}

// callers are the callers of commands that came lately, by their bytes. Few clients send most commands, and half of what
// decoding one allocates is its caller.
type callers [64]struct {
	bytes  []byte
	caller *logpb.Caller
}

// take takes the caller off the front of a command, where marshalling puts it, and returns the rest; all of it and no
// caller when it begins otherwise. Nobody changes the caller.
func (c *callers) take(data []byte) (caller *logpb.Caller, rest []byte) {
	const commandCaller = 1 // logpb.Command
	number, kind, size := protowire.ConsumeTag(data)
	if size < 0 || number != commandCaller || kind != protowire.BytesType {
		return nil, data
	}
	bytes, n := protowire.ConsumeBytes(data[size:])
	if n < 0 {
		return nil, data
	}
	known := &c[hashBytes(0, bytes)%uint64(len(c))]
	if known.caller == nil || string(known.bytes) != string(bytes) {
		caller := new(logpb.Caller)
		if caller.UnmarshalVT(bytes) != nil {
			return nil, data
		}
		known.bytes, known.caller = slices.Clone(bytes), caller
	}
	return known.caller, data[size+n:]
}

// operation is the message of a command's operation; nil for one that this program does not know.
func operation(cmd *logpb.Command) protoreflect.ProtoMessage {
	switch c := cmd.Op.(type) {
	case *logpb.Command_Mkdirs:
		return c.Mkdirs
	case *logpb.Command_Create:
		return c.Create
	case *logpb.Command_AddBlock:
		return c.AddBlock
	case *logpb.Command_AbandonBlock:
		return c.AbandonBlock
	case *logpb.Command_Complete:
		return c.Complete
	case *logpb.Command_Append:
		return c.Append
	case *logpb.Command_Fsync:
		return c.Fsync
	case *logpb.Command_UpdatePipeline:
		return c.UpdatePipeline
	case *logpb.Command_Rename:
		return c.Rename
	case *logpb.Command_Delete:
		return c.Delete
	case *logpb.Command_SetPermission:
		return c.SetPermission
	case *logpb.Command_SetOwner:
		return c.SetOwner
	case *logpb.Command_SetTimes:
		return c.SetTimes
	case *logpb.Command_SetReplication:
		return c.SetReplication
	case *logpb.Command_RenewLease:
		return c.RenewLease
	case *logpb.Command_ReserveIds:
		return c.ReserveIds
	case *logpb.Command_StartRecovery:
		return c.StartRecovery
	case *logpb.Command_CommitRecovery:
		return c.CommitRecovery
	case *logpb.Command_Reclaim:
		return c.Reclaim
	case *logpb.Command_SetXattr:
		return c.SetXattr
	case *logpb.Command_RemoveXattr:
		return c.RemoveXattr
	case *logpb.Command_SetAcl:
		return c.SetAcl
	case *logpb.Command_SetQuota:
		return c.SetQuota
	case *logpb.Command_Truncate:
		return c.Truncate
	case *logpb.Command_Concat:
		return c.Concat
	case *logpb.Command_SetStoragePolicy:
		return c.SetStoragePolicy
	case *logpb.Command_SetErasurePolicy:
		return c.SetErasurePolicy
	case *logpb.Command_PlaceFiles:
		return c.PlaceFiles
	case *logpb.Command_SealTail:
		return c.SealTail
	case *logpb.Command_ConvertFile:
		return c.ConvertFile
	case *logpb.Command_RollBlockKeys:
		return c.RollBlockKeys
	case *logpb.Command_SurveyTree:
		return c.SurveyTree
	case *logpb.Command_SetSafeMode:
		return c.SetSafeMode
	case *logpb.Command_ForgetDatanode:
		return c.ForgetDatanode
	case *logpb.Command_ChangeRegister:
		return c.ChangeRegister
	case *logpb.Command_RollTokenKey:
		return c.RollTokenKey
	case *logpb.Command_IssueToken:
		return c.IssueToken
	case *logpb.Command_RenewToken:
		return c.RenewToken
	case *logpb.Command_CancelToken:
		return c.CancelToken
	case *logpb.Command_ExpireTokens:
		return c.ExpireTokens
	case *logpb.Command_ChangeSnapshots:
		return c.ChangeSnapshots
	case *logpb.Command_Store:
		return c.Store
	case *logpb.Command_KeepFile:
		return c.KeepFile
	case *logpb.Command_Publish:
		return c.Publish
	case *logpb.Command_AddCachePool:
		return c.AddCachePool
	case *logpb.Command_ModifyCachePool:
		return c.ModifyCachePool
	case *logpb.Command_RemoveCachePool:
		return c.RemoveCachePool
	case *logpb.Command_AddCacheDirective:
		return c.AddCacheDirective
	case *logpb.Command_ModifyCacheDirective:
		return c.ModifyCacheDirective
	case *logpb.Command_RemoveCacheDirective:
		return c.RemoveCacheDirective
	}
	return nil
}

// fatal is what Apply panics with on purpose.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// decodeOne parses a command into an empty one, which stays empty when result is the answer to it.
func (ns *Namespace) decodeOne(index uint64, data []byte, cmd *logpb.Command, result *Result) {
	defer func() {
		if p := recover(); p != nil {
			cmd.Reset()
			ns.quarantine(index, p, result)
		}
	}()
	err := ns.decode(data, cmd)
	if err == nil {
		return
	}
	if !isAnswer(err) {
		panic(fatal{fmt.Errorf("namespace: log entry %d: %w", index, err)})
	}
	cmd.Reset()
	result.Err = err
}

// quarantine answers a command that made the program panic, unless the panic was meant.
func (ns *Namespace) quarantine(index uint64, p any, result *Result) {
	if meant, ok := p.(fatal); ok {
		panic(meant)
	}
	*result = Result{Err: metadata.Errorf(metadata.ErrIO,
		"The namenode's program made a mistake in this request (log entry %d); nothing was changed. The namenode's log tells more", index)}
	if ns.cfg.OnMistake != nil {
		ns.cfg.OnMistake(index, p, debug.Stack())
	}
}

// applyOne applies a command. What it misses is read without the lock, and it starts over: an operation looks at everything
// before it changes anything.
func (ns *Namespace) applyOne(index uint64, cmd *logpb.Command, result *Result) {
	ns.loaded, ns.owed = 0, 0
	// Once, however often the command starts over.
	ns.meta.now = metadata.Time(cmd.Now)
	if t := LogTime(cmd.LogTime); t > ns.meta.logTime && t-ns.meta.logTime <= maxIdle {
		ns.meta.logTime = t
	}
	ns.expireRetries()
	defer func() {
		ns.loading = never
		ns.loadedMost = max(ns.loadedMost, ns.loaded)
	}()
	for try := 0; ; try++ {
		if ns.loading = onceChanged; try == maxTries {
			ns.loading = always
		}
		ns.changed = false
		miss, ok := errors.AsType[*cold](ns.answer(index, cmd, result))
		if !ok {
			break
		}
		*result = Result{}
		ns.loading = never
		ns.mu.Unlock()
		err := ns.fetch(miss)
		ns.mu.Lock()
		if err != nil {
			ns.fatal(err)
		}
	}
	ns.loading = always
	ns.reclaim(ReclaimStep + ns.owed)
}

// answer carries out a command, or repeats the answer to it. Errors: *cold, and nothing has changed then.
func (ns *Namespace) answer(index uint64, cmd *logpb.Command, result *Result) error {
	t := &txn{caller: callerOfCommand(cmd.Caller), index: index, result: result}

	var op uint32
	switch cmd.Op.(type) {
	case *logpb.Command_Create:
		op = opCreate
	case *logpb.Command_Append:
		op = opAppend
	case *logpb.Command_UpdatePipeline:
		op = opUpdatePipeline
	case *logpb.Command_Rename:
		op = opRename
	case *logpb.Command_Delete:
		op = opDelete
	case *logpb.Command_SetXattr:
		op = opSetXAttr
	case *logpb.Command_RemoveXattr:
		op = opRemoveXAttr
	case *logpb.Command_Truncate:
		op = opTruncate
	case *logpb.Command_Concat:
		op = opConcat
	case *logpb.Command_ChangeSnapshots:
		op = opSnapshots
	case *logpb.Command_SetErasurePolicy:
		op = opSetErasure
	case *logpb.Command_Store:
		op = opStore
	case *logpb.Command_KeepFile:
		op = opKeepFile
	case *logpb.Command_Publish:
		op = opPublish
	case *logpb.Command_SealTail:
		op = opSealTail
	case *logpb.Command_ConvertFile:
		op = opConvertFile
	case *logpb.Command_AddCachePool:
		op = opAddCachePool
	case *logpb.Command_ModifyCachePool:
		op = opModifyCachePool
	case *logpb.Command_RemoveCachePool:
		op = opRemoveCachePool
	case *logpb.Command_AddCacheDirective:
		op = opAddDirective
	case *logpb.Command_ModifyCacheDirective:
		op = opModifyDirective
	case *logpb.Command_RemoveCacheDirective:
		op = opRemoveDirective
	}
	key, cached := retryKeyOf(t.caller.user, cmd.ClientId, cmd.CallId)
	cached = cached && op != 0
	if cached {
		r, err := ns.replay(key, op)
		if err != nil {
			return ns.missing(err)
		}
		if r != nil {
			*result = *r
			return nil
		}
	}
	if err := ns.try(index, t, cmd); err != nil {
		return err
	}
	if cached && result.Err == nil && result.OK {
		ns.remember(key, op, result)
	}
	return nil
}

// missing passes *cold on. With any other failure of the checkpoint the process ends.
func (ns *Namespace) missing(err error) error {
	if _, ok := errors.AsType[*cold](err); ok && !ns.changed {
		return err
	}
	ns.fatal(err)
	return nil
}

// try carries out an operation, or refuses it when the program panics before anything was changed. Errors: *cold, and
// nothing has changed then.
func (ns *Namespace) try(index uint64, t *txn, cmd *logpb.Command) error {
	before, told := ns.meta, len(ns.events)
	ns.snaps.last = retention{}
	defer func() {
		if p := recover(); p != nil {
			if ns.changed {
				panic(p)
			}
			ns.meta, ns.events = before, ns.events[:told]
			ns.quarantine(index, p, t.result)
		}
	}()
	ns.dispatch(index, t, cmd)
	if err := t.result.Err; err != nil && !isAnswer(err) {
		ns.meta = before
		return ns.missing(err)
	}
	return nil
}

func (ns *Namespace) dispatch(index uint64, t *txn, cmd *logpb.Command) {
	switch c := cmd.Op.(type) {
	case *logpb.Command_Mkdirs:
		ns.mkdirs(t, c.Mkdirs)
	case *logpb.Command_Create:
		ns.create(t, c.Create)
	case *logpb.Command_AddBlock:
		ns.addBlockTo(t, c.AddBlock)
	case *logpb.Command_AbandonBlock:
		ns.abandonBlock(t, c.AbandonBlock)
	case *logpb.Command_Complete:
		ns.completeFile(t, c.Complete)
	case *logpb.Command_Append:
		ns.appendTo(t, c.Append)
	case *logpb.Command_Fsync:
		ns.fsync(t, c.Fsync)
	case *logpb.Command_UpdatePipeline:
		ns.updatePipeline(t, c.UpdatePipeline)
	case *logpb.Command_Rename:
		ns.rename(t, c.Rename)
	case *logpb.Command_Delete:
		ns.delete(t, c.Delete)
	case *logpb.Command_SetPermission:
		ns.setPermission(t, c.SetPermission)
	case *logpb.Command_SetOwner:
		ns.setOwner(t, c.SetOwner)
	case *logpb.Command_SetTimes:
		ns.setTimes(t, c.SetTimes)
	case *logpb.Command_SetReplication:
		ns.setReplication(t, c.SetReplication)
	case *logpb.Command_RenewLease:
		ns.renewLease(t, c.RenewLease)
	case *logpb.Command_ReserveIds:
		ns.reserveIDs(t, c.ReserveIds)
	case *logpb.Command_StartRecovery:
		ns.startRecovery(t, c.StartRecovery)
	case *logpb.Command_CommitRecovery:
		ns.commitRecovery(t, c.CommitRecovery)
	case *logpb.Command_SetXattr:
		ns.setXAttr(t, c.SetXattr)
	case *logpb.Command_RemoveXattr:
		ns.removeXAttr(t, c.RemoveXattr)
	case *logpb.Command_SetAcl:
		ns.setACL(t, c.SetAcl)
	case *logpb.Command_SetQuota:
		ns.setQuota(t, c.SetQuota)
	case *logpb.Command_Truncate:
		ns.truncate(t, c.Truncate)
	case *logpb.Command_Concat:
		ns.concat(t, c.Concat)
	case *logpb.Command_SetStoragePolicy:
		ns.setStoragePolicy(t, c.SetStoragePolicy)
	case *logpb.Command_SetErasurePolicy:
		ns.setErasurePolicy(t, c.SetErasurePolicy)
	case *logpb.Command_PlaceFiles:
		ns.placeFiles(t, c.PlaceFiles)
	case *logpb.Command_SealTail:
		ns.sealTail(t, c.SealTail)
	case *logpb.Command_ConvertFile:
		ns.convertFile(t, c.ConvertFile)
	case *logpb.Command_RollBlockKeys:
		ns.rollBlockKeys(t, c.RollBlockKeys)
	case *logpb.Command_SurveyTree:
		ns.surveyTree(t, c.SurveyTree)
	case *logpb.Command_SetSafeMode:
		ns.setSafeMode(t, c.SetSafeMode)
	case *logpb.Command_ForgetDatanode:
		ns.forgetDatanode(t, c.ForgetDatanode)
	case *logpb.Command_ChangeRegister:
		ns.changeRegister(t, c.ChangeRegister)
	case *logpb.Command_RollTokenKey:
		ns.rollTokenKey(t, c.RollTokenKey)
	case *logpb.Command_IssueToken:
		ns.issueToken(t, c.IssueToken)
	case *logpb.Command_RenewToken:
		ns.renewToken(t, c.RenewToken)
	case *logpb.Command_CancelToken:
		ns.cancelToken(t, c.CancelToken)
	case *logpb.Command_ExpireTokens:
		ns.expireTokens(t)
	case *logpb.Command_ChangeSnapshots:
		ns.changeSnapshots(t, c.ChangeSnapshots)
	case *logpb.Command_Store:
		ns.store(t, c.Store)
	case *logpb.Command_KeepFile:
		ns.keepFile(t, c.KeepFile)
	case *logpb.Command_Publish:
		ns.publish(t, c.Publish)
	case *logpb.Command_AddCachePool:
		ns.addCachePool(t, c.AddCachePool)
	case *logpb.Command_ModifyCachePool:
		ns.modifyCachePool(t, c.ModifyCachePool)
	case *logpb.Command_RemoveCachePool:
		ns.removeCachePool(t, c.RemoveCachePool)
	case *logpb.Command_AddCacheDirective:
		ns.addCacheDirective(t, c.AddCacheDirective)
	case *logpb.Command_ModifyCacheDirective:
		ns.modifyCacheDirective(t, c.ModifyCacheDirective)
	case *logpb.Command_RemoveCacheDirective:
		ns.removeCacheDirective(t, c.RemoveCacheDirective)
	case *logpb.Command_Reclaim:
		ns.owed = int(min(c.Reclaim.Limit, 1<<16))
		t.result.OK = true
	default:
		panic(fatal{fmt.Errorf("namespace: log entry %d: operation %T is not built into this program (%w)", index, cmd.Op, release.ErrOlder)})
	}
}

// resolveTarget resolves the target of a command.
func (ns *Namespace) resolveTarget(p *place, t *txn, target *logpb.Target, why intent) error {
	if target.GetVersion() != 0 {
		return ns.resolved(p, target, why)
	}
	if err := ns.resolve(p, &t.caller, metadata.INodeID(target.GetBase()), target.GetPath(), why); err != nil {
		return err
	}
	if err := ns.looked(looksPerName * len(p.nodes)); err != nil {
		return err
	}
	return ns.checkWritable(p)
}
