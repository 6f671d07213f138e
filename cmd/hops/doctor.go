package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/gpu/nvml"
	rm "github.com/gohops/hops/resourcemanager"
)

// finding is one line of the doctor: what was looked at, whether it is well, and what to do if not.
type finding struct {
	what   string
	ok     bool
	detail string
	remedy string
}

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:        "doctor",
		Usage:       "look at this machine and the cluster; every problem comes with what to do",
		Description: "Exits with 1 if something that hops needs is missing. Warnings do not count.",
		Flags:       []cli.Flag{confFlag(), userFlag(), outputFlag()},
		Action: func(c *cli.Context) error {
			asJSON, err := wantJSON(c)
			if err != nil {
				return err
			}
			bad, found := false, examine(c)
			if asJSON {
				for _, f := range found {
					bad = bad || !f.ok && f.remedy != ""
				}
				if err := printFindings(c.App.Writer, found); err != nil || !bad {
					return err
				}
				return &statusError{code: exitFailed}
			}
			for _, f := range found {
				mark := "ok  "
				if !f.ok {
					mark = "warn"
					if f.remedy != "" {
						mark, bad = "FAIL", true
					}
				}
				fmt.Fprintf(c.App.Writer, "%s  %-18s %s\n", mark, f.what, f.detail)
				if !f.ok && f.remedy != "" {
					fmt.Fprintf(c.App.Writer, "      %-18s -> %s\n", "", f.remedy)
				}
			}
			if bad {
				return &statusError{code: exitFailed}
			}
			return nil
		},
	}
}

// printFindings prints what was found as JSON.
func printFindings(w io.Writer, found []finding) error {
	type line struct {
		What   string `json:"what"`
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
		Remedy string `json:"remedy,omitempty"`
	}
	lines := make([]line, 0, len(found))
	for _, f := range found {
		lines = append(lines, line{f.what, f.ok, f.detail, f.remedy})
	}
	return json.NewEncoder(w).Encode(map[string]any{"findings": lines})
}

func examine(c *cli.Context) []finding {
	found := []finding{{what: "version", ok: true, detail: version}}
	add := func(f finding) { found = append(found, f) }
	if nvml.Built {
		add(finding{what: "nvml", ok: true, detail: "built in (cgo); the driver library is opened at run time"})
	} else {
		add(finding{what: "nvml", detail: "not built in (no C compiler when this was built, or build-static): real GPUs are not seen"})
	}
	if _, about, err := gpu.Detect("auto", ""); err != nil {
		add(finding{what: "gpus", detail: err.Error(), remedy: "look at nvidia-smi, or run with --gpus none"})
	} else {
		add(finding{what: "gpus", ok: true, detail: about})
	}
	groups := cgroup.Detect()
	add(finding{what: "control groups", ok: groups.Degradation() == "", detail: groups.String()})
	if path, err := exec.LookPath("python3"); err != nil {
		add(finding{what: "python", detail: "python3 is not installed", remedy: "install Python 3.9 or newer; experiments run Python functions"})
	} else {
		out, err := exec.Command(path, "-c", "import sys; print('.'.join(map(str, sys.version_info[:3]))); sys.exit(sys.version_info < (3, 9))").Output()
		text := strings.TrimSpace(string(out))
		f := finding{what: "python", ok: err == nil, detail: path + " " + text}
		if err != nil {
			f.remedy = "install Python 3.9 or newer"
		}
		add(f)
	}
	if dir, err := devDirectory(); err == nil {
		add(space(dir))
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		f := finding{what: "open files", ok: limit.Max >= 4096, detail: fmt.Sprintf("limit %d", limit.Max)}
		if !f.ok {
			f.remedy = "raise it: ulimit -n 65536"
		}
		add(f)
	}
	return append(found, examineCluster(c)...)
}

func space(dir string) finding {
	for {
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err == nil {
			free := int64(s.Bavail) * s.Bsize
			f := finding{what: "disk", ok: free > 2<<30, detail: fmt.Sprintf("%.1f GiB free at %s", float64(free)/(1<<30), dir)}
			if !f.ok {
				f.remedy = "free some, or choose another directory with --data"
			}
			return f
		}
		i := strings.LastIndexByte(dir, '/')
		if i <= 0 {
			return finding{what: "disk", detail: "cannot be examined"}
		}
		dir = dir[:i]
	}
}

// examineNodes counts the nodes that take work; others are named.
func examineNodes(nodes []client.Node) finding {
	running, gpus, simulated := 0, 0, 0
	var others []string
	for _, n := range nodes {
		if n.State == rm.NodeRunning {
			running++
			gpus += len(n.GPUs)
			for _, g := range n.GPUs {
				if g.Simulated {
					simulated++
				}
			}
		} else {
			others = append(others, fmt.Sprintf("%s is %s", n.ID, n.State))
		}
	}
	text := fmt.Sprintf("nodes: %d, GPUs: %d", running, gpus)
	if simulated > 0 {
		text += fmt.Sprintf(" (%d simulated)", simulated)
	}
	if len(others) > 0 {
		text += "; " + strings.Join(others[:min(5, len(others))], ", ")
	}
	return finding{what: "resource manager", ok: running > 0, detail: text}
}

func examineCluster(c *cli.Context) []finding {
	cl, err := dial(c)
	if err != nil {
		if isNoCluster(err) && c.String("conf") == "" && os.Getenv("HADOOP_CONF_DIR") == "" {
			return []finding{{what: "cluster", detail: err.Error()}} // none is meant
		}
		return []finding{{what: "configuration", detail: err.Error(), remedy: "look at HADOOP_CONF_DIR"}}
	}
	defer cl.Close()
	if err := cl.HasFS(); err != nil {
		return []finding{{what: "cluster", detail: err.Error()}}
	}
	ctx, cancel := context.WithTimeout(c.Context, 5*time.Second)
	defer cancel()
	var found []finding
	active := 0
	for _, s := range cl.FS().HAState(ctx) {
		detail := s.Address + " " + s.State
		if s.Err != nil {
			detail = s.Address + " " + s.Err.Error()
		}
		if s.State == "active" {
			active++
		}
		found = append(found, finding{what: "namenode", ok: s.Err == nil, detail: detail})
	}
	if active == 0 {
		found = append(found, finding{what: "filesystem", detail: "no namenode leads", remedy: "start the namenodes (hops dev, or hops server --role namenode); a majority of them must run"})
		return found
	}
	on, err := cl.FS().SafeMode(ctx, dfs.SafeModeGet)
	switch {
	case err != nil:
		found = append(found, finding{what: "filesystem", detail: err.Error(), remedy: "look at the namenode's log"})
	case on:
		found = append(found, finding{what: "filesystem", detail: "in safe mode: nothing can be changed", remedy: "wait for datanodes to report, or free disk space on the namenodes"})
	default:
		found = append(found, finding{what: "filesystem", ok: true, detail: "writable"})
	}
	if stats, err := cl.FS().FsStats(ctx); err == nil {
		found = append(found, finding{
			what: "blocks", ok: stats.MissingBlocks == 0 && stats.UnderReplicated == 0,
			detail: fmt.Sprintf("%d missing, %d under-replicated, %d corrupt", stats.MissingBlocks, stats.UnderReplicated, stats.CorruptBlocks),
		})
	}
	nodes, err := cl.Jobs().Nodes(ctx)
	switch {
	case errors.Is(err, client.ErrUnreachable):
		found = append(found, finding{what: "resource manager", detail: err.Error(), remedy: "start it: hops server --role resourcemanager"})
	case err != nil:
		found = append(found, finding{what: "resource manager", detail: err.Error()})
	default:
		found = append(found, examineNodes(nodes))
	}
	return found
}
