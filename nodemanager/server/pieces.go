package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"time"

	"github.com/gohops/hops/internal/logpiece"
)

// maxPieces bounds the files that one rolled log file is in.
const maxPieces = 32

// piece is a part of a rolled log file in the filesystem, in a file of its own.
type piece struct{ begin, size int64 }

func (p piece) end() int64 { return p.begin + p.size }

// pieces ships what is new in a rolled file of so many bytes. A piece ends with a line, when it is long enough or when what follows was cut
// here before it was shipped; the next one's name says where it begins. Nobody ships faster than LogRate, once a quarter of LogLimit is
// shipped, so that what a container prints without end is not the cluster's burden: of such a one the filesystem has parts, and in the end
// what this machine has kept.
func (s *shipper) pieces(ctx context.Context, from logReader, f *shipment, name string, size int64, ended bool) (err error) {
	defer func() {
		if err != nil && f.to != nil {
			f.to.Abort()
			f.to, f.done = nil, -1
		}
	}()
	if f.done >= size {
		if f.to != nil && (ended || time.Since(f.last) > idleAfter) {
			return s.close(ctx, f)
		}
		return nil
	}
	if size == 0 && !ended {
		return nil
	}
	if err := s.list(ctx, f, name); err != nil {
		return err
	}
	if f.to == nil {
		if err := s.continuePiece(ctx, f, name); err != nil {
			return err
		}
	}
	budget := s.budget(ended)
	buffer := make([]byte, min(shipmentSize, max(1, size-f.done)))
	for f.done < size && budget > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		at, n, err := from.readFrom(buffer[:min(int64(len(buffer)), size-f.done, budget)], f.done)
		if n == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			break // the container has cut its own log, or there is a hole to its end
		}
		if at > f.done {
			if err := s.nextPiece(ctx, f, name, at); err != nil {
				return err
			}
		}
		n, full := pieceEnds(buffer[:n], s.c.server.config.LogKeep-(f.done-f.current().begin))
		if n = int(min(int64(n), s.room(ctx, f, name))); n == 0 {
			s.shorten()
			break
		}
		to := f.to
		if err := s.within(ctx, to, func() error { _, err := to.Write(buffer[:n]); return err }); err != nil {
			return err
		}
		f.done += int64(n)
		f.current().size += int64(n)
		f.most += int64(n)
		s.sent, budget = s.sent+int64(n), budget-int64(n)
		if full && f.done < size {
			if err := s.nextPiece(ctx, f, name, f.done); err != nil {
				return err
			}
		}
	}
	return s.settle(ctx, f, ended)
}

func (f *shipment) current() *piece { return &f.pieces[len(f.pieces)-1] }

// pieceEnds is how much of what was read belongs to a piece that may have so many bytes more, and whether that is its end: it ends with
// the first line that ends beyond, and within a line only if that is very long.
func pieceEnds(read []byte, more int64) (n int, full bool) {
	if int64(len(read)) <= more {
		return len(read), false
	}
	more = max(0, more)
	if i := bytes.IndexByte(read[more:], '\n'); i >= 0 {
		return int(more) + i + 1, true
	}
	return len(read), int64(len(read))-more > lineSearch
}

// budget is how many bytes of rolled files may be shipped now. What there is at the end is not more than what is kept of each.
func (s *shipper) budget(ended bool) int64 {
	c := &s.c.server.config
	if ended {
		return c.LogLimit
	}
	return c.LogLimit/4 + int64(min(1<<60, float64(c.LogRate)*time.Since(s.began).Seconds())) - s.sent
}

// list finds the pieces that an earlier node manager has shipped.
func (s *shipper) list(ctx context.Context, f *shipment, name string) error {
	if f.listed {
		return nil
	}
	fsys, err := s.filesystem()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.c.server.config.LogPatience)
	defer cancel()
	files, err := fsys.ListLogs(ctx, path.Dir(name))
	if err != nil {
		return err
	}
	f.pieces, f.most = []piece{{}}, 0
	for n, size := range files {
		switch file, begin := logpiece.Parse(n); {
		case file != path.Base(name):
		case begin == 0:
			f.pieces[0].size = size
		default:
			f.pieces = append(f.pieces, piece{begin, size})
		}
	}
	slices.SortFunc(f.pieces, func(a, b piece) int { return cmp.Compare(a.begin, b.begin) })
	for _, p := range f.pieces {
		f.most += p.size
	}
	f.listed = true
	return nil
}

// continuePiece opens the last piece.
func (s *shipper) continuePiece(ctx context.Context, f *shipment, name string) error {
	p := f.current()
	if err := s.open(ctx, f, logpiece.Name(name, p.begin)); err != nil {
		return err
	}
	size := f.to.Size()
	f.most += size - p.size
	p.size = size
	f.done = p.end()
	return nil
}

// nextPiece ends a piece and begins one at an offset.
func (s *shipper) nextPiece(ctx context.Context, f *shipment, name string, begin int64) error {
	if f.to != nil {
		if err := s.close(ctx, f); err != nil {
			return err
		}
	}
	f.pieces = append(f.pieces, piece{begin: begin})
	return s.continuePiece(ctx, f, name)
}

// room is how many bytes more the filesystem may have of the container. When that is a quarter of what it may have in all, or a file has very
// many pieces, the oldest of the file go, without the first, which has what a program says at its start, and without the last LogKeep bytes.
func (s *shipper) room(ctx context.Context, f *shipment, name string) int64 {
	c := &s.c.server.config
	for {
		left := c.LogLimit
		for _, other := range s.files {
			left -= other.most
		}
		if len(f.pieces) <= maxPieces && (left >= c.LogLimit/4 || len(f.pieces) <= 2 || f.most-f.pieces[0].size-f.pieces[1].size < c.LogKeep) {
			return max(0, left)
		}
		if err := s.remove(ctx, logpiece.Name(name, f.pieces[1].begin)); err != nil {
			s.c.log.Warn("an old piece of a log is not removed, trying again", "error", err)
			return max(0, left)
		}
		f.most -= f.pieces[1].size
		f.pieces = slices.Delete(f.pieces, 1, 2)
	}
}

func (s *shipper) remove(ctx context.Context, name string) error {
	fsys, err := s.filesystem()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.c.server.config.LogPatience)
	defer cancel()
	return fsys.RemoveLog(ctx, name)
}
