package resourcemanager

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/gohops/hops/metadata"
)

// QueueAt finds the words of the queue at a full path; false: there is none.
func (c QueueConfig) QueueAt(path string) (QueueConfig, bool) {
	words := strings.Split(path, ".")
	if words[0] != "root" {
		return QueueConfig{}, false
	}
	for _, w := range words[1:] {
		child, ok := c.Children[w]
		if !ok {
			return QueueConfig{}, false
		}
		c = child
	}
	return c, true
}

// Edit is the tree with the queue at a full path as f makes it; one that there is not yet is made, if its parent is there. f returns
// false to take it away.
//
// Errors: metadata.ErrInvalidArgument for the root's removal; metadata.ErrNotExist for a queue without a parent; and f's own.
func (c QueueConfig) Edit(path string, f func(q QueueConfig, exists bool) (QueueConfig, bool, error)) (QueueConfig, error) {
	first, rest, below := strings.Cut(path, ".")
	if first != "root" {
		return c, metadata.Errorf(metadata.ErrNotExist, "there is no queue %q: paths begin with root", path)
	}
	if !below {
		next, keep, err := f(c, true)
		if err == nil && !keep {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "the queue root stays")
		}
		return next, err
	}
	return c.edit("root", rest, f)
}

func (c QueueConfig) edit(at, path string, f func(QueueConfig, bool) (QueueConfig, bool, error)) (QueueConfig, error) {
	name, rest, below := strings.Cut(path, ".")
	child, exists := c.Children[name]
	keep := true
	var err error
	if below {
		if !exists {
			return c, metadata.Errorf(metadata.ErrNotExist, "there is no queue %q", at+"."+name)
		}
		child, err = child.edit(at+"."+name, rest, f)
	} else {
		child, keep, err = f(child, exists)
	}
	if err != nil {
		return c, err
	}
	if c.Children = maps.Clone(c.Children); c.Children == nil {
		c.Children = map[string]QueueConfig{}
	}
	if keep {
		c.Children[name] = child
	} else {
		delete(c.Children, name)
	}
	return c, nil
}

// Patch is the queue with a JSON merge patch (RFC 7396) of its words: null takes a word back to its default.
func (c QueueConfig) Patch(patch []byte) (QueueConfig, error) {
	var changes map[string]any
	if err := json.Unmarshal(patch, &changes); err != nil || changes == nil {
		return c, metadata.Errorf(metadata.ErrInvalidArgument, "a change of a queue is an object of its words, as {\"capacity\": \"40%%\"}")
	}
	var words any
	if err := json.Unmarshal(c.Document(), &words); err != nil {
		return c, err
	}
	merged, err := json.Marshal(merge(words, changes))
	if err != nil {
		return c, err
	}
	next, err := ParseQueueConfig(merged)
	if err != nil {
		return c, fmt.Errorf("%w: %w", metadata.ErrInvalidArgument, err)
	}
	return next, nil
}

// merge is RFC 7396.
func merge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	object, ok := target.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	for name, value := range changes {
		if value == nil {
			delete(object, name)
		} else {
			object[name] = merge(object[name], value)
		}
	}
	return object
}
