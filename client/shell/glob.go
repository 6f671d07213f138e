package shell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/glob"
	"github.com/gohops/hops/metadata"
)

// isGlob reports whether a word has wildcards of Hadoop's patterns: * ? [abc] [a-z] [^a] {a,b}, with \ before what is
// meant literally.
func isGlob(word string) bool {
	for i := 0; i < len(word); i++ {
		switch word[i] {
		case '\\':
			i++
		case '*', '?', '[', '{':
			return true
		}
	}
	return false
}

// unescape is what a word without wildcards means; one with wildcards stays as it is.
func unescape(word string) string {
	if isGlob(word) {
		return word
	}
	return strings.ReplaceAll(word, `\`, "")
}

// glob finds the existing paths that a word means, in order.
func (s *Shell) glob(ctx context.Context, word string) ([]item, error) {
	if !isGlob(word) {
		it, err := s.look(ctx, unescape(word))
		if err != nil || it.status == nil {
			return nil, err
		}
		return []item{it}, nil
	}
	var found []item
	alternatives, err := braces(word)
	if err != nil {
		return nil, err
	}
	for _, pattern := range alternatives {
		more, err := s.globOne(ctx, pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	if len(alternatives) > 1 {
		slices.SortStableFunc(found, func(a, b item) int { return cmp.Compare(a.path, b.path) })
		found = slices.CompactFunc(found, func(a, b item) bool { return a.path == b.path })
	}
	return found, nil
}

func (s *Shell) globOne(ctx context.Context, pattern string) ([]item, error) {
	if !isGlob(pattern) {
		it, err := s.look(ctx, unescape(pattern))
		if err != nil || it.status == nil {
			return nil, err
		}
		return []item{it}, nil
	}
	absolute, err := s.resolve(pattern)
	if err != nil {
		return nil, err
	}
	// What is shown begins as the user began.
	prefix := strings.HasPrefix(pattern, "/")
	components := strings.Split(strings.Trim(absolute, "/"), "/")
	root := &metadata.FileStatus{Type: metadata.TypeDirectory}
	level := []item{{shown: "/", path: "/", status: root}}
	for _, component := range components {
		var next []item
		var match *regexp.Regexp
		if isGlob(component) {
			if match, err = glob.Compile(component); err != nil {
				return nil, err
			}
		}
		level = slices.DeleteFunc(level, func(it item) bool { return !it.isDir() })
		if match == nil {
			if level, err = s.descend(ctx, level, strings.ReplaceAll(component, `\`, "")); err != nil {
				return nil, err
			}
			continue
		}
		for _, parent := range level {
			list, err := s.fs.List(ctx, parent.path)
			if err != nil && !errors.Is(err, metadata.ErrNotExist) {
				return nil, err
			}
			for i := range list {
				if match.MatchString(list[i].Name) {
					child := childPath(parent.path, list[i].Name)
					next = append(next, item{shown: child, path: child, uri: s.uri, status: &list[i]})
				}
			}
		}
		level = next
	}
	if strings.Contains(pattern, "://") {
		for i := range level {
			level[i].shown = s.qualified(level[i].path)
		}
	} else if !prefix {
		home := "/user/" + s.fs.User() + "/"
		for i := range level {
			level[i].shown = strings.TrimPrefix(level[i].shown, home)
		}
	}
	return level, nil
}

// descend finds what has a name in each of some directories.
func (s *place) descend(ctx context.Context, dirs []item, name string) ([]item, error) {
	paths := make([]string, len(dirs))
	for i, dir := range dirs {
		paths[i] = childPath(dir.path, name)
	}
	many, err := s.fs.StatMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	var found []item
	for i, p := range paths {
		switch err := many.Errors[i]; {
		case err == nil:
			found = append(found, item{shown: p, path: p, uri: s.uri, status: &many.Statuses[i]})
		case !errors.Is(err, metadata.ErrNotExist):
			return nil, err
		}
	}
	return found, nil
}

// braces expands {a,b} into the alternatives, outermost first.
func braces(pattern string) ([]string, error) {
	open := -1
	depth := 0
	var commas []int
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '{':
			if depth == 0 {
				open, commas = i, nil
			}
			depth++
		case ',':
			if depth == 1 {
				commas = append(commas, i)
			}
		case '}':
			if depth == 0 {
				continue
			}
			if depth--; depth > 0 {
				continue
			}
			var out []string
			start := open + 1
			for _, end := range append(commas, i) {
				more, err := braces(pattern[:open] + pattern[start:end] + pattern[i+1:])
				if err != nil {
					return nil, err
				}
				if out = append(out, more...); len(out) > 10000 {
					return nil, fmt.Errorf("pattern %s has more than 10000 alternatives", pattern)
				}
				start = end + 1
			}
			return out, nil
		}
	}
	if depth > 0 {
		component := pattern[strings.LastIndexByte(pattern[:open], '/')+1:]
		component, _, _ = strings.Cut(component, "/")
		return nil, fmt.Errorf("Illegal file pattern: error parsing regexp: Unclosed group at pos %d: `%s`", len(component), component)
	}
	return []string{pattern}, nil
}
