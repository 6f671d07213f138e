package process

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// TestDoctorSeesWhatIsGone: a server that is gone is named, with status 1, although everything still works without it; and a
// filesystem that takes no more files is not called writable.
func TestDoctorSeesWhatIsGone(t *testing.T) {
	t.Parallel()
	k := Start(t, processes.Config{
		Namenodes: 3, Datanodes: 2, Properties: map[string]string{"dfs.replication": "1"},
		Adjust: func(_ string, f *config.File) {
			if f.Namenode != nil { // one that is stopped below is not dead, however long the doctor takes on a busy machine
				f.Namenode.DeadAfter = 2 * Patience
			}
		},
	})
	says := func(status int, words ...string) func() error {
		return func() error {
			r := k.Hops().Run("doctor")
			for _, word := range words {
				if !strings.Contains(r.Stdout, word) {
					return fmt.Errorf("status %d, no %q in\n%s%s", r.Status, word, r.Stdout, r.Stderr)
				}
			}
			if r.Status != status {
				return fmt.Errorf("status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
			}
			return nil
		}
	}
	writable := "ok    filesystem         writable: a file was written, read and deleted in "
	k.Await("a doctor who finds nothing", says(0, writable))

	file := k.File()
	follower := file.Namenodes[0]
	if k.Leader(Dial(t, k.Conf(), "").FS()) == follower.ID {
		follower = file.Namenodes[1]
	}
	k.must(k.Kill(follower.ID))
	k.Await("the namenode that is gone", says(1, "FAIL  namenode           "+follower.HTTP+" cannot be reached: ", "the next loss is felt", writable))
	k.must(k.Cluster.Start(follower.ID))
	k.Await("a doctor who finds nothing", says(0, writable))

	// A server that takes as long as the doctor waits for one takes nobody else's time.
	hangs := says(1, "does not answer within", "blocks             0 missing", "/user are there", writable)
	k.Await("a datanode that hangs, and all the rest", func() error {
		k.must(k.Signal("dn1", syscall.SIGSTOP))
		defer func() { k.must(k.Signal("dn1", syscall.SIGCONT)) }()
		return hangs()
	})
	k.Await("a doctor who finds nothing", says(0, writable))

	limitFiles(t, k.Pid("dn1"), 0)
	limitFiles(t, k.Pid("dn2"), 0)
	k.Await("datanodes that take nothing", says(1, "FAIL  filesystem         a file cannot be written and read: "))
	limitFiles(t, k.Pid("dn1"), -1)
	limitFiles(t, k.Pid("dn2"), -1)
}
