// Package yaml reads YAML files: hops.yaml, jobs, studies, descriptions of devices. All of them pass through here because
// the library below panics on some texts and takes time with the square of others: whatever a file holds, reading it ends,
// soon, in a value or in an error of one line that names the file and, where the library knows it, the line.
package yaml

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// What a file may be. Nobody writes such files by hand, and the library needs seconds for the greatest.
const (
	maxBytes  = 1 << 20
	maxTokens = 200_000
	// maxDepth is how deep values may be nested in one another on one line or in brackets; indentation bounds itself.
	maxDepth = 100
	// maxKeys is how many keys may stand outside of brackets: with these the library's time grows with the square.
	maxKeys = 10_000
	// maxValues is how many values a file may have with every alias written out.
	maxValues = 1_000_000
)

// Unmarshal decodes the text of the file called name into a value. Keys that the value does not have are ignored.
func Unmarshal(name string, text []byte, into any) error { return decode(name, text, into) }

// ToJSON turns the text of the file called name into JSON.
func ToJSON(name string, text []byte) ([]byte, error) {
	if _, err := parse(name, text); err != nil {
		return nil, err
	}
	var out []byte
	err := guard(name, func() (err error) {
		out, err = yaml.YAMLToJSON(text)
		return err
	})
	return out, err
}

// Marshal encodes a value.
func Marshal(v any) ([]byte, error) { return yaml.Marshal(v) }

// Lines knows on which line of a file a value begins.
type Lines struct {
	name string
	file *ast.File
}

// ReadLines reads the lines of the file called name.
func ReadLines(name string, text []byte) (*Lines, error) {
	file, err := parse(name, text)
	return &Lines{name, file}, err
}

// Of is the line on which the value at a path begins, as $.gpus[2]; 0 when it is not known.
func (l *Lines) Of(path string) (line int) {
	err := guard(l.name, func() error {
		p, err := yaml.PathString(path)
		if err != nil {
			return err
		}
		node, err := p.FilterFile(l.file)
		if err != nil {
			return err
		}
		at := node.GetToken()
		if m, ok := node.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
			at = m.Values[0].Key.GetToken()
		}
		line = at.Position.Line
		return nil
	})
	if err != nil {
		return 0
	}
	return line
}

func decode(name string, text []byte, into any) error {
	if _, err := parse(name, text); err != nil {
		return err
	}
	return guard(name, func() error { return yaml.Unmarshal(text, into) })
}

// parse refuses what the decoder would not end with.
func parse(name string, text []byte) (*ast.File, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%s: %d bytes, the most that is read is %d", name, len(text), maxBytes)
	}
	var file *ast.File
	err := guard(name, func() (err error) {
		tokens := lexer.Tokenize(string(text))
		if err := checkTokens(tokens); err != nil {
			return err
		}
		if file, err = parser.Parse(tokens, 0); err != nil {
			return err
		}
		return checkAliases(file)
	})
	return file, err
}

func checkTokens(tokens token.Tokens) error {
	if len(tokens) > maxTokens {
		return fmt.Errorf("%d words and signs, the most that is read is %d", len(tokens), maxTokens)
	}
	brackets, signs, line, keys, documents := 0, 0, 0, 0, 0 // signs: that open a value, on this line
	for _, t := range tokens {
		if t.Position.Line != line {
			line, signs = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			signs++
		case token.StringType, token.CollectEntryType:
			signs = 0
		case token.MappingValueType:
			if brackets == 0 {
				keys++
			}
		case token.DocumentHeaderType:
			documents++
		}
		if keys > maxKeys {
			return fmt.Errorf("line %d: more than %d keys", line, maxKeys)
		}
		if documents > 1 {
			return fmt.Errorf("line %d: a second document begins, one is read", line)
		}
		if brackets > maxDepth || signs > maxDepth {
			return fmt.Errorf("line %d: values are nested more than %d deep", line, maxDepth)
		}
	}
	return nil
}

// checkAliases refuses a file that is small as it is written and would be huge with its aliases written out, or endless.
func checkAliases(file *ast.File) error {
	sizes := map[string]int{} // of anchors that have ended
	var size func(node ast.Node) int
	size = func(node ast.Node) int {
		sum := 1
		switch node := node.(type) {
		case *ast.DocumentNode:
			sum += size(node.Body)
		case *ast.MappingNode:
			for _, v := range node.Values {
				sum = min(sum+size(v), maxValues+1)
			}
		case *ast.MappingValueNode:
			sum += size(node.Key) + size(node.Value)
		case *ast.MappingKeyNode:
			sum += size(node.Value)
		case *ast.SequenceNode:
			for _, v := range node.Values {
				sum = min(sum+size(v), maxValues+1)
			}
		case *ast.TagNode:
			sum += size(node.Value)
		case *ast.AnchorNode:
			name := node.Name.String()
			delete(sizes, name)
			sum += size(node.Value)
			sizes[name] = sum
		case *ast.AliasNode:
			n, ended := sizes[node.Value.String()]
			if !ended {
				n = maxValues // of nothing, or of what it is itself a part of
			}
			sum += n
		}
		return min(sum, maxValues+1)
	}
	if len(file.Docs) > 1 {
		return fmt.Errorf("it holds %d documents, one is read", len(file.Docs))
	}
	total := 0
	for _, doc := range file.Docs {
		if total = min(total+size(doc), maxValues+1); total > maxValues {
			return fmt.Errorf("its aliases have no end, no anchor, or stand for more than %d values", maxValues)
		}
	}
	return nil
}

// guard calls the library. Its errors become one line; a panic of it is an error of the text.
func guard(name string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: this is no YAML that can be read (%v): put quotes around values with special characters", name, p)
		}
	}()
	if err := call(); err != nil {
		return fmt.Errorf("%s: %s", name, oneLine(err))
	}
	return nil
}

// oneLine takes the first line of the library's errors ("[3:5] unknown field"); the rest is an excerpt of the text.
func oneLine(err error) string {
	text, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	if rest, ok := strings.CutPrefix(text, "["); ok {
		if line, message, ok := strings.Cut(rest, ":"); ok {
			if _, message, ok = strings.Cut(message, "] "); ok {
				return "line " + line + ": " + message
			}
		}
	}
	return text
}
