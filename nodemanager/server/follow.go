package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
)

const (
	// followPoll is how often a log file that is followed is looked at: a line is on its way at most so long after it was
	// written.
	followPoll = 100 * time.Millisecond
	// maxStreams and maxUserStreams bound the logs that are sent at one time, in all and to one user, and as well the sessions.
	maxStreams     = 256
	maxUserStreams = 32
	// streamPatience is how long a reader may take for one piece.
	streamPatience = 30 * time.Second
	streamPiece    = 64 << 10
)

// streams counts the logs that are being sent, or the sessions.
type streams struct {
	mu   sync.Mutex
	all  int
	user map[string]int
}

// enter takes a place for a user; leave gives it back. ok is false when there is none.
func (s *streams) enter(user string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxStreams || s.user[user] >= maxUserStreams {
		return nil, false
	}
	if s.user == nil {
		s.user = map[string]int{}
	}
	s.all++
	s.user[user]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.user[user]--; s.user[user] == 0 {
			delete(s.user, user)
		}
	}, true
}

// problem answers an error of /api/v1 (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "detail": detail}) // the client has gone
}

// offsetHeader says at which byte of the file an answer begins.
const offsetHeader = "Hops-Log-Offset"

// liveLog sends the bytes of a container's log file from an offset, and with follow=true goes on as the container writes,
// until it has ended and everything is sent. An answer that is broken off is not complete: the reader asks again from where
// it is.
func (s *Server) liveLog(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	offset, follow := int64(0), false
	var err error
	if text := query.Get("offset"); text != "" {
		if offset, err = strconv.ParseInt(text, 10, 64); err != nil {
			problem(w, http.StatusBadRequest, "offset is a number of bytes; a negative one counts from the end")
			return
		}
	}
	if text := query.Get("follow"); text != "" {
		if follow, err = strconv.ParseBool(text); err != nil {
			problem(w, http.StatusBadRequest, "follow is true or false")
			return
		}
	}
	id := nodemanager.ContainerID(r.PathValue("container"))
	c := asked(r)
	if c == nil {
		problem(w, http.StatusNotFound, "this node has no container "+nodemanager.Shorten(string(id), 100)+
			"; the logs of one that has ended are in the filesystem")
		return
	}
	caller, _ := s.config.Door.HTTPCaller(r)
	leave, ok := s.streams.enter(caller.User)
	if !ok {
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusTooManyRequests, "too many logs are being read from this node: try again")
		return
	}
	defer leave()
	t := tail{c: c, name: r.PathValue("file")}
	defer t.close()
	ended := t.look()
	size := t.size()
	if t.removed() {
		problem(w, http.StatusNotFound, "the log of "+string(id)+" is in the filesystem")
		return
	}
	if offset < 0 {
		offset = max(0, size+offset)
	}
	if offset > size {
		w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(size, 10))
		problem(w, http.StatusRequestedRangeNotSatisfiable, "the log has "+strconv.FormatInt(size, 10)+" bytes")
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(offsetHeader, strconv.FormatInt(offset, 10))
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's is for requests that arrive slowly
	w.WriteHeader(http.StatusOK)
	buffer := make([]byte, streamPiece)
	until := size // without follow: what is there now
	for {
		_ = control.SetWriteDeadline(time.Now().Add(streamPatience))
		if err := control.Flush(); err != nil {
			return // the reader has gone
		}
		// What was written before the end was seen is read after it was seen.
		for t.file != nil && (follow || offset < until) {
			piece := buffer
			if !follow {
				piece = buffer[:min(int64(len(buffer)), until-offset)]
			}
			n, err := t.file.ReadAt(piece, offset)
			offset += int64(n)
			if n > 0 {
				_ = control.SetWriteDeadline(time.Now().Add(streamPatience))
				if _, err := w.Write(piece[:n]); err != nil {
					return
				}
			}
			if err != nil && !errors.Is(err, io.EOF) {
				panic(http.ErrAbortHandler)
			}
			if err != nil {
				break
			}
		}
		if err := control.Flush(); err != nil {
			return
		}
		if !follow || ended {
			_ = control.SetWriteDeadline(time.Time{})
			return
		}
		ended = t.wait(r)
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // this node manager stops, the container does not
		}
		if t.removed() {
			panic(http.ErrAbortHandler) // what this reader lacks is in the filesystem
		}
		if size := t.size(); size < offset {
			offset = 0 // the container has cut its log, as tail says: begin anew
		}
	}
}

// tail is a log file that may come later than its reader.
type tail struct {
	c    *container
	name string
	file *os.File
}

// look opens the file if it is there, and reports whether the container had ended before.
func (t *tail) look() (ended bool) {
	select {
	case <-t.c.gone:
		ended = true
	default:
	}
	if t.file != nil {
		return ended
	}
	root, err := os.OpenRoot(t.c.logsPath())
	if err != nil {
		return ended
	}
	defer root.Close()
	if f, _, err := openLog(root, t.name); err == nil {
		t.file = f
	}
	return ended
}

// wait looks again a little later.
func (t *tail) wait(r *http.Request) (ended bool) {
	timer := time.NewTimer(followPoll)
	defer timer.Stop()
	select {
	case <-r.Context().Done():
	case <-t.c.gone:
	case <-timer.C:
	}
	return t.look()
}

// removed reports whether the file is not there because the container's directory is being removed, rather than not yet. To be
// asked after a look.
func (t *tail) removed() bool {
	if t.file != nil {
		return false
	}
	r, _, _ := t.c.view()
	return r.Forgotten
}

func (t *tail) size() int64 {
	if t.file == nil {
		return 0
	}
	info, err := t.file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

func (t *tail) close() {
	if t.file != nil {
		t.file.Close()
	}
}
