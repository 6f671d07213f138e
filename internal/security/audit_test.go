package security

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

func TestAuditLinesHaveTheFieldsOfHDFS(t *testing.T) {
	at := time.Date(2026, 11, 22, 4, 5, 6, 789e6, time.UTC)
	for want, d := range map[string]Decision{
		"2026-11-22 04:05:06,789 INFO FSNamesystem.audit: allowed=true\tugi=ann (auth:SIMPLE)\tip=/127.0.0.1\tcmd=rename\tsrc=/a\tdst=/b\tperm=null\tproto=rpc\n": {
			Allowed: true, Caller: metadata.Caller{User: "ann", Host: "127.0.0.1"}, Port: "rpc", Command: "rename", Source: "/a", Target: "/b",
		},
		"2026-11-22 04:05:06,789 INFO FSNamesystem.audit: allowed=false\tugi=ann (auth:PROXY) via hue (auth:SIMPLE)\tip=/null\tcmd=open\tsrc=/ä\\tallowed=true\\n\\\\\\xff\tdst=null\tperm=null\tproto=webhdfs\treason=no\n": {
			Caller: metadata.Caller{User: "ann", RealUser: "hue"}, Port: "webhdfs", Command: "open", Source: "/ä\tallowed=true\n\\\xff", Reason: "no", Read: true,
		},
	} {
		if got := string(appendDecision(nil, at, &d)); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestAuditKeepsChangesAndRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(AuditConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	a.Record(Decision{Allowed: true, Command: "open", Read: true})
	a.Record(Decision{Allowed: false, Command: "list", Read: true})
	a.Record(Decision{Allowed: true, Command: "mkdirs"})
	(*Audit)(nil).Record(Decision{})
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 2 || !strings.Contains(string(text), "cmd=list") || !strings.Contains(string(text), "cmd=mkdirs") {
		t.Fatalf("%v\n%s", err, text)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v", info.Mode())
	}
}

func TestAuditFilesEndAndAreFew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(AuditConfig{Path: path, Size: 1000, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		a.Record(Decision{Allowed: true, Command: "mkdirs", Source: strings.Repeat("x", 300)})
		a.flush()
	}
	files, _ := filepath.Glob(path + "*")
	if len(files) != 4 {
		t.Errorf("files %v", files)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > 1000 {
			t.Errorf("%s: %v, %v", f, info, err)
		}
	}
}

// Where a new file cannot be made nothing has moved, and the log goes on when it can.
func TestAuditGoesOnAfterANewFileCouldNotBeMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(AuditConfig{Path: path, Size: 1000, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	write := func() {
		a.Record(Decision{Allowed: true, Command: "mkdirs", Source: strings.Repeat("x", 600)})
		a.flush()
	}
	write()
	if err := os.Mkdir(path+".new", 0o700); err != nil { // in the way
		t.Fatal(err)
	}
	for range 5 {
		write()
	}
	if files, _ := filepath.Glob(path + "*"); len(files) != 2 || a.failed == nil {
		t.Errorf("%v, %v", files, a.failed)
	}
	if err := os.Remove(path + ".new"); err != nil {
		t.Fatal(err)
	}
	write()
	write()
	if files, _ := filepath.Glob(path + "*"); len(files) != 3 || a.failed != nil {
		t.Errorf("%v, %v", files, a.failed)
	}
}

// Somebody has moved the file away, and the log begins a new one at the next change of files rather than never.
func TestAuditGoesOnWhenItsFileWasTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(AuditConfig{Path: path, Size: 1000, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			a.Record(Decision{Allowed: true, Command: "mkdirs", Source: strings.Repeat("x", 600)})
			a.flush()
		}
		if text, err := os.ReadFile(path); err != nil || len(text) == 0 || a.failed != nil {
			t.Fatalf("%q, %v, %v", text, err, a.failed)
		}
	}
}

// What is recorded while the log is being written goes elsewhere than what is being written, also after a time in which nothing was.
func TestRecordsDuringAWriteAreNotMixedIntoIt(t *testing.T) {
	a, err := OpenAudit(AuditConfig{Path: filepath.Join(t.TempDir(), "audit.log")})
	if err != nil {
		t.Fatal(err)
	}
	record := func(command string) {
		for range 200 {
			a.Record(Decision{Allowed: true, Command: command, Source: strings.Repeat(command, 100)})
		}
	}
	for range 2 { // both buffers have their size
		record("warm")
		a.flush()
	}
	a.flush() // nothing
	a.file.Close()
	pipe, file, err := os.Pipe() // takes 64 KiB, then the write waits
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	a.file = file
	record("first")
	done := make(chan struct{})
	go func() { a.flush(); close(done) }()
	if _, err := io.ReadFull(pipe, make([]byte, 1)); err != nil { // the write has begun, and waits
		t.Fatal(err)
	}
	record("second")
	read := make(chan []byte)
	go func() {
		rest, _ := io.ReadAll(pipe)
		read <- rest
	}()
	<-done
	a.flush()
	file.Close()
	first, second := 0, 0
	for line := range strings.Lines(string(<-read)) {
		if strings.Contains(line, strings.Repeat("first", 100)) && !strings.Contains(line, "second") {
			first++
		}
		if strings.Contains(line, strings.Repeat("second", 100)) && !strings.Contains(line, "first") {
			second++
		}
	}
	if first != 200 || second != 200 {
		t.Errorf("%d and %d lines are whole, want 200 of each", first, second)
	}
}

// A log that cannot be written holds up nobody and takes no more memory than its buffer; it says how much it lost.
func TestAuditOnADiskThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(AuditConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	d := Decision{Command: "mkdirs", Source: strings.Repeat("x", 10_000)} // cut to what a line keeps
	for range 2000 {
		a.Record(d)
	}
	if len(a.pending) > auditBuffer+maxAudited+1000 || a.lost == 0 {
		t.Fatalf("%d bytes wait, %d lines are lost", len(a.pending), a.lost)
	}
	a.flush()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "decisions were not written") {
		t.Fatalf("%v", err)
	}
	if a.file.Close(); a.failed != nil {
		t.Fatal(a.failed)
	}
	a.Record(d)
	a.flush() // fails, and says so once
	if a.failed == nil {
		t.Error("a failed write was not noticed")
	}
}

func BenchmarkAudit(b *testing.B) {
	a, err := OpenAudit(AuditConfig{Path: filepath.Join(b.TempDir(), "audit.log")})
	if err != nil {
		b.Fatal(err)
	}
	d := Decision{Allowed: true, Caller: metadata.Caller{User: "ann", Host: "127.0.0.1"}, Port: "rpc", Command: "mkdirs", Source: "/user/ann/data/part-00001"}
	for b.Loop() {
		if a.Record(d); len(a.pending) > 1<<20 {
			a.pending = a.pending[:0]
		}
	}
}
