package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/gpu/nvml"
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
		Name:  "doctor",
		Usage: "look at this machine and the cluster; every problem comes with what to do",
		Description: "Looks at the tools, limits and disk of this machine; at every server that is configured or known to another one; at the\n" +
			"members of the namenodes' group; at dead datanodes, their space and the blocks; at the directories that every user needs;\n" +
			"writes, reads and deletes a small file; and tells what nodes say of themselves, as GPUs that are held back.\n\n" +
			"Exits with 1 if something fails. What is only less than it could be is a warning and does not count.",
		Flags: []cli.Flag{confFlag(), userFlag(), outputFlag()},
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
	if dir := dataDirectory(c.String("conf")); dir != "" {
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
