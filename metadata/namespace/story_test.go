package namespace

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories give into testdata/stories")

// TestStories runs testdata/stories. A story is a list of steps, separated by blank lines:
//
//	# what it is about
//	command argument... key=value...
//	----
//	expected output
//
// Every story runs twice: in one go, and with a stop and a start (and nothing in memory) before each step. Afterwards the
// namespace must be sound.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/stories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			warm := runStory(t, string(text), false)
			if *rewrite {
				if err := os.WriteFile(file, []byte(warm), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if warm != string(text) {
				t.Errorf("%s", difference(string(text), warm))
			}
			if cold := runStory(t, string(text), true); cold != warm {
				t.Errorf("with everything loaded from the checkpoint: %s", difference(warm, cold))
			}
		})
	}
}

func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		a, b := "(end)", "(end)"
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return fmt.Sprintf("line %d:\nwant %s\n got %s", i+1, a, b)
		}
	}
	return "equal"
}

func runStory(t *testing.T, text string, cold bool) string {
	s := &story{w: newWorld(t, Config{}), who: super, names: map[string]string{}}
	s.w.cfg.OnEffects = func(e Effects) { s.effects = append(s.effects, e) }
	s.w.open()
	var out strings.Builder
	for i, step := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		head, _, _ := strings.Cut(step, "\n----")
		out.WriteString(head + "\n")
		var line string
		for l := range strings.SplitSeq(head, "\n") {
			if !strings.HasPrefix(l, "#") {
				line = l
			}
		}
		if line == "" {
			continue
		}
		if cold {
			s.w.reopen()
		}
		out.WriteString("----\n" + s.run(line) + "\n")
	}
	s.w.check()
	return out.String()
}

// story is the state of a running story.
type story struct {
	w       *world
	who     metadata.Caller
	names   map[string]string // $name -> inode
	next    int               // reserved blocks used
	effects []Effects
}

type arguments struct {
	words []string
	named map[string]string
}

func (a arguments) word(i int) string {
	if i < len(a.words) {
		return a.words[i]
	}
	return ""
}

func (a arguments) has(word string) bool { return slices.Contains(a.words, word) }

func (a arguments) number(name string, otherwise int64) int64 {
	s, ok := a.named[name]
	if !ok {
		return otherwise
	}
	base := 10
	if name == "mode" || name == "unmasked" {
		base = 8
	}
	n, err := strconv.ParseInt(s, base, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (a arguments) text(name, otherwise string) string {
	if s, ok := a.named[name]; ok {
		return s
	}
	return otherwise
}

func (s *story) run(line string) (output string) {
	defer func() {
		if r := recover(); r != nil {
			output = fmt.Sprintf("panic: %v", r)
		}
	}()
	fields := strings.Fields(line)
	a := s.arguments(fields[1:])
	s.effects = nil
	if out, ok := s.read(fields[0], a); ok {
		return out
	}
	var op any
	if fields[0] == "publish" {
		op = s.publish(line)
	} else {
		op = s.operation(fields[0], a)
	}
	cmd := command(s.who, op)
	if id, ok := a.named["call"]; ok {
		n, _ := strconv.Atoi(id)
		cmd.ClientId, cmd.CallId = []byte("0123456789abcdef"), int32(n)
	}
	r := s.w.apply(cmd)
	if add, ok := op.(*logpb.AddBlock); ok && (r.Err != nil || int64(r.Block.ID) != add.Block.Id) {
		s.next-- // the proposed block was not used
	}
	if name, ok := a.named["as"]; ok && r.Status != nil {
		s.names["$"+name] = strconv.FormatUint(uint64(r.Status.ID), 10)
	}
	return s.result(r)
}

func (s *story) arguments(fields []string) arguments {
	a := arguments{named: map[string]string{}}
	for _, f := range fields {
		if strings.HasPrefix(f, "$") && len(f) > 1 {
			f = s.names[f]
		}
		if k, v, ok := strings.Cut(f, "="); ok && !strings.HasPrefix(f, "/") {
			if strings.HasPrefix(v, "$") {
				v = s.names[v]
			}
			a.named[k] = v
			continue
		}
		a.words = append(a.words, f)
	}
	return a
}

// publish reads steps, with a semicolon between two of them.
func (s *story) publish(line string) *logpb.Publish {
	var ops []any
	for step := range strings.SplitSeq(strings.TrimPrefix(line, "publish"), ";") {
		fields := strings.Fields(step)
		a := s.arguments(fields[1:])
		if ops = append(ops, s.operation(fields[0], a)); a.has("ifthere") {
			ops = append(ops, ifThere{})
		}
	}
	return publishOf(ops...)
}

func (s *story) operation(verb string, a arguments) any {
	path := func(i int) *logpb.Target {
		if p := a.word(i); p != "" {
			return to(p)
		}
		return nil
	}
	inode := func() uint64 {
		if n, err := strconv.ParseUint(a.word(0), 10, 64); err == nil {
			return n
		}
		id, err := s.w.ns.Resolve(super, a.word(0))
		if err != nil {
			panic(err)
		}
		return uint64(id)
	}
	client := a.text("client", "c1")
	switch verb {
	case "mkdirs":
		return &logpb.Mkdirs{Target: path(0), Mode: uint32(a.number("mode", 0o755)), CreateParent: !a.has("noparent"), Unmasked: a.unmasked()}
	case "create":
		c := create(a.word(0), client)
		c.Mode = uint32(a.number("mode", 0o644))
		c.Overwrite, c.Create, c.CreateParent = a.has("overwrite"), !a.has("nocreate"), !a.has("noparent")
		c.Replication = uint32(a.number("replication", 3))
		c.BlockSize = a.number("blocksize", 1<<20)
		c.ClientNode = a.text("node", "")
		c.Unmasked = a.unmasked()
		return c
	case "addblock":
		return &logpb.AddBlock{Inode: inode(), ClientName: client, Previous: s.block(a, "previous"), Block: s.newBlock()}
	case "abandon":
		return &logpb.AbandonBlock{Inode: inode(), ClientName: client, Block: s.block(a, "block")}
	case "complete":
		return &logpb.Complete{Inode: inode(), ClientName: client, Last: s.block(a, "last")}
	case "append":
		return &logpb.Append{Target: path(0), ClientName: client, NewBlock: a.has("newblock"), ClientNode: a.text("node", "")}
	case "fsync":
		return &logpb.Fsync{Inode: inode(), ClientName: client, LastBlockLength: a.number("length", -1)}
	case "pipeline":
		return &logpb.UpdatePipeline{ClientName: client, OldBlock: s.block(a, "old"), NewBlock: s.block(a, "new")}
	case "rename":
		return &logpb.Rename{Source: path(0), Target: path(1), Legacy: true}
	case "rename2":
		return &logpb.Rename{Source: path(0), Target: path(1), Overwrite: a.has("overwrite"), ToTrash: a.has("totrash")}
	case "delete":
		return &logpb.Delete{Target: path(0), Recursive: a.has("recursive")}
	case "chmod":
		return &logpb.SetPermission{Target: path(0), Mode: uint32(a.number("mode", 0))}
	case "chown":
		return &logpb.SetOwner{Target: path(0), Owner: a.text("owner", ""), Group: a.text("group", "")}
	case "touch":
		return &logpb.SetTimes{Target: path(0), Mtime: a.number("mtime", -1), Atime: a.number("atime", -1)}
	case "setrep":
		return &logpb.SetReplication{Target: path(0), Replication: uint32(a.number("replication", 0))}
	case "renew":
		return &logpb.RenewLease{ClientName: client}
	case "reserve":
		return &logpb.ReserveIDs{
			Blocks: a.number("blocks", 0), Generations: uint64(a.number("generations", 0)),
			Owner: a.text("owner", ""), Group: a.text("group", ""), ClusterId: a.text("cluster", ""),
		}
	case "recover":
		return &logpb.StartRecovery{Inode: inode(), RecoveryId: uint64(1000 + a.number("id", 0)), Holder: a.text("holder", "c1")}
	case "recovered":
		return &logpb.CommitRecovery{
			Block: s.block(a, "block"), RecoveryId: uint64(1000 + a.number("id", 0)), Length: a.number("length", 0),
			Close: a.has("close"), DeleteBlock: a.has("delete"),
		}
	case "setfattr", "removefattr", "setfacl", "setquota", "setpolicy", "truncate", "concat", "allowsnapshots", "snapshot":
		return s.extraOperation(verb, a)
	case "reclaim":
		return &logpb.Reclaim{Limit: uint32(a.number("limit", 0))}
	}
	panic("unknown command " + verb)
}

// block reads name=id.generation.length, id and generation counted from the first ones.
func (s *story) block(a arguments, name string) *logpb.Block {
	text, ok := a.named[name]
	if !ok {
		return nil
	}
	var id, generation, length int64
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &id, &generation, &length); err != nil {
		panic(err)
	}
	return &logpb.Block{Id: int64(metadata.FirstBlockID) + id - 1, Generation: uint64(1000 + generation), Length: length}
}

func (s *story) newBlock() *logpb.Block {
	s.next++
	return &logpb.Block{Id: int64(metadata.FirstBlockID) + int64(s.next) - 1, Generation: uint64(1000 + s.next)}
}

func short(b metadata.Block) string {
	return fmt.Sprintf("%d.%d.%d", b.ID-metadata.FirstBlockID+1, int64(b.Generation)-1000, b.Length)
}

func (s *story) result(r *Result) string {
	var out []string
	switch {
	case r.Err != nil:
		out = append(out, kindName(r.Err)+": "+r.Err.Error())
	case r.OK && r.Status == nil:
		out = append(out, "ok")
	case !r.OK && r.Block == nil && r.File == nil:
		out = append(out, "false")
	}
	if r.Expired != nil {
		out = append(out, fmt.Sprintf("expired: %s of %d", r.Expired.Holder, r.Expired.INode-metadata.RootID))
	}
	if r.Replayed {
		out = append(out, "replayed")
	}
	if r.Status != nil {
		out = append(out, show(*r.Status))
	}
	if r.Block != nil {
		out = append(out, fmt.Sprintf("block %s at %d", short(*r.Block), r.Offset))
	}
	if f := r.File; f != nil && r.Status == nil {
		out = append(out, "file "+f.Path+" holder="+f.Holder+" "+f.LastState.String())
	}
	if r.Snapshot != "" {
		out = append(out, r.Snapshot)
	}
	if r.Reserved != nil {
		v := r.Reserved
		out = append(out, fmt.Sprintf("blocks %d to %d, generations %d to %d", v.FirstBlock-metadata.FirstBlockID+1,
			v.EndBlock-metadata.FirstBlockID, v.FirstGeneration-1000, v.EndGeneration-1001))
	}
	for _, e := range s.effects {
		for _, list := range []struct {
			name   string
			blocks []BlockOwner
		}{{"added", e.Added}, {"changed", e.Changed}} {
			for _, b := range list.blocks {
				line := fmt.Sprintf("%s %s x%d", list.name, short(b.Block), b.Replication)
				if b.UnderConstruction {
					line += " open"
				}
				if b.RecoveryID != 0 {
					line += fmt.Sprintf(" recovery=%d", b.RecoveryID-1000)
				}
				out = append(out, line)
			}
		}
		for _, b := range e.Removed {
			out = append(out, "removed "+short(b))
		}
	}
	return strings.Join(out, "\n")
}

func kindName(err error) string {
	if k, ok := errors.AsType[*metadata.Kind](err); ok {
		return k.Error()
	}
	return "no kind"
}

func show(st metadata.FileStatus) string {
	if st.ACL {
		st.ACL = false
		return show(st) + " +"
	}
	if st.IsDir() {
		return strings.TrimSpace(fmt.Sprintf("d%v %s:%s entries=%d mtime=%d %s", st.Mode, st.Owner, st.Group, st.Children, st.MTime/1000, st.Name))
	}
	open := ""
	if st.UnderConstruction {
		open = " open"
	}
	return strings.TrimSpace(fmt.Sprintf("-%v %s:%s x%d length=%d mtime=%d atime=%d%s %s",
		st.Mode, st.Owner, st.Group, st.Replication, st.Length, st.MTime/1000, st.ATime/1000, open, st.Name))
}

func failure(err error) string { return kindName(err) + ": " + err.Error() }

// read runs the commands that do not go through the log.
func (s *story) read(verb string, a arguments) (string, bool) {
	ns := s.w.ns
	if out, ok := s.readExtra(verb, a); ok {
		return out, true
	}
	switch verb {
	case "as":
		s.who = metadata.Caller{User: a.word(0), Groups: a.words[1:], Superuser: a.word(0) == "hops", Host: "127.0.0.1"}
		return "ok", true
	case "wait": // seconds
		n, _ := strconv.Atoi(a.word(0))
		s.w.now += metadata.Time(n) * 1000
		return "ok", true
	case "stat":
		st, err := ns.Stat(s.who, a.word(0))
		switch {
		case err != nil:
			return failure(err), true
		case st == nil:
			return "missing", true
		}
		return show(*st), true
	case "inode":
		id, err := ns.Resolve(s.who, a.word(0))
		if err != nil {
			return failure(err), true
		}
		return fmt.Sprint(id - metadata.RootID), true
	case "ls":
		l, err := ns.List(s.who, a.word(0), a.text("after", ""), int(a.number("limit", 0)))
		switch {
		case err != nil:
			return failure(err), true
		case l == nil:
			return "missing", true
		}
		var out []string
		for _, e := range l.Entries {
			out = append(out, show(e))
		}
		return strings.Join(append(out, fmt.Sprintf("and %d more", l.Remaining)), "\n"), true
	case "blocks":
		f, err := ns.Blocks(s.who, a.word(0), a.number("offset", 0), a.number("length", math.MaxInt64))
		if err != nil {
			return failure(err), true
		}
		out := []string{fmt.Sprintf("length=%d open=%v lastcomplete=%v", f.Length, f.UnderConstruction, f.LastComplete)}
		for _, b := range f.Blocks {
			out = append(out, fmt.Sprintf("%s at %d complete=%v", short(b.Block), b.Offset, b.Complete))
		}
		if f.Last != nil {
			out = append(out, "last "+short(f.Last.Block))
		}
		return strings.Join(out, "\n"), true
	case "du":
		c, err := ns.ContentSummary(s.who, a.word(0))
		if err != nil {
			return failure(err), true
		}
		return fmt.Sprintf("length=%d files=%d directories=%d space=%d quota=%d/%d",
			c.Length, c.Files, c.Directories, c.SpaceConsumed, c.Quota, c.SpaceQuota), true
	case "access":
		var want metadata.Access
		for _, c := range a.word(1) {
			want |= map[rune]metadata.Access{'r': metadata.Read, 'w': metadata.Write, 'x': metadata.Execute}[c]
		}
		if err := ns.CheckAccess(s.who, a.word(0), want); err != nil {
			return failure(err), true
		}
		return "ok", true
	case "leases":
		out := []string{fmt.Sprintf("%d leases", len(ns.Leases()))}
		for _, l := range ns.Leases() {
			line := fmt.Sprintf("%s renewed=%d files=%d", l.Holder, l.Renewed/1000, len(l.Files))
			if l.ClientNode != "" {
				line += " node=" + l.ClientNode
			}
			out = append(out, line)
		}
		return strings.Join(out, "\n"), true
	case "counts":
		c := ns.Counts()
		return fmt.Sprintf("files=%d directories=%d blocks=%d open=%d reclaiming=%d retries=%d",
			c.Files, c.Directories, c.Blocks, c.OpenFiles, c.Reclaiming, c.Retries), true
	}
	return "", false
}
