//go:build !cgo || !linux

package nvml

import (
	"fmt"

	"github.com/gohops/hops/nodemanager"
)

// Built reports whether this binary can speak to a driver.
const Built = false

// Open always fails with ErrUnavailable here.
func Open() (nodemanager.GPUSource, error) {
	return nil, fmt.Errorf("%w: this binary was built without cgo", ErrUnavailable)
}
