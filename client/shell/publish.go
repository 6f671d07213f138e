package shell

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/gohops/hops/client/dfs"
)

// maxPublishLine is how long a line of what -publish reads may be, in bytes.
const maxPublishLine = 64 << 10

// runPublish does what the lines of a local file say, all of it or nothing.
func runPublish(ctx context.Context, s *Shell, args []string) error {
	in := io.Reader(nil)
	if args[0] == "-" {
		in = newInput(ctx, s.Stdin)
	} else {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxPublishLine)
	var steps []dfs.Step
	for n := 1; lines.Scan(); n++ {
		step, err := s.publishStep(lines.Text())
		if err != nil {
			return usageError{fmt.Sprintf("line %d: %v", n, err)}
		}
		if step != nil {
			steps = append(steps, step)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the steps cannot be read: %w", err)
	}
	if len(steps) == 0 {
		return usageError{"there is nothing to do"}
	}
	made, err := s.client.Publish(ctx, steps...)
	if err == nil && made != "" {
		s.printf("Created snapshot %s\n", made)
	}
	return err
}

// publishStep is the step that a line says; nil for an empty one, or one that begins with #.
func (s *Shell) publishStep(line string) (dfs.Step, error) {
	words, err := quotedWords(line)
	if err != nil || len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return nil, err
	}
	verb, rest := words[0], words[1:]
	flags, values := map[string]bool{}, map[string]string{}
	for len(rest) > 0 && len(rest[0]) > 1 && rest[0][0] == '-' {
		name := rest[0][1:]
		rest = rest[1:]
		switch {
		case verb == "rename" && name == "f", verb == "rm" && (name == "r" || name == "f"):
			flags[name] = true
		case verb == "setfattr" && (name == "n" || name == "v" || name == "x"):
			if len(rest) == 0 {
				return nil, fmt.Errorf("%s -%s needs a value", verb, name)
			}
			values[name], rest = rest[0], rest[1:]
		default:
			return nil, fmt.Errorf("%s has no option -%s", verb, name)
		}
	}
	least, most := 1, 1
	switch verb {
	case "rename":
		least, most = 2, 2
	case "createSnapshot":
		most = 2
	case "rm", "setfattr":
	default:
		return nil, fmt.Errorf("%q is none of rename, rm, setfattr and createSnapshot", verb)
	}
	if len(rest) < least || len(rest) > most {
		return nil, fmt.Errorf("%s takes %s", verb, map[string]string{
			"rename": "[-f], a path and where it is to be", "rm": "[-r] [-f] and a path", "setfattr": "-n NAME [-v VALUE] or -x NAME, and a path", "createSnapshot": "a directory, and a name if you like",
		}[verb])
	}
	path, err := s.resolve(rest[0])
	if err != nil {
		return nil, err
	}
	switch verb {
	case "rename":
		to, err := s.resolve(rest[1])
		return dfs.RenameStep{From: path, To: to, Overwrite: flags["f"]}, err
	case "rm":
		return dfs.DeleteStep{Path: path, Recursive: flags["r"], IfThere: flags["f"]}, nil
	case "createSnapshot":
		return dfs.SnapshotStep{Dir: path, Name: strings.Join(rest[1:], "")}, nil
	}
	name, set := values["n"]
	gone, remove := values["x"]
	if set == remove {
		return nil, errors.New("setfattr takes -n NAME [-v VALUE] or -x NAME, and a path")
	}
	a, err := parseXAttrName(name + gone)
	if err != nil {
		return nil, err
	}
	if remove {
		return dfs.RemoveXAttrStep{Path: path, Attribute: a}, nil
	}
	a.Value, err = decodeXAttr(values["v"])
	return dfs.SetXAttrStep{Path: path, Attribute: a, Flags: dfs.XAttrCreate | dfs.XAttrReplace}, err
}

// quotedWords splits a line into words. What is between two single or double quotes is of one word, and taken as it is.
func quotedWords(line string) (words []string, err error) {
	var word strings.Builder
	begun, quote := false, rune(0)
	for _, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '"' || r == '\'':
			quote, begun = r, true
		case r == ' ' || r == '\t' || r == '\r':
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c does not end", quote)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}
