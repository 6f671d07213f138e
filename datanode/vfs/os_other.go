//go:build !linux

package vfs

import "os"

// stampOf does not tell here.
func stampOf(os.FileInfo) Stamp { return Stamp{} }

// Writeback has no equivalent here; the fsync at close does all the work.
func (f osFile) Writeback(int64, int64) {}

// Allocate has no equivalent here.
func (f osFile) Allocate(int64, int64) {}

// WriteAllAt takes a call for each piece.
func (f osFile) WriteAllAt(pieces [][]byte, off int64) error { return f.writeEach(pieces, off) }

// Forget has no equivalent here.
func (f osFile) Forget(int64, int64) {}

// Punch frees nothing here.
func (f osFile) Punch(off, _ int64) error { return f.zero(off) }
