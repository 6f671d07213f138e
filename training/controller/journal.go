package controller

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training/experiment"
)

// errSuperseded: another attempt of the controller writes the journal; this one must exit at once.
var errSuperseded = errors.New("a newer attempt of this controller has taken over the journal")

// journalPatience is how long a write that fails is tried again before the controller gives up, to be started anew
// elsewhere. It covers the failover of a namenode and the recovery of a block.
const journalPatience = 2 * time.Minute

// maxLine bounds a line of the journal, in bytes.
const maxLine = 8 << 20

// journal is the append-only file of an experiment: one entry a line. When append returns nil, the lines are on the disks of
// the pipeline's datanodes (hsync) and survive the controller, and a power cut of all of them. One goroutine uses it.
//
// A crash leaves a whole number of lines and perhaps a part of one. After a failed flush nobody knows what arrived, so
// the file is taken back (lease recovery), read from the last known end, and what is missing is written behind a
// newline, which is written and synced even if nothing is missing. A reader therefore skips lines that do not parse and entries that it has; entries always follow one another
// without a gap, else the journal is damaged.
type journal struct {
	fs   FS
	path string
	log  *slog.Logger

	w    FileWriter
	size int64 // bytes that are known to be flushed
	torn bool  // the file may end in a part of a line: the next write begins with a newline
	last int64 // number of the last entry flushed
}

// line is an encoded entry.
type line struct {
	n    int64
	data []byte
}

// encodeLines makes the lines of entries.
func encodeLines(entries []*experiment.Entry) ([]line, error) {
	var lines []line
	for _, e := range entries {
		b, err := e.Encode()
		if err != nil {
			return nil, err
		}
		lines = append(lines, line{e.N, b})
	}
	return lines, nil
}

// createJournal begins a journal. metadata.ErrExist: there is one already.
func createJournal(ctx context.Context, f FS, path string, log *slog.Logger) (*journal, error) {
	w, err := f.Create(ctx, path, false)
	if err != nil {
		return nil, err
	}
	return &journal{fs: f, path: path, log: log, w: w}, nil
}

// resumeJournal takes a journal over from a controller that is gone: it reads the entries after entry n, the first of
// them at offset or later, and hands each to apply.
func resumeJournal(ctx context.Context, f FS, path string, offset, n int64, log *slog.Logger, apply func(*experiment.Entry) error) (*journal, error) {
	if err := f.Seal(ctx, path); err != nil {
		return nil, err
	}
	j := &journal{fs: f, path: path, log: log, size: offset, last: n}
	if err := j.read(ctx, apply); err != nil {
		return nil, err
	}
	w, err := f.Append(ctx, path)
	if err != nil {
		return nil, err
	}
	j.w = w
	return j, nil
}

// read takes in what follows the known end, entries of which are new.
func (j *journal) read(ctx context.Context, apply func(*experiment.Entry) error) error {
	in, err := j.fs.Open(ctx, j.path, j.size)
	if err != nil {
		return err
	}
	defer in.Close()
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		text, err := readLine(r)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s at offset %d: %w", j.path, j.size, err)
		}
		j.size += int64(len(text))
		if errors.Is(err, io.EOF) {
			j.torn = len(text) > 0
			return nil
		}
		e, err := experiment.DecodeEntry(text)
		if newer, ok := errors.AsType[*experiment.UnknownKind](err); ok {
			return fmt.Errorf("%s at offset %d: %w", j.path, j.size-int64(len(text)), newer)
		}
		if err != nil {
			if len(bytes.TrimSpace(text)) > 0 {
				j.log.Warn("skipping a torn line of the journal", "path", j.path, "offset", j.size-int64(len(text)), "err", err)
			}
			continue
		}
		if e.N <= j.last {
			continue
		}
		if e.N != j.last+1 {
			return metadata.Errorf(metadata.ErrCorrupt, "%s at offset %d: entry %d follows entry %d", j.path, j.size-int64(len(text)), e.N, j.last)
		}
		if err := apply(e); err != nil {
			return err
		}
		j.last = e.N
	}
}

// readLine reads a line with its newline; io.EOF comes with what stands after the last one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		out = append(out, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return out, err
		}
		if len(out) > maxLine {
			return out, metadata.Errorf(metadata.ErrCorrupt, "a line longer than %d bytes", maxLine)
		}
	}
}

// append writes lines, which follow the last one written, and flushes them.
func (j *journal) append(ctx context.Context, lines []line) error {
	if len(lines) == 0 {
		return nil
	}
	deadline := time.Now().Add(journalPatience)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := j.try(ctx, lines)
		if err == nil {
			return nil
		}
		// Room may come again, and what runs is worth waiting for it; a search that has not begun says so at once.
		full := errors.Is(err, metadata.ErrSpaceQuota) || errors.Is(err, metadata.ErrNamespaceQuota)
		if errors.Is(err, errSuperseded) || ctx.Err() != nil || full && j.last == 0 || time.Now().After(deadline) {
			err = fmt.Errorf("journal %s: %w", j.path, err)
			if full {
				err = fmt.Errorf("%w; free space below that quota, or ask for a larger one", err)
			}
			return err
		}
		j.log.Warn("writing the journal again", "path", j.path, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if j.w != nil {
			j.w.Abort()
			j.w = nil
		}
	}
}

// try writes what of the lines is not there yet.
func (j *journal) try(ctx context.Context, lines []line) error {
	if j.w == nil {
		if err := j.takeBack(ctx, lines); err != nil {
			return err
		}
	}
	var b []byte
	if j.torn {
		b = append(b, '\n')
	}
	for _, l := range lines {
		if l.n > j.last {
			b = append(b, l.data...)
		}
	}
	if len(b) > 0 {
		if _, err := j.w.Write(b); err != nil {
			return err
		}
		if err := j.w.Hsync(ctx); err != nil {
			return err
		}
	}
	j.size += int64(len(b))
	j.torn = false
	j.last = lines[len(lines)-1].n
	return nil
}

// takeBack opens the file again after a write whose outcome is unknown. Entries of ours that arrived are kept; others
// are a newer controller's.
func (j *journal) takeBack(ctx context.Context, lines []line) error {
	if err := j.fs.Seal(ctx, j.path); err != nil {
		return err
	}
	err := j.read(ctx, func(e *experiment.Entry) error {
		for _, l := range lines {
			if l.n == e.N {
				if mine, err := e.Encode(); err == nil && bytes.Equal(mine, l.data) {
					return nil
				}
			}
		}
		return errSuperseded
	})
	if err != nil {
		return err
	}
	w, err := j.fs.Append(ctx, j.path)
	if err != nil {
		return err
	}
	j.w = w
	j.torn = true // also if it is not: nobody knows whether what arrived is on disks, and the newline's hsync puts it there
	return nil
}

// close ends the file.
func (j *journal) close() error {
	if j.w == nil {
		return nil
	}
	err := j.w.Close()
	j.w = nil
	return err
}
