package shuffle

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // what Hadoop's shuffle has
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
)

// The headers of both sides (ShuffleHeader, SecureShuffleUtils).
const (
	headerName    = "name"
	headerVersion = "version"
	headerHash    = "UrlHash"
	headerReply   = "ReplyHash"
	name          = "mapreduce"
	version       = "1.0.0"
)

// Limits of a request. A reduce names 20 maps at a time.
const (
	maxMaps = 1000
	// step is how much is written at a time, in bytes, and stall how long that may take.
	step  = 1 << 20
	stall = time.Minute
)

// Handler serves outputs.
type Handler struct {
	Keys *Keys
	// Port is where it serves, which is part of what is signed.
	Port int
	// Root opens the directory that the application's containers share here. The handler closes it.
	Root   func(app rm.ApplicationID) (*os.Root, error)
	Logger *slog.Logger
}

const pattern = "GET /mapOutput"

// Routes lists what the port does.
func Routes() []security.Route {
	return []security.Route{{Port: "node manager shuffle", Name: pattern, Right: security.JobToken}}
}

// mapID is the name of a map's attempt, which is that of a directory: attempt_1790000000000_0001_m_000003_0. Those of other
// engines that use the service look different, but have no other characters.
var mapID = regexp.MustCompile(`^[A-Za-z0-9_]{1,200}$`)

// request is what is asked for.
type request struct {
	app    rm.ApplicationID
	reduce int
	maps   []string
}

func parse(r *http.Request) (request, error) {
	if r.Header.Get(headerName) != name || r.Header.Get(headerVersion) != version {
		return request{}, fmt.Errorf("incompatible shuffle request version: this is %s %s", name, version)
	}
	q := r.URL.Query()
	if len(q["job"]) != 1 || len(q["reduce"]) != 1 || len(q["map"]) == 0 {
		return request{}, errors.New("one job, one reduce and its maps are required")
	}
	app, ok := strings.CutPrefix(q.Get("job"), "job_")
	id, err := rm.ParseApplicationID("application_" + app)
	if !ok || err != nil {
		return request{}, fmt.Errorf("bad job parameter: %.100q is no job of YARN", q.Get("job"))
	}
	reduce, err := strconv.ParseInt(q.Get("reduce"), 10, 31)
	if err != nil || reduce < 0 || reduce >= maxReduces {
		return request{}, fmt.Errorf("bad reduce parameter: %.100q is no number from 0 to %d", q.Get("reduce"), maxReduces-1)
	}
	out := request{app: id, reduce: int(reduce)}
	for _, list := range q["map"] {
		out.maps = append(out.maps, strings.Split(list, ",")...)
	}
	if len(out.maps) > maxMaps {
		return request{}, fmt.Errorf("%d maps, the most are %d", len(out.maps), maxMaps)
	}
	for _, m := range out.maps {
		if !mapID.MatchString(m) {
			return request{}, fmt.Errorf("%.100q is no map", m)
		}
	}
	return out, nil
}

// sign is base64 of the HMAC of a text.
func sign(password []byte, text string) string {
	h := hmac.New(sha1.New, password)
	io.WriteString(h, text)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc(pattern, h.outputs)
	mux.ServeHTTP(w, r)
}

func (h *Handler) outputs(w http.ResponseWriter, r *http.Request) {
	q, err := parse(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	shown := r.Header.Get(headerHash)
	text := strconv.Itoa(h.Port) + r.URL.EscapedPath() + "?" + r.URL.RawQuery
	password, busy := h.Keys.enter(q.app, func(password []byte) bool {
		return hmac.Equal([]byte(sign(password, text)), []byte(shown))
	})
	switch {
	case busy:
		w.Header().Set("Retry-After", "1000") // milliseconds, as Hadoop's fetchers take it
		http.Error(w, "the job has too many requests here", http.StatusTooManyRequests)
		return
	case password == nil: // whether the job is known or not
		http.Error(w, "the request is not signed with the token of a job that has outputs here", http.StatusUnauthorized)
		return
	}
	defer h.Keys.leave(q.app)
	if err := h.send(w, q, sign(password, shown)); err != nil {
		h.Logger.Warn("outputs of maps are not served", "application", q.app, "reduce", q.reduce, "error", err)
	}
}

// send answers a request that is signed. Everything is looked for before anything is sent, because an answer that has begun can
// only break.
func (h *Handler) send(w http.ResponseWriter, q request, reply string) error {
	var total int64
	var parts []part
	root, err := h.Root(q.app)
	if err == nil {
		defer root.Close()
		for _, m := range q.maps {
			var p part
			if p, err = find(root, m, q.reduce); err != nil {
				break
			}
			parts = append(parts, p)
			total += int64(len(p.header)) + p.length
		}
	}
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, fs.ErrNotExist) {
			status = http.StatusNotFound
		}
		http.Error(w, err.Error(), status)
		return err
	}
	head := w.Header()
	head.Set(headerName, name)
	head.Set(headerVersion, version)
	head.Set(headerReply, reply)
	head.Set("Content-Type", "application/octet-stream")
	head.Set("Content-Length", strconv.FormatInt(total, 10))
	control := http.NewResponseController(w)
	for _, p := range parts {
		if err := p.write(w, root, func() error { return control.SetWriteDeadline(time.Now().Add(stall)) }); err != nil {
			control.SetWriteDeadline(time.Now()) //nolint:errcheck // the connection is closed in any case
			panic(http.ErrAbortHandler)          // what was announced does not come
		}
	}
	return control.SetWriteDeadline(time.Time{}) // for the next request of the connection
}

// write sends the header and the bytes of a part. late is called before each step.
func (p part) write(w io.Writer, root *os.Root, late func() error) error {
	f, size, err := open(root, p.data)
	if err != nil {
		return err
	}
	defer f.Close()
	if size < p.start+p.length {
		return io.ErrUnexpectedEOF
	}
	if _, err := f.Seek(p.start, io.SeekStart); err != nil {
		return err
	}
	if err := late(); err != nil {
		return err
	}
	if _, err := w.Write(p.header); err != nil {
		return err
	}
	for left := p.length; left > 0; {
		n := min(left, step)
		if err := late(); err != nil {
			return err
		}
		if _, err := io.CopyN(w, f, n); err != nil {
			return err
		}
		left -= n
	}
	return nil
}
