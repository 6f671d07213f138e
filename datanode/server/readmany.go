package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/batchread"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs"
)

// readManyStep is how much of an answer is written at a time, with a deadline for each.
const readManyStep = 1 << 20

// answerBuffers are buffers of answers.
var answerBuffers = sync.Pool{New: func() any { return new([]byte) }}

// readMany answers a request with pieces of many blocks. Who shows tokens for them may read them, as at the port of data transfer; no
// namenode is asked. Everything is compared with its checksums here, because clients in Python cannot do that fast.
//
// A token that is not good refuses the whole request: a namenode has made them all at once, and makes them again for who asks. What
// else is wrong is told of the one piece.
func (s *Server) readMany(w http.ResponseWriter, r *http.Request, caller metadata.Caller) error {
	user := s.cfg.Door.UIDOfRequest(r)
	incoming := s.requests.Account(user)
	defer incoming.Close()
	announced := r.ContentLength
	if announced < 0 || announced > batchread.MaxRequest { // it comes in chunks, or is refused when so much was read
		announced = batchread.MaxRequest
	}
	announced = min(announced, s.requests.Most())
	if err := incoming.Take(r.Context(), announced); err != nil {
		return err
	}
	defer incoming.Give(announced)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodySilence))
	body, err := io.ReadAll(io.LimitReader(r.Body, batchread.MaxRequest+1))
	if err != nil {
		return fmt.Errorf("request body: %w", err)
	}
	pool, pieces, err := batchread.ParseRequest(body)
	if err != nil {
		return err
	}
	if mine := s.store.Identity().BlockPool; mine != "" && pool != mine {
		return metadata.Errorf(metadata.ErrInvalidArgument, "block pool %q is not served here, %q is", pool, mine)
	}
	bytes := int64(0)
	for i := range pieces {
		p := &pieces[i]
		bytes += int64(p.Length)
		if err := s.trust.Check(r.Context(), p.Token, pool, p.Block.ID, security.ReadBlock); err != nil {
			s.cfg.Door.Record(security.Decision{
				Caller: caller, Port: "datanode", Command: "READMANY", Reason: err.Error(), Read: true,
				Source: fmt.Sprintf("blk_%d_%d", p.Block.ID, p.Block.Generation),
			})
			return metadata.Errorf(metadata.ErrToken, "piece %d: %v", i, err)
		}
	}
	// Of another budget than the request: many that hold theirs and want more of the same would wait for each other.
	account := s.answers.Account(user)
	defer account.Close()
	size := min(batchread.AnswerSize(len(pieces), bytes), s.answers.Most())
	if err := account.Take(r.Context(), size); err != nil {
		return err
	}
	defer account.Give(size)

	buf := answerBuffers.Get().(*[]byte)
	defer func() { answerBuffers.Put(buf) }() // which is another one by then, if a disk does not answer

	if int64(cap(*buf)) < size { // as much as was taken from the budget, instead of growing by twice
		*buf = make([]byte, 0, size)
	}
	a, err := s.readPieces(r.Context(), pieces, batchread.NewAnswer((*buf)[:0], len(pieces)), func(lost <-chan struct{}) {
		account.Force(size) // it stays in memory, beside what takes its place
		buf = new([]byte)
		go func() {
			<-lost
			account.Give(size)
		}()
	})
	if err != nil {
		return err
	}
	out, err := a.Encode()
	if err != nil {
		return err
	}
	*buf = out[:0]
	h := w.Header()
	allow(w, "POST")
	h.Set("Content-Type", batchread.ContentType)
	h.Set("Content-Length", strconv.Itoa(len(out)))
	control := http.NewResponseController(w)
	for len(out) > 0 {
		n := min(len(out), readManyStep)
		_ = control.SetWriteDeadline(time.Now().Add(bodySilence))
		if _, err := w.Write(out[:n]); err != nil {
			return nil // the client has gone
		}
		out = out[n:]
	}
	return nil
}

// manyLook is how often it is looked whether a READMANY gets on.
const manyLook = 20 * time.Millisecond

// readPieces reads the pieces of a READMANY one after the other. Where a disk does not answer whoever reads there is left behind, with the memory of the answer so far, and another one
// goes on behind that piece; lost hears of it, and gets a channel that is closed when the disk has answered. Pieces on a disk where one was left behind have failed, so that the client turns to another datanode.
func (s *Server) readPieces(ctx context.Context, pieces []batchread.Piece, a *batchread.Answer, lost func(<-chan struct{})) (*batchread.Answer, error) {
	m := s.beginMany(ctx, &manyReader{Server: s, pieces: pieces, answer: a})
	t := time.NewTicker(manyLook)
	defer t.Stop()
	for before := -1; ; {
		select {
		case <-m.over:
			return m.answer, m.err
		case <-t.C:
		}
		at, next := m.overtake(before)
		before = at
		if next != nil {
			lost(m.over)
			m = s.beginMany(ctx, next)
		}
	}
}

func (s *Server) beginMany(ctx context.Context, m *manyReader) *manyReader {
	m.over = make(chan struct{})
	go func() {
		defer close(m.over)
		defer func() {
			if what := recover(); what != nil {
				s.log.Error("a mistake of this program: a READMANY panicked; please report it", "panic", what, "stack", string(debug.Stack()))
			}
		}()
		m.err = errors.New("a mistake of this program, which its log describes")
		m.err = m.read(ctx)
	}()
	return m
}

// manyReader reads the pieces of a READMANY.
type manyReader struct {
	*Server
	pieces []batchread.Piece
	silent []string      // the volumes that were found not to answer
	over   chan struct{} // closed at the end
	err    error         // at the end
	sums   []byte        // a buffer

	mu     sync.Mutex // held but during calls of disks; guards what follows
	answer *batchread.Answer
	at     int    // the piece that is being read
	volume string // where it lies; "": not here, or nothing is read any more
	left   bool   // it waits for a disk, and another one goes on
}

// overtake returns the piece that is being read, and, if it is the one of before and its disk does not answer, who goes on behind it.
func (m *manyReader) overtake(before int) (int, *manyReader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at >= len(m.pieces) || m.at != before || m.volume == "" || !m.store.Silent(m.volume) {
		return m.at, nil
	}
	m.left = true
	m.readers.lose(m.volume)
	bytes := int64(0)
	for _, p := range m.pieces {
		bytes += int64(p.Length)
	}
	next := &manyReader{Server: m.Server, pieces: m.pieces, silent: append(slices.Clone(m.silent), m.volume), answer: m.answer.Clone(batchread.AnswerSize(len(m.pieces), bytes)), at: m.at}
	next.failed(silentDisk(&m.pieces[m.at]))
	next.at++
	return next.at, next
}

func silentDisk(p *batchread.Piece) error {
	return metadata.Errorf(metadata.ErrIO, "%v is on a disk that does not answer", p.Block)
}

// failed ends a piece that cannot be read.
func (m *manyReader) failed(err error) {
	class, message := hdfs.Exception(err)
	m.answer.Fail(class[strings.LastIndexAny(class, ".$")+1:], message)
}

// read reads what is left, until another one goes on.
func (m *manyReader) read(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.volume = "" }()
	for ; m.at < len(m.pieces); m.at++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := &m.pieces[m.at]
		m.volume, _ = m.store.VolumeOf(p.Block.ID)
		if slices.Contains(m.silent, m.volume) || m.readers.has(m.volume) && m.store.Silent(m.volume) {
			m.failed(silentDisk(p))
			continue
		}
		err := m.piece(p)
		if m.left {
			m.readers.back(m.volume)
			return nil
		}
		if err != nil {
			m.failed(err)
		}
	}
	return nil
}

// disk calls a disk.
func (m *manyReader) disk(f func() error) error {
	m.mu.Unlock()
	defer m.mu.Lock()
	return f()
}

// piece adds a piece to the answer, or says why that cannot be.
func (m *manyReader) piece(p *batchread.Piece) error {
	var rd datanode.Reader
	err := m.disk(func() (err error) {
		rd, err = m.store.Open(p.Block)
		return err
	})
	if err != nil {
		return err
	}
	end, visible := p.Offset+int64(p.Length), rd.Replica().Visible
	if end > visible && !m.left {
		_ = m.disk(rd.Close)
		return metadata.Errorf(metadata.ErrInvalidArgument, "read of %v up to %d, but the replica has %d bytes", p.Block, end, visible)
	}
	if m.left { // and so is the answer
		return m.disk(rd.Close)
	}
	// Checksums cover whole chunks.
	start, stop := p.Offset-p.Offset%datanode.ChunkSize, min((end+datanode.ChunkSize-1)/datanode.ChunkSize*datanode.ChunkSize, visible)
	room := m.answer.Room(int(stop - start))
	sum := rd.Checksum()
	err = m.disk(func() (err error) {
		defer rd.Close()
		if m.sums, err = rd.Sums(m.sums[:0], start, stop); err != nil {
			return err
		}
		if _, err := rd.ReadAt(room, start); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	})
	if err != nil || m.left {
		return err
	}
	stored := dtp.Checksum{Type: dtp.ChecksumType(sum.Stored()), BytesPer: datanode.ChunkSize}
	if err := stored.Verify(m.sums, room); err != nil {
		m.scrub.Order(p.Block.ID)
		return metadata.Errorf(metadata.ErrCorrupt, "%v: %v", p.Block, err)
	}
	if p.Offset > start {
		copy(room, room[p.Offset-start:])
	}
	m.answer.Take(p.Length)
	return nil
}

// lostReaders counts, by volume, those who wait for a disk and were left behind. While there are some nobody else waits for it, so that they do not become more and more.
type lostReaders struct {
	any atomic.Int64
	mu  sync.Mutex
	at  map[string]int
}

func (l *lostReaders) lose(volume string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = map[string]int{}
	}
	l.at[volume]++
	l.any.Add(1)
}

func (l *lostReaders) back(volume string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at[volume]--; l.at[volume] == 0 {
		delete(l.at, volume)
	}
	l.any.Add(-1)
}

func (l *lostReaders) has(volume string) bool {
	if l.any.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[volume] > 0
}
