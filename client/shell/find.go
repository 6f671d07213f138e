package shell

import (
	"cmp"
	"context"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/glob"
	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/metadata"
)

// expression is what -find was told behind its paths. Hadoop's words (-name, -iname, -print, -print0, -a) walk the tree. Ours (-tag, -size, -type, -index) ask the
// search index of the namenode, which Hadoop does not have.
type expression struct {
	tests []primary
	// query is what the index is asked, by is the word that asks for it; empty: the tree is walked.
	query metadata.Query
	by    string
}

// primary is one of find's: it decides whether the next one is asked, and may print.
type primary func(it item) bool

func runFind(ctx context.Context, s *Shell, args []string) error {
	n := 0
	for n < len(args) && !strings.HasPrefix(args[n], "-") {
		n++
	}
	words := args[:n]
	e, err := s.findExpression(args[n:])
	if err != nil {
		return err
	}
	visit := func(it item) error {
		for _, t := range e.tests {
			if !t(it) {
				break
			}
		}
		return nil
	}
	if e.by != "" {
		if n == 0 { // it takes no longer than anywhere
			words = []string{"/"}
		}
		return s.findIndexed(ctx, words, e, visit)
	}
	if n == 0 {
		words = []string{"."}
	}
	s.options["R"] = ""
	return s.walk(ctx, words, visit)
}

func (s *Shell) findExpression(words []string) (*expression, error) {
	e := &expression{}
	printed := "" // the first word that prints
	late := ""    // a condition behind it
	take := func(word, what string) (string, error) {
		if len(words) == 0 {
			return "", usageError{word + " wants " + what}
		}
		taken := words[0]
		words = words[1:]
		return taken, nil
	}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch word {
		case "-print", "-print0":
			end := "\n"
			if word == "-print0" {
				end = "\x00"
			}
			e.tests = append(e.tests, s.findPrint(end))
			printed = cmp.Or(printed, word)
			continue
		case "-a", "-and":
			continue
		case "-name", "-iname":
			if len(words) == 0 {
				return nil, fatalError{"java.util.NoSuchElementException"}
			}
			pattern, fold := words[0], func(name string) string { return name }
			words = words[1:]
			if word == "-iname" {
				fold = strings.ToLower
			}
			alternatives, err := braces(pattern)
			if err != nil {
				return nil, err
			}
			matches := make([]*regexp.Regexp, len(alternatives))
			for i, one := range alternatives {
				if matches[i], err = glob.Compile(fold(one)); err != nil {
					return nil, err
				}
			}
			e.tests = append(e.tests, func(it item) bool {
				name := fold(path.Base(it.path))
				return slices.ContainsFunc(matches, func(match *regexp.Regexp) bool { return match.MatchString(name) })
			})
			if e.query.Name == "" && len(alternatives) == 1 { // the index knows no {a,b}
				e.query.Name, e.query.Fold = alternatives[0], word == "-iname"
			}
		case "-tag":
			text, err := take(word, "a tag: NAME or NAME=VALUE")
			if err != nil {
				return nil, err
			}
			tag := metadata.ParseTag(text)
			if tag.Name == "" {
				return nil, usageError{word + " " + text + ": want NAME or NAME=VALUE"}
			}
			e.query.Tags, e.by = append(e.query.Tags, tag), word
		case "-size":
			text, err := take(word, "a size: +1g for more, -64k for less, 0 for exactly so many bytes")
			if err != nil {
				return nil, err
			}
			if err := size.Bound(text, &e.query.Min, &e.query.Max); err != nil {
				return nil, usageError{word + ": " + err.Error()}
			}
			e.by = word
		case "-type":
			kind, err := take(word, "f or d")
			switch {
			case err != nil:
				return nil, err
			case kind != "f" && kind != "d":
				return nil, usageError{word + " " + kind + ": want f, for files, or d, for directories"}
			}
			e.query.Files, e.query.Directories = e.query.Files || kind == "f", e.query.Directories || kind == "d"
			e.by = word
		case "-index":
			e.by = word
		default:
			return nil, errors.New("Unexpected argument: " + word)
		}
		if printed != "" {
			late = word
		}
	}
	switch {
	case printed == "":
		e.tests = append(e.tests, s.findPrint("\n"))
	case e.by != "" && late != "":
		return nil, usageError{printed + " has to stand behind " + late + ": the index is asked for all conditions at once"}
	}
	return e, nil
}

func (s *Shell) findPrint(end string) primary {
	return func(it item) bool {
		if s.json {
			return s.encode(foundEntry{entryOf(it), it.tags}) == nil
		}
		s.printf("%s%s", it.shown, end)
		return true
	}
}

// foundEntry is what -find prints with -o json.
type foundEntry struct {
	entry
	Tags map[string]string `json:"tags,omitempty"` // where the index was asked
}

// findIndexed asks the index what is at and below the words, once it has all that was changed before.
func (s *Shell) findIndexed(ctx context.Context, words []string, e *expression, visit func(item) error) error {
	if s.client == nil {
		return &pathError{path: s.uri, text: e.by + " asks the search index of a cluster, and files of this machine have none"}
	}
	after, err := s.client.EventsEnd(ctx)
	if err != nil && !errors.Is(err, metadata.ErrUnsupported) { // where there is no feed there is no index, and that is for it to say
		return err
	}
	return s.each(ctx, words, func(it item) error {
		q := e.query
		q.Path, q.Limit = it.path, metadata.MaxQueryLimit
		var failed error
		err := s.client.FindAll(ctx, q, after, func(f metadata.Found) bool {
			failed = visit(foundItem(it, f))
			return failed == nil
		})
		if errors.Is(err, metadata.ErrUnsupported) {
			err = errors.New(e.by + " asks the search index: " + text(err))
		}
		return cmp.Or(failed, err)
	})
}

// foundItem is what was found at or below top, with a name as a walk from there would show it.
func foundItem(top item, f metadata.Found) item {
	it := item{shown: f.Path, path: f.Path, uri: top.uri, status: &f.FileStatus}
	if below, ok := strings.CutPrefix(f.Path, strings.TrimSuffix(top.path, "/")+"/"); ok {
		it.shown = childPath(top.shown, below)
	} else if f.Path == top.path {
		it.shown = top.shown
	}
	for _, a := range f.XAttrs {
		if a.Namespace != metadata.XAttrUser {
			continue
		}
		if it.tags == nil {
			it.tags = map[string]string{}
		}
		it.tags[a.Name] = string(a.Value)
	}
	return it
}

// findWords are the words of -find's expressions, with what they do.
var findWords = [][2]string{
	{"-name PATTERN", "the last part of the path is like this: * ? [abc] [a-z] [^a] {a,b}"},
	{"-iname PATTERN", "as -name; capitals and small letters are the same"},
	{"-print", "print the path, and a newline; the default"},
	{"-print0", "print the path, and a zero byte"},
	{"-a, -and", "accepted between conditions, which hold all at once"},
	{"-tag NAME[=VALUE]", "it has the extended attribute user.NAME, with this value if there is one; from the index"},
	{"-size [+|-]SIZE", "a file of exactly, more or less than SIZE bytes, as 0, 64k, 1.5g; from the index"},
	{"-type f|d", "files or directories alone; from the index"},
	{"-index", "look in the index for what -name and -iname say, too; without it they walk the tree"},
}

// findOptions are these words alone, for completion.
func findOptions() (all []string) {
	for _, w := range findWords {
		word, _, _ := strings.Cut(w[0], " ")
		all = append(all, strings.TrimSuffix(word, ","))
	}
	return slices.Clip(all)
}
