package jmx

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// appendValue writes a value as Jackson's pretty printer does: members of objects on lines of their own, elements of lists in one.
func appendValue(b []byte, v any, depth int) []byte {
	switch v := v.(type) {
	case Attributes:
		if len(v) == 0 {
			return append(b, "{ }"...)
		}
		b = append(b, '{')
		for i, a := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, '\n'), strings.Repeat("  ", depth+1)...)
			b = append(appendText(b, a.Name), " : "...)
			b = appendValue(b, a.Value, depth+1)
		}
		return append(append(append(b, '\n'), strings.Repeat("  ", depth)...), '}')
	case []Attributes:
		return appendList(b, v, depth)
	case []string:
		return appendList(b, v, depth)
	case []int64:
		return appendList(b, v, depth)
	case string:
		return appendText(b, v)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int32:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return appendDouble(b, v)
	}
	panic(fmt.Sprintf("jmx: a value of type %T", v))
}

func appendList[T any](b []byte, list []T, depth int) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(append(b, ' '), v, depth)
	}
	return append(b, " ]"...)
}

func appendText(b []byte, s string) []byte {
	text, err := json.Marshal(strings.ToValidUTF8(s, "\ufffd"))
	if err != nil {
		panic(err) // a string always can be
	}
	return append(b, text...)
}

// appendDouble writes a double as Java does: 100.0, 1.0E7. What is no number is a string, as in Hadoop.
func appendDouble(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 0):
		return append(b, map[bool]string{true: `"Infinity"`, false: `"-Infinity"`}[v > 0]...)
	case v != 0 && (math.Abs(v) < 1e-3 || math.Abs(v) >= 1e7):
		text := strconv.FormatFloat(v, 'E', -1, 64)
		mantissa, exponent, _ := strings.Cut(text, "E")
		if !strings.Contains(mantissa, ".") {
			mantissa += ".0"
		}
		sign := strings.TrimPrefix(exponent[:1], "+")
		return append(b, mantissa+"E"+sign+strings.TrimLeft(exponent[1:], "0")...)
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return append(b, text...)
}
