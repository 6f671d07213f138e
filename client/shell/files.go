package shell

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// The verbs on whole files: truncate, concat, checksum, text, find; and those of snapshots.

// truncatePoll is how often -truncate -w looks.
const truncatePoll = 100 * time.Millisecond

func runTruncate(ctx context.Context, s *Shell, args []string) error {
	length, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		s.report(errors.New("Illegal length, a non-negative integer expected"))
		return usageError{fmt.Sprintf("For input string: %q", args[0])}
	}
	var waiting []item
	err = s.each(ctx, args[1:], func(it item) error {
		if it.isDir() {
			return isDirectory(it.shown)
		}
		if length > it.status.Length {
			return usageError{fmt.Sprintf("Cannot truncate to a larger file size. Current size: %d, truncate size: %d.", it.status.Length, length)}
		}
		done, err := s.client.Truncate(ctx, it.path, length)
		switch {
		case err != nil:
			return err
		case done:
			s.printf("Truncated %s to length: %d\n", it.shown, length)
		case s.option("w"):
			waiting = append(waiting, it)
		default:
			s.printf("Truncating %s to length: %d. Wait for block recovery to complete before further updating this file.\n", it.shown, length)
		}
		return nil
	})
	for _, it := range waiting {
		if err := s.awaitLength(ctx, it, length); err != nil {
			s.report(err)
		}
	}
	return err
}

func (s *Shell) awaitLength(ctx context.Context, it item, length int64) error {
	s.printf("Waiting for %s ...", it.shown)
	for polls := 1; ; polls++ {
		status, err := s.fs.Stat(ctx, it.path)
		if err != nil {
			return err
		}
		if status.Length == length {
			s.printf("\nTruncated %s to length: %d\n", it.shown, length)
			return nil
		}
		if polls%10 == 0 {
			s.printf(".")
			s.out.Flush()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(truncatePoll):
		}
	}
}

func runConcat(ctx context.Context, s *Shell, args []string) error {
	if len(args) == 0 {
		return errors.New("Target path not specified. <target path> <src path> <src path> ...")
	}
	if len(args) < 3 {
		return errors.New("The number of source paths is less than 2. <target path> <src path> <src path> ...")
	}
	var paths []string
	for i, word := range args {
		it, err := s.look(ctx, word)
		if err != nil {
			return err
		}
		if it.status == nil || it.isDir() {
			target := ""
			if i == 0 {
				target = "Target path "
			}
			return fmt.Errorf("%s%s does not exist or is not file.", target, s.qualified(it.path))
		}
		paths = append(paths, it.path)
	}
	return s.client.Concat(ctx, paths[0], paths[1:])
}

func runChecksum(ctx context.Context, s *Shell, args []string) error {
	return s.each(ctx, args, func(it item) error {
		if it.isDir() {
			return isDirectory(it.shown)
		}
		mode := dfs.MD5MD5CRC
		if s.properties["dfs.checksum.combine.mode"] == "COMPOSITE_CRC" {
			mode = dfs.CompositeCRC
		}
		sum, err := s.client.ChecksumOf(ctx, it.path, mode)
		if err != nil {
			return err
		}
		if sum.Algorithm == "" {
			s.printf("%s\tNONE\t\n", it.shown)
			return nil
		}
		s.printf("%s\t%s\t%s", it.shown, sum.Algorithm, hex.EncodeToString(sum.Bytes))
		if s.option("v") {
			s.printf("\tBlockSize=%d", it.status.BlockSize)
		}
		s.printf("\n")
		return nil
	})
}

// runText prints files, those that are compressed by gzip, bzip2 or deflate unpacked. Hadoop tells gzip by its first
// bytes and the others by the ending of the name.
func runText(ctx context.Context, s *Shell, args []string) error {
	return s.each(ctx, args, func(it item) error {
		if it.isDir() {
			return isDirectory(it.shown)
		}
		r, err := s.fs.open(ctx, it.path)
		if err != nil {
			return err
		}
		defer r.Close()
		in := bufio.NewReaderSize(r, 64<<10)
		head, err := in.Peek(4)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		var text io.Reader = in
		switch {
		case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
			text, err = gzip.NewReader(in)
		case bytes.HasPrefix(head, []byte("SEQ")), bytes.Equal(head, []byte("Obj\x01")):
			return &pathError{path: it.shown, text: "Sequence and Avro files cannot be printed as text"}
		case strings.HasSuffix(it.path, ".bz2") && len(head) > 0:
			text = bzip2.NewReader(in)
		case strings.HasSuffix(it.path, ".deflate") && len(head) > 0:
			text, err = zlib.NewReader(in)
		default:
			err = nil
		}
		if err == nil {
			_, err = io.Copy(boundWriter{ctx: ctx, w: s.out}, text)
		}
		return err
	})
}

// snapshotDir finds the directory that a snapshot verb names.
func (s *Shell) snapshotDir(ctx context.Context, word string, f func(item) error) error {
	return s.each(ctx, []string{word}, func(it item) error {
		if !it.isDir() {
			return notDirectory(it.shown)
		}
		return f(it)
	})
}

func runCreateSnapshot(ctx context.Context, s *Shell, args []string) error {
	switch {
	case len(args) == 0:
		return usageError{"<snapshotDir> is missing."}
	case len(args) > 2:
		return usageError{"Too many arguments."}
	}
	name := ""
	if len(args) == 2 {
		name = args[1]
	}
	return s.snapshotDir(ctx, args[0], func(it item) error {
		made, err := s.client.CreateSnapshot(ctx, it.path, name)
		if err == nil {
			s.printf("Created snapshot %s\n", made)
		}
		return err
	})
}

func runDeleteSnapshot(ctx context.Context, s *Shell, args []string) error {
	if len(args) != 2 {
		return usageError{"Incorrect number of arguments."}
	}
	return s.snapshotDir(ctx, args[0], func(it item) error {
		err := s.client.DeleteSnapshot(ctx, it.path, args[1])
		if err == nil {
			s.printf("Deleted snapshot %s under %s\n", args[1], s.qualified(it.path))
		}
		return err
	})
}

func runRenameSnapshot(ctx context.Context, s *Shell, args []string) error {
	if len(args) != 3 {
		return usageError{"Incorrect number of arguments."}
	}
	return s.snapshotDir(ctx, args[0], func(it item) error {
		err := s.client.RenameSnapshot(ctx, it.path, args[1], args[2])
		if err == nil {
			s.printf("Renamed snapshot %s to %s under %s\n", args[1], args[2], s.qualified(it.path))
		}
		return err
	})
}

// trashInterval is how long removed files stay in the trash: as the cluster says, else as the command line does. 0: there
// is no trash.
func (s *Shell) trashInterval(d dfs.ServerDefaults) time.Duration {
	if d.TrashInterval > 0 {
		return d.TrashInterval
	}
	minutes, err := strconv.Atoi(s.properties["fs.trash.interval"])
	if err != nil || minutes < 0 || minutes > 1<<30 {
		return 0
	}
	return time.Duration(minutes) * time.Minute
}

// checkpointForm is the name of a trash checkpoint: yyMMddHHmmss, local time.
const checkpointForm = "060102150405"

// runExpunge removes the checkpoints of the user's trash that are older than the retention of the cluster, and makes what
// was removed since into a new one (TrashPolicyDefault). With -immediate everything goes.
func runExpunge(ctx context.Context, s *Shell, _ []string) error {
	root := "/user/" + s.fs.User() + "/.Trash"
	defaults, err := s.client.ServerDefaults(ctx)
	if err != nil {
		return err
	}
	if s.option("immediate") {
		if err := s.checkpointTrash(ctx, root); err != nil {
			return err
		}
		return s.expireTrash(ctx, root, 0, true)
	}
	if err := s.expireTrash(ctx, root, s.trashInterval(defaults), false); err != nil {
		return err
	}
	return s.checkpointTrash(ctx, root)
}

// checkpointTrash gives what was removed since the last checkpoint the time as its name.
func (s *Shell) checkpointTrash(ctx context.Context, root string) error {
	current := root + "/Current"
	if _, err := s.fs.Stat(ctx, current); err != nil {
		if errors.Is(err, metadata.ErrNotExist) {
			return nil
		}
		return err
	}
	base := root + "/" + time.Now().Format(checkpointForm)
	for try, name := 0, base; ; try++ {
		err := s.client.RenameStrict(ctx, current, name)
		if errors.Is(err, metadata.ErrExist) && try < 1000 {
			name = fmt.Sprintf("%s-%d", base, try+1)
			continue
		}
		return err
	}
}

// expireTrash removes the checkpoints that are older than keep, or all.
func (s *Shell) expireTrash(ctx context.Context, root string, keep time.Duration, all bool) error {
	list, err := s.fs.List(ctx, root)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Name == "Current" {
			continue
		}
		stamp, _, _ := strings.Cut(e.Name, "-")
		made, err := time.ParseInLocation(checkpointForm, stamp, time.Local)
		if err != nil {
			continue // nothing that a checkpoint made
		}
		if all || time.Since(made) > keep {
			if _, err := s.fs.Delete(ctx, root+"/"+e.Name, true); err != nil {
				return err
			}
		}
	}
	return nil
}
