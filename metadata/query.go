package metadata

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Query says which files and directories are looked for, in an index. Conditions hold all at once; a query without any finds everything below Path.
type Query struct {
	// Path is the directory at and below which is looked; required, and absolute.
	Path string
	// Name is a pattern of the last name of the path: * ? [abc] [a-z] [^a], with \ before what is meant literally. Empty: any. Fold: capitals and
	// small letters are the same.
	Name string
	Fold bool
	// Tags are extended attributes of the namespace user that have to be there; MaxQueryTags at most.
	Tags []TagCondition
	// Min and Max are how many bytes a file has at least and at most; directories have no size. Nil: any, and directories, too.
	Min, Max *int64
	// Files and Directories: only these. Both or none: either.
	Files, Directories bool
	// Limit is how many are wanted at most; 0: DefaultQueryLimit, more than MaxQueryLimit: as many as that.
	Limit int
	// Cursor is FoundPage.Next of the page before, of the same query; empty for the first one.
	Cursor string
}

// TagCondition is a tag that has to be there. Name is without "user.".
type TagCondition struct {
	Name string
	// Value is what it has to be; nil: anything.
	Value *string
}

// ParseTag reads a condition as commands and requests have it: name=value, or the name alone for any value.
func ParseTag(text string) TagCondition {
	name, value, valued := strings.Cut(text, "=")
	c := TagCondition{Name: strings.TrimPrefix(name, "user.")}
	if valued {
		c.Value = &value
	}
	return c
}

// The limits of a query.
const (
	DefaultQueryLimit = 100
	MaxQueryLimit     = 1000
	MaxQueryTags      = 16
)

// Found is a file or a directory that was found.
type Found struct {
	FileStatus // Path is set
	// XAttrs are those that the caller may read.
	XAttrs []XAttr
}

// Size is about how many bytes it takes in an answer, and in memory.
func (f *Found) Size() int64 {
	bytes := 200 + int64(len(f.Path)+len(f.Owner)+len(f.Group))
	for _, a := range f.XAttrs {
		bytes += int64(len(a.Name)+len(a.Value)) + 16
	}
	return bytes
}

// FoundPage is a page of what a query has found, in an order of the index. What changes while pages are read may be in two of them or in none.
type FoundPage struct {
	Found []Found `json:"found"`
	// Next is where to go on; empty: that was all. A page may have nothing and lead on even so: a request does only so much work.
	Next string `json:"next,omitempty"`
	// Position of the feed up to which the index was: changes in front of it are taken into account. What is gone or has moved since, or is no longer for
	// the caller to see, is left out, or told of as it is.
	Position Position `json:"position"`
	// Looked is how many entries of the index were looked at. Superusers are told, others could count with it what they may not see: 0.
	Looked int `json:"looked,omitempty"`
}

// Size is about how many bytes the page takes in an answer.
func (p *FoundPage) Size() (bytes int64) {
	for i := range p.Found {
		bytes += p.Found[i].Size()
	}
	return bytes
}

// MarshalJSON is the form on REST and in the output of commands (docs/reference/rest.md). Tags are the extended attributes of users, without "user."; times
// are milliseconds since 1970.
func (f Found) MarshalJSON() ([]byte, error) {
	tags := map[string]string{}
	for _, a := range f.XAttrs {
		if a.Namespace == XAttrUser {
			tags[a.Name] = string(a.Value)
		}
	}
	kind := "FILE"
	if f.IsDir() {
		kind = "DIRECTORY"
	}
	return json.Marshal(struct {
		Path   string            `json:"path"`
		INode  INodeID           `json:"inode"`
		Type   string            `json:"type"`
		Length int64             `json:"length"`
		Owner  string            `json:"owner"`
		Group  string            `json:"group"`
		Mode   string            `json:"permission"`
		MTime  Time              `json:"modificationTime"`
		Tags   map[string]string `json:"tags"`
	}{f.Path, f.ID, kind, f.Length, f.Owner, f.Group, strconv.FormatUint(uint64(f.Mode), 8), f.MTime, tags})
}
