//go:build !linux

package vfs

import (
	"context"
	"errors"
	"io"
	"os"
)

var errNoPin = errors.New("keeping files in memory is not supported on this system")

// Pin is not built here.
func Pin(context.Context, *os.File, int64, int64) (io.Closer, error) { return nil, errNoPin }

// PinLimit is not built here.
func PinLimit(int64) error { return errNoPin }
