// Package glob reads one component of Hadoop's patterns of paths (GlobPattern, less the braces): * ? [abc] [a-z] [!a] [^a], with \ before what is
// meant literally.
package glob

import (
	"fmt"
	"regexp"
	"strings"
)

// Compile turns a component into a regular expression of whole names.
//
// Errors have Hadoop's texts.
func Compile(component string) (*regexp.Regexp, error) {
	wrong := func(what string, at int) error {
		return fmt.Errorf("Illegal file pattern: error parsing regexp: %s at pos %d: `%s`", what, at, component)
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	class := false
	letters := []rune(component)
	for i := 0; i < len(letters); i++ {
		c := letters[i]
		switch {
		case c == '\\':
			if i++; i == len(letters) {
				return nil, wrong("Missing escaped character", i)
			}
			b.WriteString(regexp.QuoteMeta(string(letters[i])))
		case class:
			switch first := letters[i-1] == '['; {
			case c == ']':
				class = false
			case c == '[':
				return nil, wrong("Unclosed character class", i)
			case c == '!' && first:
				c = '^'
			case c == '^' && !first:
				b.WriteByte('\\')
			}
			b.WriteRune(c)
		case c == '*':
			b.WriteString(".*")
		case c == '?':
			b.WriteString(".")
		case c == '[':
			class = true
			b.WriteByte('[')
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	if class {
		return nil, wrong("Unclosed character class", len(letters))
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, fmt.Errorf("Illegal file pattern: %w for glob %s", err, component)
	}
	return re, nil
}

// Prefix is what every name that a component matches begins with; exact: it is the only one.
func Prefix(component string) (prefix string, exact bool) {
	var b strings.Builder
	for i := 0; i < len(component); i++ {
		switch c := component[i]; c {
		case '*', '?', '[':
			return b.String(), false
		case '\\':
			if i++; i == len(component) { // which Compile refuses
				return b.String(), false
			}
			b.WriteByte(component[i])
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}
