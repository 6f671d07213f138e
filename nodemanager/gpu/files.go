package gpu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// Device files of the NVIDIA driver: one for each device, and those that whoever has a device needs besides.
const perDevice = "/dev/nvidia"

var shared = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// minors is where the driver says which capabilities of MIG have which device files, as "gpu0/gi7/ci0/access 12".
const minors = "/proc/driver/nvidia-caps/mig-minors"

// capability begins the names of these files.
const capability = "/dev/nvidia-caps/nvidia-cap"

// Files are the device files that a container needs which was granted devices; simulated ones have none. Network adapters for
// remote memory access (/dev/infiniband) are everybody's. A MIG instance is opened by its GPU's file together with the capabilities of its GPU
// instance and its compute instance, so that a container opens no other instance of the GPU. An error says that the driver names no
// files for one.
func Files(granted []nodemanager.GPU) ([]string, error) {
	files, _ := filepath.Glob("/dev/infiniband/*")
	real := false
	for _, g := range granted {
		if g.Simulated {
			continue
		}
		real = true
		if file := fmt.Sprint(perDevice, g.Minor); !slices.Contains(files, file) {
			files = append(files, file)
		}
		if g.Profile == "" {
			continue
		}
		capabilities, err := capabilities(minors, g)
		if err != nil {
			return nil, fmt.Errorf("MIG instance %s: %w", g.UUID, err)
		}
		for _, file := range capabilities {
			if !slices.Contains(files, file) { // two compute instances of one GPU instance
				files = append(files, file)
			}
		}
	}
	if real {
		for _, file := range shared {
			if _, err := os.Stat(file); err == nil {
				files = append(files, file)
			}
		}
	}
	return files, nil
}

// capabilities are the device files of a MIG instance's GPU instance and compute instance.
func capabilities(list string, g nodemanager.GPU) ([]string, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range []string{
		fmt.Sprintf("gpu%d/gi%d/access", g.Minor, g.Instance), fmt.Sprintf("gpu%d/gi%d/ci%d/access", g.Minor, g.Instance, g.Compute),
	} {
		found := false
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == name {
				n, err := strconv.ParseUint(f[1], 10, 20)
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %w", list, name, err)
				}
				files, found = append(files, fmt.Sprint(capability, n)), true
				break
			}
		}
		if !found {
			return nil, fmt.Errorf("%s does not name %s", list, name)
		}
	}
	return files, nil
}

// Complete has the driver's files made that a set-user-id program would make at the first use of a device, because such programs
// do not work in containers. Without that program it does nothing.
func Complete(ctx context.Context) error {
	if _, err := os.Stat(shared[1]); err == nil {
		return nil
	}
	program, err := exec.LookPath("nvidia-modprobe")
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, program, "-c", "0", "-u").CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}
