//go:build !linux

package vfs

// Writeback has no equivalent here; the fsync at close does all the work.
func (f osFile) Writeback(int64, int64) {}

// Punch frees nothing here.
func (f osFile) Punch(off, _ int64) error { return f.zero(off) }
