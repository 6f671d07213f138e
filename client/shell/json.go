package shell

import (
	"context"
	"encoding/json"
)

// With -o json, -ls, -find, -stat, -du, -count and -watch print one JSON object per line, for programs: sizes in bytes, times in
// milliseconds since 1970.

// listed are the verbs that have -o json. Hadoop's shell has it nowhere.
var listed = []string{"ls", "find", "stat", "du", "count", "watch"}

// entry is a file or directory.
type entry struct {
	Path        string `json:"path"`
	Type        string `json:"type"` // file or directory
	Length      int64  `json:"length"`
	Mode        string `json:"mode"`
	Owner       string `json:"owner"`
	Group       string `json:"group"`
	Modified    int64  `json:"modified"`
	Accessed    int64  `json:"accessed"`
	Replication int    `json:"replication"`
	BlockSize   int64  `json:"block_size"`
	ACL         bool   `json:"acl"`
}

// usage is what a path holds, and what it takes with all replicas.
type usage struct {
	Path     string `json:"path"`
	Length   int64  `json:"length"`
	Consumed int64  `json:"consumed"`
}

// counted is what is below a path. A quota of -1 is none.
type counted struct {
	Path        string `json:"path"`
	Directories int64  `json:"directories"`
	Files       int64  `json:"files"`
	Length      int64  `json:"length"`
	Consumed    int64  `json:"consumed"`
	Quota       int64  `json:"quota"`
	SpaceQuota  int64  `json:"space_quota"`
}

func entryOf(it item) entry {
	st := it.status
	kind := "file"
	if it.isDir() {
		kind = "directory"
	}
	return entry{
		it.shown, kind, st.Length, st.Mode.String(), st.Owner, st.Group, int64(st.MTime), int64(st.ATime), int(st.Replication), st.BlockSize, st.ACL,
	}
}

func (s *Shell) encode(v any) error { return json.NewEncoder(s.out).Encode(v) }

// lsJSON is -ls -o json: what is in directories, with -d these themselves, with -R all that is below.
func (s *Shell) lsJSON(ctx context.Context, words []string) error {
	var visit func(it item) error
	visit = func(it item) error {
		items, err := s.children(ctx, it)
		if err != nil {
			return err
		}
		for _, child := range items {
			if err := s.encode(entryOf(child)); err != nil {
				return err
			}
			if s.option("R") && child.isDir() {
				if err := visit(child); err != nil {
					s.report(err)
				}
			}
		}
		return ctx.Err()
	}
	return s.each(ctx, words, func(it item) error {
		if it.isDir() && !s.option("d") {
			return visit(it)
		}
		return s.encode(entryOf(it))
	})
}
