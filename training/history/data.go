package history

import (
	"context"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training/store"
)

// maxDataFiles is how many files of a directory are counted; the same number as in hops/_environment.py.
const maxDataFiles = 10_000

// Look is a version of data as it is now, in the words in which it was recorded: a file by its length, time and inode, a
// directory by the sum of the lengths of the files in it and the newest of their times. A checksum is not computed again.
func Look(ctx context.Context, f store.FS, was DataVersion) DataVersion {
	now := DataVersion{Key: was.Key, Path: was.Path, Checksum: was.Checksum}
	s, err := f.Stat(ctx, was.Path)
	if err != nil {
		now.Problem = "it is not there"
		if !store.Missing(err) {
			now.Problem = err.Error()
		}
		return now
	}
	now.Directory, now.Length, now.MTime, now.FileID = s.IsDir(), s.Length, s.MTime.Time().UnixMilli(), uint64(s.ID)
	if !s.IsDir() {
		return now
	}
	now.Length = 0
	err = store.Walk(ctx, f, was.Path, func(_ string, s metadata.FileStatus) error {
		if now.Files++; now.Files > maxDataFiles {
			return errMany
		}
		now.Length += s.Length
		now.MTime = max(now.MTime, s.MTime.Time().UnixMilli())
		return nil
	})
	if err != nil {
		now.Problem = err.Error()
	}
	return now
}

var errMany = metadata.Errorf(metadata.ErrInvalidArgument, "it has more than %d files, which are not looked at", maxDataFiles)
