package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/cmd/bench"
)

// machine is what numbers depend on.
type machine struct {
	Cores     int     `json:"cores"`
	CPU       string  `json:"cpu"`
	MemoryGiB float64 `json:"memory_gib"`
	Kernel    string  `json:"kernel"`
	// Congestion is the congestion control of TCP that the machine is set to.
	Congestion string `json:"congestion,omitempty"`
	Filesystem string `json:"filesystem"`
	Go         string `json:"go"`
	Java       string `json:"java,omitempty"`
	// Load is the load average before the run, Busy how many cores others used then.
	Load string  `json:"load_before"`
	Busy float64 `json:"busy_cores_before"`
}

func describeMachine(dir string) machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: "unknown"}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryGiB = float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel, _, _ = strings.Cut(unix.ByteSliceToString(name.Release[:]), "-")
	}
	if text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control"); err == nil {
		m.Congestion = strings.TrimSpace(string(text))
	}
	m.Filesystem = filesystemOf(dir)
	m.Load = loadAverage()
	const look = 2 * time.Second
	before := bench.MachineCPU()
	time.Sleep(look)
	m.Busy = (bench.MachineCPU() - before) / float64(look.Microseconds())
	if out, err := exec.Command("java", "-version").CombinedOutput(); err == nil {
		m.Java, _, _ = strings.Cut(string(out), "\n")
	}
	return m
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// memoryAvailable is in GiB what programs can still get.
func memoryAvailable() float64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 1 << 20
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / (1 << 20)
		}
	}
	return 1 << 20
}

func filesystemOf(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return "unknown"
	}
	switch s.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return fmt.Sprintf("type %#x", s.Type)
}

func (r *runner) version(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, r.hops, "version").Output()
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first
}
