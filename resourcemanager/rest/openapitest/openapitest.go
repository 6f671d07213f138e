// Package openapitest holds exchanges against an OpenAPI document: what tests say and hear has to be what the document says. It knows as much of
// JSON Schema as the document uses, and is stricter: objects with properties have no others.
package openapitest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Document is a parsed OpenAPI document.
type Document struct{ root map[string]any }

// Parse reads a document.
func Parse(b []byte) (*Document, error) {
	d := &Document{}
	return d, json.Unmarshal(b, &d.root)
}

func at(v any, path ...string) any {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

// Operations lists what is described, as "METHOD path".
func (d *Document) Operations() []string {
	var out []string
	paths, _ := d.root["paths"].(map[string]any)
	for path, item := range paths {
		for method := range item.(map[string]any) {
			out = append(out, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(out)
	return out
}

// find is the operation of a request's path.
func (d *Document) find(method, path string) any {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	paths, _ := d.root["paths"].(map[string]any)
	for _, template := range slices.Sorted(maps.Keys(paths)) {
		want := strings.Split(template, "/")
		if len(want) == len(parts) && alike(want, parts) {
			if op := at(paths[template], strings.ToLower(method)); op != nil {
				return op
			}
		}
	}
	return nil
}

func alike(want, parts []string) bool {
	for i := range want {
		if want[i] != parts[i] && !strings.HasPrefix(want[i], "{") {
			return false
		}
	}
	return true
}

// Check says how an exchange differs from the document; nil: it does not. Bodies that are no JSON are not looked into, and requests only when they
// were taken.
func (d *Document) Check(method, path string, code int, request, answer []byte) error {
	op := d.find(method, path)
	if op == nil {
		return fmt.Errorf("%s %s is not described", method, path)
	}
	if schema := at(op, "requestBody", "content", "application/json", "schema"); schema != nil && code < 300 {
		var said any
		if err := json.Unmarshal(request, &said); err != nil {
			return err
		}
		if err := d.value("", schema, withoutNulls(said)); err != nil {
			return fmt.Errorf("%s %s: request: %w", method, path, err)
		}
	}
	response := at(op, "responses", fmt.Sprint(code))
	if response == nil && code >= 400 {
		response = at(op, "responses", "default")
	}
	if ref, ok := at(response, "$ref").(string); ok {
		response = at(d.root, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	if response == nil {
		return fmt.Errorf("%s %s: status %d is not described", method, path, code)
	}
	for _, media := range []string{"application/json", "application/problem+json"} {
		if schema := at(response, "content", media, "schema"); schema != nil {
			if err := d.body(schema, answer); err != nil {
				return fmt.Errorf("%s %s: answer %d: %w", method, path, code, err)
			}
		}
	}
	return nil
}

// withoutNulls leaves out what a request says is null, which is read as if it were not there.
func withoutNulls(v any) any {
	if object, ok := v.(map[string]any); ok {
		for name, e := range object {
			if object[name] = withoutNulls(e); e == nil {
				delete(object, name)
			}
		}
	}
	return v
}

func (d *Document) body(schema any, b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	return d.value("", schema, v)
}

// value holds a value against a schema.
func (d *Document) value(where string, schema, v any) error {
	s, _ := schema.(map[string]any)
	if ref, ok := s["$ref"].(string); ok {
		target := at(d.root, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
		if target == nil {
			return fmt.Errorf("%s: %s is not there", where, ref)
		}
		return d.value(where, target, v)
	}
	if some, ok := s["anyOf"].([]any); ok {
		for _, one := range some {
			if d.value(where, one, v) == nil {
				return nil
			}
		}
		return fmt.Errorf("%s: %v is none of what it may be", where, v)
	}
	wrong := func(want string) error { return fmt.Errorf("%s: %.100v is not %s", where, v, want) }
	switch s["type"] {
	case "string":
		text, ok := v.(string)
		if !ok {
			return wrong("a string")
		}
		if names, ok := s["enum"].([]any); ok && !slices.Contains(names, any(text)) {
			return wrong(fmt.Sprint("one of ", names))
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return wrong("true or false")
		}
	case "integer", "number":
		n, ok := v.(float64)
		if !ok || s["type"] == "integer" && n != math.Trunc(n) {
			return wrong("a number of that kind")
		}
	case "array":
		list, ok := v.([]any)
		if !ok {
			return wrong("a list")
		}
		for i, e := range list {
			if err := d.value(fmt.Sprintf("%s[%d]", where, i), s["items"], e); err != nil {
				return err
			}
		}
	case "object":
		object, ok := v.(map[string]any)
		if !ok {
			return wrong("an object")
		}
		properties, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := object[name.(string)]; !ok {
				return fmt.Errorf("%s: %v is missing", where, name)
			}
		}
		for name, e := range object {
			p, known := properties[name]
			if more, ok := s["additionalProperties"].(map[string]any); !known && ok {
				p, known = more, true
			}
			if !known && (properties != nil || s["additionalProperties"] == false) {
				return fmt.Errorf("%s.%s is not described", where, name)
			}
			if known {
				if err := d.value(where+"."+name, p, e); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
