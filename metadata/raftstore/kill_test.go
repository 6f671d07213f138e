package raftstore

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

// writerDir makes the test binary a process that writes to a group in that directory until it is killed.
const writerDir = "HOPS_RAFTSTORE_WRITER"

// runWriter prints the number of every acknowledged command.
func runWriter(dir string) {
	fatal := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(err)
	credentials, _, err := securitytest.Make(security.NewSecret())
	fatal(err)
	h, err := NewHost(HostConfig{
		ID: "m1", Listener: l, Dir: dir, Door: security.NewDoor(security.Config{}), Credentials: credentials, Role: authority.Namenode, Reserve: -1, Logger: slog.New(slog.DiscardHandler), WriteDeadline: busyDisk,
	})
	fatal(err)
	m := newMachine()
	g, err := h.Open(GroupConfig{Name: "a", Bootstrap: true, SegmentBytes: 64 << 10, SnapshotBytes: 128 << 10}, m)
	fatal(err)
	for !g.Leadership().Leader {
		time.Sleep(time.Millisecond)
	}
	fatal(g.ReadWait(context.Background()))
	next, _ := strconv.Atoi(m.get("next"))
	fmt.Println("has", m.get("next"))
	var mu sync.Mutex
	slots := make(chan struct{}, 100)
	for n := next + 1; ; n++ {
		slots <- struct{}{}
		g.ProposeAsync(set("next", n), nil, func(_ any, err error) {
			fatal(err)
			mu.Lock()
			fmt.Println("ok", n)
			mu.Unlock()
			<-slots
		})
	}
}

func TestKilledProcessKeepsWhatItAcknowledged(t *testing.T) {
	dir := t.TempDir()
	acked := 0
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		seen := 0
		began := acked
		for s := bufio.NewScanner(out); s.Scan(); {
			word, rest, _ := strings.Cut(s.Text(), " ")
			n, _ := strconv.Atoi(rest)
			switch word {
			case "has":
				if n < acked {
					t.Fatalf("round %d: the process has %d, but %d was acknowledged before it was killed", round, n, acked)
				}
			case "ok":
				acked = max(acked, n)
				if seen++; seen == 3000+round*777 {
					cmd.Process.Kill()
				}
			default:
				t.Fatalf("round %d: %s", round, s.Text())
			}
		}
		cmd.Wait()
		if acked == began {
			t.Fatalf("round %d: nothing was written", round)
		}
	}
	t.Logf("%d commands in %d lives", acked, rounds)
}
