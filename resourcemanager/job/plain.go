package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Plain refuses JSON that two readers may understand differently: bytes that are not UTF-8, of which each reader makes
// something else, and objects with a key twice, of which some take the first and some the last. Keys that differ in case
// only count as one, because Go's reader takes either for the same field, but not below the keys in maps, where the names
// are the submitter's own. The error says where; it is of kind metadata.ErrInvalidArgument. What is no JSON is left to
// the reader that comes after.
func Plain(document []byte, maps ...string) error {
	if !utf8.Valid(document) {
		at := 0
		for at < len(document) {
			r, n := utf8.DecodeRune(document[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		return bad("%s: byte 0x%02x is not UTF-8", place(document, at), document[at])
	}
	type level struct {
		keys  map[string]bool // nil in a list
		value bool            // the next token is the value of the key
		exact bool            // names differ by case
		named bool            // the value of the key is one of maps
	}
	var levels []level
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return nil
		}
		var in *level
		if len(levels) > 0 {
			in = &levels[len(levels)-1]
		}
		key, text := token.(string)
		switch {
		case token == json.Delim('}'), token == json.Delim(']'):
			levels = levels[:len(levels)-1]
		case in != nil && in.keys != nil && !in.value && text:
			name := key
			if !in.exact {
				name = folded(key)
			}
			if in.keys[name] {
				return bad("%s: %q is there twice", place(document, int(d.InputOffset())), key)
			}
			in.keys[name] = true
			in.value, in.named = true, slices.Contains(maps, key)
		default:
			next := level{exact: in != nil && (in.exact || in.named)}
			if in != nil {
				in.value = false
			}
			switch token {
			case json.Delim('{'):
				next.keys = map[string]bool{}
				levels = append(levels, next)
			case json.Delim('['):
				levels = append(levels, next)
			}
		}
	}
}

// folded is the same for all names that Go's reader takes for one.
func folded(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, name)
}

// place names a position by line and column, both from 1.
func place(document []byte, at int) string {
	before := document[:at]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Sprintf("line %d, column %d", line, max(column, 1))
}
