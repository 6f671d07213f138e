package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/gohops/hops/training"
)

// node is a JSON value that remembers the order of its keys, where it stands, and which of its keys were read: those that nobody
// asked for are told at the end.
type node struct {
	path   string
	scalar json.RawMessage // of anything but an object or a list
	keys   []string        // of an object
	fields map[string]*node
	items  []*node // of a list
	list   bool
	read   bool
}

// maxDepth bounds the nesting of a document.
const maxDepth = 50

func parse(text []byte) (*node, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return build(d, "", 0)
}

func build(d *json.Decoder, path string, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: nested more than %d deep", path, maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	n := &node{path: path}
	switch t {
	case json.Delim('{'):
		n.fields = map[string]*node{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name := key.(string) // the decoder yields only strings as keys
			at := name
			if path != "" {
				at = path + "." + name
			}
			if n.fields[name] == nil {
				n.keys = append(n.keys, name)
			}
			if n.fields[name], err = build(d, at, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return n, err
	case json.Delim('['):
		n.list = true
		for d.More() {
			item, err := build(d, fmt.Sprintf("%s[%d]", path, len(n.items)), depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
		_, err = d.Token()
		return n, err
	}
	n.scalar, err = json.Marshal(t)
	return n, err
}

func (n *node) object() bool { return n != nil && n.fields != nil }

// null reports whether there is nothing.
func (n *node) null() bool { return n == nil || string(n.scalar) == "null" }

// get is a key's value, nil without one.
func (n *node) get(name string) *node {
	if !n.object() || n.fields[name] == nil {
		return nil
	}
	n.read = true
	n.fields[name].read = true
	return n.fields[name]
}

// has looks without reading.
func (n *node) has(names ...string) bool {
	for _, name := range names {
		if !n.object() || n.fields[name] == nil {
			return false
		}
	}
	return true
}

// take is a key's value that is taken as it is, with all that is in it.
func (n *node) take(name string) *node {
	v := n.get(name)
	v.taken()
	return v
}

func (n *node) taken() {
	if n == nil {
		return
	}
	n.read = true
	for _, f := range n.fields {
		f.taken()
	}
	for _, i := range n.items {
		i.taken()
	}
}

// text is a scalar as people read it, "" for nothing.
func (n *node) text() string {
	if n.null() || n.scalar == nil {
		return ""
	}
	var v training.Value
	if v.UnmarshalJSON(n.scalar) != nil {
		return string(n.scalar)
	}
	return v.String()
}

// number reads a number, also one that is written as text, as some of the formats do.
func (n *node) number() (training.Value, bool) {
	if n.null() || n.scalar == nil {
		return training.Value{}, false
	}
	text := strings.TrimSpace(n.text())
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return training.Int(i), true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != f || f-f != 0 {
		return training.Value{}, false
	}
	return training.Float(f), true
}

// raw is the value as JSON.
func (n *node) raw() []byte {
	switch {
	case n == nil:
		return []byte("null")
	case n.object():
		b := []byte{'{'}
		for i, k := range n.keys {
			if i > 0 {
				b = append(b, ", "...)
			}
			name, _ := json.Marshal(k) // a string always encodes
			b = append(append(append(b, name...), ": "...), n.fields[k].raw()...)
		}
		return append(b, '}')
	case n.list:
		b := []byte{'['}
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = append(b, item.raw()...)
		}
		return append(b, ']')
	}
	return n.scalar
}

// unread calls tell for each key that was not read, the outermost only.
func (n *node) unread(tell func(path string)) {
	for _, k := range n.keys {
		f := n.fields[k]
		if !f.read {
			tell(f.path)
			continue
		}
		f.unread(tell)
	}
	for _, item := range n.items {
		item.unread(tell)
	}
}
