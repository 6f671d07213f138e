package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

const balancerUsage = `Usage: hdfs balancer
	[-policy <policy>]	the balancing policy: datanode
	[-threshold <threshold>]	Percentage of disk capacity
	[-exclude [-f <hosts-file> | <comma-separated list of hosts>]]	Excludes the specified datanodes.
	[-include [-f <hosts-file> | <comma-separated list of hosts>]]	Includes only the specified datanodes.
	[-source [-f <hosts-file> | <comma-separated list of hosts>]]	Pick only the specified datanodes as source nodes.
	[-idleiterations <idleiterations>]	Number of consecutive idle iterations (-1 for Infinite) before exit.
`

// The exit statuses of HDFS's balancer (ExitStatus), as a shell sees them.
const (
	balancerDone      = 0
	balancerRunning   = 255 // -1: another one is running
	balancerNoMove    = 254 // -2: nothing can be moved
	balancerStuck     = 253 // -3: nothing has been moved for several iterations
	balancerIO        = 252 // -4
	balancerArguments = 255 // -1: Hadoop's main method fails
	balancerEnded     = 250 // -6: interrupted
)

// balancerFile is the file that HDFS's balancer holds open, so that only one runs at a time.
const balancerFile = "/system/balancer.id"

// balancerIteration is how long an iteration lasts, and balancerBeat how often the namenode is asked to go on.
const (
	balancerIteration = 9 * time.Second
	balancerBeat      = time.Second
)

func balancerCommand() *cli.Command {
	return hadoopCommand("balancer", "move blocks from full datanodes to empty ones: the options, output and exit status of `hdfs balancer`", "[OPTIONS]",
		"The namenode that leads moves the blocks for as long as this command runs. Ctrl-C ends it at any time; nothing is lost by that.\n"+
			"`hops dfsadmin -setBalancerBandwidth` says how much a datanode may send for it.\n\n"+balancerUsage, balancer)
}

func balancer(t *hadoopTool, args []string) (int, error) {
	r := dfs.BalanceRequest{Session: rand.Text(), Threshold: 10}
	idle := 5
	t.interrupted = balancerEnded
	began := time.Now()
	defer func() {
		t.printf("%-24s Balancing took %s\n", javaStamp(time.Now()), javaTook(time.Since(began)))
	}()
	wrong := func(format string, a ...any) (int, error) {
		fmt.Fprintf(t.errOut, format+"\n%s", append(a, balancerUsage)...)
		return balancerArguments, nil
	}
	for len(args) > 0 {
		option := args[0]
		if len(args) < 2 {
			return wrong("%s: needs a value, or is not an option", option)
		}
		value := args[1]
		args = args[2:]
		var list *[]string
		switch option {
		case "-threshold":
			n, err := strconv.ParseFloat(value, 64)
			if err != nil || !(n >= 1 && n <= 100) {
				return wrong("Expecting a number in the range of [1.0, 100.0]: %s", value)
			}
			r.Threshold = n
		case "-policy":
			if value != "datanode" {
				return wrong("Cannot parse policy %q: datanode is the only one", value)
			}
		case "-idleiterations":
			n, err := strconv.Atoi(value)
			if err != nil || n < -1 {
				return wrong("-idleiterations %s: want a whole number, -1 for ever", value)
			}
			idle = n
		case "-include":
			list = &r.Include
		case "-exclude":
			list = &r.Exclude
		case "-source":
			list = &r.Source
		default:
			return wrong("%s: not supported, or not an option", option)
		}
		if list == nil {
			continue
		}
		if value == "-f" {
			if len(args) == 0 {
				return wrong("%s -f: needs a file", option)
			}
			text, err := os.ReadFile(args[0])
			if err != nil {
				return wrong("%s: %v", option, err)
			}
			value, args = strings.Join(strings.Fields(string(text)), ","), args[1:]
		}
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" {
				*list = append(*list, name)
			}
		}
	}
	if len(r.Include) > 0 && len(r.Exclude) > 0 {
		return wrong("-exclude and -include options cannot be specified together.")
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	free, err := t.onlyOne(fs, balancerFile)
	if err == nil {
		defer free()
		return t.balance(fs, r, idle)
	}
	return t.balancerFailed(err), nil
}

// balancerFailed says why it ends, in the words of HDFS where it has some.
func (t *hadoopTool) balancerFailed(err error) int {
	switch {
	case t.ctx.Err() != nil:
		return balancerEnded
	case errors.Is(err, metadata.ErrExist), errors.Is(err, metadata.ErrBeingCreated), errors.Is(err, metadata.ErrRecoveryInProgress):
		t.printf("Another Balancer is running..  Exiting ...\n")
		return balancerRunning
	}
	t.printf("%s.  Exiting ...\n", strings.TrimSuffix(hadoopMessage(err), "."))
	return balancerIO
}

// onlyOne takes HDFS's mark of a balancer, or of another tool that is alone, which is a file that is being written. One that was left behind is taken over when
// nobody writes it any more: 60 s after its writer has died (NameNodeConnector.checkAndMarkRunning). Who takes over makes a file of its own in its place, as HDFS's tools do: so the one before, which may
// have stood still and go on, can tell its own file from the next one's, and free deletes none but its own.
//
// Errors: ErrBeingCreated or ErrRecoveryInProgress while another one has it, ErrExist when another one has just taken it.
func (t *hadoopTool) onlyOne(fs *dfs.Client, mark string) (free func(), _ error) {
	if err := fs.Mkdirs(t.ctx, path.Dir(mark), 0o755, true); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		w, err := fs.Create(t.ctx, mark, dfs.CreateOptions{})
		if err == nil {
			return func() { _ = unmark(context.WithoutCancel(t.ctx), fs, w) }, nil
		}
		if !errors.Is(err, metadata.ErrExist) {
			return nil, err
		}
		left, gone := fs.Append(t.ctx, mark)
		if gone == nil {
			gone = unmark(t.ctx, fs, left)
		}
		if gone != nil && !errors.Is(gone, metadata.ErrNotExist) { // another one may end between the two, and takes its mark along
			return nil, gone
		}
		if try == 3 {
			return nil, err
		}
	}
}

// unmark deletes a mark while it is its writer's: closed, it would be anybody's to take. It is deleted by its inode: another file may have its name.
func unmark(ctx context.Context, fs *dfs.Client, w *dfs.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	defer w.Abort()
	_, err := fs.Delete(ctx, fmt.Sprintf("/.reserved/.inodes/%d", w.INode()), false)
	return err
}

// balance keeps the namenode moving until all is balanced, nothing moves any more, or somebody ends it.
func (t *hadoopTool) balance(fs *dfs.Client, r dfs.BalanceRequest, idle int) (int, error) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 5*time.Second)
		defer cancel()
		r.Stop = true
		_, _ = fs.Balance(ctx, r) // it ends by itself if this does not arrive
	}()
	t.printf("Time Stamp               Iteration#  Bytes Already Moved  Bytes Left To Move  Bytes Being Moved  NameNode\n")
	var before, last dfs.Balanced // of leaders that have gone, and of this one
	quiet := 0
	for iteration := 0; ; iteration++ {
		moved := before.Moved + last.Moved
		var now dfs.Balanced
		for until := time.Now().Add(balancerIteration); ; {
			var err error
			if now, err = fs.Balance(t.ctx, r); err != nil {
				return t.balancerFailed(err), nil
			}
			if now.Moved < last.Moved { // another namenode leads
				before.Moved, before.Blocks = before.Moved+last.Moved, before.Blocks+last.Blocks
			}
			last = now
			if iteration == 0 || now.Over+now.Under == 0 && now.Moving == 0 || time.Now().After(until) {
				break
			}
			if err := pause(t.ctx, balancerBeat); err != nil {
				return t.balancerFailed(err), nil
			}
		}
		t.printf("%-24s %10d  %19s  %18s  %17s  %17d  %s\n", javaStamp(time.Now()), iteration, bytesOf(before.Moved+now.Moved), bytesOf(now.Left), bytesOf(now.Moving),
			before.Blocks+now.Blocks, t.uri)
		if now.Over+now.Under == 0 && now.Moving == 0 {
			t.printf("The cluster is balanced. Exiting...\n")
			return balancerDone, nil
		}
		if iteration > 0 && before.Moved+now.Moved == moved && now.Moving == 0 {
			quiet++
		} else {
			quiet = 0
		}
		if idle >= 0 && quiet > 0 && quiet >= idle {
			if before.Moved+now.Moved == 0 {
				t.printf("No block can be moved. Exiting...\n")
				return balancerNoMove, nil
			}
			t.printf("No block has been moved for %d iterations. Exiting...\n", quiet)
			return balancerStuck, nil
		}
	}
}

// javaStamp is a time as Java's DateFormat prints it in English.
func javaStamp(t time.Time) string { return t.Format("Jan 2, 2006, 3:04:05 PM") }

// javaTook is a duration as HDFS's balancer prints it.
func javaTook(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'g', 4, 64) + " seconds"
	case d < time.Hour:
		return strconv.FormatFloat(d.Minutes(), 'g', 5, 64) + " minutes"
	}
	return strconv.FormatFloat(d.Hours(), 'g', 5, 64) + " hours"
}
