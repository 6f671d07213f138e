package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// admission answers a machine that joins, by how often it was asked.
type admission struct {
	pb.UnimplementedAdmissionServer
	asked  atomic.Int32
	answer func(n int32) (*pb.JoinResponse, error)
}

func (a *admission) Join(context.Context, *pb.JoinRequest) (*pb.JoinResponse, error) {
	return a.answer(a.asked.Add(1))
}

// serveAdmission serves one and returns where.
func serveAdmission(t *testing.T, member *authority.Member, a *admission) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	keys := security.Keyring{Member: member, Joining: true}
	s := grpc.NewServer(grpc.Creds(keys.Credentials()))
	pb.RegisterAdmissionServer(s, a)
	go func() { _ = s.Serve(keys.Listen(l)) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// A machine that joins during an election is taken in when there is a leader, whom another namenode may name, and so is one that does not hear whether it was. What is refused is not
// asked again.
func TestWhoJoinsWaitsForAnElection(t *testing.T) {
	t.Parallel()
	credentials, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	token := authority.Token{Authority: authority.FingerprintOf(a.Root())}
	leader := &admission{answer: func(n int32) (*pb.JoinResponse, error) {
		if n == 2 { // it is it no more before it is done
			return nil, grpcstatus.Error(codes.Aborted, "outcome unknown")
		}
		if n == 1 { // it is not the leader yet
			return nil, grpcstatus.Error(codes.Unavailable, "namenode nn2 does not lead")
		}
		return &pb.JoinResponse{Name: "lab"}, nil
	}}
	addr := serveAdmission(t, credentials.Member, leader)
	follower := &admission{answer: func(n int32) (*pb.JoinResponse, error) {
		if n == 4 { // one that cannot be reached
			return &pb.JoinResponse{Leader: "127.0.0.1:1"}, nil
		}
		if n < 3 {
			return nil, grpcstatus.Error(codes.Unavailable, "namenode nn1 does not lead")
		}
		return &pb.JoinResponse{Leader: addr}, nil
	}}
	answer, root, _, err := askToJoin(t.Context(), serveAdmission(t, credentials.Member, follower), token, nil)
	if err != nil || answer.Name != "lab" || !root.Equal(a.Root()) || follower.asked.Load() != 6 || leader.asked.Load() != 3 {
		t.Errorf("%v %v; asked were %d and %d times", answer, err, follower.asked.Load(), leader.asked.Load())
	}
	broken := &admission{answer: func(int32) (*pb.JoinResponse, error) {
		return nil, grpcstatus.Error(codes.Unknown, "the disk is gone")
	}}
	if _, _, _, err := askToJoin(t.Context(), serveAdmission(t, credentials.Member, broken), token, nil); err == nil || !strings.Contains(err.Error(), "the disk is gone") || broken.asked.Load() != 1 {
		t.Errorf("%v; asked %d times", err, broken.asked.Load())
	}
}

// Who interrupts a command reads what it has left, or how to find out.
func TestWhatAnInterruptedCommandSaysOfWhatItLeaves(t *testing.T) {
	t.Parallel()
	credentials, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	joining, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	addr := serveAdmission(t, credentials.Member, &admission{answer: func(int32) (*pb.JoinResponse, error) {
		interrupt()
		return nil, grpcstatus.Error(codes.Unavailable, "going away")
	}})
	m := &machineSetup{name: "m2", dir: t.TempDir(), data: t.TempDir(), roles: []authority.Role{authority.Datanode}, address: "127.0.0.1"}
	unknown := m.join(joining, addr, authority.Token{Authority: authority.FingerprintOf(a.Root())})

	kept := t.TempDir()
	if err := os.WriteFile(filepath.Join(kept, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m = &machineSetup{dir: t.TempDir(), data: t.TempDir(), run: true, made: []string{kept}} // which cannot be removed
	unmade := m.unfound(fmt.Errorf("namenode: %w", context.Canceled))

	for want, err := range map[string]error{
		"Whether m2 was taken in is not known: the same command finds out": unknown,
		"nothing of the cluster is left, but remove " + kept:               unmade,
		"m2 is a member of cluster c, but namenode: context canceled":      (&machineSetup{name: "m2", cluster: "c"}).notStarted(fmt.Errorf("namenode: %w", context.Canceled)),
	} {
		var says bytes.Buffer
		if code := ended(joining, err, &says); code != exitInterrupted || !strings.Contains(says.String(), want) {
			t.Errorf("%v: %d: it says %q, want %q", err, code, &says, want)
		}
	}
}

// Of an interrupted join only what it has written itself is removed: not the files of a member, whose key is then in two files, nor those of who has an authority.
func TestWhatAnInterruptedJoinHasLeft(t *testing.T) {
	t.Parallel()
	answer := []string{"identity.pem", "joining", "secret", "servers.yaml"}
	for name, c := range map[string]struct{ there, left []string }{
		"none":             {answer, answer},
		"before the end":   {append([]string{"joining.pem"}, answer...), []string{"joining.pem"}},
		"a member":         {append([]string{"joining.pem", "hops.yaml"}, answer...), append([]string{"hops.yaml"}, answer...)},
		"who has begun it": {append([]string{"authority.pem", "joining.pem"}, answer...), append([]string{"authority.pem", "joining.pem"}, answer...)},
	} {
		m := &machineSetup{dir: t.TempDir()}
		for _, file := range c.there {
			if err := os.WriteFile(m.file(file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.halfway(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		entries, err := os.ReadDir(m.dir)
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		slices.Sort(c.left)
		if !slices.Equal(left, c.left) {
			t.Errorf("%s: %v is left, want %v", name, left, c.left)
		}
	}
}

// Who ends a join while the servers start reads that the machine is a member, and what starts the rest. A server that was not waited for is not said to be slow.
func TestWhatAJoinSaysThatWasEndedWhileServersStart(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	m := &machineSetup{
		name: "m2", cluster: "c", dir: t.TempDir(), data: "/data", address: "127.0.0.1", probe: &http.Client{},
		roles: []authority.Role{authority.Datanode, authority.Namenode, authority.NodeManager, authority.ResourceManager}, serve: []authority.Role{authority.ResourceManager},
		began: []*child{{role: authority.ResourceManager}, {role: authority.Namenode, cmd: &exec.Cmd{Process: &os.Process{Pid: 77}}}},
	}
	err := m.await(ctx, authority.Namenode)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), roleTime.String()) {
		t.Errorf("who was not waited for: %v", err)
	}
	left := m.unstarted(ctx, err, io.Discard)
	var says bytes.Buffer
	if code := ended(ctx, left, &says); code != exitInterrupted {
		t.Errorf("exit status %d: %v", code, left)
	}
	for _, want := range []string{
		"hops: m2 is a member of cluster c, but the namenode does not serve yet: context canceled\n",
		"\nThe namenode goes on as process 77 with its log in /data/logs/namenode.log. Where that has ended: `hops server --role namenode -c " + m.file("hops.yaml") + "`; then, where `hops namenode list` does not name it: `hops namenode add m2 127.0.0.1:8487`\n",
		"\nThe datanode was not begun: `hops server --role datanode -c " + m.file("hops.yaml") + "`\n",
		"\nThe nodemanager was not begun: `hops server --role nodemanager -c " + m.file("hops.yaml") + "`\n",
	} {
		if !strings.Contains(says.String(), want) {
			t.Errorf("it says %q, want %q", &says, want)
		}
	}
	if strings.Contains(says.String(), "resourcemanager") {
		t.Errorf("it has something to say of the resource manager, which serves: %q", &says)
	}
	killed := m.unstarted(ctx, errors.New("systemctl: signal: killed"), io.Discard)
	if code := ended(ctx, killed, io.Discard); code != exitInterrupted {
		t.Errorf("with a command that was killed for it: exit status %d", code)
	}
	says.Reset()
	m.run, m.began = true, nil
	if err := m.unstarted(ctx, err, &says); err != nil || !strings.Contains(says.String(), "m2 is a member of cluster c") || !strings.Contains(says.String(), "The same command starts its servers") {
		t.Errorf("with --run: %v; it says %q", err, &says)
	}
}

// Who asks with the key of an earlier join that nobody has answered, and is interrupted, does not know whether that one was taken in.
func TestAnInterruptedJoinDoesNotForgetAnEarlierOne(t *testing.T) {
	t.Parallel()
	_, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	m := &machineSetup{name: "m2", dir: t.TempDir(), data: t.TempDir(), roles: []authority.Role{authority.Datanode}, address: "127.0.0.1"}
	token := authority.Token{Authority: authority.FingerprintOf(a.Root())}
	for _, earlier := range []bool{false, true} {
		if earlier {
			if _, _, err := keptKey(m.file(joiningKey)); err != nil {
				t.Fatal(err)
			}
		}
		var says bytes.Buffer
		code := ended(ctx, m.join(ctx, "127.0.0.1:1", token), &says)
		if code != exitInterrupted || strings.Contains(says.String(), "Whether m2 was taken in is not known") != earlier {
			t.Errorf("an earlier one: %v; exit status %d, it says %q", earlier, code, &says)
		}
	}
}
