package training

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Value is one hyperparameter's value: a JSON scalar in canonical form, so that values compare with == and travel to
// Python and back unchanged (2 stays an int, 2.0 a float). The zero Value is null.
type Value struct{ text string }

// Int makes an integer value.
func Int(i int64) Value { return Value{strconv.FormatInt(i, 10)} }

// Float makes a floating-point value. NaN and infinities have no JSON form: they become strings.
func Float(f float64) Value {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return String(formatMetric(f))
	}
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return Value{s}
}

// String makes a text value.
func String(s string) Value {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil { // a string always encodes
		panic(err)
	}
	return Value{strings.TrimSuffix(b.String(), "\n")}
}

// Bool makes a truth value.
func Bool(v bool) Value { return Value{strconv.FormatBool(v)} }

// Float is the number of a numeric value.
func (v Value) Float() (float64, bool) {
	if v.text == "" || v.text[0] != '-' && (v.text[0] < '0' || v.text[0] > '9') {
		return 0, false
	}
	f, err := strconv.ParseFloat(v.text, 64)
	return f, err == nil
}

// Int is the number of a value written as an integer.
func (v Value) Int() (int64, bool) {
	i, err := strconv.ParseInt(v.text, 10, 64)
	return i, err == nil
}

// Equal compares numbers by their size, everything else literally.
func (v Value) Equal(w Value) bool {
	if v == w {
		return true
	}
	a, ok := v.Float()
	b, ok2 := w.Float()
	return ok && ok2 && a == b
}

// String is what a person reads: text without quotes.
func (v Value) String() string {
	if v.text == "" {
		return "null"
	}
	if v.text[0] == '"' {
		var s string
		if json.Unmarshal([]byte(v.text), &s) == nil {
			return s
		}
	}
	return v.text
}

// MarshalJSON writes the canonical text.
func (v Value) MarshalJSON() ([]byte, error) {
	if v.text == "" {
		return []byte("null"), nil
	}
	return []byte(v.text), nil
}

// UnmarshalJSON accepts a scalar; lists and objects are refused.
func (v *Value) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return fmt.Errorf("empty value")
	}
	switch c := data[0]; c {
	case 'n':
		*v = Value{}
	case 't', 'f':
		*v = Bool(c == 't')
	case '"':
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*v = String(s)
	case '[', '{':
		return fmt.Errorf("a parameter's value is a number, text, true, false or null, not %s", truncate(string(data), 40))
	default:
		if i, err := strconv.ParseInt(string(data), 10, 64); err == nil {
			*v = Int(i)
			return nil
		}
		f, err := strconv.ParseFloat(string(data), 64)
		if err != nil {
			return fmt.Errorf("number %s: %w", truncate(string(data), 40), err)
		}
		*v = Float(f)
	}
	return nil
}

// Params is one configuration: a value for each parameter of the space, by name.
type Params map[string]Value

// Key is the canonical text of the configuration, equal exactly when all names and values are.
func (p Params) Key() string {
	b, err := json.Marshal(p) // map keys come out sorted
	if err != nil {
		panic(err) // scalars always encode
	}
	return string(b)
}

func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
