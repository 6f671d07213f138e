package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tellsSlack in the environment makes this program one that begins as hops does, and tells its timers' slack.
const tellsSlack = "HOPS_TEST_TELLS_SLACK"

func tellSlack() {
	slackenTimers(os.Args)
	runtime.LockOSThread()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	fmt.Println(slack, err, os.Args[1:], os.Getenv(begunAnew) == "")
}

func TestServerWithLogBeginsWithSlackTimers(t *testing.T) {
	plain, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	slack := max(plain, int(timerSlack))
	for line, want := range map[string]int{
		"server --role namenode -c hops.yaml":              slack,
		"server -role=datanode,resourcemanager":            slack,
		"server --role datanode --role namenode":           slack,
		"server --role datanode -c hops.yaml":              plain,
		"server --role namenode,nodemanager":               plain,
		"server --role resourcemanager --role nodemanager": plain,
		"fs -ls namenode":                                  plain,
	} {
		cmd := exec.Command(os.Args[0], strings.Fields(line)...)
		cmd.Env = append(os.Environ(), tellsSlack+"=1")
		got, err := cmd.CombinedOutput()
		if wanted := fmt.Sprintln(want, nil, strings.Fields(line), true); err != nil || string(got) != wanted {
			t.Errorf("hops %s: %q, %v, want %q", line, got, err, wanted)
		}
	}
}
