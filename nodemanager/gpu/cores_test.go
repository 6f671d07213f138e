package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gohops/hops/nodemanager"
)

func TestCoresNearDevices(t *testing.T) {
	root := t.TempDir()
	for pci, list := range map[string]string{"0000:3b:00.0": "0-3,32-35\n", "0000:af:00.0": "4-7,36\n", "0000:01:00.0": "nonsense", "0000:02:00.0": "5-1\n", "0000:03:00.0": "0-99999999\n"} {
		if err := os.MkdirAll(filepath.Join(root, pci), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, pci, "local_cpulist"), []byte(list), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	near := func(pci ...string) string {
		var devices []nodemanager.GPU
		for _, p := range pci {
			devices = append(devices, nodemanager.GPU{PCI: p})
		}
		return cores(root, devices)
	}
	for _, c := range []struct {
		got, want string
	}{
		{near(), ""},
		{near("00000000:3b:00.0"), "0-3,32-35"}, // as the driver writes it
		{near("0000:3B:00.0"), "0-3,32-35"},
		{near("00000000:3b:00.0", "0000:af:00.0"), "0-7,32-36"},
		{near("00000000:3b:00.0", "0000:ee:00.0"), ""}, // the machine does not say for one: all cores
		{near("0000:01:00.0"), ""},
		{near("0000:02:00.0"), ""},
		{near("0000:03:00.0"), ""},
		{near("../../etc"), ""},
		{near(""), ""},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if got := cores(root, []nodemanager.GPU{{PCI: "0000:3b:00.0", Simulated: true}}); got != "" {
		t.Errorf("a simulated device has cores %q", got)
	}
}
