package differ

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func makeHold(g *generator) Operation {
	src := g.path()
	g.files.add(src)
	return op("hold", "src", src, "length", pick(g, 0, 1, 100, 600, 1500), "blocksize", pick(g, 1024, 2048), "append", g.chance(30))
}

// hold writes to a file, which others can read from then on, and keeps it open.
func hold(ctx context.Context, s *Side, o Operation) (string, error) {
	c, err := s.client(o.User)
	if err != nil {
		return "", err
	}
	var w *dfs.Writer
	life := context.WithoutCancel(ctx) // of a writer that outlives its operation
	if o.flag("append") {
		w, err = c.Append(life, o.text("src"))
	} else {
		w, err = c.Create(life, o.text("src"), dfs.CreateOptions{Overwrite: true, Replication: 1, BlockSize: o.number("blocksize")})
	}
	if err != nil {
		return "", err
	}
	if _, err = w.Write(content(o.number("length"), 0)); err == nil {
		err = w.Hflush(ctx)
	}
	if err != nil {
		w.Abort()
		s.settled(ctx, o.text("src"))
		return "", err
	}
	s.held = append(s.held, w)
	return "", nil
}

func makeResume(g *generator) Operation { return op("resume", "length", pick(g, 0, 10, 1000)) }

// resume writes more to the file that is held longest, wherever it is now, and closes it.
func resume(ctx context.Context, s *Side, o Operation) (string, error) {
	if len(s.held) == 0 {
		return "none", nil
	}
	w := s.held[0]
	s.held = s.held[1:]
	err := finish(w, content(o.number("length"), 7))
	if err != nil {
		s.settled(ctx, fmt.Sprintf("/.reserved/.inodes/%d", w.INode()))
	}
	return "closed", err
}

func makeReopen(g *generator) Operation {
	return op("reopen", "src", g.file(), "holder", g.holder(), "flags", pick(g, 4, 4, 36, 0), "open", g.chance(40))
}

// reopen appends nothing to a file: it is left open, or closed as it was.
func reopen(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.AppendResponseProto
	src, holder := o.text("src"), o.text("holder")
	err := s.call(ctx, o.User, "append", &pb.AppendRequestProto{Src: &src, ClientName: &holder, Flag: ptr(uint32(o.number("flags")))}, &answer)
	if err != nil {
		return "", err
	}
	text := "no block"
	if b := answer.GetBlock(); b != nil {
		text = fmt.Sprintf("block of %d at %d", b.GetB().GetNumBytes(), b.GetOffset())
		if o.number("flags")&32 != 0 {
			text = "a new block comes" // where the last one is, HDFS does not say then
		}
	}
	text += " " + s.status(answer.GetStat())
	if o.flag("open") {
		return text, nil
	}
	request := &pb.CompleteRequestProto{Src: &src, ClientName: &holder, FileId: ptr(answer.GetStat().GetFileId())}
	if b := answer.GetBlock(); b != nil && o.number("flags")&32 == 0 {
		request.Last = b.B
	}
	var done pb.CompleteResponseProto
	for tries := 0; tries < 50 && !done.GetResult(); tries++ {
		if tries > 0 {
			time.Sleep(20 * time.Millisecond)
		}
		if err := s.call(ctx, o.User, "complete", request, &done); err != nil {
			return text, err
		}
	}
	return fmt.Sprint(text, " ", done.GetResult()), nil
}

func makeWalk(g *generator) Operation { return op("walk", "src", g.directory()) }

// beyondASCII is all that is compared of a list with names that have another place in HDFS's order.
const beyondASCII = "names beyond ASCII"

// walk lists a directory to its end, page by page.
func walk(ctx context.Context, s *Side, o Operation) (string, error) {
	var text string
	after := []byte{}
	for {
		var answer pb.GetListingResponseProto
		err := s.call(ctx, o.User, "getListing", &pb.GetListingRequestProto{Src: ptr(o.text("src")), StartAfter: after, NeedLocation: ptr(false)}, &answer)
		if err != nil || answer.DirList == nil {
			return text + "none", err
		}
		list := answer.DirList.GetPartialListing()
		for _, e := range list {
			if !ascii(e.GetPath()) {
				return beyondASCII, nil
			}
			text += fmt.Sprintf("%q ", e.GetPath())
			after = e.GetPath()
		}
		rest := answer.DirList.GetRemainingEntries()
		if strings.Contains(o.text("src"), "/.snapshot") {
			rest = min(rest, 1) // how many more are in a snapshot nobody counts here
		}
		text += fmt.Sprintf("and %d\n", rest)
		if answer.DirList.GetRemainingEntries() == 0 || len(list) == 0 {
			return text, nil
		}
	}
}

// ascii tells whether HDFS, which compares the bytes of names with a sign, has the same place for a name in a list.
func ascii(name []byte) bool {
	for _, c := range name {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// patience is for datanodes that have to agree on the end of a file.
const patience = 20 * time.Second

// unsettled is said of a file on whose end the datanodes have not agreed with patience.
const unsettled = " and stays open"

// settled waits until a file is closed, if it is a file, and returns unsettled if the datanodes do not manage it.
func (s *Side) settled(ctx context.Context, src string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var closed pb.IsFileClosedResponseProto
		if s.call(ctx, "", "isFileClosed", &pb.IsFileClosedRequestProto{Src: &src}, &closed) != nil || closed.GetResult() {
			return ""
		}
		select {
		case <-ctx.Done():
			return unsettled
		case <-time.After(20 * time.Millisecond):
		}
	}
}
