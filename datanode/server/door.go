package server

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/datanode/transfer"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
)

// webhdfsPrefix is in front of every path of WebHDFS.
const webhdfsPrefix = "/webhdfs/v1"

// bodySilence is how long the body of an upload may pause, or a reader of a download take nothing.
const bodySilence = 2 * time.Minute

// route serves the datanode's HTTP port. It is no ServeMux: that would redirect paths it finds unclean.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 { // also one that nobody asked for is waited for, but not for ever
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodySilence))
	}
	switch {
	case strings.HasPrefix(r.URL.Path, webhdfsPrefix+"/") || r.URL.Path == webhdfsPrefix:
		s.door(w, r)
	default:
		s.pages.ServeHTTP(w, r)
	}
}

// door is the second step of WebHDFS's data operations: the namenode has redirected here. The datanode acts as the
// requesting user, with the file system's own client: permissions are the namenode's to check.
func (s *Server) door(w http.ResponseWriter, r *http.Request) {
	q := query(r.URL.Query())
	op := strings.ToUpper(q["op"])
	if r.Method == http.MethodOptions {
		allow(w, "PUT")
		w.Header().Set("Access-Control-Allow-Headers", "Accept")
		w.Header().Set("Access-Control-Max-Age", "1728000")
		w.Header().Set("Content-Length", "0")
		return
	}
	path := strings.TrimPrefix(r.URL.Path, webhdfsPrefix)
	if path == "" {
		path = "/"
	}
	err := func() error {
		caller, bearer, err := s.who(r, q)
		if err != nil {
			return err
		}
		if r.Method != http.MethodGet {
			if err := security.MayWrite(caller); err != nil {
				return err
			}
		}
		if r.Method == http.MethodPost && op == "READMANY" {
			return s.readMany(w, r, caller)
		}
		c, done, err := s.clients.get(caller.User, bearer)
		if err != nil {
			return err
		}
		defer done()
		request := &doorRequest{w: w, r: r, q: q, path: path, c: c}
		if serve := operations[r.Method+" "+op]; serve != nil {
			return serve(request)
		}
		return metadata.Errorf(metadata.ErrInvalidArgument, "Invalid value for webhdfs parameter \"op\": No enum constant %s %s on a datanode", r.Method, q["op"])
	}()
	if err != nil {
		drain(w, r)
		writeException(w, err)
		if !errors.Is(err, context.Canceled) {
			s.log.Info("WebHDFS request failed", "op", op, "path", path, "err", err)
		}
	}
}

// who is the caller: whom a delegation token is for, or whom the door knows. Whether the token is good the namenode says, which is asked
// before any data moves.
func (s *Server) who(r *http.Request, q params) (metadata.Caller, *token.Token, error) {
	if q["delegation"] == "" {
		caller, err := s.cfg.Door.HTTPCaller(r)
		return caller, nil, err
	}
	t, err := token.ParseText(q["delegation"])
	if err != nil {
		return metadata.Caller{}, nil, metadata.Errorf(metadata.ErrToken, "delegation: %v", err)
	}
	id, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return metadata.Caller{}, nil, metadata.Errorf(metadata.ErrToken, "delegation: %v", err)
	}
	caller, err := s.cfg.Door.AuthenticatedRequest(r, id.Owner, id.RealUser)
	return caller, &t, err
}

// operations are WebHDFS's on data. Each is done as the caller, through the filesystem's own client.
var operations = map[string]func(*doorRequest) error{
	"PUT CREATE":          (*doorRequest).create,
	"POST APPEND":         (*doorRequest).append,
	"GET OPEN":            (*doorRequest).open,
	"GET GETFILECHECKSUM": (*doorRequest).checksum,
}

// Routes lists what the ports of a datanode do, and the right that each thing needs.
func Routes() []security.Route {
	out := transfer.Routes("datanode data transfer")
	for name := range operations {
		method, op, _ := strings.Cut(name, " ")
		out = append(out, security.Route{Port: "datanode HTTP", Name: method + " " + webhdfsPrefix + "/{path} op=" + op, Right: security.ByPath})
	}
	out = append(out,
		security.Route{Port: "datanode HTTP", Name: "POST " + webhdfsPrefix + "/{path} op=READMANY", Right: security.BlockToken},
		security.Route{Port: "datanode HTTP", Name: "OPTIONS " + webhdfsPrefix + "/{path}", Right: security.Open})
	s := &Server{cfg: Config{Door: security.NewDoor(security.Config{})}}
	out = append(out, s.newPages().Routes()...)
	out = append(out, s.ipcServer().Routes("datanode IPC")...)
	return append(out, security.Routes("datanode gRPC", services(nil, nil)...)...)
}

// drain reads what a client that does not wait for 100 Continue has under way, so that it gets to see the answer in place
// of a broken connection.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") == "" {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.CopyN(io.Discard, r.Body, 16<<20)
	}
}

type doorRequest struct {
	w    http.ResponseWriter
	r    *http.Request
	q    params
	path string
	c    *dfs.Client
}

// params are the query's first values; names count without their case, empty and "null" values as absent.
type params map[string]string

func query(v url.Values) params {
	p := params{}
	for _, name := range slices.Sorted(maps.Keys(v)) { // of two spellings of a name always the same one counts
		lower, value := strings.ToLower(name), v.Get(name)
		if _, twice := p[lower]; !twice && value != "" && value != "null" {
			p[lower] = value
		}
	}
	return p
}

func badParameter(name, value string, err error) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, "Invalid value for webhdfs parameter %q: %q: %v", name, value, err)
}

func (p params) integer(name string, fallback, least int64) (int64, error) {
	v, ok := p[name]
	if !ok {
		return fallback, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err == nil && n < least {
		err = fmt.Errorf("is less than %d", least)
	}
	if err != nil {
		return 0, badParameter(name, v, err)
	}
	return n, nil
}

func (p params) boolean(name string, fallback bool) (bool, error) {
	v, ok := p[name]
	if !ok {
		return fallback, nil
	}
	b, err := strconv.ParseBool(strings.ToLower(v))
	if err != nil {
		return false, badParameter(name, v, errors.New("is neither true nor false"))
	}
	return b, nil
}

func (p params) permission(name string, fallback metadata.Mode) (metadata.Mode, error) {
	v, ok := p[name]
	if !ok {
		return fallback, nil
	}
	n, err := strconv.ParseUint(v, 8, 16)
	if err == nil && n > 0o1777 {
		err = errors.New("is more than 1777")
	}
	if err != nil {
		return 0, badParameter(name, v, err)
	}
	return metadata.Mode(n), nil
}

func allow(w http.ResponseWriter, methods string) {
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Access-Control-Allow-Methods", methods)
}

// create writes the body to a new file; 201 when the file is closed.
func (d *doorRequest) create() error {
	var o dfs.CreateOptions
	var replication int64
	var err error
	if o.Overwrite, err = d.q.boolean("overwrite", false); err != nil {
		return err
	}
	// The namenode has looked at the flags. Of the others, data is on the disk when a block is closed, as SYNC_BLOCK asks, which is more than LAZY_PERSIST, and the rest are hints. Below a
	// directory of that policy it is in memory.
	if flags := strings.Split(strings.ToUpper(d.q["createflag"]), ","); d.q["createflag"] != "" {
		o.Existing = !slices.Contains(flags, "CREATE")
		o.Overwrite = o.Overwrite || slices.Contains(flags, "OVERWRITE")
		o.LazyPersist = slices.Contains(flags, "LAZY_PERSIST") && !slices.Contains(flags, "SYNC_BLOCK")
	}
	if o.Parents, err = d.q.boolean("createparent", true); err != nil {
		return err
	}
	if o.BlockSize, err = d.q.integer("blocksize", 0, 1); err != nil {
		return err
	}
	if replication, err = d.q.integer("replication", 0, 1); err != nil {
		return err
	}
	o.Replication = int(min(replication, metadata.MaxReplication+1)) // above the limit is refused with HDFS's words
	masked, err := d.q.permission("permission", 0o644)
	if err != nil {
		return err
	}
	o.Masked = &masked
	if o.Mode, err = d.q.permission("unmaskedpermission", 0); err != nil {
		return err
	}
	ctx := d.r.Context()
	// What is announced as small comes at once, and need not be asked for before it is known whether it is taken.
	o.Late = d.r.ContentLength >= 0 && d.r.ContentLength <= metadata.MaxBody
	out, err := d.c.Create(ctx, d.path, o)
	if err != nil {
		return err
	}
	if err := d.copyBody(out); err != nil {
		if out.INode() == 0 { // nothing was made; there may be another file of that name
			out.Abort()
			return err
		}
		// Half a file is of no use, and its lease would keep others from writing it.
		out.Abort()
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if _, dropErr := d.c.Delete(clean, d.path, false); dropErr != nil {
			return fmt.Errorf("%w; and what was written of it could not be removed: %w", err, dropErr)
		}
		return err
	}
	if err := out.Close(); err != nil {
		out.Abort()
		return err
	}
	address := d.q["namenoderpcaddress"]
	if address == "" {
		address = d.c.Active()
	}
	allow(d.w, "PUT")
	d.w.Header().Set("Location", (&url.URL{Scheme: "hdfs", Host: address, Path: d.path}).String())
	d.w.Header().Set("Content-Length", "0")
	d.w.WriteHeader(http.StatusCreated)
	return nil
}

// append writes the body behind the end of a file; what arrived before a client broke off stays.
func (d *doorRequest) append() error {
	// The request's context ends when the client breaks off.
	out, err := dfs.Within(d.r.Context(), func(life context.Context) (*dfs.Writer, error) { return d.c.Append(life, d.path) })
	if err != nil {
		return err
	}
	copyErr := d.copyBody(out)
	if err := errors.Join(copyErr, out.Close()); err != nil {
		out.Abort() // does nothing if Close has succeeded
		return err
	}
	allow(d.w, "POST")
	d.w.Header().Set("Content-Length", "0")
	return nil
}

// copyBody copies the body, which Go asks for with 100 Continue where the client waits for that.
func (d *doorRequest) copyBody(out *dfs.Writer) error {
	_, err := out.ReadFrom(&body{r: d.r.Body, control: http.NewResponseController(d.w)})
	return err
}

// bodyFill is for how long Read of a body goes on to fill what it is given.
const bodyFill = 50 * time.Millisecond

// body is that of a request, with bodySilence's limit. What comes quickly is read together, because it is written together then.
type body struct {
	r       io.Reader
	control *http.ResponseController
	awaited time.Time // when the deadline was last moved
}

func (b *body) Read(p []byte) (int, error) {
	begun, n := time.Now(), 0
	for now := begun; n < len(p) && now.Sub(begun) < bodyFill; now = time.Now() {
		if now.Sub(b.awaited) > time.Second {
			b.awaited = now
			_ = b.control.SetReadDeadline(now.Add(bodySilence))
		}
		k, err := b.r.Read(p[n:])
		if n += k; err != nil {
			if !errors.Is(err, io.EOF) {
				err = fmt.Errorf("request body: %w", err)
			}
			return n, err
		}
	}
	return n, nil
}

// open sends a range of a file.
func (d *doorRequest) open() error {
	offset, err := d.q.integer("offset", 0, 0)
	if err != nil {
		return err
	}
	length, err := d.q.integer("length", -1, 0)
	if err != nil {
		return err
	}
	in, err := d.c.Open(d.r.Context(), d.path)
	if err != nil {
		return err
	}
	defer in.Close()
	size := in.Size()
	if offset > size || offset == size && size > 0 {
		return metadata.Errorf(metadata.ErrIO, "Offset=%d out of the range [0, %d); OPEN, path=%s", offset, size, d.path)
	}
	n := size - offset
	if length >= 0 {
		n = min(n, length)
	}
	if _, err := in.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	allow(d.w, "GET")
	h := d.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	h.Set("Connection", "close")
	if n == 0 {
		return nil
	}
	control := http.NewResponseController(d.w)
	buf := make([]byte, 256<<10)
	for sent := int64(0); sent < n; {
		k, err := in.Read(buf[:min(int64(len(buf)), n-sent)])
		if k == 0 && err != nil {
			if sent == 0 { // the status line is not out yet
				h.Del("Content-Length")
				return err
			}
			panic(http.ErrAbortHandler) // the client must see that the rest is missing
		}
		_ = control.SetWriteDeadline(time.Now().Add(bodySilence))
		if _, err := d.w.Write(buf[:k]); err != nil {
			return nil // the client has gone
		}
		sent += int64(k)
	}
	return nil
}

func (d *doorRequest) checksum() error {
	sum, err := d.c.Checksum(d.r.Context(), d.path)
	if err != nil {
		return err
	}
	if sum.Algorithm == "" {
		return metadata.Errorf(metadata.ErrUnsupported, "%s has no checksum: its blocks are checked in different ways, or not", d.path)
	}
	allow(d.w, "GET")
	// Java prints the whole buffer of 32 bytes, of which length counts.
	padded := append(slices.Clone(sum.Bytes), make([]byte, max(0, 32-len(sum.Bytes)))...)
	writeJSON(d.w, http.StatusOK, map[string]any{"FileChecksum": map[string]any{
		"algorithm": sum.Algorithm, "bytes": hex.EncodeToString(padded), "length": len(sum.Bytes),
	}})
	return nil
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	b, err := json.Marshal(body)
	if err != nil { // only values made here come in
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json;charset=utf-8") // a namenode leaves the character set out
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

// The classes that WebHDFS tells by their own status; everything else that is an IOException is 403.
var classStatus = map[string]int{
	"java.io.FileNotFoundException":                    http.StatusNotFound,
	"java.lang.IllegalArgumentException":               http.StatusBadRequest,
	"org.apache.hadoop.HadoopIllegalArgumentException": http.StatusBadRequest,
	"org.apache.hadoop.fs.InvalidPathException":        http.StatusBadRequest,
	"java.lang.UnsupportedOperationException":          http.StatusBadRequest,
}

// kindClass names the exception for errors that did not come from a namenode.
var kindClass = map[*metadata.Kind]string{
	metadata.ErrNotExist:        "java.io.FileNotFoundException",
	metadata.ErrInvalidArgument: "java.lang.IllegalArgumentException",
	metadata.ErrInvalidPath:     "org.apache.hadoop.fs.InvalidPathException",
	metadata.ErrUnsupported:     "java.lang.UnsupportedOperationException",
	metadata.ErrPermission:      "org.apache.hadoop.security.AccessControlException",
	metadata.ErrUnauthorized:    "java.lang.SecurityException",
	metadata.ErrToken:           "org.apache.hadoop.security.token.SecretManager$InvalidToken",
	metadata.ErrExist:           "org.apache.hadoop.fs.FileAlreadyExistsException",
	metadata.ErrStandby:         "org.apache.hadoop.ipc.StandbyException",
	metadata.ErrRetriable:       "org.apache.hadoop.ipc.RetriableException",
}

// writeException answers with Hadoop's RemoteException.
func writeException(w http.ResponseWriter, err error) {
	kind := metadata.KindOf(err)
	class, message := kindClass[kind], err.Error()
	if e, ok := errors.AsType[*dfs.Error](err); ok {
		switch {
		case e.Class != "":
			class = e.Class
		case kind == metadata.ErrInvalidArgument: // the client's own opinion, as Java's client would have it
			class = "org.apache.hadoop.HadoopIllegalArgumentException"
		}
		if e.Message != "" {
			message = e.Message
		}
	}
	if class == "" {
		class = "java.io.IOException"
	}
	code, ok := classStatus[class]
	if !ok {
		code = http.StatusForbidden
	}
	name := class[strings.LastIndexAny(class, ".$")+1:]
	writeJSON(w, code, map[string]any{"RemoteException": map[string]any{"exception": name, "javaClassName": class, "message": message}})
}
