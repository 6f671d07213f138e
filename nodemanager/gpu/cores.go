package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/nodemanager"
)

// pciDevices is where the kernel describes the devices of the PCI bus.
const pciDevices = "/sys/bus/pci/devices"

// Cores are the cores near any of some devices, as a list of the kernel ("0-15,64-79"); empty: there are no devices, or the machine
// does not say for all of them (a simulated one has none).
func Cores(devices []nodemanager.GPU) string { return cores(pciDevices, devices) }

func cores(root string, devices []nodemanager.GPU) string {
	near := map[int]bool{}
	for _, d := range devices {
		text, err := os.ReadFile(filepath.Join(root, sysfsName(d.PCI), "local_cpulist"))
		if err != nil || d.PCI == "" || d.Simulated {
			return ""
		}
		list, err := parseList(strings.TrimSpace(string(text)))
		if err != nil || len(list) == 0 {
			return ""
		}
		for _, n := range list {
			near[n] = true
		}
	}
	all := make([]int, 0, len(near))
	for n := range near {
		all = append(all, n)
	}
	slices.Sort(all)
	return formatList(all)
}

// sysfsName is the name of a device in the kernel's directory: the driver writes the domain with eight digits, the kernel with four.
func sysfsName(pci string) string {
	if domain, rest, ok := strings.Cut(pci, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		pci = domain[4:] + ":" + rest
	}
	return filepath.Base(strings.ToLower(pci))
}

// maxCores bounds the numbers in a list.
const maxCores = 1 << 16

// parseList reads a list of the kernel: "0-3,8".
func parseList(text string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		a, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseUint(to, 10, 32)
		if err != nil {
			return nil, err
		}
		if b < a || b >= maxCores {
			return nil, fmt.Errorf("%q is no list of cores", text)
		}
		for n := a; n <= b; n++ {
			out = append(out, int(n))
		}
	}
	return out, nil
}

// formatList writes sorted numbers as a list of the kernel.
func formatList(all []int) string {
	var parts []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(all[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", all[i], all[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
