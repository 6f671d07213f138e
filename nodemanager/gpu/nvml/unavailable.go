// Package nvml reads devices from NVIDIA's management library. With cgo the library of the driver is opened at run time,
// so the binary runs on machines without one; without cgo the package says that it was left out.
package nvml

import "errors"

// ErrUnavailable means that this machine, or this binary, has no NVML: no driver, or built with CGO_ENABLED=0. Any other
// error means that there is a driver which does not work.
var ErrUnavailable = errors.New("NVML is not available")
