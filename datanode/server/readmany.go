package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
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
	budget := security.Answers()
	account := budget.Account(s.cfg.Door.UIDOfRequest(r))
	defer account.Close()
	announced := r.ContentLength
	if announced < 0 || announced > batchread.MaxRequest { // it comes in chunks, or is refused when so much was read
		announced = batchread.MaxRequest
	}
	announced = min(announced, budget.Most())
	if err := account.Take(r.Context(), announced); err != nil {
		return err
	}
	defer account.Give(announced)
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
	size := min(batchread.AnswerSize(len(pieces), bytes), budget.Most())
	if err := account.Take(r.Context(), size); err != nil {
		return err
	}
	defer account.Give(size)

	buf := answerBuffers.Get().(*[]byte)
	defer func() { answerBuffers.Put(buf) }()
	if int64(cap(*buf)) < size { // as much as was taken from the budget, instead of growing by twice
		*buf = make([]byte, 0, size)
	}
	a := batchread.NewAnswer((*buf)[:0], len(pieces))
	var sums []byte
	for i := range pieces {
		if err := r.Context().Err(); err != nil {
			return err
		}
		var err error
		if sums, err = s.readPiece(a, &pieces[i], sums); err != nil {
			class, message := hdfs.Exception(err)
			a.Fail(class[strings.LastIndexAny(class, ".$")+1:], message)
		}
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

// readPiece adds a piece to the answer, or says why that cannot be. sums is a buffer.
func (s *Server) readPiece(a *batchread.Answer, p *batchread.Piece, sums []byte) ([]byte, error) {
	rd, err := s.store.Open(p.Block)
	if err != nil {
		return sums, err
	}
	defer rd.Close()
	end, visible := p.Offset+int64(p.Length), rd.Replica().Visible
	if end > visible {
		return sums, metadata.Errorf(metadata.ErrInvalidArgument, "read of %v up to %d, but the replica has %d bytes", p.Block, end, visible)
	}
	// Checksums cover whole chunks.
	start, stop := p.Offset-p.Offset%datanode.ChunkSize, min((end+datanode.ChunkSize-1)/datanode.ChunkSize*datanode.ChunkSize, visible)
	if sums, err = rd.Sums(sums[:0], start, stop); err != nil {
		return sums, err
	}
	room := a.Room(int(stop - start))
	if _, err := rd.ReadAt(room, start); err != nil && !errors.Is(err, io.EOF) {
		return sums, err
	}
	stored := dtp.Checksum{Type: dtp.ChecksumType(rd.Checksum().Stored()), BytesPer: datanode.ChunkSize}
	if err := stored.Verify(sums, room); err != nil {
		s.scrub.Order(p.Block.ID)
		return sums, metadata.Errorf(metadata.ErrCorrupt, "%v: %v", p.Block, err)
	}
	if p.Offset > start {
		copy(room, room[p.Offset-start:])
	}
	a.Take(p.Length)
	return sums, nil
}
