package main

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// cacheVerb is something that `hdfs cacheadmin` can be told to do.
type cacheVerb struct {
	name, arguments, help string
	// options are what each of its arguments is.
	options [][2]string
	run     func(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error)
}

func (v *cacheVerb) usage() string { return "[" + strings.TrimSpace(v.name+" "+v.arguments) + "]" }

func (v *cacheVerb) long() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n\n", v.usage(), v.help)
	for _, o := range v.options {
		fmt.Fprintf(&b, "%-22s %s\n", o[0], o[1])
	}
	return b.String()
}

const (
	directivePath = "<path>"
	timeToLive    = "how long it is for: 120s, 30m, 4h, 2d or never"
	skipLimit     = "whatever the limit of the pool"
)

func cacheVerbs() []*cacheVerb {
	pool := [][2]string{
		{"<name>", "of the pool"},
		{"<owner>", "a user; at first whoever makes it"},
		{"<group>", "at first the primary group of whoever makes it"},
		{"<mode>", "who may READ and WRITE in it, in octal; at first 0755"},
		{"<limit>", "bytes that its directives may want in all replicas, or unlimited"},
		{"<defaultReplication>", "that of directives that do not say; at first 1"},
		{"<maxTtl>", "how long directives may be for: 120s, 30m, 4h, 2d or never"},
	}
	attributes := "<name> [-owner <owner>] [-group <group>] [-mode <mode>] [-limit <limit>] [-defaultReplication <defaultReplication>] [-maxTtl <maxTtl>]"
	return []*cacheVerb{
		{"-addDirective", "-path <path> -pool <pool-name> [-force] [-replication <replication>] [-ttl <time-to-live>]", "Keep a file, or the files in a directory, in the memory of datanodes.", [][2]string{
			{directivePath, "a file, or a directory; what is in directories below it is left out"},
			{"<pool-name>", "a pool in which the caller has WRITE"},
			{"-force", skipLimit},
			{"<replication>", "on how many datanodes; without it as the pool says"},
			{"<time-to-live>", timeToLive},
		}, addDirective},
		{"-modifyDirective", "-id <id> [-path <path>] [-force] [-replication <replication>] [-pool <pool-name>] [-ttl <time-to-live>]", "Change a directive.", [][2]string{
			{"<id>", "its number"},
			{directivePath, "a file or a directory"},
			{"-force", skipLimit},
			{"<replication>", "on how many datanodes"},
			{"<pool-name>", "a pool in which the caller has WRITE"},
			{"<time-to-live>", timeToLive},
		}, modifyDirective},
		{"-listDirectives", "[-stats] [-path <path>] [-pool <pool>] [-id <id>]", "List the directives of pools in which the caller has READ.", [][2]string{
			{"-stats", "what they want, and what of it is in memory"}, {directivePath, "those with this path"}, {"<pool>", "those of this pool"}, {"<id>", "this one"},
		}, listDirectives},
		{"-removeDirective", "<id>", "End a directive.", [][2]string{{"<id>", "its number; WRITE in its pool is needed"}}, removeDirective},
		{"-removeDirectives", "-path <path>", "End all directives with a path.", [][2]string{{"-path <path>", "WRITE in their pools is needed"}}, removeDirectives},
		{"-addPool", attributes, "Make a pool.", pool, addPool},
		{"-modifyPool", attributes, "Change a pool.", pool, modifyPool},
		{"-removePool", "<name>", "Remove a pool and its directives.", [][2]string{{"<name>", "of the pool"}}, removePool},
		{"-listPools", "[-stats] [<name>]", "List the pools.", [][2]string{{"-stats", "what their directives want, and what of it is in memory"}, {"<name>", "this one only"}}, listPools},
	}
}

func cacheadminCommand() *cli.Command {
	verbs := cacheVerbs()
	var text strings.Builder
	text.WriteString("Options, output and exit status are those of `hdfs cacheadmin`.\n\n")
	for _, v := range verbs {
		fmt.Fprintf(&text, "%s\n    %s\n", strings.TrimSpace(v.name+" "+v.arguments), v.help)
	}
	return hadoopCommand("cacheadmin", "what datanodes keep in memory: the options and output of `hdfs cacheadmin`", "-OPTION [ARGUMENTS]", text.String(), func(t *hadoopTool, args []string) (int, error) {
		return runCacheadmin(t, verbs, args)
	})
}

func runCacheadmin(t *hadoopTool, verbs []*cacheVerb, args []string) (int, error) {
	usage := func() (int, error) {
		fmt.Fprintln(t.errOut, "Usage: hops cacheadmin [COMMAND]")
		for _, v := range verbs {
			fmt.Fprintf(t.errOut, "          %s\n", v.usage())
		}
		fmt.Fprintf(t.errOut, "          [-help <command-name>]\n\n")
		return exitAdminUsage, nil
	}
	find := func(name string) int {
		return slices.IndexFunc(verbs, func(v *cacheVerb) bool { return v.name == name })
	}
	switch {
	case len(args) == 0:
		return usage()
	case args[0] == "-help":
		return helpCacheadmin(t, verbs, args[1:], find)
	}
	at := find(args[0])
	if at < 0 {
		fmt.Fprintf(t.errOut, "Can't understand command '%s'\n", args[0])
		if !strings.HasPrefix(args[0], "-") {
			fmt.Fprintln(t.errOut, "Command names must start with dashes.")
		}
		return usage()
	}
	code, err := verbs[at].run(t, verbs[at], &cacheWords{slices.Clone(args[1:])})
	if bad, ok := errors.AsType[*badWord](err); ok { // an IllegalArgumentException
		fmt.Fprintln(t.errOut, bad.Error())
		return exitHadoop, nil
	}
	return code, err
}

func helpCacheadmin(t *hadoopTool, verbs []*cacheVerb, args []string, find func(string) int) (int, error) {
	switch len(args) {
	case 0:
		for _, v := range verbs {
			fmt.Fprintln(t.errOut, v.long())
		}
		return exitAdminUsage, nil
	case 1:
		if at := find("-" + args[0]); at >= 0 {
			fmt.Fprint(t.errOut, verbs[at].long())
			return 0, nil
		}
		var names []string
		for _, v := range verbs {
			names = append(names, v.name[1:])
		}
		fmt.Fprintf(t.errOut, "Unknown command '%s'.\nValid help command names are:\n%s\n", args[0], strings.Join(names, ", "))
		return exitAdminUsage, nil
	}
	fmt.Fprintln(t.errOut, "You must give exactly one argument to -help.")
	return exitAdminUsage, nil
}

// badWord is what Java ends the program for with the name of an exception.
type badWord struct{ text string }

func (b *badWord) Error() string { return b.text }

// cacheWords are the arguments of a verb; those that were understood go. Options behind "--" are none.
type cacheWords struct{ left []string }

func (w *cacheWords) end() int {
	if i := slices.Index(w.left, "--"); i >= 0 {
		return i
	}
	return len(w.left)
}

// option is the value of an option; nil: it was not given.
func (w *cacheWords) option(name string) (*string, error) {
	i := slices.Index(w.left[:w.end()], name)
	if i < 0 {
		return nil, nil
	}
	if i+1 == len(w.left) {
		return nil, &badWord{fmt.Sprintf("IllegalArgumentException: option %s requires 1 argument.", name)}
	}
	v := w.left[i+1]
	w.left = slices.Delete(w.left, i, i+2)
	return &v, nil
}

func (w *cacheWords) flag(name string) bool {
	i := slices.Index(w.left[:w.end()], name)
	if i >= 0 {
		w.left = slices.Delete(w.left, i, i+1)
	}
	return i >= 0
}

// first is the first word that is no option; nil: there is none.
func (w *cacheWords) first() *string {
	for i, v := range w.left {
		switch {
		case v == "--" && i+1 == len(w.left):
			return nil
		case v == "--":
			v = w.left[i+1]
			w.left = slices.Delete(w.left, i+1, i+2)
			return &v
		case !strings.HasPrefix(v, "-"):
			w.left = slices.Delete(w.left, i, i+1)
			return &v
		}
	}
	return nil
}

// options are the values of options by name.
func (w *cacheWords) options(names ...string) (map[string]*string, error) {
	out := map[string]*string{}
	for _, name := range names {
		v, err := w.option(name)
		if err != nil {
			return nil, err
		}
		out[name] = v
	}
	return out, nil
}

// javaNumber reads a number as Java does that takes so many bits.
func javaNumber(text *string, bits, base int) (*int64, error) {
	if text == nil {
		return nil, nil
	}
	n, err := strconv.ParseInt(*text, base, bits)
	if err == nil && *text != "" && !strings.Contains(*text, "_") {
		return &n, nil
	}
	if _, e := strconv.ParseInt(*text, base, 32); e == nil && bits == 16 {
		return nil, &badWord{fmt.Sprintf("NumberFormatException: Value out of range. Value:\"%s\" Radix:%d", *text, base)}
	}
	radix := ""
	if base != 10 {
		radix = fmt.Sprintf(" under radix %d", base)
	}
	return nil, &badWord{fmt.Sprintf("NumberFormatException: For input string: \"%s\"%s", *text, radix)}
}

// javaShort is javaNumber of 16 bits.
func javaShort(text *string) (*int, error) {
	n, err := javaNumber(text, 16, 10)
	if n == nil {
		return nil, err
	}
	return new(int(*n)), nil
}

// relativeTime reads 30m, 4h and their like, in milliseconds (DFSUtil.parseRelativeTime).
func relativeTime(text string) (int64, error) {
	unable := fmt.Sprintf("Unable to parse relative time value of %s: ", text)
	if len(text) < 2 {
		return 0, errors.New(unable + "too short")
	}
	number, unit := text[:len(text)-1], text[len(text)-1:]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, errors.New(unable + number + " is not a number")
	}
	seconds, known := map[string]int64{"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
	switch {
	case !known:
		return 0, errors.New(unable + "unknown time unit " + unit)
	case n > math.MaxInt64/1000/seconds || n < math.MinInt64/1000/seconds: // in Java it is some other time then
		return 0, errors.New(unable + "too long")
	}
	return n * seconds * 1000, nil
}

// lifetime is the value of -ttl; nil: it was not given. Errors: what is to be said.
func lifetime(text *string) (*metadata.Expiration, error) {
	if text == nil {
		return nil, nil
	}
	if strings.EqualFold(*text, "never") {
		return &metadata.Expiration{Millis: metadata.CacheForever, Relative: true}, nil
	}
	ms, err := relativeTime(*text)
	if err != nil {
		return nil, fmt.Errorf("Error while parsing ttl value: %w", err)
	}
	return &metadata.Expiration{Millis: ms, Relative: true}, nil
}

// directiveArguments reads what -addDirective and -modifyDirective have in common. A code that is not 0 is that of a mistake, which has been said.
func (t *hadoopTool) directiveArguments(w *cacheWords, d *namenode.CacheDirectiveChange) (force bool, code int, err error) {
	force = w.flag("-force")
	v, err := w.options("-replication", "-ttl")
	if err != nil {
		return false, 0, err
	}
	if d.Replication, err = javaShort(v["-replication"]); err != nil {
		return false, 0, err
	}
	if d.Expires, err = lifetime(v["-ttl"]); err != nil {
		fmt.Fprintln(t.errOut, err)
		return false, exitAdminUsage, nil
	}
	return force, 0, nil
}

// cachePath is a path that the tool was given, as the namenode has to be told.
func (t *hadoopTool) cachePath(text string) (*string, error) {
	if text == "" {
		return nil, &badWord{"IllegalArgumentException: Can not create a Path from an empty string"}
	}
	if _, rest, ok := strings.Cut(text, "://"); ok {
		_, path, _ := strings.Cut(rest, "/")
		text = "/" + path
	}
	if !strings.HasPrefix(text, "/") {
		fs, err := t.client()
		if err != nil {
			return nil, err
		}
		text = "/user/" + fs.User() + "/" + text
	}
	return new(path.Clean(text)), nil // as Java's Path, which has no dots
}

// misunderstood says that there is a word too many.
func (t *hadoopTool) misunderstood(w *cacheWords, v *cacheVerb, usage bool) int {
	fmt.Fprintf(t.errOut, "Can't understand argument: %s\n", w.left[0])
	if usage {
		fmt.Fprintf(t.errOut, "Usage is %s\n\n", v.usage())
	}
	return exitAdminUsage
}

// failedCache says an error as Hadoop's tool does, whose client makes exceptions of their classes.
func (t *hadoopTool) failedCache(err error) int {
	if _, remote := errors.AsType[*dfs.Error](err); remote && metadata.KindOf(err) == metadata.ErrIO {
		fmt.Fprintf(t.errOut, "IOException: %s\n", hadoopMessage(err))
		return exitAdminFailed
	}
	return t.failedAdmin(err, exitAdminFailed)
}

// failedList says an error of a list, which Hadoop's client passes on as it came.
func (t *hadoopTool) failedList(err error) int {
	fmt.Fprintf(t.errOut, "RemoteException: %s\n", hadoopMessage(err))
	return exitAdminFailed
}

func addDirective(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	at, err := w.options("-path")
	if err != nil {
		return 0, err
	}
	if at["-path"] == nil {
		fmt.Fprintln(t.errOut, "You must specify a path with -path.")
		return exitAdminUsage, nil
	}
	pool, err := w.options("-pool")
	if err != nil {
		return 0, err
	}
	if pool["-pool"] == nil {
		fmt.Fprintln(t.errOut, "You must specify a pool name with -pool.")
		return exitAdminUsage, nil
	}
	d := namenode.CacheDirectiveChange{Pool: pool["-pool"]}
	force, code, err := t.directiveArguments(w, &d)
	if err != nil || code != 0 {
		return code, err
	}
	if len(w.left) > 0 {
		return t.misunderstood(w, v, false), nil
	}
	if d.Path, err = t.cachePath(*at["-path"]); err != nil {
		return 0, err
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	id, err := fs.AddCacheDirective(t.ctx, d, force)
	if err != nil {
		return t.failedCache(err), nil
	}
	t.printf("Added cache directive %d\n", id)
	return 0, nil
}

func modifyDirective(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	at, err := w.options("-id", "-path", "-pool")
	if err != nil {
		return 0, err
	}
	if at["-id"] == nil {
		fmt.Fprintln(t.errOut, "You must specify a directive ID with -id.")
		return exitAdminUsage, nil
	}
	id, err := javaNumber(at["-id"], 64, 10)
	if err != nil {
		return 0, err
	}
	d := namenode.CacheDirectiveChange{Pool: at["-pool"]}
	force, code, err := t.directiveArguments(w, &d)
	if err != nil || code != 0 {
		return code, err
	}
	if len(w.left) > 0 {
		return t.misunderstood(w, v, true), nil
	}
	if at["-path"] != nil {
		if d.Path, err = t.cachePath(*at["-path"]); err != nil {
			return 0, err
		}
	}
	if d == (namenode.CacheDirectiveChange{}) {
		fmt.Fprintln(t.errOut, "No modifications were specified.")
		return exitAdminUsage, nil
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	if err := fs.ModifyCacheDirective(t.ctx, *id, d, force); err != nil {
		return t.failedCache(err), nil
	}
	t.printf("Modified cache directive %s\n", *at["-id"])
	return 0, nil
}

func removeDirective(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	text := w.first()
	if text == nil {
		fmt.Fprintln(t.errOut, "You must specify a directive ID to remove.")
		return exitAdminUsage, nil
	}
	id, err := javaNumber(text, 64, 10)
	switch {
	case err != nil:
		fmt.Fprintf(t.errOut, "Invalid directive ID %s: expected a numeric value.\n", *text)
		return exitAdminUsage, nil
	case *id <= 0:
		fmt.Fprintf(t.errOut, "Invalid directive ID %d: ids must be greater than 0.\n", *id)
		return exitAdminUsage, nil
	case len(w.left) > 0:
		return t.misunderstood(w, v, true), nil
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	if err := fs.RemoveCacheDirective(t.ctx, *id); err != nil {
		return t.failedCache(err), nil
	}
	t.printf("Removed cached directive %d\n", *id)
	return 0, nil
}

func removeDirectives(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	at, err := w.option("-path")
	if err != nil {
		return 0, err
	}
	if at == nil {
		fmt.Fprintln(t.errOut, "You must specify a path with -path.")
		return exitAdminUsage, nil
	}
	if len(w.left) > 0 {
		return t.misunderstood(w, v, true), nil
	}
	path, err := t.cachePath(*at)
	if err != nil {
		return 0, err
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	all, err := fs.CacheDirectives(t.ctx, namenode.CacheFilter{Path: path})
	if err != nil {
		return t.failedList(err), nil
	}
	code := 0
	for i := range all {
		if err := fs.RemoveCacheDirective(t.ctx, all[i].ID); err != nil {
			code = t.failedCache(err)
			continue
		}
		t.printf("Removed cache directive %d\n", all[i].ID)
	}
	if code == 0 {
		t.printf("Removed every cache directive with path %s\n", *at)
	}
	return code, nil
}

func listDirectives(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	at, err := w.options("-path", "-pool", "-id")
	if err != nil {
		return 0, err
	}
	f := namenode.CacheFilter{Pool: at["-pool"]}
	stats := w.flag("-stats")
	if f.ID, err = javaNumber(at["-id"], 64, 10); err != nil {
		return 0, err
	}
	if len(w.left) > 0 {
		return t.misunderstood(w, v, false), nil
	}
	if at["-path"] != nil {
		if f.Path, err = t.cachePath(*at["-path"]); err != nil {
			return 0, err
		}
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	all, err := fs.CacheDirectives(t.ctx, f)
	if err != nil {
		return t.failedList(err), nil
	}
	table := listing{{title: "ID", right: true}, {title: "POOL"}, {title: "REPL", right: true}, {title: "EXPIRY"}, {title: "PATH"}}
	if stats {
		table = append(table, figureColumns("BYTES_NEEDED", "BYTES_CACHED", "FILES_NEEDED", "FILES_CACHED")...)
	}
	for i := range all {
		d := &all[i]
		expiry := "never"
		if int64(d.Expires) <= metadata.CacheForever/2 {
			expiry = metadata.Expiration{Millis: int64(d.Expires)}.String()
		}
		row := []string{fmt.Sprint(d.ID), d.Pool, fmt.Sprint(d.Replication), expiry, d.Path}
		if stats {
			row = append(row, fmt.Sprint(d.BytesNeeded), fmt.Sprint(d.BytesCached), fmt.Sprint(d.FilesNeeded), fmt.Sprint(d.FilesCached))
		}
		table.add(row)
	}
	entries := "entries"
	if len(all) == 1 {
		entries = "entry"
	}
	t.printf("Found %d %s\n", len(all), entries)
	if len(all) > 0 {
		t.printf("%s", table)
	}
	return 0, nil
}

// poolArguments reads what -addPool and -modifyPool have in common; said are the attributes as they are named afterwards.
func (t *hadoopTool) poolArguments(w *cacheWords) (p namenode.CachePoolChange, v map[string]*string, code int, err error) {
	if v, err = w.options("-owner", "-group", "-mode", "-limit", "-defaultReplication", "-maxTtl"); err != nil {
		return p, nil, 0, err
	}
	p.Owner, p.Group = v["-owner"], v["-group"]
	mode, err := javaNumber(v["-mode"], 16, 8)
	if err != nil {
		return p, nil, 0, err
	}
	if mode != nil {
		p.Mode = new(metadata.Mode(*mode & 0o1777))
	}
	if l := v["-limit"]; l != nil && strings.EqualFold(*l, "unlimited") {
		p.Limit = new(metadata.CacheUnlimited)
	} else if p.Limit, err = javaNumber(l, 64, 10); err != nil {
		return p, nil, 0, err
	}
	if p.Replication, err = javaShort(v["-defaultReplication"]); err != nil {
		return p, nil, 0, err
	}
	if ttl := v["-maxTtl"]; ttl != nil {
		ms := metadata.CacheForever
		if !strings.EqualFold(*ttl, "never") {
			if ms, err = relativeTime(*ttl); err != nil {
				fmt.Fprintf(t.errOut, "Error while parsing maxTtl value: %v\n", err)
				return p, nil, exitAdminUsage, nil
			}
		}
		p.MaxTTL = &ms
	}
	return p, v, 0, nil
}

// unknownWords says that there are words too many.
func (t *hadoopTool) unknownWords(w *cacheWords, v *cacheVerb) int {
	fmt.Fprintf(t.errOut, "Can't understand arguments: %s\nUsage is %s\n\n", strings.Join(w.left, " "), v.usage())
	return exitAdminUsage
}

func addPool(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	name := w.first()
	if name == nil {
		fmt.Fprintln(t.errOut, "You must specify a name when creating a cache pool.")
		return exitAdminUsage, nil
	}
	p, _, code, err := t.poolArguments(w)
	if err != nil || code != 0 {
		return code, err
	}
	if len(w.left) > 0 {
		return t.unknownWords(w, v), nil
	}
	p.Name = *name
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	if err := fs.AddCachePool(t.ctx, p); err != nil {
		return t.failedCache(err), nil
	}
	t.printf("Successfully added cache pool %s.\n", p.Name)
	return 0, nil
}

func modifyPool(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	p, given, code, err := t.poolArguments(w)
	if err != nil || code != 0 {
		return code, err
	}
	name := w.first()
	switch {
	case name == nil:
		fmt.Fprintln(t.errOut, "You must specify a name when creating a cache pool.")
		return exitAdminUsage, nil
	case len(w.left) > 0:
		return t.unknownWords(w, v), nil
	case p == (namenode.CachePoolChange{}):
		fmt.Fprintln(t.errOut, "You must specify at least one attribute to change in the cache pool.")
		return exitAdminUsage, nil
	}
	p.Name = *name
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	if err := fs.ModifyCachePool(t.ctx, p); err != nil {
		return t.failedCache(err), nil
	}
	t.printf("Successfully modified cache pool %s", p.Name)
	prefix := " to have "
	say := func(what string, value any, given bool) {
		if given {
			t.printf("%s%s %v", prefix, what, value)
			prefix = " and "
		}
	}
	said := func(option string) string {
		if given[option] == nil {
			return ""
		}
		return *given[option]
	}
	say("owner name", said("-owner"), p.Owner != nil)
	say("group name", said("-group"), p.Group != nil)
	if p.Mode != nil {
		say("mode", p.Mode.String(), true)
	}
	if p.Limit != nil {
		say("limit", *p.Limit, true)
	}
	if p.Replication != nil { // and the end of the line, in Hadoop too
		say("replication", fmt.Sprintf("%d\n", *p.Replication), true)
		prefix = " replication "
	}
	say("max time-to-live", said("-maxTtl"), p.MaxTTL != nil)
	t.printf("\n")
	return 0, nil
}

func removePool(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	name := w.first()
	if name == nil {
		fmt.Fprintln(t.errOut, "You must specify a name when deleting a cache pool.")
		return exitAdminUsage, nil
	}
	if len(w.left) > 0 {
		return t.unknownWords(w, v), nil
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	if err := fs.RemoveCachePool(t.ctx, *name); err != nil {
		return t.failedCache(err), nil
	}
	t.printf("Successfully removed cache pool %s.\n", *name)
	return 0, nil
}

func listPools(t *hadoopTool, v *cacheVerb, w *cacheWords) (int, error) {
	name, stats := w.first(), w.flag("-stats")
	if len(w.left) > 0 {
		return t.unknownWords(w, v), nil
	}
	fs, err := t.client()
	if err != nil {
		return 0, err
	}
	all, err := fs.CachePools(t.ctx)
	if err != nil {
		return t.failedList(err), nil
	}
	table := listing{{title: "NAME"}, {title: "OWNER"}, {title: "GROUP"}, {title: "MODE"}}
	table = append(table, figureColumns("LIMIT", "MAXTTL", "DEFAULT_REPLICATION")...)
	if stats {
		table = append(table, figureColumns("BYTES_NEEDED", "BYTES_CACHED", "BYTES_OVERLIMIT", "FILES_NEEDED", "FILES_CACHED")...)
	}
	found := 0
	for i := range all {
		p := &all[i]
		if name != nil && p.Name != *name {
			continue
		}
		found++
		row := []string{p.Name, "", "", "", "null", "", "null"}
		if p.Readable {
			limit, ttl := fmt.Sprint(p.Limit), "never"
			if p.Limit == metadata.CacheUnlimited {
				limit = "unlimited"
			}
			if p.MaxTTL != metadata.CacheForever {
				ttl = metadata.DurationString(p.MaxTTL)
			}
			row = []string{p.Name, p.Owner, p.Group, p.Mode.String(), limit, ttl, fmt.Sprint(p.Replication)}
		}
		if stats {
			row = append(row, fmt.Sprint(p.BytesNeeded), fmt.Sprint(p.BytesCached), fmt.Sprint(p.Overlimit()), fmt.Sprint(p.FilesNeeded), fmt.Sprint(p.FilesCached))
		}
		table.add(row)
	}
	results := "results"
	if found == 1 {
		results = "result"
	}
	t.printf("Found %d %s.\n", found, results)
	if found > 0 {
		t.printf("%s", table)
	}
	return 0, nil
}

// listing is a table as Hadoop's TableListing prints it.
type listing []listingColumn

type listingColumn struct {
	title string
	right bool
	cells []string
}

func figureColumns(titles ...string) (out listing) {
	for _, title := range titles {
		out = append(out, listingColumn{title: title, right: true})
	}
	return out
}

func (l listing) add(row []string) {
	for i := range l {
		l[i].cells = append(l[i].cells, row[i])
	}
}

func (l listing) String() string {
	var b strings.Builder
	widths := make([]int, len(l))
	for i, c := range l {
		for _, cell := range append([]string{c.title}, c.cells...) {
			widths[i] = max(widths[i], len([]rune(cell))+1)
		}
	}
	for row := -1; row < len(l[0].cells); row++ {
		for i, c := range l {
			cell := c.title
			if row >= 0 {
				cell = c.cells[row]
			}
			width := widths[i]
			if !c.right {
				width = -width
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprintf(&b, "%*s", width, cell)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
