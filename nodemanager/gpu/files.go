package gpu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// Device files of the NVIDIA driver: one for each device, and those that whoever has a device needs besides.
const perDevice = "/dev/nvidia"

var shared = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// Files are the device files that a container needs which was granted devices; simulated ones have none. Network adapters for
// remote memory access (/dev/infiniband) are everybody's.
func Files(granted []nodemanager.GPU) []string {
	files, _ := filepath.Glob("/dev/infiniband/*")
	real := false
	for _, g := range granted {
		if !g.Simulated {
			real = true
			files = append(files, fmt.Sprint(perDevice, g.Minor))
		}
	}
	if real {
		for _, file := range shared {
			if _, err := os.Stat(file); err == nil {
				files = append(files, file)
			}
		}
	}
	return files
}

// Others are the files of devices that were not granted.
func Others(granted []nodemanager.GPU) []string {
	own := Files(granted)
	all, _ := filepath.Glob(perDevice + "[0-9]*")
	return slices.DeleteFunc(all, func(file string) bool {
		return slices.Contains(own, file) || strings.Trim(file[len(perDevice):], "0123456789") != ""
	})
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
