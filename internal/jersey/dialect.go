package jersey

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Dialect is how an object looks in JSON. In XML all look alike: an element under the object's root.
type Dialect int

const (
	// Natural keeps the root: {"app":{…}}; numbers are numbers, lists arrays.
	Natural Dialect = iota
	// Bare is Natural without the root.
	Bare
	// Mapped has no root, numbers and booleans as text, a list of one as that one, no empty lists, and null for an empty object.
	Mapped
)

// Object is an answer: Value, a struct or a pointer to one, under the name Root, which XML always shows.
type Object struct {
	Root    string
	Dialect Dialect
	Value   any
}

// JSON encodes an object in its dialect.
func (o Object) JSON() ([]byte, error) {
	switch o.Dialect {
	case Mapped:
		var b bytes.Buffer
		b.WriteByte('{')
		if _, err := mapped(&b, reflect.ValueOf(o.Value), false); err != nil {
			return nil, err
		}
		b.WriteByte('}')
		return b.Bytes(), nil
	case Bare:
		return plainJSON(o.Value)
	default:
		v, err := plainJSON(o.Value)
		if err != nil {
			return nil, err
		}
		return fmt.Appendf(nil, "{%q:%s}", o.Root, v), nil
	}
}

// plainJSON is encoding/json's without escapes for HTML, which Java does not make.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// XMLHead begins a document as JAXB does.
const XMLHead = `<?xml version="1.0" encoding="UTF-8" standalone="yes"?>`

// XML encodes an object as a document.
func (o Object) XML() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(XMLHead)
	if err := element(&b, o.Root, reflect.ValueOf(o.Value)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Element is one element of a list in XML.
func Element(name string, v any) ([]byte, error) {
	var b bytes.Buffer
	err := element(&b, name, reflect.ValueOf(v))
	return b.Bytes(), err
}

// field is a member of an object, from its json tag.
type field struct {
	index     []int
	name      string
	omitEmpty bool
	// kind: the member says of which type its object is, an attribute in XML.
	kind bool
}

var descriptions sync.Map // reflect.Type to []field

func fieldsOf(t reflect.Type) []field {
	if f, ok := descriptions.Load(t); ok {
		return f.([]field)
	}
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if f.Anonymous && tag == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			for _, g := range fieldsOf(inner) {
				g.index = append([]int{i}, g.index...)
				out = append(out, g)
			}
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if !f.IsExported() || name == "-" || name == "" {
			continue
		}
		out = append(out, field{[]int{i}, name, strings.Contains(options, "omitempty"), f.Tag.Get("xml") == "type"})
	}
	descriptions.Store(t, out)
	return out
}

// get is the value of a field; not ok: it is left out.
func (f field) get(v reflect.Value) (reflect.Value, bool) {
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return v, false
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	if f.omitEmpty && empty(v) {
		return v, false
	}
	v = indirect(v)
	return v, v.IsValid()
}

func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// indirect follows pointers and interfaces; the result is invalid for nil.
func indirect(v reflect.Value) reflect.Value {
	for v.IsValid() && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) {
		v = v.Elem()
	}
	return v
}

// text is a value without members, as text; not ok: it has some.
func text(v reflect.Value) (string, bool) {
	switch v.Kind() {
	case reflect.String:
		return v.String(), true
	case reflect.Bool:
		return strconv.FormatBool(v.Bool()), true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10), true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10), true
	case reflect.Float32, reflect.Float64:
		return Float(v.Float()).String(), true
	}
	return "", false
}

// mapped writes the members of an object, or with nested set a whole value, and says how many members there were.
func mapped(b *bytes.Buffer, v reflect.Value, nested bool) (int, error) {
	v = indirect(v)
	if !v.IsValid() {
		b.WriteString("null")
		return 0, nil
	}
	if s, ok := text(v); ok {
		q, err := plainJSON(s)
		b.Write(q)
		return 1, err
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		if v.Len() == 1 {
			return mapped(b, v.Index(0), true)
		}
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if _, err := mapped(b, v.Index(i), true); err != nil {
				return 0, err
			}
		}
		b.WriteByte(']')
		return v.Len(), nil
	case reflect.Struct:
		begin := b.Len()
		if nested {
			b.WriteByte('{')
		}
		n := 0
		for _, f := range fieldsOf(v.Type()) {
			m, ok := f.get(v)
			if !ok || m.Kind() == reflect.Slice && m.Len() == 0 {
				continue
			}
			if n++; n > 1 {
				b.WriteByte(',')
			}
			fmt.Fprintf(b, "%q:", f.name)
			if _, err := mapped(b, m, true); err != nil {
				return 0, err
			}
		}
		if nested && n == 0 {
			b.Truncate(begin)
			b.WriteString("null")
		} else if nested {
			b.WriteByte('}')
		}
		return n, nil
	}
	return 0, fmt.Errorf("a %v has no form in YARN's REST", v.Type())
}

// xsi is the namespace of an object's type.
const xsi = ` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="`

func element(b *bytes.Buffer, name string, v reflect.Value) error {
	v = indirect(v)
	if !v.IsValid() {
		return nil
	}
	if s, ok := text(v); ok {
		b.WriteString("<" + name + ">")
		if err := xml.EscapeText(b, []byte(s)); err != nil {
			return err
		}
		b.WriteString("</" + name + ">")
		return nil
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := element(b, name, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	case reflect.Struct:
		b.WriteString("<" + name)
		fields := fieldsOf(v.Type())
		for _, f := range fields {
			if m, ok := f.get(v); ok && f.kind {
				b.WriteString(xsi)
				if err := xml.EscapeText(b, []byte(m.String())); err != nil {
					return err
				}
				b.WriteByte('"')
			}
		}
		open := b.Len()
		b.WriteByte('>')
		inside := b.Len()
		for _, f := range fields {
			if m, ok := f.get(v); ok && !f.kind {
				if err := element(b, f.name, m); err != nil {
					return err
				}
			}
		}
		if b.Len() == inside {
			b.Truncate(open)
			b.WriteString("/>")
			return nil
		}
		b.WriteString("</" + name + ">")
		return nil
	}
	return fmt.Errorf("a %v has no form in YARN's REST", v.Type())
}

// Float is a number that is printed as Java does: 0.0, 62.5, 100.0.
type Float float64

func (f Float) String() string {
	if f == Float(int64(f)) {
		return strconv.FormatFloat(float64(f), 'f', 1, 64)
	}
	return strconv.FormatFloat(float64(f), 'g', 8, 64)
}

// MarshalJSON implements json.Marshaler.
func (f Float) MarshalJSON() ([]byte, error) { return []byte(f.String()), nil }

// Entry is a pair of a map.
type Entry[T any] struct {
	Key   string `json:"key"`
	Value T      `json:"value"`
}

// Map is a map as YARN writes it, {"entry":[{"key","value"}]}. (Stock YARN repeats the member "entry" in its natural dialect, of which
// most readers of JSON keep the last: here it is one list.) An empty one is {}.
type Map[T any] struct {
	Entry []Entry[T] `json:"entry,omitempty"`
}

// Put adds a pair.
func (m *Map[T]) Put(key string, value T) { m.Entry = append(m.Entry, Entry[T]{key, value}) }
