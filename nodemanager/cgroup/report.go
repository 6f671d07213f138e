// Package cgroup limits memory, processor shares and the number of processes of containers through control groups of
// version 1 or 2, whichever the machine has and lets us write. It works on files only and keeps no state of its own: a
// group is found again by its name.
//
// Where a controller cannot be used the package says so in words (Report.Degradation), and nothing claims a limit that is
// not enforced.
package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Report is what the machine offers.
type Report struct {
	// Version is 1 or 2; 0: no controller is usable.
	Version int `json:"version"`
	// Memory, CPU, Pids: the limit can be enforced.
	Memory bool `json:"memory"`
	CPU    bool `json:"cpu"`
	Pids   bool `json:"pids"`
	// Freezer: a whole group can be stopped (v1) or killed (v2) at once.
	Freezer bool `json:"freezer"`
	// CPUSet: the cores of a group can be named. IO: its share of the disks can be weighed, where their scheduler heeds that.
	CPUSet bool `json:"cpuset"`
	IO     bool `json:"io"`
	// Devices: which devices a group may open can be limited; otherwise NoDevices says why not.
	Devices   bool   `json:"devices"`
	NoDevices string `json:"no_devices,omitempty"`
	// Missing says for every controller that is not usable why, one sentence each.
	Missing []string `json:"missing,omitempty"`

	// dirs holds, by controller, the directory below which our groups are made.
	dirs map[string]string
	// unified is the v2 directory below which our groups are made.
	unified string
}

// Degradation states what is not enforced, for health reports; empty when everything is.
func (r Report) Degradation() string {
	if r.Memory && r.CPU && r.Pids {
		return ""
	}
	var lost []string
	if !r.Memory {
		lost = append(lost, "memory is limited by polling")
	}
	if !r.CPU {
		lost = append(lost, "cpu shares are not enforced")
	}
	if !r.Pids {
		lost = append(lost, "the number of processes is limited by polling")
	}
	return fmt.Sprintf("control groups: %s (%s)", strings.Join(lost, ", "), strings.Join(r.Missing, "; "))
}

// String is one line for people.
func (r Report) String() string {
	if r.Version == 0 {
		return r.Degradation()
	}
	var have []string
	for _, c := range []struct {
		name string
		ok   bool
	}{{"memory", r.Memory}, {"cpu", r.CPU}, {"pids", r.Pids}, {"cpuset", r.CPUSet}, {"io", r.IO}, {"freezer", r.Freezer}, {"devices", r.Devices}} {
		if c.ok {
			have = append(have, c.name)
		}
	}
	line := fmt.Sprintf("cgroup v%d: %s", r.Version, strings.Join(have, ", "))
	if d := r.Degradation(); d != "" {
		line += "; " + d
	}
	return line
}

// None is the report of a machine whose control groups are not used, for the reason given.
func None(why string) Report { return Report{Missing: []string{why}, NoDevices: why} }

// Detect looks at this machine. It changes nothing.
func Detect() Report {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return None(err.Error())
	}
	defer mounts.Close()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return None(err.Error())
	}
	return detect(mounts, string(own))
}

// detect reads a mountinfo (proc(5)) and the process's own membership (/proc/self/cgroup).
func detect(mountinfo io.Reader, own string) Report {
	v1, v2, err := mountPoints(mountinfo)
	switch {
	case err != nil:
		return None(fmt.Sprintf("mount table: %v", err))
	case len(v1) > 0:
		return detectV1(v1)
	case v2 != "":
		return detectV2(v2, own)
	}
	return None("no control group filesystem is mounted")
}

// mountPoints reads a mountinfo: where each controller of version 1 that we use is mounted, and where version 2 is.
func mountPoints(mountinfo io.Reader) (v1 map[string]string, v2 string, err error) {
	v1 = map[string]string{}
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20) // an overlay of many layers takes some kilobytes
	for lines.Scan() {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		point := unescape(fields[4])
		if !filepath.IsAbs(point) {
			continue
		}
		switch tail[0] {
		case "cgroup":
			for option := range strings.SplitSeq(tail[2], ",") {
				if slices.Contains([]string{"memory", "cpu", "pids", "cpuset", "blkio", "freezer", "devices"}, option) && v1[option] == "" {
					v1[option] = point
				}
			}
		case "cgroup2":
			if v2 == "" {
				v2 = point
			}
		}
	}
	return v1, v2, lines.Err()
}

// unescape takes space, tab, newline and backslash out of the octal form that proc(5) gives them.
func unescape(point string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(point)
}

// below is the directory of a group in a mount. The path of a process that lies outside of our namespace of control groups
// begins with "/..": nothing there is ours.
func below(mount, group string) (string, error) {
	if !filepath.IsLocal(strings.TrimPrefix(group, "/")) && group != "/" {
		return "", fmt.Errorf("control group %.200q lies outside of %s", group, mount)
	}
	return filepath.Join(mount, group), nil
}

func detectV1(mounts map[string]string) Report {
	r := Report{Version: 1, dirs: map[string]string{}}
	for _, c := range []struct {
		name string
		ok   *bool
	}{{"memory", &r.Memory}, {"cpu", &r.CPU}, {"pids", &r.Pids}, {"freezer", &r.Freezer}} {
		dir := mounts[c.name]
		if dir == "" {
			r.Missing = append(r.Missing, "controller "+c.name+" is not mounted")
			continue
		}
		if err := unix.Access(dir, unix.W_OK); err != nil {
			r.Missing = append(r.Missing, fmt.Sprintf("%s is not writable: %v", dir, err))
			continue
		}
		*c.ok = true
		r.dirs[c.name] = filepath.Join(dir, "hops")
	}
	if !r.Memory && !r.CPU && !r.Pids && !r.Freezer {
		r.Version = 0
		r.NoDevices = "no control group is usable"
		return r
	}
	for _, c := range []struct {
		name string
		ok   *bool
	}{{"cpuset", &r.CPUSet}, {"blkio", &r.IO}} { // nobody misses them unless they are asked for
		if dir := mounts[c.name]; dir != "" && unix.Access(dir, unix.W_OK) == nil {
			*c.ok = true
			r.dirs[c.name] = filepath.Join(dir, "hops")
		}
	}
	// Who is not root has no devices but its own, and may not change the list.
	switch dir := mounts["devices"]; {
	case dir == "":
		r.NoDevices = "controller devices is not mounted"
	case os.Geteuid() != 0 || unix.Access(dir, unix.W_OK) != nil:
		r.NoDevices = dir + " is not writable"
	default:
		r.Devices = true
		r.dirs["devices"] = filepath.Join(dir, "hops")
	}
	return r
}

func detectV2(mount, own string) Report {
	path := "/"
	for line := range strings.Lines(own) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = rest
		}
	}
	base, err := below(mount, path)
	if err != nil {
		return None(err.Error())
	}
	for _, file := range []string{"", "cgroup.subtree_control", "cgroup.procs"} {
		name := filepath.Join(base, file)
		if err := unix.Access(name, unix.W_OK); err != nil {
			return None(fmt.Sprintf("%s is not writable: %v (systemd: Delegate=yes)", name, err))
		}
	}
	controllers, err := os.ReadFile(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		return None(err.Error())
	}
	have := strings.Fields(string(controllers))
	r := Report{Version: 2, Freezer: true, unified: base}
	for _, c := range []struct {
		name string
		ok   *bool
	}{{"memory", &r.Memory}, {"cpu", &r.CPU}, {"pids", &r.Pids}} {
		if *c.ok = slices.Contains(have, c.name); !*c.ok {
			r.Missing = append(r.Missing, fmt.Sprintf("controller %s is not delegated to %s", c.name, base))
		}
	}
	r.CPUSet, r.IO = slices.Contains(have, "cpuset"), slices.Contains(have, "io")
	if program, err := loadDeviceProgram(Everyday()); err != nil {
		r.NoDevices = err.Error()
	} else {
		unix.Close(program)
		r.Devices = true
	}
	return r
}
