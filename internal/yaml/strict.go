package yaml

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/gohops/hops/internal/nearest"
)

// Mistake is one thing that is wrong with a file.
type Mistake struct {
	// Line is where; 0: not known.
	Line int
	// Key is the path of the value, as resources.memory or argv[1].
	Key string
	// Text says what is wrong, in the words of people who write the file.
	Text string
}

// Mistakes are all that is wrong with a file; their order is that of the file.
type Mistakes struct {
	File string
	List []Mistake
}

func (m *Mistakes) Error() string {
	lines := make([]string, len(m.List))
	for i, x := range m.List {
		lines[i] = m.File + ": "
		if x.Line > 0 {
			lines[i] += fmt.Sprintf("line %d: ", x.Line)
		}
		lines[i] += x.Text
	}
	return strings.Join(lines, "\n")
}

// Hides reports whether values could not be decoded for these mistakes, so that nothing can be said of the whole.
func (m *Mistakes) Hides() bool {
	return slices.ContainsFunc(m.List, func(x Mistake) bool { return !strings.HasPrefix(x.Text, unknownKey) })
}

// UnmarshalStrict decodes the text of the file called name into a value, by the names in its yaml tags. Keys that the value
// does not have and values of another kind are *Mistakes, all of them at once; if all of them are keys, what is right is decoded all
// the same.
func UnmarshalStrict(name string, text []byte, into any) error {
	wrong, err := check(name, text, into, "yaml")
	if err != nil {
		return err
	}
	if wrong != nil && wrong.Hides() {
		return wrong // the decoder would end at it
	}
	if err := decode(name, text, into); err != nil {
		return err
	}
	if wrong != nil {
		return wrong
	}
	return nil
}

// UnmarshalJSON is UnmarshalStrict by the names in json tags, for documents that are sent as JSON afterwards.
func UnmarshalJSON(name string, text []byte, into any) error {
	wrong, err := check(name, text, into, "json")
	if err != nil {
		return err
	}
	if wrong != nil {
		return wrong
	}
	document, err := ToJSON(name, text)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(document, into); err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// check finds all mistakes of a file that is meant for a type. nil: there are none.
func check(name string, text []byte, into any, tag string) (*Mistakes, error) {
	lines, err := ReadLines(name, text)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := guard(name, func() error { return yaml.Unmarshal(text, &tree) }); err != nil {
		return nil, err
	}
	c := &checker{tag: tag, lines: lines}
	c.value("", "$", tree, reflect.TypeOf(into).Elem())
	if len(c.found) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(c.found, func(a, b Mistake) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.Key, b.Key)
	})
	return &Mistakes{name, c.found}, nil
}

// checker walks a document along the type that it is meant for.
type checker struct {
	tag   string
	lines *Lines
	found []Mistake
}

const (
	unknownKey = "unknown key "
	// maxMistakes is how many are told.
	maxMistakes = 50
)

// wrong notes a mistake. key is its path for people, place the one for Lines.
func (c *checker) wrong(key, place, format string, args ...any) {
	if len(c.found) == maxMistakes {
		return
	}
	c.found = append(c.found, Mistake{c.lines.Of(place), key, fmt.Sprintf(format, args...)})
}

var (
	jsonReader   = reflect.TypeFor[json.Unmarshaler]()
	textReader   = reflect.TypeFor[encoding.TextUnmarshaler]()
	aliasedType  = reflect.TypeFor[aliased]()
	durationType = reflect.TypeFor[time.Duration]()
)

// value checks one value. An empty one is the zero value of every type.
func (c *checker) value(key, place string, v any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil {
		return
	}
	label := ""
	if key != "" {
		label = key + ": "
	}
	if c.tag == "json" && reflect.PointerTo(t).Implements(jsonReader) && !t.Implements(aliasedType) {
		document, err := json.Marshal(v)
		if err == nil {
			err = reflect.New(t).Interface().(json.Unmarshaler).UnmarshalJSON(document)
		}
		if err == nil {
			return
		}
		// Of a struct its members say better than its reader what is wrong, and all of it.
		if m, ok := v.(map[string]any); ok && t.Kind() == reflect.Struct {
			before := len(c.found)
			if c.fields(key, place, m, t); len(c.found) > before {
				return
			}
		}
		c.wrong(key, place, "%s%s", label, strings.TrimPrefix(err.Error(), "json: "))
		return
	}
	if reflect.PointerTo(t).Implements(textReader) {
		if !isScalar(v) {
			c.wrong(key, place, "%s%s stands where one value is wanted", label, kindOf(v))
			return
		}
		if err := reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(fmt.Sprint(v))); err != nil {
			c.wrong(key, place, "%s%v", label, err)
		}
		return
	}
	if t == durationType {
		text, ok := v.(string)
		if _, err := time.ParseDuration(text); !ok || err != nil {
			c.wrong(key, place, "%s%v is not a duration (examples: 90s, 5m, 2h)", label, short(v))
		}
		return
	}
	want := ""
	switch t.Kind() {
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			want = "keys with values"
			break
		}
		c.fields(key, place, m, t)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			want = "keys with values"
			break
		}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			c.value(join(key, name), step(place, name), m[name], t.Elem())
		}
	case reflect.Slice, reflect.Array:
		list, ok := v.([]any)
		if text, isText := v.(string); isText && t.Elem().Kind() == reflect.Uint8 {
			break
		} else if isText && t.Elem().Kind() == reflect.String {
			want = "a list, as [" + strings.Join(strings.Fields(text), ", ") + "],"
			break
		}
		if !ok {
			want = "a list"
			break
		}
		for i, child := range list {
			at := "[" + strconv.Itoa(i) + "]"
			c.value(key+at, place+at, child, t.Elem())
		}
	case reflect.String:
		if _, ok := v.(string); !ok && (c.tag == "json" || !isScalar(v)) {
			want = "a text"
			if isScalar(v) {
				want = "a text, in quotes,"
			}
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			want = "true or false"
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if !fits(v, t) {
			want = "a whole number"
		}
	case reflect.Float32, reflect.Float64:
		switch v.(type) {
		case int, int64, uint64, float64:
		default:
			want = "a number"
		}
	}
	if want != "" {
		c.wrong(key, place, "%s%s stands where %s is wanted", label, short(v), want)
	}
}

// aliased is a struct whose reader knows some keys by other names as well, and nothing else more than its members say.
type aliased interface {
	Aliases() map[string]string
}

// fields checks the keys of an object.
func (c *checker) fields(key, place string, m map[string]any, t reflect.Type) {
	known := map[string]reflect.Type{}
	c.names(t, known)
	all := slices.Sorted(maps.Keys(known))
	if a, ok := reflect.New(t).Interface().(aliased); ok {
		for other, name := range a.Aliases() {
			known[other] = known[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if field, ok := known[name]; ok {
			c.value(join(key, name), step(place, name), m[name], field)
			continue
		}
		c.wrong(join(key, name), step(place, name), "%s%s%s", unknownKey, join(key, name), nearest.Hint(name, all))
	}
}

// names are the keys that a struct has, with those of the structs that it embeds.
func (c *checker) names(t reflect.Type, known map[string]reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get(c.tag), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case name == "" && f.Anonymous:
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				c.names(inner, known)
			}
		case name != "":
			known[name] = f.Type
		}
	}
}

func join(where, key string) string {
	if quoted := strconv.Quote(key); quoted[1:len(quoted)-1] != key || len(key) > 100 { // signs that would break the line
		key = short(key)
	}
	if where == "" {
		return key
	}
	return where + "." + key
}

// step is the place of a key; names with signs stand in quotes.
func step(place, key string) string {
	if strings.ContainsAny(key, ".[]'\" *$") {
		return place + ".'" + strings.ReplaceAll(key, "'", `\'`) + "'"
	}
	return place + "." + key
}

func isScalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

func kindOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "a set of keys"
	case []any:
		return "a list"
	}
	return short(v)
}

// short shows a value in a message.
func short(v any) string {
	if !isScalar(v) {
		return kindOf(v)
	}
	text := fmt.Sprint(v)
	if runes := []rune(text); len(runes) > 40 {
		text = string(runes[:40]) + "…"
	}
	if _, ok := v.(string); ok {
		return strconv.Quote(text)
	}
	return text
}

// fits reports whether a number is one of the type.
func fits(v any, t reflect.Type) bool {
	zero := reflect.New(t).Elem()
	switch n := v.(type) {
	case int:
		return fits(int64(n), t)
	case int64:
		if zero.CanInt() {
			return !zero.OverflowInt(n)
		}
		return n >= 0 && !zero.OverflowUint(uint64(n))
	case uint64:
		if zero.CanInt() {
			return n <= math.MaxInt64 && !zero.OverflowInt(int64(n))
		}
		return !zero.OverflowUint(n)
	}
	return false
}
