// Package shell is Hadoop's file system shell: the verbs of `hadoop fs` with their options, output and exit statuses
// (Hadoop 3.4 FsShell), on a client of the cluster's filesystem.
package shell

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/metadata"
)

// The exit statuses of FsShell.
const (
	ExitOK      = 0
	ExitError   = 1
	ExitUsage   = 255
	ExitAborted = 130
)

// Shell runs commands against one filesystem. Its fields are set before Run.
type Shell struct {
	// Dial connects to the filesystem of a URI ("" is the default one) with Hadoop properties given by -D and -conf. It
	// returns the URI by which messages name the filesystem, hdfs://host:port.
	Dial   func(uri string, properties map[string]string) (*dfs.Client, string, error)
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Brief says what is wrong with a command line in a line or two, for people; otherwise the usage of all verbs follows, as
	// Hadoop's shell has it.
	Brief bool
	// Progress is the terminal on which copies show how far they are; nil: they do not.
	Progress io.Writer

	place
	generic string // the filesystem of -fs
	dialled map[string]*place
	out     *bufio.Writer
	options map[string]string
	// properties are the Hadoop settings of the command line.
	properties map[string]string
	errors     int
	verb       string
	meter      *meter
	json       bool // -o json
}

type verb struct {
	usage       string
	description string
	// flags and values are the options of the verb, with single letters or words; values take an argument.
	flags, values []string
	// least and most arguments after the options; most 0: any number.
	least, most int
	run         func(ctx context.Context, s *Shell, args []string) error
}

// usageError is shown with the usage of the verb, exit status 255 (IllegalArgumentException in Hadoop).
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

// fatalError is an exception that Hadoop's shell does not expect, exit status 255.
type fatalError struct{ message string }

func (e fatalError) Error() string { return e.message }

// schemeError is of a URI that no filesystem here has; Hadoop's words.
type schemeError string

func (e schemeError) Error() string { return fmt.Sprintf("No FileSystem for scheme %q", string(e)) }

// colonRefused stands before a name with a colon in Hadoop's refusal of it.
const colonRefused = "java.net.URISyntaxException: Relative path in absolute URI: "

// pathError is Hadoop's PathIOException: `path': text.
type pathError struct {
	path, target, text, qualified string
}

func (e *pathError) Error() string {
	s := "`" + e.path + "'"
	if e.target != "" {
		s += " to `" + e.target + "'"
	}
	s += ": " + e.text
	if e.qualified != "" {
		s += ": `" + e.qualified + "'"
	}
	return s
}

func notFound(p string) error     { return &pathError{path: p, text: "No such file or directory"} }
func exists(p string) error       { return &pathError{path: p, text: "File exists"} }
func isDirectory(p string) error  { return &pathError{path: p, text: "Is a directory"} }
func notDirectory(p string) error { return &pathError{path: p, text: "Is not a directory"} }
func failed(p string) error       { return &pathError{path: p, text: "Input/output error"} }

// properties that are read here or by client/dfs, and that people give by hand.
var ownProperties = []string{
	"dfs.replication", "dfs.blocksize", "dfs.checksum.type", "dfs.bytes-per-checksum", "dfs.checksum.combine.mode", "dfs.client.socket-timeout", "dfs.client.use.datanode.hostname",
	"fs.defaultFS", "fs.permissions.umask-mode", "fs.trash.interval",
}

// remark says that a property looks mistyped. Others that are not known are ignored, as Hadoop's shell does: they may be for
// other programs.
func (s *Shell) remark(properties map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if meant := nearest.Typo(name, ownProperties); meant != "" {
			fmt.Fprintf(s.Stderr, "note: -D %s is read by nobody here (did you mean %s?)\n", name, meant)
		}
	}
}

// Run executes one command line, without the program's name: generic options, a verb with or without its dash, its
// options and arguments. It returns the exit status.
func (s *Shell) Run(ctx context.Context, args []string) int {
	s.out = bufio.NewWriterSize(s.Stdout, 64<<10)
	defer s.out.Flush()
	properties := map[string]string{}
	uri := ""
	for len(args) > 0 {
		switch {
		case args[0] == "-D" && len(args) > 1:
			name, value, _ := strings.Cut(args[1], "=")
			properties[name] = value
			args = args[2:]
			continue
		case strings.HasPrefix(args[0], "-D") && strings.Contains(args[0], "="):
			name, value, _ := strings.Cut(args[0][2:], "=")
			properties[name] = value
			args = args[1:]
			continue
		case args[0] == "-fs" && len(args) > 1:
			uri, args = args[1], args[2:]
			continue
		case args[0] == "-conf" && len(args) > 1:
			properties["-conf"], args = args[1], args[2:]
			continue
		}
		break
	}
	if s.Brief {
		s.remark(properties)
	}
	if len(args) == 0 {
		s.printUsage()
		return ExitUsage
	}
	if args[0] == "--help" || args[0] == "-h" {
		args[0] = "help"
	}
	name := strings.TrimPrefix(args[0], "-")
	v, ok := verbs[name]
	if ok && len(args) > 1 && args[1] == "--help" {
		args, name, v = []string{"help", name}, "help", verbs["help"]
	}
	if alias, deprecated := deprecatedVerbs[name]; deprecated {
		instead := strings.Join(alias, " ")
		if name == "rmr" {
			instead = "-" + instead
		}
		fmt.Fprintf(s.Stderr, "%s: DEPRECATED: Please use '%s' instead.\n", name, instead)
		v, ok = verbs[alias[0]], true
		args = append(append([]string{args[0]}, alias[1:]...), args[1:]...)
	}
	if !ok {
		if s.Brief {
			near := nearest.Hint(name, Verbs())
			fmt.Fprintf(s.Stderr, "%s: Unknown command%s; `hops fs -help` lists them\n", args[0], strings.Replace(near, "mean ", "mean -", 1))
			return ExitUsage
		}
		fmt.Fprintf(s.Stderr, "%s: Unknown command\n", args[0])
		s.printUsage()
		return ExitUsage
	}
	s.verb, s.properties = name, properties
	s.options = map[string]string{}
	rest, err := s.parse(v, args[1:])
	if err == nil && (name == "help" || name == "usage") {
		err = v.run(ctx, s, rest)
	} else if err == nil {
		s.generic, s.dialled = uri, map[string]*place{}
		defer s.hangUp()
		err = s.onEach(v, rest, func(words []string) error { return v.run(ctx, s, words) })
	}
	var wrong usageError
	var fatal fatalError
	switch {
	case errors.As(err, &wrong):
		s.out.Flush()
		if name, ok := strings.CutPrefix(wrong.message, colonRefused); ok && s.Brief {
			wrong.message = "no name may have a colon in it: " + name
		}
		for line := range strings.SplitSeq(wrong.message, "\n") {
			fmt.Fprintf(s.Stderr, "-%s: %s\n", name, line)
		}
		if s.Brief {
			fmt.Fprintf(s.Stderr, "Usage: hops fs %s\n`hops fs -help %s` explains it\n", v.usage, strings.Trim(strings.Fields(v.usage)[0], "-"))
			return ExitUsage
		}
		s.printUsage()
		fmt.Fprintf(s.Stderr, "Usage: hadoop fs [generic options] %s\n", v.usage)
		return ExitUsage
	case errors.As(err, &fatal):
		s.out.Flush()
		fmt.Fprintf(s.Stderr, "-%s: Fatal internal error\n%s\n", name, fatal.message)
		return ExitUsage
	case ctx.Err() != nil:
		s.out.Flush()
		fmt.Fprintf(s.Stderr, "%s: interrupted\n", name)
		return ExitAborted
	case err != nil:
		s.report(err)
	}
	if s.errors > 0 {
		return ExitError
	}
	return ExitOK
}

// report prints an error of one path and remembers that there was one.
func (s *Shell) report(err error) {
	s.errors++
	s.out.Flush()
	if errors.Is(err, errSilent) || errors.Is(err, context.Canceled) { // Ctrl-C; Run says so, once
		return
	}
	s.meter.clear()
	more := ""
	if _, ok := errors.AsType[schemeError](err); ok && s.Brief {
		more = ": there are hdfs:// and file://"
	}
	fmt.Fprintf(s.Stderr, "%s: %s%s\n", s.verb, text(err), more)
}

// text is what FsShell prints of an error: the server's message without the stack trace that stock servers append.
func text(err error) string {
	message := err.Error()
	if e, ok := errors.AsType[*dfs.Error](err); ok && e.Message != "" {
		message = e.Message
	}
	message, _, _ = strings.Cut(message, "\n")
	return message
}

// errSilent makes the exit status 1 without a message.
var errSilent = errors.New("")

// parse takes the options before the first other word, as Hadoop's CommandFormat does.
func (s *Shell) parse(v verb, args []string) ([]string, error) {
	for len(args) > 0 {
		arg := args[0]
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			break
		}
		args = args[1:]
		if arg == "--" {
			break
		}
		option := arg[1:]
		switch {
		case s.verb == "count" && option == "t":
			// Its value may be absent: Hadoop takes the next word if enough are left for the paths.
			value := ""
			if len(args) > v.least {
				value, args = args[0], args[1:]
			}
			if value == "-" || !strings.HasPrefix(value, "-") {
				s.options[option] = value
			}
		case slices.Contains(v.flags, option):
			s.options[option] = ""
		case slices.Contains(v.values, option):
			if len(args) == 0 {
				return nil, usageError{fmt.Sprintf("Illegal option -%s needs a value", option)}
			}
			s.options[option], args = args[0], args[1:]
		case option == "o" && slices.Contains(listed, s.verb):
			if len(args) == 0 || args[0] != "json" {
				return nil, usageError{"-o wants json"}
			}
			s.json, args = true, args[1:]
		case s.verb == "cp" && option[0] == 'p':
			s.options["p"] = option[1:]
		case s.verb == "find": // its expressions may stand without a path
			return append([]string{arg}, args...), nil
		default:
			// -chmod takes modes that begin with a dash.
			if (s.verb == "chmod") && strings.Trim(option, "rwxXt,+-=ugoa") == "" {
				return append([]string{arg}, args...), s.count(v, len(args)+1)
			}
			return nil, usageError{"Illegal option " + arg}
		}
	}
	return args, s.count(v, len(args))
}

func (s *Shell) count(v verb, n int) error {
	if n < v.least {
		return usageError{fmt.Sprintf("Not enough arguments: expected %d but got %d", v.least, n)}
	}
	if v.most > 0 && n > v.most {
		return usageError{fmt.Sprintf("Too many arguments: expected %d but got %d", v.most, n)}
	}
	return nil
}

func (s *Shell) option(name string) bool {
	_, ok := s.options[name]
	return ok
}

// item is a path as the user wrote it, with what is there: Hadoop's PathData.
type item struct {
	shown  string // as in messages
	path   string // absolute
	uri    string // of its filesystem
	status *metadata.FileStatus
	tags   map[string]string // by -find, of the index
}

func (i item) isDir() bool { return i.status != nil && i.status.IsDir() }

// resolve turns a word of the command line into an absolute path of the filesystem.
func (s *place) resolve(word string) (string, error) {
	if word == "" {
		return "", usageError{"Can not create a Path from an empty string"}
	}
	p := word
	if i := strings.Index(word, "://"); i > 0 && !strings.ContainsAny(word[:i], "/*?[{") {
		u, err := url.Parse(escapeForURL(word))
		if err != nil {
			return "", usageError{err.Error()}
		}
		switch own, _, _ := strings.Cut(s.uri, ":"); u.Scheme {
		case own:
		case "file", "hdfs":
			return "", &pathError{path: word, text: "Does not match target filesystem " + s.uri}
		default:
			return "", schemeError(u.Scheme)
		}
		if host := u.Host; host != "" && u.Scheme+"://"+host != s.uri {
			return "", &pathError{path: word, text: "Does not match target filesystem " + s.uri}
		}
		p = word[i+3:]
		if slash := strings.IndexByte(p, '/'); slash >= 0 {
			p = p[slash:]
		} else {
			p = "/"
		}
	} else if scheme, rest, ok := strings.Cut(word, ":/"); ok && scheme == "file" {
		if s.client != nil {
			return "", &pathError{path: word, text: "Does not match target filesystem " + s.uri}
		}
		p = "/" + strings.TrimLeft(rest, "/")
	} else if scheme, rest, ok := strings.Cut(word, ":/"); ok && scheme == "hdfs" {
		p = "/" + strings.TrimLeft(rest, "/")
	}
	if s.foreign && placeOf(word) == "" {
		return "", &pathError{path: word, text: "Does not match target filesystem " + s.uri}
	}
	if base := p[strings.LastIndexByte(p, '/')+1:]; strings.Contains(base, ":") && !strings.ContainsAny(base, "*?[{") {
		return "", usageError{colonRefused + base}
	}
	if !strings.HasPrefix(p, "/") {
		if s.client == nil {
			return filepath.Abs(p)
		}
		p = "/user/" + s.fs.User() + "/" + p
	}
	return path.Clean(p), nil
}

func escapeForURL(s string) string {
	return strings.NewReplacer("%", "%25", " ", "%20", "#", "%23").Replace(s)
}

// shownForm is how messages write a path: as given, without doubled and trailing slashes and dots.
func shownForm(word string) string {
	if strings.Contains(word, "://") {
		return word
	}
	cleaned := path.Clean(word)
	return cleaned
}

// look finds what is at a word of the command line; status nil: nothing.
func (s *place) look(ctx context.Context, word string) (item, error) {
	return s.lookBy(word, func(p string) (metadata.FileStatus, error) { return s.fs.Stat(ctx, p) })
}

// lookBy is look by a function that knows what is at a path.
func (s *place) lookBy(word string, stat func(p string) (metadata.FileStatus, error)) (item, error) {
	p, err := s.resolve(word)
	if err != nil {
		return item{}, err
	}
	it := item{shown: shownForm(word), path: p, uri: s.uri}
	status, err := stat(p)
	switch {
	case err == nil:
		it.status = &status
	case !errors.Is(err, metadata.ErrNotExist):
		return it, err
	}
	return it, nil
}

// stats asks about the paths of all words without wildcards at once, and returns a function that tells what is at one of them. An error is of all.
func (s *place) stats(ctx context.Context, words []string) (func(p string) (metadata.FileStatus, error), error) {
	at := map[string]int{}
	var paths []string
	for _, word := range words {
		if isGlob(word) {
			continue
		}
		p, err := s.resolve(unescape(word))
		if err != nil {
			continue // look says so when it is its turn
		}
		if _, again := at[p]; !again {
			at[p] = len(paths)
			paths = append(paths, p)
		}
	}
	many, err := s.fs.StatMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	return func(p string) (metadata.FileStatus, error) { return many.Statuses[at[p]], many.Errors[at[p]] }, nil
}

// expand finds what the words of a command line mean. What is not found is reported; creating verbs get it with status
// nil instead. An error is one of usage.
func (s *Shell) expand(ctx context.Context, words []string, creating bool) ([]item, error) {
	stat, err := s.stats(ctx, words)
	if err != nil {
		s.report(err)
		return nil, nil
	}
	var items []item
	for _, word := range words {
		var found []item
		var err error
		if isGlob(word) {
			found, err = s.glob(ctx, word)
		} else {
			var it item
			it, err = s.lookBy(unescape(word), stat)
			if err == nil && it.status == nil && creating {
				it.shown = unescape(word)
			}
			if err == nil && (it.status != nil || creating) {
				found = []item{it}
			}
		}
		var wrong usageError
		switch {
		case errors.As(err, &wrong):
			return nil, err
		case err != nil:
			s.report(err)
		case len(found) == 0:
			if !s.option("f") || s.verb != "rm" {
				s.report(notFound(unescape(word)))
			}
		default:
			items = append(items, found...)
		}
	}
	return items, nil
}

// each runs a function on what the words mean and reports its errors path by path.
func (s *Shell) each(ctx context.Context, words []string, f func(item) error) error {
	return s.eachOf(ctx, words, false, f)
}

// eachNew is each for verbs that make what is not there.
func (s *Shell) eachNew(ctx context.Context, words []string, f func(item) error) error {
	return s.eachOf(ctx, words, true, f)
}

func (s *Shell) eachOf(ctx context.Context, words []string, creating bool, f func(item) error) error {
	items, err := s.expand(ctx, words, creating)
	if err != nil {
		return err
	}
	for _, it := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(it); err != nil {
			var wrong usageError
			if errors.As(err, &wrong) {
				return err
			}
			s.report(err)
		}
	}
	return nil
}

// walk is each with what lies below directories when the option -R is set, parents first.
func (s *Shell) walk(ctx context.Context, words []string, f func(item) error) error {
	var visit func(it item) error
	visit = func(it item) error {
		if err := f(it); err != nil {
			return err
		}
		if !it.isDir() || !s.option("R") {
			return nil
		}
		children, err := s.children(ctx, it)
		if err != nil {
			return err
		}
		for _, child := range children {
			if err := visit(child); err != nil {
				s.report(err)
			}
		}
		return nil
	}
	return s.each(ctx, words, visit)
}

// children lists a directory.
func (s *place) children(ctx context.Context, it item) ([]item, error) {
	list, err := s.fs.List(ctx, it.path)
	if err != nil {
		return nil, err
	}
	items := make([]item, len(list))
	for i := range list {
		items[i] = item{childPath(it.shown, list[i].Name), childPath(it.path, list[i].Name), s.uri, &list[i], nil}
	}
	return items, nil
}

func childPath(parent, name string) string {
	if strings.HasSuffix(parent, "/") {
		return parent + name
	}
	if parent == "." {
		return name
	}
	return parent + "/" + name
}

// parentExists reports whether the directory above a path is there.
func (s *place) parentExists(ctx context.Context, p string) (bool, error) {
	_, err := s.fs.Stat(ctx, path.Dir(p))
	if errors.Is(err, metadata.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// qualified is a path with the filesystem's URI.
func (s *place) qualified(p string) string { return s.uri + p }

func (s *Shell) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

// localExists is for messages about local files in Hadoop's words.
func localStat(name string) (os.FileInfo, error) {
	info, err := os.Stat(name)
	if errors.Is(err, os.ErrNotExist) || err != nil && strings.Contains(err.Error(), "not a directory") {
		return nil, notFound(name)
	}
	return info, err
}
