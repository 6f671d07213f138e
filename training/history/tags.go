package history

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training/store"
)

// Tags and notes are extended attributes of a directory, of an experiment's or a model's: each is set by itself and
// atomically, so that two who write at once do not undo each other. docs/reference/models.md.
const (
	tagPrefix     = "hops.tag."
	noteAttribute = "hops.note"
	// MaxNote and MaxTag are the longest texts, in bytes; with their names they stay below HDFS's 16 KiB.
	MaxNote = 16000
	MaxTag  = 8 << 10
)

var tagKey = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,100}$`)

// Tags reads the tags and the note of a directory.
func Tags(ctx context.Context, f store.FS, dir string) (tags map[string]string, note string, err error) {
	all, err := f.Attributes(ctx, dir)
	if err != nil {
		return nil, "", err
	}
	tags = map[string]string{}
	for name, v := range all {
		if key, ok := strings.CutPrefix(name, tagPrefix); ok {
			tags[key] = v
		}
	}
	return tags, all[noteAttribute], nil
}

// SetTag sets one tag.
func SetTag(ctx context.Context, f store.FS, dir, key, v string) error {
	if !tagKey.MatchString(key) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "tag %.120q: a key is 1 to 100 of letters, digits and _ . - /", key)
	}
	if len(v) > MaxTag {
		return metadata.Errorf(metadata.ErrInvalidArgument, "tag %s: its value has %d bytes, at most %d", key, len(v), MaxTag)
	}
	if err := f.SetAttribute(ctx, dir, tagPrefix+key, v); err != nil {
		if strings.Contains(err.Error(), "would exceed limit") {
			return fmt.Errorf("tag %s: %s has as many attributes as a directory takes, %d: remove a tag first: %w", key, dir, metadata.MaxXAttrs, err)
		}
		return fmt.Errorf("tag %s: %w", key, err)
	}
	return nil
}

// RemoveTag takes a tag away; one that is not there is fine.
func RemoveTag(ctx context.Context, f store.FS, dir, key string) error {
	if !tagKey.MatchString(key) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%.120q is no key of a tag", key)
	}
	return f.RemoveAttribute(ctx, dir, tagPrefix+key)
}

// SetNote replaces the note; an empty one is taken away.
func SetNote(ctx context.Context, f store.FS, dir, text string) error {
	if len(text) > MaxNote {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the note has %d bytes, at most %d fit into an attribute; write longer texts into a file beside", len(text), MaxNote)
	}
	if text == "" {
		return f.RemoveAttribute(ctx, dir, noteAttribute)
	}
	return f.SetAttribute(ctx, dir, noteAttribute, text)
}

// Names of the files that only history reads.
const (
	EnvironmentName = "environment.json"
	DataName        = "data.json"
)

// Recorded reads what an experiment's directory holds beside the result: environment, versions of data, tags, note. What was
// never written stays empty.
func (r *Record) Recorded(ctx context.Context, f store.FS) error {
	var err error
	if r.Tags, r.Note, err = Tags(ctx, f, r.Directory); err != nil {
		return err
	}
	if err := readJSON(ctx, f, path.Join(r.Directory, EnvironmentName), &r.Environment); err != nil {
		return err
	}
	return readJSON(ctx, f, path.Join(r.Directory, DataName), &r.Data)
}

func readJSON(ctx context.Context, f store.FS, name string, into any) error {
	text, err := store.ReadFile(ctx, f, name)
	if store.Missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
