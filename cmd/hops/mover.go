package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

const moverUsage = `Usage: hdfs mover [-p <files/dirs> | -f <local file>]
	-p <files/dirs>	a space separated list of HDFS files/dirs to migrate.
	-f <local file>	a local file containing a list of HDFS files/dirs to migrate.
`

// The exit statuses of HDFS's mover (ExitStatus), as a shell sees them, beside those that it shares with the balancer.
const moverArguments = 251 // -5

// moverFile is the file that HDFS's mover holds open, so that only one runs at a time.
const moverFile = "/system/mover.id"

const (
	// tierBeat is how often the namenode is asked how far it is, and tierReport how often a person is told.
	tierBeat   = 500 * time.Millisecond
	tierReport = 10 * time.Second
)

func moverCommand() *cli.Command {
	return hadoopCommand("mover", "move replicas to where storage policies want them: the options, output and exit status of `hdfs mover`", "[OPTIONS]",
		"The namenode that leads moves the replicas, also when this command has ended. Without options it is done for all files.\n\n"+moverUsage, mover)
}

func mover(t *hadoopTool, args []string) (int, error) {
	t.interrupted = balancerEnded
	began := time.Now()
	defer func() {
		t.printf("%-24s Mover took %s\n", javaStamp(time.Now()), javaTime(time.Since(began)))
	}()
	paths, err := moverPaths(args)
	if err != nil {
		fmt.Fprintf(t.errOut, "%v\n%s", err, moverUsage)
		return moverArguments, nil
	}
	for i := range paths {
		if paths[i], err = t.at(paths[i]); err != nil {
			return 0, err
		}
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	free, err := t.onlyOne(fs, moverFile)
	switch {
	case t.ctx.Err() != nil:
		return balancerEnded, nil
	case errors.Is(err, metadata.ErrExist), errors.Is(err, metadata.ErrBeingCreated), errors.Is(err, metadata.ErrRecoveryInProgress):
		t.printf("Another Mover is running..  Exiting ...\n")
		return balancerRunning, nil
	case err != nil:
		return t.balancerFailed(err), nil
	}
	defer free()
	stuck, err := t.satisfy(fs, paths)
	switch {
	case err != nil:
		return t.balancerFailed(err), nil
	case stuck > 0:
		fmt.Fprintln(t.errOut, "Some blocks can't be moved. Exiting...")
		return balancerNoMove, nil
	}
	t.printf("Mover Successful: all blocks satisfy the specified storage policy. Exiting...\n")
	return balancerDone, nil
}

// moverPaths are the files and directories that a mover is for.
func moverPaths(args []string) ([]string, error) {
	if len(args) == 0 {
		return []string{"/"}, nil
	}
	var paths []string
	switch args[0] {
	case "-p":
		paths = args[1:]
	case "-f":
		if len(args) != 2 {
			return nil, errors.New("-f: needs one file")
		}
		text, err := os.ReadFile(args[1])
		if err != nil {
			return nil, fmt.Errorf("-f: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" {
				paths = append(paths, line)
			}
		}
	default:
		return nil, fmt.Errorf("%s: not an option", args[0])
	}
	if i := slices.IndexFunc(paths, func(p string) bool { return strings.HasPrefix(p, "-") }); i >= 0 {
		return nil, fmt.Errorf("%s: not a path; -p and -f exclude each other", paths[i])
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: names no file or directory", args[0])
	}
	return paths, nil
}

// satisfy has the namenode bring replicas to where storage policies want them, and waits for it. It returns how many blocks could not be moved.
func (t *hadoopTool) satisfy(fs *dfs.Client, paths []string) (stuck int64, err error) {
	left := map[string]bool{}
	for _, p := range paths {
		if _, err := fs.Tier(t.ctx, p, true); err != nil {
			return 0, err
		}
		left[p] = true
	}
	told := time.Now()
	for {
		var last dfs.Tiered
		for _, p := range paths {
			if !left[p] {
				continue
			}
			s, err := fs.Tier(t.ctx, p, false)
			if err == nil && !s.Waiting && !s.Known { // another namenode leads, and does not know how it ended
				s, err = fs.Tier(t.ctx, p, true)
			}
			switch {
			case errors.Is(err, metadata.ErrNotExist): // it was deleted meanwhile
				delete(left, p)
			case err != nil:
				return 0, err
			case !s.Waiting:
				stuck += s.Stuck
				delete(left, p)
			}
			last = s
		}
		if len(left) == 0 {
			return stuck, nil
		}
		if time.Since(told) >= tierReport {
			told = time.Now()
			fmt.Fprintf(t.errOut, "%s: %d replicas (%s) moved, %d blocks wait\n", javaStamp(told), last.Replicas, bytesOf(last.Moved), last.Blocks)
		}
		if err := pause(t.ctx, tierBeat); err != nil {
			return 0, err
		}
	}
}

// javaTime is a duration as Hadoop's StringUtils.formatTime prints it.
func javaTime(d time.Duration) string {
	out := ""
	if h := int(d.Hours()); h > 0 {
		out += fmt.Sprintf("%dhrs, ", h)
	}
	if m := int(d.Minutes()) % 60; m > 0 {
		out += fmt.Sprintf("%dmins, ", m)
	}
	return out + fmt.Sprintf("%dsec", int(d.Seconds())%60)
}
