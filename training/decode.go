package training

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/nearest"
)

// ParseSpec reads a spec, writes its defaults and validates it. Every mistake is told at once, as Mistakes: values of
// the wrong kind, keys that do not exist (with the nearest that does), and all that Validate finds.
func ParseSpec(data []byte, user string) (*Spec, error) {
	if len(data) > MaxSpecBytes {
		return nil, Mistakes{{"", fmt.Sprintf("the document has %d bytes, at most %d", len(data), MaxSpecBytes)}}
	}
	var s Spec
	var m Mistakes
	decodeStruct(data, reflect.ValueOf(&s).Elem(), "", &m)
	s.SetDefaults(user)
	more, _ := errors.AsType[Mistakes](s.Validate()) // it returns nothing else
	unread := m
	for _, p := range more { // a field that could not be read is not told twice
		if !slices.ContainsFunc(unread, func(q Problem) bool { return q.Field == p.Field || strings.HasPrefix(p.Field, q.Field+".") }) {
			m = append(m, p)
		}
	}
	if len(m) > 0 {
		return nil, m
	}
	return &s, nil
}

// decodeStruct fills v from a JSON object key by key, so that one bad value does not hide the next.
func decodeStruct(data []byte, v reflect.Value, path string, m *Mistakes) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		what := "is not an object"
		if path == "" && !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) || len(data) == 0 {
			what = "the experiment is not a JSON object"
		} else if path == "" {
			what = "not JSON: " + err.Error()
		}
		m.addf(path, "%s", what)
		return
	}
	readAliases(keys, v.Interface(), path, m)
	t := v.Type()
	var known []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		known = append(known, name)
		raw, ok := keys[name]
		if !ok || string(raw) == "null" {
			continue
		}
		field, p := v.Field(i), strings.TrimPrefix(path+"."+name, ".")
		switch field.Interface().(type) {
		case Optimizer, EarlyStop, Resources:
			decodeStruct(raw, field, p, m)
		case *Code, *Retention, *Distributed:
			field.Set(reflect.New(field.Type().Elem()))
			decodeStruct(raw, field.Elem(), p, m)
		case []Objective:
			var list []json.RawMessage
			if err := json.Unmarshal(raw, &list); err != nil {
				m.addf(p, "%s", plain(err))
				continue
			}
			objectives := make([]Objective, min(len(list), MaxObjectives+1))
			for i := range objectives {
				decodeStruct(list[i], reflect.ValueOf(&objectives[i]).Elem(), fmt.Sprintf("%s[%d]", p, i), m)
			}
			field.Set(reflect.ValueOf(objectives))
		default:
			if err := json.Unmarshal(raw, field.Addr().Interface()); err != nil {
				m.addf(p, "%s", plain(err))
			}
		}
	}
	names := make([]string, 0, len(keys))
	for k := range keys {
		if !slices.Contains(known, k) {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	for _, k := range names {
		m.addf(strings.TrimPrefix(path+"."+k, "."), "unknown key%s", suggest(k, known))
	}
}

// readAliases gives options their names here.
func readAliases(keys map[string]json.RawMessage, of any, path string, m *Mistakes) {
	var aliases map[string]string
	if a, ok := of.(interface{ Aliases() map[string]string }); ok {
		aliases = a.Aliases()
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		to, ok := aliases[name]
		if !ok {
			continue
		}
		if _, twice := keys[to]; twice {
			m.addf(path+"."+name, "is another name of %s, which is there as well", to)
		} else {
			keys[to] = keys[name]
		}
		delete(keys, name)
	}
}

// plain words a decoding error for people who do not know Go's types.
func plain(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		want := e.Type.Kind().String()
		switch e.Type.Kind() {
		case reflect.Int, reflect.Int64, reflect.Uint64:
			want = "a whole number"
		case reflect.Slice:
			want = "a list"
		case reflect.Map, reflect.Struct:
			want = "an object"
		case reflect.String:
			want = "text"
		case reflect.Bool:
			want = "true or false"
		}
		return fmt.Sprintf("is %s, want %s", e.Value, want)
	}
	return err.Error()
}

// suggest names the nearest of the known words, and all of them when none is near and they are few.
func suggest(word string, known []string) string {
	if near := nearest.Typo(word, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	if len(known) <= 6 {
		return ": one of " + strings.Join(known, ", ")
	}
	return ""
}

// UnmarshalJSON reads options by the names that they have elsewhere as well.
func (o *Optimizer) UnmarshalJSON(data []byte) error {
	type plain Optimizer
	return unmarshalAliased(data, (*plain)(o), *o, "optimizer")
}

// Aliases are the names of options elsewhere, with those here.
func (Optimizer) Aliases() map[string]string { return optimizerKeys }

// UnmarshalJSON reads options by the names that they have elsewhere as well.
func (e *EarlyStop) UnmarshalJSON(data []byte) error {
	type plain EarlyStop
	return unmarshalAliased(data, (*plain)(e), *e, "early_stop")
}

// Aliases are the names of options elsewhere, with those here.
func (EarlyStop) Aliases() map[string]string { return stopKeys }

// unmarshalAliased is as lenient as json.Unmarshal: a journal may be of a later version. ParseSpec and the reader of YAML files
// refuse unknown keys.
func unmarshalAliased(data []byte, into, of any, path string) error {
	var keys map[string]json.RawMessage
	if json.Unmarshal(data, &keys) == nil && keys != nil {
		var m Mistakes
		if readAliases(keys, of, path, &m); len(m) > 0 {
			return m
		}
		var err error
		if data, err = json.Marshal(keys); err != nil {
			return err
		}
	}
	return json.Unmarshal(data, into)
}
