package webhdfs

import (
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/gohops/hops/internal/batchread"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
)

// Small files, whose bytes the namenodes keep: OPEN is answered here, as HttpFS answers it, instead of by a redirect, and OPENMANY has a group for this
// namenode, which is read here, too (READMANY).

// openSmall answers an OPEN of a small file. ok: it is one; else, and for who wants to see the redirect, the answer comes from a datanode's door.
func (q *request) openSmall(offset int64) (answer response, ok bool, err error) {
	if no, err := q.params.boolean("noredirect", false); err != nil || no {
		return response{}, false, err
	}
	length, err := q.params.integer("length", metadata.MaxBody, 64, 0)
	if err != nil {
		return response{}, false, err
	}
	if err := q.take(metadata.MaxBody); err != nil {
		return response{}, false, err
	}
	f, err := wait(q, func(done func(*namenode.FileWithData, error)) {
		q.service.FileWithData(q.caller, namenode.FileWithDataRequest{Path: q.path}, done)
	})
	if err != nil || !f.Whole {
		return response{}, false, err
	}
	if offset >= int64(len(f.Data)) { // it has been replaced by a shorter one
		return response{}, false, metadata.Errorf(metadata.ErrIO, "Offset=%d out of the range [0, %d); OPEN, path=%s", offset, len(f.Data), q.path)
	}
	data := f.Data[offset:]
	return response{bytes: data[:min(length, int64(len(data)))]}, true, nil
}

// addSmall adds a file to the group that is read of this namenode.
func (m *many) addSmall(b *namenode.LocatedBlock, path string) error {
	if len(b.Locations) == 0 {
		return &noReplica{fmt.Sprintf("Could not obtain block: blk_%d_%d file=%s: no namenode serves it", b.Block.ID, b.Block.Generation, path)}
	}
	door := b.Locations[0].Node
	if m.isExcluded(door) {
		return &noReplica{fmt.Sprintf("Could not obtain block: blk_%d_%d file=%s: the namenode may not be asked (excludedatanodes=%s)", b.Block.ID, b.Block.Generation, path, strings.Join(m.exclude, ","))}
	}
	return m.put(b, door, func() string {
		scheme := "http"
		if m.q.http.TLS != nil {
			scheme = "https"
		}
		u := url.URL{Scheme: scheme, Host: m.q.http.Host, Path: Prefix + "/", RawQuery: m.q.identityQuery("READMANY")}
		return u.String()
	})
}

// readMany answers with the bytes of many small files, as a datanode's door does with those of its replicas.
func (q *request) readMany() (response, error) {
	announced := q.http.ContentLength
	if announced < 0 || announced > batchread.MaxRequest { // it comes in chunks, or is refused when so much was read
		announced = batchread.MaxRequest
	}
	if err := q.receive(announced); err != nil {
		return response{}, err
	}
	body, err := io.ReadAll(io.LimitReader(q.http.Body, batchread.MaxRequest+1))
	if err != nil {
		return response{}, metadata.Errorf(metadata.ErrIO, "the request cannot be read: %v", err)
	}
	pool, pieces, err := batchread.ParseRequest(body)
	if err != nil {
		return response{}, err
	}
	wanted := make([]namenode.WantedBody, len(pieces))
	var size int64
	for i := range pieces {
		wanted[i] = namenode.WantedBody{Block: pieces[i].Block, Token: pieces[i].Token}
		size += int64(pieces[i].Length)
	}
	if err := q.take(2 * batchread.AnswerSize(len(pieces), size)); err != nil { // the bodies, and the answer
		return response{}, err
	}
	// What is wanted of a body is copied: a body, and what was read with it, is much more than the bytes that were taken for a piece of it.
	found, failed := make([][]byte, len(pieces)), make([]error, len(pieces))
	for i, room := 0, make([]byte, size); i < len(pieces); i++ {
		n := pieces[i].Length
		found[i], room = room[:0:n], room[n:]
	}
	err = q.service.Bodies(q.http.Context(), pool, wanted, func(i int, data []byte, err error) {
		p := &pieces[i]
		end := p.Offset + int64(p.Length)
		if err == nil && end > int64(len(data)) {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "read of %v up to %d, but it has %d bytes", p.Block, end, len(data))
		}
		if failed[i] = err; err == nil {
			found[i] = append(found[i][:0], data[p.Offset:end]...)
		}
	})
	if err != nil {
		return response{}, err
	}
	a := batchread.NewAnswer(make([]byte, 0, batchread.AnswerSize(len(pieces), size)), len(pieces))
	for i, data := range found {
		if err := failed[i]; err != nil {
			class, message := hdfs.Exception(err)
			a.Fail(class[strings.LastIndexAny(class, ".$")+1:], message)
			continue
		}
		a.Take(copy(a.Room(len(data)), data))
	}
	out, err := a.Encode()
	return response{bytes: out}, err
}

// isExcluded reports whether a datanode is not to be asked.
func (m *many) isExcluded(n *namenode.Node) bool {
	for _, x := range m.exclude {
		if x == n.TransferAddr() || x == n.IP || x == n.Host {
			return true
		}
	}
	return false
}
