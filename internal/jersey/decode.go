package jersey

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// maxDepth bounds how deep what is read may be nested.
const maxDepth = 32

// Read decodes a body of JSON or XML into a struct, as liberally as YARN does: numbers and booleans as text, one thing in place of a list,
// maps as {"entry":…} or as a plain object, members that are not known. root is the object's name: XML must have it, JSON only in the
// natural dialect.
//
// Errors say in one line what is wrong.
func Read(body []byte, isXML bool, root string, d Dialect, into any) error {
	var tree any
	if isXML {
		name, v, err := parseXML(body)
		if err != nil {
			return err
		}
		if name != root {
			return fmt.Errorf("unexpected element <%s>: <%s> is expected", name, root)
		}
		tree = v
	} else {
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		if err := decoder.Decode(&tree); err != nil {
			return err
		}
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return errors.New("there is more behind the object")
		}
		if d == Natural {
			m, _ := tree.(map[string]any)
			inner, ok := m[root]
			if !ok {
				return fmt.Errorf("the member %q is expected around the object", root)
			}
			tree = inner
		}
	}
	return assign(root, tree, reflect.ValueOf(into).Elem(), 0)
}

// parseXML makes of a document what JSON would be: elements with children are objects, repeated ones lists, all else is text.
func parseXML(body []byte) (string, any, error) {
	d := xml.NewDecoder(bytes.NewReader(body))
	for {
		t, err := d.Token()
		if err != nil {
			return "", nil, fmt.Errorf("not an XML document: %w", err)
		}
		switch e := t.(type) {
		case xml.StartElement:
			v, err := inside(d, 1)
			return e.Name.Local, v, err
		case xml.Directive:
			return "", nil, errors.New("a document type is not allowed")
		}
	}
}

func inside(d *xml.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("elements are nested more than %d deep", maxDepth)
	}
	var words strings.Builder
	members := map[string]any{}
	for {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("not an XML document: %w", err)
		}
		switch e := t.(type) {
		case xml.CharData:
			words.Write(e)
		case xml.StartElement:
			v, err := inside(d, depth+1)
			if err != nil {
				return nil, err
			}
			name := e.Name.Local
			switch old, ok := members[name]; {
			case !ok:
				members[name] = v
			default:
				if list, many := old.([]any); many {
					members[name] = append(list, v)
				} else {
					members[name] = []any{old, v}
				}
			}
		case xml.EndElement:
			if len(members) > 0 {
				return members, nil
			}
			return strings.TrimSpace(words.String()), nil
		}
	}
}

// assign puts a tree into a value; at names it for errors.
func assign(at string, tree any, v reflect.Value, depth int) error {
	if tree == nil {
		return nil
	}
	if depth > maxDepth {
		return fmt.Errorf("%s is nested more than %d deep", at, maxDepth)
	}
	wrong := func(what string) error { return fmt.Errorf("%s: %.40q is not %s", at, fmt.Sprint(tree), what) }
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		if err := assign(at, tree, p.Elem(), depth+1); err != nil {
			return err
		}
		v.Set(p)
		return nil
	case reflect.Slice:
		list, ok := tree.([]any)
		if !ok {
			if tree == "" { // an empty element
				return nil
			}
			list = []any{tree}
		}
		out := reflect.MakeSlice(v.Type(), len(list), len(list))
		for i, e := range list {
			if err := assign(at, e, out.Index(i), depth+1); err != nil {
				return err
			}
		}
		v.Set(out)
		return nil
	case reflect.Struct:
		m, ok := tree.(map[string]any)
		if !ok {
			if tree == "" {
				return nil
			}
			return wrong("an object")
		}
		for _, f := range fieldsOf(v.Type()) {
			if e, ok := m[f.name]; ok {
				if err := assign(f.name, e, v.FieldByIndex(f.index), depth+1); err != nil {
					return err
				}
			}
		}
		return nil
	case reflect.Map:
		return assignMap(at, tree, v, depth)
	case reflect.Interface:
		v.Set(reflect.ValueOf(tree))
		return nil
	}
	return scalar(tree, v, wrong)
}

// scalar puts text, a number or a boolean into a value of such a kind.
func scalar(tree any, v reflect.Value, wrong func(string) error) error {
	var s string
	switch t := tree.(type) {
	case string:
		s = t
	case json.Number:
		s = t.String()
	case bool:
		s = strconv.FormatBool(t)
	default:
		return wrong("a plain value")
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		b, err := strconv.ParseBool(strings.ToLower(s))
		if err != nil {
			return wrong("true or false")
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(strings.TrimSpace(s), 10, v.Type().Bits())
		if err != nil {
			f, bad := strconv.ParseFloat(s, 64) // 1e3, 8.0
			if n = int64(f); bad != nil || float64(n) != f || math.Abs(f) > 1<<53 || v.OverflowInt(n) {
				return wrong("a whole number in its range")
			}
		}
		v.SetInt(n)
	case reflect.Float64:
		f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			return wrong("a number")
		}
		v.SetFloat(f)
	default:
		return wrong("anything that is read here")
	}
	return nil
}

// assignMap reads {"entry":[{"key","value"}]}, with a list or one object, or a plain object.
func assignMap(at string, tree any, v reflect.Value, depth int) error {
	m, ok := tree.(map[string]any)
	if !ok {
		if tree == "" {
			return nil
		}
		return fmt.Errorf("%s is no map", at)
	}
	out := reflect.MakeMap(v.Type())
	set := func(key string, tree any) error {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := assign(at+" "+key, tree, e, depth+1); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
		return nil
	}
	pairs, wrapped := m["entry"]
	list, many := pairs.([]any)
	if one, single := pairs.(map[string]any); wrapped && single {
		list, many = []any{one}, true
	}
	if wrapped && len(m) == 1 && many {
		for _, p := range list {
			pair, ok := p.(map[string]any)
			key, text := pair["key"].(string)
			if !ok || !text {
				return fmt.Errorf("%s: an entry is {\"key\":…,\"value\":…}", at)
			}
			if err := set(key, pair["value"]); err != nil {
				return err
			}
		}
	} else if !wrapped || len(m) > 1 || pairs != nil && pairs != "" {
		for key, e := range m {
			if err := set(key, e); err != nil {
				return err
			}
		}
	}
	v.Set(out)
	return nil
}
