package shell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
)

// verbs are the commands by name. The table is filled by init functions' absence of order: one literal.
var verbs map[string]verb

func init() { // a literal would be an initialization cycle: help lists the table
	verbs = map[string]verb{
		"appendToFile":   {"-appendToFile [-n] <localsrc> ... <dst>", "Append local files, or standard input (-), to a file; -n begins a new block.", []string{"n"}, nil, 1, 0, runAppend},
		"cat":            {"-cat [-ignoreCrc] <src> ...", "Print files.", []string{"ignoreCrc"}, nil, 1, 0, runCat},
		"chgrp":          {"-chgrp [-R] GROUP PATH...", "Change the group of files.", []string{"R"}, nil, 2, 0, runChgrp},
		"chmod":          {"-chmod [-R] <MODE[,MODE]... | OCTALMODE> PATH...", "Change the mode of files.", []string{"R"}, nil, 2, 0, runChmod},
		"chown":          {"-chown [-R] [OWNER][:[GROUP]] PATH...", "Change owner and group of files.", []string{"R"}, nil, 2, 0, runChown},
		"checksum":       {"-checksum [-v] <src> ...", "Print the checksums of files.", []string{"v"}, nil, 1, 0, runChecksum},
		"concat":         {"-concat <target path> <src path> <src path> ...", "Move the blocks of files to the end of another.", nil, nil, 0, 0, runConcat},
		"createSnapshot": {"-createSnapshot <snapshotDir> [<snapshotName>]", "Make a snapshot of a directory.", nil, nil, 0, 0, runCreateSnapshot},
		"deleteSnapshot": {"-deleteSnapshot <snapshotDir> <snapshotName>", "Remove a snapshot.", nil, nil, 0, 0, runDeleteSnapshot},
		"expunge":        {"-expunge [-immediate] [-fs <path>]", "Remove what has been in the trash for long.", []string{"immediate"}, []string{"fs"}, 0, 0, runExpunge},
		"find":           {"-find <path> ... <expression> ...", "Find files by expressions: those of Hadoop by a walk through the tree, by tag, size and type with the search index.", []string{"L", "H"}, nil, 0, 0, runFind},
		"getfacl":        {"-getfacl [-R] <path>", "Print access control lists.", []string{"R"}, nil, 0, 0, runGetfacl},
		"getfattr":       {"-getfattr [-R] {-n name | -d} [-e en] <path>", "Print extended attributes.", []string{"R", "d"}, []string{"n", "e"}, 0, 0, runGetfattr},
		"renameSnapshot": {"-renameSnapshot <snapshotDir> <oldName> <newName>", "Rename a snapshot.", nil, nil, 0, 0, runRenameSnapshot},
		"setfacl":        {"-setfacl [-R] [{-b|-k} {-m|-x <acl_spec>} <path>]|[--set <acl_spec> <path>]", "Change access control lists.", []string{"R", "b", "k", "m", "x", "-set"}, nil, 0, 0, runSetfacl},
		"setfattr":       {"-setfattr {-n name [-v value] | -x name} <path>", "Set or remove an extended attribute.", nil, []string{"n", "v", "x"}, 0, 0, runSetfattr},
		"text":           {"-text [-ignoreCrc] <src> ...", "Print files, compressed ones unpacked.", []string{"ignoreCrc"}, nil, 1, 0, runText},
		"truncate":       {"-truncate [-w] <length> <path> ...", "Cut files to a length.", []string{"w"}, nil, 2, 0, runTruncate},
		"copyFromLocal":  {"-copyFromLocal [-f] [-p] [-l] [-d] [-t <thread count>] [-q <thread pool queue size>] <localsrc> ... <dst>", "The same as put.", []string{"f", "p", "l", "d"}, []string{"t", "q"}, 1, 0, runPut},
		"copyToLocal":    {"-copyToLocal [-f] [-p] [-crc] [-ignoreCrc] [-t <thread count>] [-q <thread pool queue size>] <src> ... <localdst>", "The same as get.", []string{"f", "p", "crc", "ignoreCrc", "ignorecrc"}, []string{"t", "q"}, 1, 0, runGet},
		"count":          {"-count [-q] [-h] [-v] [-t [<storage type>]] [-u] [-x] [-e] [-s] <path> ...", "Count directories, files and bytes below paths.", []string{"q", "h", "v", "t", "u", "x", "e", "s"}, nil, 1, 0, runCount},
		"cp":             {"-cp [-f] [-p | -p[topax]] [-d] [-t <thread count>] [-q <thread pool queue size>] <src> ... <dst>", "Copy files within the filesystem, or from and to file:// paths. -p keeps times, owner and permission, or what the letters name: t, o, p, access control list (a), extended attributes (x).", []string{"f", "d"}, []string{"t", "q"}, 2, 0, runCp},
		"df":             {"-df [-h] [<path> ...]", "Show capacity and free space.", []string{"h"}, nil, 0, 0, runDf},
		"du":             {"-du [-s] [-h] [-v] [-x] <path> ...", "Show the space that paths use.", []string{"s", "h", "v", "x"}, nil, 0, 0, runDu},
		"get":            {"-get [-f] [-p] [-crc] [-ignoreCrc] [-t <thread count>] [-q <thread pool queue size>] <src> ... <localdst>", "Copy files to the local filesystem.", []string{"f", "p", "crc", "ignoreCrc", "ignorecrc"}, []string{"t", "q"}, 1, 0, runGet},
		"getmerge":       {"-getmerge [-nl] [-skip-empty-file] <src> <localdst>", "Put the files of directories into one local file.", []string{"nl", "skip-empty-file"}, nil, 2, 0, runGetmerge},
		"head":           {"-head <file>", "Print the first kilobyte of a file.", nil, nil, 1, 1, runHead},
		"help":           {"-help [cmd ...]", "Say what commands do.", nil, nil, 0, 0, runHelp},
		"ls":             {"-ls [-C] [-d] [-h] [-q] [-R] [-t] [-S] [-r] [-u] [-e] [<path> ...]", "List directories and files.", []string{"C", "d", "h", "q", "R", "t", "S", "r", "u", "e"}, nil, 0, 0, runLs},
		"mkdir":          {"-mkdir [-p] <path> ...", "Make directories.", []string{"p"}, nil, 1, 0, runMkdir},
		"moveFromLocal":  {"-moveFromLocal [-f] [-p] [-l] [-d] <localsrc> ... <dst>", "Copy local files and remove them.", []string{"f", "p", "l", "d"}, nil, 1, 0, runMoveFromLocal},
		"moveToLocal":    {"-moveToLocal <src> <localdst>", "Not implemented, as in Hadoop.", []string{"crc"}, nil, 0, 0, runMoveToLocal},
		"mv":             {"-mv <src> ... <dst>", "Move files within the filesystem.", nil, nil, 2, 0, runMv},
		"pin":            {"-pin [-n <datanodes>] [-pool <pool>] [-w] <path> ...", "Keep files, or the files in directories, in the memory of datanodes: a cache directive in the pool 'default', or another one. Hadoop's shell does not have it.", []string{"w"}, []string{"n", "pool"}, 1, 0, runPin},
		"publish":        {"-publish {<localfile> | -}", "Do what the lines of a local file, or of standard input (-), say: all of it or nothing, and nobody sees a state in between. Lines are `rename [-f] <src> <dst>', to exactly dst, `rm [-r] [-f] <path>', which is for ever, `setfattr {-n name [-v value] | -x name} <path>' and, last, `createSnapshot <dir> [<name>]'; quotes go around what has spaces. Hadoop's shell does not have it.", nil, nil, 1, 1, runPublish},
		"put":            {"-put [-f] [-p] [-l] [-d] [-t <thread count>] [-q <thread pool queue size>] <localsrc> ... <dst>", "Copy local files, or standard input (-), into the filesystem. -l writes one replica, to the memory of a datanode first.", []string{"f", "p", "l", "d"}, []string{"t", "q"}, 1, 0, runPut},
		"rm":             {"-rm [-f] [-r|-R] [-skipTrash] [-safely] <src> ...", "Remove files.", []string{"f", "r", "R", "skipTrash", "safely"}, nil, 0, 0, runRm},
		"rmdir":          {"-rmdir [--ignore-fail-on-non-empty] <dir> ...", "Remove empty directories.", []string{"-ignore-fail-on-non-empty"}, nil, 1, 0, runRmdir},
		"setrep":         {"-setrep [-R] [-w] <rep> <path> ...", "Set the replication of files.", []string{"R", "w"}, nil, 2, 0, runSetrep},
		"stat":           {"-stat [format] <path> ...", "Print facts about files by a format.", nil, nil, 1, 0, runStat},
		"tail":           {"-tail [-f] [-s <sleep interval>] <file>", "Print the last kilobyte of a file.", []string{"f"}, []string{"s"}, 1, 1, runTail},
		"test":           {"-test -[defswrz] <path>", "Answer questions about a path by exit status.", []string{"d", "e", "f", "s", "w", "r", "z"}, nil, 1, 1, runTest},
		"touch":          {"-touch [-a] [-m] [-t TIMESTAMP (yyyyMMdd:HHmmss) ] [-c] <path> ...", "Set the times of files, which are made if missing.", []string{"a", "m", "c"}, []string{"t"}, 1, 0, runTouch},
		"touchz":         {"-touchz <path> ...", "Make empty files.", nil, nil, 1, 0, runTouchz},
		"unpin":          {"-unpin [-pool <pool>] <path> ...", "End the cache directives for paths, of all pools or of one. Hadoop's shell does not have it.", nil, []string{"pool"}, 1, 0, runUnpin},
		"usage":          {"-usage [cmd ...]", "Print the usage of commands.", nil, nil, 0, 0, runUsage},
		"watch":          {"-watch [-from <position>] [-n <number>] [<path>]", "Print changes as they happen, of everything or at a path and below. Hadoop's shell does not have it.", nil, []string{"from", "n"}, 0, 1, runWatch},
	}
}

var deprecatedVerbs = map[string][]string{"lsr": {"ls", "-R"}, "rmr": {"rm", "-r"}, "dus": {"du", "-s"}}

// Verbs lists the names of all commands, for completion.
func Verbs() []string { return slices.Sorted(maps.Keys(verbs)) }

func (s *Shell) printUsage() {
	fmt.Fprintln(s.Stderr, "Usage: hadoop fs [generic options]")
	for _, name := range Verbs() {
		fmt.Fprintf(s.Stderr, "\t[%s]\n", verbs[name].usage)
	}
	fmt.Fprint(s.Stderr, "\nGeneric options: -D <property=value>, -conf <file>, -fs <hdfs://host:port>\n\n")
}

func runHelp(_ context.Context, s *Shell, args []string) error {
	if len(args) == 0 {
		args = Verbs()
	}
	return s.describe(args, true)
}

func runUsage(_ context.Context, s *Shell, args []string) error {
	if len(args) == 0 {
		args = Verbs()
	}
	return s.describe(args, false)
}

func (s *Shell) describe(names []string, long bool) error {
	for _, name := range names {
		v, ok := verbs[strings.TrimPrefix(name, "-")]
		if !ok {
			return usageError{fmt.Sprintf("`%s': Unknown command", name)}
		}
		if long {
			s.printf("%s :\n  %s\n", v.usage, v.description)
			s.explain(strings.TrimPrefix(name, "-"), v)
			s.printf("\n")
		} else {
			s.printf("Usage: hadoop fs [generic options] %s\n", v.usage)
		}
	}
	return nil
}

// lsColumns are the widths of ls's columns, which grow while a command runs.
type lsColumns struct{ replication, owner, group, length int }

func runLs(ctx context.Context, s *Shell, args []string) error {
	if len(args) == 0 {
		args = []string{"."}
	}
	columns := &lsColumns{replication: 3, length: 10}
	var visit func(it item) error
	visit = func(it item) error {
		items, err := s.children(ctx, it)
		if err != nil {
			return err
		}
		if !s.option("R") && !s.option("C") && len(items) > 0 {
			s.printf("Found %d items\n", len(items))
		}
		s.lsItems(columns, items, func(child item) {
			if s.option("R") && child.isDir() {
				if err := visit(child); err != nil {
					s.report(err)
				}
			}
		})
		return ctx.Err()
	}
	if s.json {
		return s.lsJSON(ctx, args)
	}
	return s.each(ctx, args, func(it item) error {
		if it.isDir() && !s.option("d") {
			return visit(it)
		}
		s.lsItems(columns, []item{it}, func(item) {})
		return nil
	})
}

func (s *Shell) lsItems(columns *lsColumns, items []item, after func(item)) {
	order := func(a, b item) int {
		switch {
		case s.option("t"):
			if c := cmp.Compare(s.lsTime(b), s.lsTime(a)); c != 0 {
				return c
			}
		case s.option("S"):
			if c := cmp.Compare(b.status.Length, a.status.Length); c != 0 {
				return c
			}
		}
		return cmp.Compare(a.path, b.path)
	}
	if s.option("t") || s.option("S") || !s.option("R") { // Hadoop does not sort what it goes down into
		slices.SortStableFunc(items, order)
	}
	if s.option("r") {
		slices.Reverse(items)
	}
	policies := 0 // the width of their column, which is Hadoop's for each directory anew
	for _, it := range items {
		columns.replication = max(columns.replication, len(replicationOf(it)))
		columns.owner = max(columns.owner, len(it.status.Owner))
		columns.group = max(columns.group, len(it.status.Group))
		columns.length = max(columns.length, len(s.size(it.status.Length)))
		policies = max(policies, len(erasureOf(it)))
	}
	for _, it := range items {
		name := it.shown
		if s.option("q") {
			name = printable(name)
		}
		if s.option("C") {
			s.printf("%s\n", name)
			after(it)
			continue
		}
		kind, plus := "-", " "
		if it.isDir() {
			kind = "d"
		}
		if it.status.ACL {
			plus = "+"
		}
		s.printf("%s%s %*s %s%s", kind+it.status.Mode.String(), plus, columns.replication-1, replicationOf(it), column(it.status.Owner, columns.owner), column(it.status.Group, columns.group))
		if s.option("e") {
			s.printf("%s", column(erasureOf(it), policies))
		}
		s.printf("%*s %s %s\n", columns.length, s.size(it.status.Length), s.lsTime(it).Time().Local().Format("2006-01-02 15:04"), name)
		after(it)
	}
}

// replicated is what is shown of files without an erasure coding policy.
const replicated = "Replicated"

// erasureOf is the erasure coding policy of a file, or of files that are made in a directory; empty for one where they are replicated.
func erasureOf(it item) string {
	p, coded := metadata.ErasurePolicyOf(it.status.Erasure)
	if !coded && !it.isDir() {
		return replicated
	}
	return p.Name
}

// column is a cell with the blank behind it; a column without any text has none.
func column(text string, width int) string {
	if width == 0 {
		return ""
	}
	return fmt.Sprintf("%-*s ", width, text)
}

func (s *Shell) lsTime(it item) metadata.Time {
	if s.option("u") {
		return it.status.ATime
	}
	return it.status.MTime
}

func replicationOf(it item) string {
	if it.isDir() {
		return "-"
	}
	return strconv.Itoa(int(it.status.Replication))
}

func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, name)
}

// size is a number of bytes, for people when the option -h is set.
func (s *Shell) size(n int64) string {
	if s.option("h") {
		return human(n)
	}
	return strconv.FormatInt(n, 10)
}

// human is Hadoop's StringUtils.TraditionalBinaryPrefix with one decimal: 4.9 K, 64 M.
func human(n int64) string {
	const letters = "KMGTPE"
	if n < 1024 {
		return strconv.FormatInt(n, 10)
	}
	unit, i := int64(1024), 0
	for i+1 < len(letters) && n/unit >= 1024 {
		unit, i = unit*1024, i+1
	}
	if n%unit == 0 {
		return fmt.Sprintf("%d %c", n/unit, letters[i])
	}
	text := fmt.Sprintf("%.1f", float64(n)/float64(unit))
	if strings.HasPrefix(text, "1024") && i+1 < len(letters) {
		text, i = fmt.Sprintf("%.1f", float64(n)/float64(unit)/1024), i+1
	}
	return text + " " + string(letters[i])
}

func runMkdir(ctx context.Context, s *Shell, args []string) error {
	return s.eachNew(ctx, args, func(it item) error {
		switch {
		case it.status == nil && s.option("p"):
			return s.fs.Mkdirs(ctx, it.path, 0o777, true)
		case it.status == nil:
			if ok, err := s.parentExists(ctx, it.path); err != nil || !ok {
				return cmp.Or(err, notFound(s.qualified(path.Dir(it.path))))
			}
			return s.fs.Mkdirs(ctx, it.path, 0o777, true)
		case !it.isDir():
			return notDirectory(it.shown)
		case !s.option("p"):
			return exists(it.shown)
		}
		return nil
	})
}

func runTouchz(ctx context.Context, s *Shell, args []string) error {
	return s.eachNew(ctx, args, func(it item) error { return s.touchz(ctx, it) })
}

func (s *Shell) touchz(ctx context.Context, it item) error {
	switch {
	case it.isDir():
		return isDirectory(it.shown)
	case it.status != nil && it.status.Length != 0:
		return &pathError{path: it.shown, text: "Not a zero-length file"}
	case it.status == nil:
		if ok, err := s.parentExists(ctx, it.path); err != nil || !ok {
			e := &pathError{path: it.shown, text: "No such file or directory", qualified: s.qualified(it.path)}
			return cmp.Or[error](err, e)
		}
	}
	return s.fs.WriteFile(ctx, it.path, nil, true)
}

const touchLayout = "20060102:150405"

func runTouch(ctx context.Context, s *Shell, args []string) error {
	now := metadata.TimeOf(time.Now())
	if text, ok := s.options["t"]; ok {
		at, err := time.ParseInLocation(touchLayout, text, time.Local)
		if err != nil {
			return usageError{"Unable to parse the specified timestamp " + text + ". The expected format is yyyyMMdd:HHmmss"}
		}
		now = metadata.TimeOf(at)
	}
	atime, mtime := now, now
	if s.option("a") && !s.option("m") {
		mtime = -1
	}
	if s.option("m") && !s.option("a") {
		atime = -1
	}
	return s.eachNew(ctx, args, func(it item) error {
		if it.status == nil {
			if s.option("c") {
				return nil
			}
			if err := s.touchz(ctx, it); err != nil {
				return err
			}
		}
		return s.fs.SetTimes(ctx, it.path, mtime, atime)
	})
}

func runRm(ctx context.Context, s *Shell, args []string) error {
	if len(args) == 0 && !s.option("f") {
		return usageError{"Not enough arguments: expected 1 but got 0"}
	}
	recursive := s.option("r") || s.option("R")
	if err := s.lateOption(ctx, args); err != nil {
		return err
	}
	var trash int64
	if !s.option("skipTrash") && s.client != nil {
		defaults, err := s.client.ServerDefaults(ctx)
		if err != nil {
			return err
		}
		trash = int64(s.trashInterval(defaults))
	}
	return s.each(ctx, args, func(it item) error {
		if it.isDir() && !recursive {
			return isDirectory(it.shown)
		}
		if s.option("safely") && it.isDir() {
			if err := s.confirm(ctx, it); err != nil {
				return err
			}
		}
		if trash > 0 {
			moved, err := s.moveToTrash(ctx, it)
			if moved || err != nil {
				return err
			}
		}
		ok, err := s.fs.Delete(ctx, it.path, recursive)
		if err != nil {
			return err
		}
		if !ok {
			return failed(it.shown)
		}
		s.printf("Deleted %s\n", it.shown)
		return nil
	})
}

// lateOption refuses to remove anything when a word behind the paths looks like an option and names nothing: somebody who
// types -skipTrash last means something else than to remove for ever, or all but this. (Hadoop removes the rest.)
func (s *Shell) lateOption(ctx context.Context, words []string) error {
	for i, word := range words {
		if i == 0 || !strings.HasPrefix(word, "-") {
			continue
		}
		if found, err := s.glob(ctx, word); err != nil || len(found) == 0 {
			return &pathError{path: word, text: "No such file or directory; nothing was removed: options stand before paths"}
		}
	}
	return nil
}

// safelyLimit is hadoop.shell.safely.delete.limit.num.files.
const safelyLimit = 100

func (s *Shell) confirm(ctx context.Context, it item) error {
	sum, err := s.fs.ContentSummary(ctx, it.path)
	if err != nil || sum.Files+sum.Directories <= safelyLimit {
		return err
	}
	s.out.Flush()
	fmt.Fprintf(s.Stderr, "Proceed deleting %d files? (y or n) ", sum.Files+sum.Directories)
	var answer string
	fmt.Fscanln(s.Stdin, &answer)
	if !strings.EqualFold(answer, "y") && !strings.EqualFold(answer, "yes") {
		return &pathError{path: it.shown, text: "Delete aborted at user request."}
	}
	return nil
}

// moveToTrash renames into the user's trash, as Hadoop's TrashPolicyDefault. It returns false for what lies in the trash
// already, which is to be removed.
func (s *Shell) moveToTrash(ctx context.Context, it item) (bool, error) {
	root := "/user/" + s.fs.User() + "/.Trash"
	if it.path == root || strings.HasPrefix(it.path, root+"/") {
		return false, nil
	}
	if strings.HasPrefix(root, it.path+"/") || it.path == "/" {
		return false, &pathError{path: it.shown, text: "Cannot move \"" + it.path + "\" to the trash, as it contains the trash"}
	}
	target := root + "/Current" + it.path
	if err := s.fs.Mkdirs(ctx, path.Dir(target), 0o700, true); err != nil {
		return false, s.notTrashed(it.path, target, err)
	}
	for try, name := 0, target; ; try++ {
		err := s.client.RenameStrict(ctx, it.path, name)
		if errors.Is(err, metadata.ErrExist) && try < 10 {
			name = target + strconv.FormatInt(time.Now().UnixMilli(), 10)
			continue
		}
		if err != nil {
			return false, s.notTrashed(it.path, name, err)
		}
		s.out.Flush()
		fmt.Fprintf(s.Stderr, "Moved: '%s' to trash at: %s\n", s.qualified(it.path), s.qualified(name))
		return true, nil
	}
}

// notTrashed is Hadoop's error of what could not be moved to the trash.
func (s *Shell) notTrashed(from, to string, err error) error {
	return fmt.Errorf("Failed to move %s to trash %s: %s", s.qualified(from), s.qualified(to), text(err))
}

func runRmdir(ctx context.Context, s *Shell, args []string) error {
	return s.each(ctx, args, func(it item) error {
		if !it.isDir() {
			return notDirectory(it.shown)
		}
		children, err := s.children(ctx, it)
		if err != nil {
			return err
		}
		if len(children) > 0 {
			if s.option("-ignore-fail-on-non-empty") {
				return nil
			}
			return &pathError{path: it.shown, text: "Directory is not empty"}
		}
		_, err = s.fs.Delete(ctx, it.path, false)
		return err
	})
}

func runMv(ctx context.Context, s *Shell, args []string) error {
	sources, last := args[:len(args)-1], args[len(args)-1]
	for _, word := range sources {
		if (placeOf(word) == localURI) != (placeOf(last) == localURI) {
			s.report(&pathError{path: word, text: "Does not match target filesystem"})
			return nil
		}
	}
	dst, err := s.destination(ctx, last, sources, false)
	if err != nil {
		return err
	}
	return s.each(ctx, sources, func(src item) error {
		target, err := s.targetOf(ctx, src, dst, last)
		if err != nil {
			return err
		}
		if target.status != nil {
			return exists(target.shown)
		}
		ok, err := s.fs.Rename(ctx, src.path, target.path)
		if err == nil && !ok {
			return failed(src.shown)
		}
		return err
	})
}

// destination checks the last argument of mv, cp and put, as Hadoop's CommandWithDestination does.
func (s *place) destination(ctx context.Context, word string, sources []string, overwrite bool) (item, error) {
	dst, err := s.look(ctx, word)
	if err != nil {
		return dst, err
	}
	if strings.HasSuffix(word, "/") && word != "/" {
		dst.shown += "/"
	}
	switch {
	case len(sources) > 1 && dst.status == nil:
		return dst, notFound(dst.shown)
	case len(sources) > 1 && !dst.isDir():
		return dst, notDirectory(dst.shown)
	case dst.status != nil && !dst.isDir() && !overwrite:
		return dst, exists(dst.shown)
	case dst.status == nil:
		ok, err := s.parentExists(ctx, dst.path)
		if err != nil {
			return dst, err
		}
		if !ok {
			return dst, &pathError{path: dst.shown, text: "No such file or directory", qualified: s.qualified(dst.path)}
		}
	}
	return dst, nil
}

// targetOf is where a source goes: into a directory, or exactly to the destination.
func (s *place) targetOf(ctx context.Context, src, dst item, word string) (item, error) {
	target := dst
	if dst.isDir() || strings.HasSuffix(word, "/") {
		shown := childPath(strings.TrimSuffix(dst.shown, "/"), path.Base(src.path))
		if dst.shown == "/" {
			shown = "/" + path.Base(src.path)
		}
		var err error
		if target, err = s.look(ctx, shown); err != nil {
			return target, err
		}
	}
	if src.isDir() && src.uri == s.uri {
		if target.path == src.path {
			return target, &pathError{path: src.shown, target: s.qualified(target.path), text: "are identical"}
		}
		if strings.HasPrefix(target.path, strings.TrimSuffix(src.path, "/")+"/") {
			return target, &pathError{path: src.shown, target: target.shown, text: "is a subdirectory of itself"}
		}
	}
	return target, nil
}

func runCat(ctx context.Context, s *Shell, args []string) error {
	return s.each(ctx, args, func(it item) error {
		if it.isDir() {
			return isDirectory(it.shown)
		}
		return s.stream(ctx, it, 0)
	})
}

// stream prints a file from an offset on.
func (s *Shell) stream(ctx context.Context, it item, from int64) error {
	r, err := s.fs.open(ctx, it.path)
	if err != nil {
		return err
	}
	defer r.Close()
	if from > 0 {
		if _, err := r.Seek(from, io.SeekStart); err != nil {
			return err
		}
	}
	_, err = io.Copy(boundWriter{ctx: ctx, w: s.out}, r)
	return err
}

// tailBytes is how much -tail and -head print.
const tailBytes = 1024

func runTail(ctx context.Context, s *Shell, args []string) error {
	pause := 5 * time.Second
	if text, ok := s.options["s"]; ok {
		ms, err := strconv.Atoi(text)
		if err != nil || ms <= 0 {
			return usageError{"Illegal sleep interval " + text}
		}
		pause = time.Duration(ms) * time.Millisecond
	}
	return s.each(ctx, args, func(it item) error {
		if it.isDir() {
			return isDirectory(it.shown)
		}
		r, err := s.fs.open(ctx, it.path)
		if err != nil {
			return err
		}
		offset := max(0, r.Size()-tailBytes)
		for {
			if _, err := r.Seek(offset, io.SeekStart); err != nil {
				r.Close()
				return err
			}
			n, err := io.Copy(boundWriter{ctx: ctx, w: s.out}, r)
			r.Close()
			offset += n
			if err != nil || !s.option("f") {
				return err
			}
			s.out.Flush()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
			if r, err = s.fs.open(ctx, it.path); err != nil {
				return err
			}
			if r.Size() < offset {
				offset = r.Size()
			}
		}
	})
}

func runHead(ctx context.Context, s *Shell, args []string) error {
	return s.each(ctx, args, func(it item) error {
		if it.isDir() {
			return isDirectory(it.shown)
		}
		r, err := s.fs.open(ctx, it.path)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.CopyN(s.out, r, tailBytes)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
}
