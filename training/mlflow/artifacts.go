package mlflow

import (
	"context"
	"io"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training/store"
)

// Artifacts are files. What clients call mlflow-artifacts:/… is
//
//	mlflow-artifacts:/<experiment>/<run>/artifacts/…   in the endpoint's directory, below artifacts/
//	mlflow-artifacts:/searches/<search>/<trial>/…      the directory of a trial, to be read
//	mlflow-artifacts:/models/<name>/<version>/…        a version in the registry, to be read
const (
	artifactScheme = "mlflow-artifacts:"
	searchesDir    = "searches"
	modelsDir      = "models"
	artifactsDir   = "artifacts"
	// maxArtifact bounds one file, in bytes.
	maxArtifact = 1 << 40
)

// unfinishedPrefix is how the name of a file begins that is being sent.
const unfinishedPrefix = ".upload-"

// place is the path of an artifact in the filesystem. A path that leads elsewhere is refused.
func (h *Server) place(ctx context.Context, name string, write bool) (string, error) {
	name = strings.Trim(name, "/")
	if name == "" {
		return "", errorf(badValue, "the artifact has no path")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "\x00\\") || strings.HasPrefix(part, unfinishedPrefix) {
			return "", errorf(badValue, "Invalid path: '%.200s' leads elsewhere", name)
		}
	}
	top, rest, _ := strings.Cut(name, "/")
	switch top {
	case searchesDir, modelsDir:
		if write {
			return "", errorf(denied, "%s can be read here, not written", name)
		}
		if top == modelsDir {
			return path.Join(h.registry.Root(), rest), nil
		}
		id, rest, _ := strings.Cut(rest, "/")
		if !searchID.MatchString(id) || h.Searches == nil {
			return "", errorf(missing, "there is no search %s", id)
		}
		s, err := h.Searches.Get(ctx, id)
		if err != nil {
			return "", err
		}
		return path.Join(s.Directory, rest), nil
	}
	return path.Join(Directory(h.Project), artifactsDir, name), nil
}

func (h *Server) artifactRoutes(root string) {
	h.mux.HandleFunc("GET "+root, func(w http.ResponseWriter, r *http.Request) {
		h.answer(func(ctx context.Context, _ *query) (any, error) {
			files, err := h.list(ctx, r.URL.Query().Get("path"), "")
			return object{"files": files}, err
		})(w, r)
	})
	h.mux.HandleFunc("GET "+root+"/{name...}", h.download)
	h.mux.HandleFunc("PUT "+root+"/{name...}", func(w http.ResponseWriter, r *http.Request) {
		if err := h.upload(r); err != nil {
			h.fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	})
	h.mux.HandleFunc("DELETE "+root+"/{name...}", func(w http.ResponseWriter, r *http.Request) {
		name, err := h.place(r.Context(), r.PathValue("name"), true)
		if err == nil {
			err = h.Files.Delete(r.Context(), name)
		}
		if err != nil {
			h.fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	})
}

// under is the path of an artifact below the root of a run or a logged model. What leads out of it is refused.
func under(root, below string) (string, error) {
	if slices.Contains(strings.Split(below, "/"), "..") {
		return "", errorf(badValue, "Invalid path: '%.200s' leads elsewhere", below)
	}
	return path.Join(strings.TrimPrefix(root, artifactScheme+"/"), below), nil
}

// fileInfo is an entry of a listing, with its path behind that of the directory asked for.
type fileInfo struct {
	Path  string `json:"path"`
	IsDir bool   `json:"is_dir"`
	Size  *int64 `json:"file_size,omitempty"`
}

// list lists a directory of artifacts. prefix stands before the names. What is not there is empty: nothing was logged.
func (h *Server) list(ctx context.Context, name, prefix string) ([]fileInfo, error) {
	out := []fileInfo{}
	dir, err := h.place(ctx, name, false)
	if err != nil {
		return nil, err
	}
	entries, err := h.Files.List(ctx, dir)
	if store.Missing(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, s := range entries {
		if s.Name == "" || strings.HasPrefix(s.Name, unfinishedPrefix) { // a file lists itself without a name
			continue
		}
		f := fileInfo{Path: path.Join(prefix, s.Name), IsDir: s.IsDir()}
		if !s.IsDir() {
			f.Size = new(s.Length)
		}
		out = append(out, f)
	}
	return out, nil
}

// listArtifacts lists those of a run, by paths relative to its root.
func (h *Server) listArtifacts(ctx context.Context, q *query) (any, error) {
	r, err := read(q)
	if err != nil {
		return nil, err
	}
	v, err := h.view(ctx, r.run())
	if err != nil {
		return nil, err
	}
	below := strings.Trim(r.Path, "/")
	at, err := under(v.Artifacts, below)
	if err != nil {
		return nil, err
	}
	files, err := h.list(ctx, at, below)
	return object{"root_uri": v.Artifacts, "files": files}, err
}

func (h *Server) download(w http.ResponseWriter, r *http.Request) {
	name, err := h.place(r.Context(), r.PathValue("name"), false)
	var s metadata.FileStatus
	if err == nil {
		s, err = h.Files.Stat(r.Context(), name)
	}
	if err == nil && s.IsDir() {
		err = errorf(badValue, "%s is a directory", r.PathValue("name"))
	}
	if err != nil {
		h.fail(w, err)
		return
	}
	f, err := h.Files.Open(r.Context(), name, 0)
	if err != nil {
		h.fail(w, err)
		return
	}
	defer f.Close()
	kind := mime.TypeByExtension(path.Ext(name))
	if kind == "" {
		kind = "application/octet-stream"
	}
	// Whatever was logged must not run as a page of this server.
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Security-Policy", "sandbox")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
	w.Header().Set("Content-Length", strconv.FormatInt(s.Length, 10))
	if _, err := io.CopyN(w, f, s.Length); err != nil {
		panic(http.ErrAbortHandler) // the length was promised: the connection has to break
	}
}

// upload stores a file: it is there whole or not at all.
func (h *Server) upload(r *http.Request) error {
	name, err := h.place(r.Context(), r.PathValue("name"), true)
	if err != nil {
		return err
	}
	tmp := path.Join(path.Dir(name), unfinishedPrefix+uuid.NewString())
	n, err := store.WriteFile(r.Context(), h.Files, tmp, &limited{r.Body, maxArtifact}, false)
	if err == nil && r.ContentLength >= 0 && n != r.ContentLength {
		err = errorf(badRequest, "%d of %d bytes arrived", n, r.ContentLength)
		_ = h.Files.Delete(context.WithoutCancel(r.Context()), tmp)
	}
	if err != nil {
		return err
	}
	return h.Files.Replace(r.Context(), tmp, name)
}

// limited refuses what is too long.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, &Error{badValue, "an artifact has at most " + itoa(maxArtifact) + " bytes"}
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
