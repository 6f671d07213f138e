package shell

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/gohops/hops/client/dfs"
)

// place is a filesystem that words of the command line are in. The verbs work in one at a time; copies have two.
type place struct {
	fs filesystem
	// client is that of a cluster; nil on this machine's filesystem.
	client  *dfs.Client
	uri     string // as messages show it
	foreign bool   // it was named by the paths and is not the default one
}

// placeOf is the filesystem that a word names: hdfs://authority, file://, or "" for the default one. A scheme that is not
// known is of the default one, which refuses it.
func placeOf(word string) string {
	scheme, rest, ok := strings.Cut(word, ":/")
	switch {
	case !ok:
	case scheme == "file":
		return localURI
	case scheme == "hdfs" && strings.HasPrefix(rest, "/") && !strings.HasPrefix(rest, "//"):
		authority, _, _ := strings.Cut(rest[1:], "/")
		return "hdfs://" + authority
	}
	return ""
}

// clusterOnly are verbs that no local filesystem has an answer to.
var clusterOnly = []string{
	"appendToFile", "checksum", "concat", "createSnapshot", "deleteSnapshot", "df", "expunge", "getfacl", "getfattr", "pin", "publish",
	"renameSnapshot", "setfacl", "setfattr", "setrep", "truncate", "unpin", "watch",
}

// at connects to the filesystem of a word, once per command line.
func (s *Shell) at(uri string) (*place, error) {
	if uri == "" && s.generic != "" {
		uri = s.generic
	}
	if placeOf(uri+"/") == localURI {
		if slices.Contains(clusterOnly, s.verb) {
			return nil, &pathError{path: localURI, text: "-" + s.verb + " works on a cluster's filesystem, not on files of this machine"}
		}
		return &place{fs: local{}, uri: localURI, foreign: s.generic == ""}, nil
	}
	if p := s.dialled[uri]; p != nil {
		return p, nil
	}
	client, name, err := s.Dial(uri, s.properties)
	if err != nil {
		return nil, err
	}
	p := &place{fs: remote{client}, client: client, uri: name}
	if uri != "" && uri != s.generic {
		if home, err := s.at(""); err == nil && home.uri == name { // the default one by its name
			client.Close()
			p = home
		} else {
			p.foreign = true
		}
	}
	s.dialled[uri] = p
	return p, nil
}

// hangUp ends the connections to all filesystems.
func (s *Shell) hangUp() {
	for _, p := range s.dialled {
		p.fs.Close()
	}
}

// several are the verbs that do the same with each of their paths, so that these may be in several filesystems.
var several = []string{"ls", "cat", "text", "du", "count", "mkdir", "rm", "rmdir", "touch", "touchz", "checksum"}

// onEach runs a verb in the filesystem that its words name. Words in several filesystems are taken one after the other, as
// long as they are in the same one.
func (s *Shell) onEach(_ verb, words []string, run func([]string) error) error {
	if copies(s.verb) {
		return run(words) // has two, and finds them itself
	}
	for {
		n, uri := len(words), ""
		if slices.Contains(several, s.verb) {
			n = 0
			for n < len(words) && (n == 0 || placeOf(words[n]) == placeOf(words[0])) {
				n++
			}
		}
		for _, word := range words[:n] {
			if uri = placeOf(word); uri != "" {
				break
			}
		}
		p, err := s.at(uri)
		if err != nil {
			return err
		}
		s.place = *p
		if err := run(words[:n]); err != nil || n == len(words) {
			return err
		}
		words = words[n:]
	}
}

// in runs a function in the filesystem of a word.
func (s *Shell) in(word string, f func() error) error {
	p, err := s.at(placeOf(word))
	if err != nil {
		return err
	}
	before := s.place
	s.place = *p
	defer func() { s.place = before }()
	return f()
}

// input reads standard input until its context ends, without waiting for what may never come. What comes later is lost.
type input struct {
	ctx  context.Context
	r    io.Reader
	came chan piece // of the read under way
	busy bool       // there is one
	buf  []byte     // it reads into
	rest []byte     // not given yet
	err  error      // behind rest
}

type piece struct {
	n   int
	err error
}

func newInput(ctx context.Context, r io.Reader) *input {
	return &input{ctx: ctx, r: r, came: make(chan piece, 1), buf: make([]byte, copyBuffer)}
}

func (in *input) Read(p []byte) (int, error) {
	if len(in.rest) == 0 && in.err == nil {
		if !in.busy {
			in.busy = true
			go func() {
				n, err := in.r.Read(in.buf)
				in.came <- piece{n, err}
			}()
		}
		select {
		case <-in.ctx.Done():
			return 0, in.ctx.Err()
		case c := <-in.came:
			in.busy, in.rest, in.err = false, in.buf[:c.n], c.err
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	if n > 0 {
		return n, nil
	}
	return 0, in.err
}

// bound is a reader that ends with its context, and tells a meter what it gave.
type bound struct {
	ctx   context.Context
	r     io.Reader
	meter *meter
}

func (b bound) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	b.meter.add(n)
	return n, err
}

// boundWriter is bound for writers.
type boundWriter struct {
	ctx   context.Context
	w     io.Writer
	meter *meter
}

func (b boundWriter) Write(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.w.Write(p)
	b.meter.add(n)
	return n, err
}
