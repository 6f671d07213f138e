// Package gpu finds the devices of a machine and follows their health. Where they come from is a Source: the driver
// (package nvml), a file or a number of simulated ones (package fake), or none.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu/fake"
	"github.com/gohops/hops/nodemanager/gpu/nvml"
)

// Source is nodemanager.GPUSource, under its short name.
type Source = nodemanager.GPUSource

// MaxSimulated bounds sim:N.
const MaxSimulated = 64

// Detect makes the source that spec asks for and a line that says what it is:
//
//	auto        the driver's devices, none when there is no driver
//	none        no devices
//	sim:N       N simulated devices; their UUIDs are derived from seed, so that two node managers of a cluster have
//	            different ones and a restarted one has the same
//	file        a path, with a slash or ending in .yaml or .yml: simulated devices described in a file (package fake)
//
// The line contains the word "simulated" whenever the devices are.
func Detect(spec, seed string) (Source, string, error) {
	switch {
	case spec == "none":
		return None{}, "no GPUs (configured: none)", nil
	case spec == "auto" || spec == "":
		source, err := nvml.Open()
		if errors.Is(err, nvml.ErrUnavailable) {
			return None{}, "no GPUs: " + err.Error(), nil
		}
		if err != nil {
			return nil, "", err
		}
		return describe(source)
	case strings.HasPrefix(spec, "sim:"):
		n, err := strconv.Atoi(strings.TrimPrefix(spec, "sim:"))
		if err != nil || n < 0 || n > MaxSimulated {
			return nil, "", fmt.Errorf("GPUs %q: the number of simulated devices is 0 to %d, as in sim:4", spec, MaxSimulated)
		}
		return describe(fake.Simulate(n, seed))
	case strings.Contains(spec, "/") || strings.HasSuffix(spec, ".yaml") || strings.HasSuffix(spec, ".yml"):
		text, err := os.ReadFile(spec)
		if err != nil {
			return nil, "", fmt.Errorf("GPU file: %w", err)
		}
		source, err := fake.Parse(spec, text)
		if err != nil {
			return nil, "", err
		}
		return describe(source)
	}
	return nil, "", fmt.Errorf("GPUs %q: want auto, none, sim:N, or the path of a file that describes simulated devices", spec)
}

func describe(source Source) (Source, string, error) {
	devices, err := source.Devices(context.Background())
	if err != nil {
		source.Close()
		return nil, "", fmt.Errorf("list GPUs of %s: %w", source.Name(), err)
	}
	return source, Describe(devices), nil
}

// Describe is one line about devices: "2 × NVIDIA H100 (80 GB), 1 × …"; simulated ones say so.
func Describe(devices []nodemanager.GPU) string {
	if len(devices) == 0 {
		return "no GPUs"
	}
	counts := map[string]int{}
	var order []string
	for _, d := range devices {
		if d.Divided && slices.ContainsFunc(devices, func(x nodemanager.GPU) bool { return x.Parent == d.UUID }) {
			continue
		}
		name := fmt.Sprintf("%s (%s)", d.Model, nodemanager.ByteSize(d.Memory))
		switch {
		case d.Divided:
			name += " in MIG mode without instances"
		case d.Profile != "":
			name = fmt.Sprintf("MIG instance %s of %s", d.Profile, d.Model)
		}
		if d.Simulated {
			name = "simulated: " + name
		}
		if counts[name] == 0 {
			order = append(order, name)
		}
		counts[name]++
	}
	slices.Sort(order)
	for i, name := range order {
		order[i] = fmt.Sprintf("%d × %s", counts[name], name)
	}
	return strings.Join(order, ", ")
}

// None is the source of a machine without devices.
type None struct{}

// Name implements Source.
func (None) Name() string { return "none" }

// Devices implements Source.
func (None) Devices(context.Context) ([]nodemanager.GPU, error) { return nil, nil }

// Watch implements Source.
func (None) Watch(ctx context.Context, _ func(nodemanager.GPUEvent)) error {
	<-ctx.Done()
	return nil
}

// Close implements Source.
func (None) Close() error { return nil }
