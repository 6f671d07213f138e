package webhdfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/gohops/hops/internal/batchread"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
)

const (
	// openStep is how many paths are looked up at a time, so that other reads come in between.
	openStep = 256
	// openSize is about what a path takes while it is opened, and in the answer: a block, its places and its token.
	openSize = 1 << 10
	// maxManyBytes is the most data of which one OPENMANY tells.
	maxManyBytes = 1 << 30
)

// openMany finds the data of many small files, and makes the requests with which it is read of the datanodes. The body has the
// paths, separated by a byte 0 each: absolute ones, or below the request's path. What is wrong with a file is told of that file.
func (q *request) openMany() (response, error) {
	limit, err := q.params.integer("maxbytes", 64<<20, 64, 1)
	if err != nil {
		return response{}, err
	}
	limit = min(limit, maxManyBytes)
	tooLong := &parameterError{fmt.Sprintf("OPENMANY: the paths have more than %d bytes: ask for fewer at a time", batchread.MaxNamesBytes)}
	announced := q.http.ContentLength
	if announced > batchread.MaxNamesBytes {
		return response{}, tooLong
	}
	if announced < 0 { // it comes in chunks
		announced = batchread.MaxNamesBytes
	}
	if err := q.receive(announced); err != nil {
		return response{}, err
	}
	body, err := io.ReadAll(io.LimitReader(q.http.Body, batchread.MaxNamesBytes+1))
	if err != nil {
		return response{}, metadata.Errorf(metadata.ErrIO, "the list of paths cannot be read: %v", err)
	}
	if len(body) > batchread.MaxNamesBytes {
		return response{}, tooLong
	}
	body = bytes.TrimSuffix(body, []byte{0})
	if len(body) == 0 {
		return response{}, &parameterError{"OPENMANY: the body names no path; separate them with a byte 0"}
	}
	n := bytes.Count(body, []byte{0}) + 1
	if n > batchread.MaxNames {
		return response{}, &parameterError{fmt.Sprintf("OPENMANY: %d paths, and %d is the most: ask for fewer at a time", n, batchread.MaxNames)}
	}
	if err := q.take(int64(n) * openSize); err != nil {
		return response{}, err
	}
	if err := q.doorToken(); err != nil {
		return response{}, err
	}
	m := &many{q: q, limit: limit, open: map[namenode.NodeID]*batchread.Group{}}
	for x := range strings.SplitSeq(q.params["excludedatanodes"], ",") {
		if x != "" {
			m.exclude = append(m.exclude, x)
		}
	}
	names := strings.Split(string(body), "\x00")
	q.audited = true
	for len(names) > 0 && !m.full {
		step := min(openStep, len(names))
		if err := m.step(names[:step]); err != nil {
			return response{}, err
		}
		names = names[step:]
	}
	out, err := m.plan.Encode()
	return response{bytes: out}, err
}

// many is an OPENMANY on its way.
type many struct {
	q       *request
	plan    batchread.Plan
	open    map[namenode.NodeID]*batchread.Group // where the next piece of a datanode goes
	exclude []string
	bytes   int64
	limit   int64
	full    bool
}

// step looks up some paths at the same time and adds them to the plan in their order.
func (m *many) step(names []string) error {
	q := m.q
	files, errs := make([]*namenode.LocatedFile, len(names)), make([]error, len(names))
	paths := make([]string, len(names))
	var pending sync.WaitGroup
	pending.Add(len(names))
	for i, name := range names {
		if paths[i] = name; !strings.HasPrefix(name, "/") {
			paths[i] = strings.TrimSuffix(q.path, "/") + "/" + name
		}
		// The first byte tells whether there is a second block.
		q.service.Locate(q.caller, namenode.LocateRequest{Path: paths[i], Length: 1, Unnoticed: true}, func(f *namenode.LocatedFile, err error) {
			files[i], errs[i] = f, err
			pending.Done()
		})
	}
	done := make(chan struct{})
	go func() { pending.Wait(); close(done) }()
	ctx, cancel := context.WithTimeout(q.http.Context(), patience)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range names {
		f, err := files[i], errs[i]
		if kind := metadata.KindOf(err); kind == metadata.ErrStandby || kind == metadata.ErrRetriable || kind == metadata.ErrSafeMode {
			return err // of all of them
		}
		q.record(paths[i], "", true, err)
		if err == nil {
			err = m.add(f, paths[i])
		}
		if m.full {
			return nil
		}
		if err != nil {
			class, message := hdfs.Exception(err)
			if _, missing := errors.AsType[*noReplica](err); missing {
				class = "BlockMissingException"
			}
			m.problem(class[strings.LastIndexAny(class, ".$")+1:], message)
		}
		m.plan.Names++
	}
	return nil
}

// maxProblem bounds what is told of one file, whose path the client has: with a long path in the URL, as many as there may be would
// take more memory than was asked for.
const maxProblem = 512

func (m *many) problem(exception, message string) {
	if len(message) > maxProblem {
		message = strings.ToValidUTF8(message[:maxProblem], "") + " …"
	}
	m.plan.Problems = append(m.plan.Problems, batchread.Problem{Index: m.plan.Names, Exception: exception, Message: message})
}

// noReplica: no datanode that may be asked has the block.
type noReplica struct{ text string }

func (e *noReplica) Error() string { return e.text }

// add adds a file to the plan, or says why it cannot be read.
func (m *many) add(f *namenode.LocatedFile, path string) error {
	length := f.Status.Length
	switch {
	case f.UnderConstruction:
		return metadata.Errorf(metadata.ErrBeingCreated, "%s is being written: OPENMANY reads closed files, OPEN what there is so far", path)
	case length == 0:
		m.plan.Empty = append(m.plan.Empty, m.plan.Names)
		return nil
	case len(f.Blocks) == 0:
		return &noReplica{fmt.Sprintf("Could not obtain block: file=%s has %d bytes and no block", path, length)}
	}
	b := &f.Blocks[0]
	if b.Block.Length != length || length > batchread.MaxBytes {
		m.plan.Large = append(m.plan.Large, [2]int64{int64(m.plan.Names), length})
		return nil
	}
	if b.Small {
		return m.addSmall(b, path)
	}
	node := m.place(b)
	if node == nil {
		return &noReplica{fmt.Sprintf("Could not obtain block: blk_%d_%d file=%s: %s", b.Block.ID, b.Block.Generation, path, m.nowhere(b))}
	}
	return m.put(b, node, func() string { return m.url(node) })
}

// put adds a file of one block to the request to who is asked for it.
func (m *many) put(b *namenode.LocatedBlock, node *namenode.Node, at func() string) error {
	length := b.Block.Length
	if m.bytes+length > m.limit && m.plan.Names > 0 {
		m.full = true
		return nil
	}
	m.bytes += length
	g := m.open[node.ID]
	if g == nil || !g.Request.Fits(length) {
		g = &batchread.Group{URL: at(), Datanode: node.TransferAddr(), Request: batchread.NewRequest(m.q.service.BlockPool())}
		m.open[node.ID] = g
		m.plan.Groups = append(m.plan.Groups, g)
	}
	g.Files = append(g.Files, uint32(m.plan.Names))
	g.Request.Add(batchread.Piece{Block: b.Block, Length: int(length), Token: b.Token})
	return nil
}

// place is the datanode that a block is read of: the first that is not left out.
func (m *many) place(b *namenode.LocatedBlock) *namenode.Node {
	if b.Corrupt {
		return nil
	}
	for i := range b.Locations {
		n := b.Locations[i].Node
		if n.HTTPPort != 0 && !m.isExcluded(n) {
			return n
		}
	}
	return nil
}

func (m *many) nowhere(b *namenode.LocatedBlock) string {
	switch {
	case b.Corrupt:
		return "every replica is corrupt"
	case len(b.Locations) == 0:
		return "no datanode that is alive has it"
	default:
		return fmt.Sprintf("none of its %d datanodes may be asked (excludedatanodes=%s)", len(b.Locations), strings.Join(m.exclude, ","))
	}
}

// url is where a request to a datanode goes, with who asks, as in a redirect.
func (m *many) url(n *namenode.Node) string {
	u := url.URL{
		Scheme: security.Scheme(m.q.http, n.Host), Host: net.JoinHostPort(n.Host, strconv.FormatUint(uint64(n.HTTPPort), 10)),
		Path: Prefix + "/", RawQuery: m.q.identityQuery("READMANY"),
	}
	return u.String()
}
