package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
)

// A cluster that is down is not in order, though Hadoop's fsck ends with 0 then; and hdfs:///p is a path of the default filesystem.
func TestFsckOfAClusterThatIsDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	site := fmt.Sprintf("<configuration><property><name>fs.defaultFS</name><value>hdfs://%s</value></property></configuration>", nobody)
	if err := os.WriteFile(filepath.Join(dir, "core-site.xml"), []byte(site), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HADOOP_CONF_DIR", dir)
	for _, target := range []string{"/d", "hdfs:///d", "hdfs://" + nobody + "/d"} {
		var out, errs bytes.Buffer
		code := run([]string{"hops", "fsck", target}, strings.NewReader(""), &out, &errs)
		if text := errs.String(); code != exitUnreachable || !strings.HasPrefix(text, "FileSystem is inaccessible due to:\nstat /d: ") || !strings.HasSuffix(text, "DFSck exiting.\n") {
			t.Errorf("%s: %d\n%s%s", target, code, &out, text)
		}
	}
}

// A namenode that is not the cluster's is no cluster that is down.
func TestFsckOfAnotherCluster(t *testing.T) {
	c, stranger := startLoginCluster(t), startLoginCluster(t)
	path := filepath.Join(t.TempDir(), "login")
	t.Setenv(login.Variable, path)
	c.provider.Agree(map[string]any{"preferred_username": "ann"})
	var said bytes.Buffer
	if code := run([]string{"hops", "login", c.addr, "--fingerprint", c.fingerprint}, strings.NewReader(""), io.Discard, &said); code != 0 {
		t.Fatalf("login: %d: %s", code, &said)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file login.File
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte(c.addr), []byte(stranger.addr)), &file); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := login.Namenode{HTTP: l.Addr().String(), IPC: l.Addr().String()}
	l.Close()
	other := file.Namenodes[0]
	for _, all := range [][]login.Namenode{{other}, {other, nobody}, {nobody, other}} { // whichever is asked first
		file.Namenodes = all
		if text, err = json.Marshal(&file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"fsck", "/d"}, {"fsck", "-blockId", "blk_1"}, {"user", "tokens"}} {
			if len(all) > 1 && args[1] == "/d" { // it asks the one that nobody listens at for long
				continue
			}
			var out, errs bytes.Buffer
			if code := run(append([]string{"hops"}, args...), strings.NewReader(""), &out, &errs); code != exitDenied || !strings.Contains(errs.String(), "not of this cluster") {
				t.Errorf("%v, namenodes %v: %d\n%s%s", args, all, code, &out, &errs)
			}
		}
	}
}

// Who interrupts a command is not told that nobody answers.
func TestFsckThatIsInterrupted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // where nobody ever answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	site := fmt.Sprintf("<configuration><property><name>fs.defaultFS</name><value>hdfs://%[1]s</value></property><property><name>dfs.namenode.http-address</name><value>%[1]s</value></property></configuration>", l.Addr())
	if err := os.WriteFile(filepath.Join(dir, "core-site.xml"), []byte(site), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HADOOP_CONF_DIR", dir)
	for _, args := range [][]string{{"fsck", "/d"}, {"fsck", "-blockId", "blk_1"}, {"datanode", "list"}} {
		ctx, interrupt := context.WithCancel(t.Context())
		go func() {
			if c, err := l.Accept(); err == nil {
				interrupt()
				defer c.Close()
				_, _ = io.Copy(io.Discard, c)
			}
		}()
		var out, errs bytes.Buffer
		app := newApp(strings.NewReader(""), &out, &errs)
		err := app.RunContext(ctx, flagsFirst(app, append([]string{"hops"}, args...)))
		interrupt()
		if err == nil {
			t.Fatalf("%v: it ends well", args)
		}
		if code := ended(ctx, err, &errs); code != exitInterrupted || errs.Len() > 0 {
			t.Errorf("%v: %d: %s%s", args, code, &out, &errs)
		}
	}
}

func TestExitStatusesOfErrors(t *testing.T) {
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	nobody := errors.New("connection refused")
	refusal := &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}
	for _, test := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), nobody, exitFailed},
		{t.Context(), fail(exitUnreachable, "namenode nn1: %w", nobody), exitUnreachable},
		{t.Context(), fail(exitUnreachable, "namenode nn1: %w", &url.Error{Err: fmt.Errorf("%w: 1.2.3.4:1: %w", security.ErrProof, authority.ErrForeign)}), exitDenied},
		{t.Context(), fail(exitUnreachable, "%w", &hrpc.UnreachableError{Addresses: []string{"a:1", "b:1"}, Errors: []error{nobody, fmt.Errorf("b: %w", authority.ErrTime)}}), exitDenied},
		{t.Context(), fail(exitUnreachable, "%w", &tls.CertificateVerificationError{Err: nobody}), exitDenied},
		{t.Context(), fail(exitUnreachable, "%w", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}), exitDenied},
		{t.Context(), fail(exitUnreachable, "%w", &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}), exitDenied},
		{t.Context(), fail(exitUnreachable, "%w", &net.OpError{Op: "dial", Err: nobody}), exitUnreachable},
		{t.Context(), fail(exitUnreachable, "%w", &hrpc.UnreachableError{Addresses: []string{"a:1", "b:1"}, Errors: []error{&net.OpError{Op: "dial", Err: nobody}, refusal}}), exitDenied},
		{t.Context(), fail(exitUnreachable, "%w", &hrpc.UnreachableError{Addresses: []string{"a:1", "b:1"}, Errors: []error{refusal, &net.OpError{Op: "dial", Err: nobody}}}), exitDenied},
		{t.Context(), fail(exitUsage, "%w", authority.ErrForeign), exitUsage},
		{interrupted, fail(exitUnreachable, "namenode nn1: %w", nobody), exitInterrupted},
		{interrupted, fmt.Errorf("stat /d: %w", context.Canceled), exitInterrupted},
		{interrupted, fail(exitDenied, "no"), exitDenied}, // which was the answer
		{interrupted, nobody, exitFailed},
		{interrupted, fmt.Errorf("nn1: %w; and more", fail(exitUnreachable, "%w", nobody)), exitInterrupted},
	} {
		var says bytes.Buffer
		if got := ended(test.ctx, test.err, &says); got != test.want || (says.Len() == 0) != (got == exitInterrupted) {
			t.Errorf("%v: %d, want %d; it says %q", test.err, got, test.want, &says)
		}
	}
}

// What is said around an error that has an exit status is said with it.
func TestEndedSaysAllOfAnError(t *testing.T) {
	var says bytes.Buffer
	err := fmt.Errorf("%w; nothing is left", fail(exitDenied, "no"))
	if got := ended(t.Context(), err, &says); got != exitDenied || says.String() != "hops: no; nothing is left\n" {
		t.Errorf("%d: %q", got, &says)
	}
	says.Reset()
	if got := ended(t.Context(), &statusError{code: exitHadoop}, &says); got != exitHadoop || says.Len() > 0 { // all was said
		t.Errorf("%d: %q", got, &says)
	}
}
