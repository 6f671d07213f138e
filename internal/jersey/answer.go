package jersey

import (
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The media types of answers, as Jersey writes them.
const (
	JSONType = "application/json;charset=utf-8"
	XMLType  = "application/xml; charset=utf-8"
)

// Media is what a caller takes of what a resource has.
type Media int

// What a caller takes.
const (
	None Media = iota
	JSON
	XML
)

// Wants chooses between JSON and XML by the header Accept; JSON when both are as good, None when neither is taken.
func Wants(r *http.Request) Media {
	accept := r.Header.Values("Accept")
	if len(accept) == 0 {
		return JSON
	}
	asJSON, asXML := quality(accept, "application", "json"), quality(accept, "application", "xml")
	switch {
	case asJSON <= 0 && asXML <= 0:
		return None
	case asXML > asJSON:
		return XML
	}
	return JSON
}

// Takes says whether a caller takes a type, text/plain for example.
func Takes(r *http.Request, kind, subtype string) bool {
	accept := r.Header.Values("Accept")
	return len(accept) == 0 || quality(accept, kind, subtype) > 0
}

// quality is 0 to 1: how much a caller wants a type; the most specific range counts.
func quality(accept []string, kind, subtype string) float64 {
	best, how := 0.0, -1
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			t, parameters, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			specific := -1
			switch t {
			case kind + "/" + subtype:
				specific = 2
			case kind + "/*":
				specific = 1
			case "*/*", "*":
				specific = 0
			}
			if specific <= how {
				continue
			}
			q := 1.0
			if text := parameters["q"]; text != "" {
				if q, err = strconv.ParseFloat(text, 64); err != nil {
					continue
				}
			}
			best, how = q, specific
		}
	}
	return best
}

// Headers sets those that every answer has.
func Headers(h http.Header) {
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	h["X-FRAME-OPTIONS"] = []string{"SAMEORIGIN"}
	h.Set("X-XSS-Protection", "1; mode=block")
	h.Add("Vary", "Accept-Encoding")
}

// Write answers with an object, in JSON or XML as the caller takes it; a caller that takes neither gets YARN's error for that.
func Write(w http.ResponseWriter, r *http.Request, code int, o Object) {
	media := Wants(r)
	if media == None {
		Unservable(w, r)
		return
	}
	write(w, media, code, o)
}

func write(w http.ResponseWriter, media Media, code int, o Object) {
	kind, encode := JSONType, o.JSON
	if media == XML {
		kind, encode = XMLType, o.XML
	}
	b, err := encode()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	w.Write(b)
}

// Exception is YARN's envelope of an error (GenericExceptionHandler); the order of its members is YARN's.
type Exception struct {
	Name    string `json:"exception"`
	Message string `json:"message,omitempty"`
	Class   string `json:"javaClassName"`
}

// Fail answers with an exception. (Stock YARN answers 500 and nothing to who takes only XML: here it is the same error in XML.) Who takes
// neither JSON nor XML gets an HTML page with status 500, as there.
func Fail(w http.ResponseWriter, r *http.Request, code int, e Exception) {
	if media := Wants(r); media != None {
		write(w, media, code, Object{"RemoteException", Natural, e})
		return
	}
	w.Header().Set("Content-Type", "text/html;charset=utf-8")
	w.WriteHeader(http.StatusInternalServerError)
	io.WriteString(w, "<!DOCTYPE html><html><head><title>Error 500</title></head><body><h1>Error 500</h1>"+
		"<p>Ask for application/json or application/xml (header Accept).</p></body></html>\n")
}

// Unservable answers a method, an Accept or a Content-Type that cannot be served at a path: 503, not 405, 406 or 415.
func Unservable(w http.ResponseWriter, r *http.Request) {
	Fail(w, r, http.StatusServiceUnavailable, Exception{"WebApplicationException", "", "javax.ws.rs.WebApplicationException"})
}

// BadRequest answers 400; message begins with the Java class of what was thrown.
func BadRequest(w http.ResponseWriter, r *http.Request, message string) {
	Fail(w, r, http.StatusBadRequest, Exception{"BadRequestException", message, "org.apache.hadoop.yarn.webapp.BadRequestException"})
}

// NotFound answers 404.
func NotFound(w http.ResponseWriter, r *http.Request, message string) {
	Fail(w, r, http.StatusNotFound, Exception{"NotFoundException", message, "org.apache.hadoop.yarn.webapp.NotFoundException"})
}

// Text answers with plain text under the media type of what was asked for, as YARN does with a Response whose entity is a String.
func Text(w http.ResponseWriter, r *http.Request, code int, text string) {
	kind := JSONType
	if Wants(r) == XML {
		kind = XMLType
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	io.WriteString(w, text)
}

// Timeout is how YARN writes the time at which an application is ended (Times.formatISO8601).
const Timeout = "2006-01-02T15:04:05.000-0700"

// FileTime is how YARN writes the times of log files (Times.format).
func FileTime(t time.Time) string { return t.UTC().Format("Mon Jan 02 15:04:05 -0700 2006") }

// Date is java.util.Date's text.
func Date(t time.Time) string { return t.UTC().Format("Mon Jan 02 15:04:05 UTC 2006") }

// compressed is an answer that is packed on its way.
type compressed struct {
	http.ResponseWriter
	pack *gzip.Writer
	// plain: what follows goes as it is: a status without a body, or one that is packed already.
	plain, begun bool
	// code is a status that is held back until it is known whether a body follows; 0: none is.
	code int
}

// Compress has an answer packed when its caller asks for that; done must be called at the end.
func Compress(w http.ResponseWriter, r *http.Request) (_ http.ResponseWriter, done func()) {
	if r.Method == http.MethodHead || !asksGzip(r) {
		return w, func() {}
	}
	c := &compressed{ResponseWriter: w}
	return c, func() {
		if c.pack != nil {
			c.pack.Close() // a caller that is gone asks again
		}
		c.send(false)
	}
}

func asksGzip(r *http.Request) bool {
	for _, line := range r.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(line, ",") {
			name, parameters, _ := strings.Cut(strings.TrimSpace(part), ";")
			q := strings.TrimSpace(parameters)
			if strings.EqualFold(name, "gzip") && q != "q=0" && q != "q=0.0" {
				return true
			}
		}
	}
	return false
}

// WriteHeader implements http.ResponseWriter.
func (c *compressed) WriteHeader(code int) {
	if !c.begun && code >= 200 {
		c.begun = true
		c.plain = code == http.StatusNoContent || code == http.StatusNotModified || code >= 300 && code < 400 || c.Header().Get("Content-Encoding") != ""
		if !c.plain {
			c.code = code
			return
		}
	}
	c.ResponseWriter.WriteHeader(code)
}

// send sends the status that is held back. An answer without a body is not packed: it stays one without, and says so.
func (c *compressed) send(body bool) {
	if c.code == 0 {
		return
	}
	if body {
		h := c.Header()
		h.Del("Content-Length")
		h.Set("Content-Encoding", "gzip")
		c.pack = gzip.NewWriter(c.ResponseWriter)
	}
	c.ResponseWriter.WriteHeader(c.code)
	c.code = 0
}

// Write implements http.ResponseWriter.
func (c *compressed) Write(b []byte) (int, error) {
	if !c.begun {
		c.WriteHeader(http.StatusOK)
	}
	if c.plain {
		return c.ResponseWriter.Write(b)
	}
	if len(b) == 0 && c.pack == nil {
		return 0, nil
	}
	c.send(true)
	return c.pack.Write(b)
}

// Flush implements http.Flusher.
func (c *compressed) Flush() {
	if !c.begun {
		c.WriteHeader(http.StatusOK)
	}
	c.send(true) // more follows
	if c.pack != nil {
		c.pack.Flush()
	}
	_ = http.NewResponseController(c.ResponseWriter).Flush() // one that cannot has nothing to flush
}

// Unwrap lets deadlines through.
func (c *compressed) Unwrap() http.ResponseWriter { return c.ResponseWriter }
