package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

func smallFilesCommand() *cli.Command {
	return &cli.Command{
		Name: "smallfiles", Usage: "whether the namenodes keep small files below a directory", ArgsUsage: "PATH [on|off|inherit|keep]",
		Description: "hops smallfiles /data              says whether they do, and whether the directory itself says so\n" +
			"hops smallfiles /data/tmp off\n" +
			"hops smallfiles /data/tmp inherit  as the directory above says\n" +
			"hops smallfiles /data keep         the files that are there, of whichever client, become small files\n\n" +
			"The first three are for files that are made from now on, with 64 KiB at most (namenode.small_file_limit): by hops and its clients at once, and by others, who write to\n" +
			"datanodes, some time after they were closed (namenode.small_file_delay, 10 minutes).\n" +
			"keep is for those of an older time, and of snapshots: it reads ordinary files of at most that, PATH or all below it, and has the namenodes keep their bytes: nothing else of them changes. It may be interrupted and repeated.\n" +
			"PATH may be relative, to the user's home, or hdfs://. docs/how-to/small-files.md tells more.",
		Flags: []cli.Flag{confFlag()}, Action: smallFiles,
	}
}

var smallFilePolicies = map[string]namenode.SmallFilePolicy{
	"on": namenode.SmallFilesOn, "off": namenode.SmallFilesOff, "inherit": namenode.SmallFilesInherit,
}

func smallFiles(c *cli.Context) error {
	given, word := c.Args().Get(0), c.Args().Get(1)
	policy, known := smallFilePolicies[word]
	if given == "" || c.NArg() > 2 || word != "" && word != "keep" && !known {
		return fail(exitUsage, "smallfiles takes a path, and on, off or inherit to change what holds there, or keep for the files that are there")
	}
	properties := map[string]string{}
	if dir := c.String("conf"); dir != "" {
		properties["-conf"] = dir
	}
	t := &hadoopTool{properties: properties, errOut: c.App.ErrWriter}
	defer t.close()
	path, err := t.at(given)
	if err != nil {
		return err
	}
	fs, err := t.client()
	if err != nil {
		return err
	}
	if known {
		return fs.SetSmallFilePolicy(c.Context, path, policy)
	}
	if word == "keep" {
		return keepFiles(c, fs, path)
	}
	policy, own, err := fs.SmallFilePolicy(c.Context, path)
	if err != nil {
		return err
	}
	from := "as no directory says otherwise"
	if own {
		from = "as the directory itself says"
	} else if policy == namenode.SmallFilesOff {
		from = "as a directory above says, or a cluster at a level below 6"
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s: %s, %s\n", path, policy, from)
	return err
}

// keepsAtOnce is how many files are read and handed over at a time.
const keepsAtOnce = 16

// keeping is a run of `hops smallfiles PATH keep`.
type keeping struct {
	fs     *dfs.Client
	errOut io.Writer

	mu                          sync.Mutex
	kept, there, others, failed int
	bytes                       int64
	// unfit are the failed ones that may not become small files, as where these are off, and first is the first of them, with why.
	unfit int
	first string
}

// keepFiles makes small files of a file, or of those below a directory that can be. Its exit code is 1 when one that could be did not become one.
func keepFiles(c *cli.Context, fs *dfs.Client, path string) error {
	k := &keeping{fs: fs, errOut: c.App.ErrWriter}
	st, err := fs.Stat(c.Context, path)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(c.Context)
	group.SetLimit(keepsAtOnce)
	walked := k.walk(ctx, group, path, &st)
	if err := errors.Join(group.Wait(), walked); err != nil {
		return err
	}
	if err := k.tellUnfit(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.App.Writer, "%d files are kept by the namenodes now, %d bytes; %d were already; %d are too large, empty or coded; %d could not be kept\n",
		k.kept, k.bytes, k.there, k.others, k.failed); err != nil {
		return err
	}
	if err := k.tellBackups(); err != nil {
		return err
	}
	if k.failed > 0 {
		return fail(exitFailed, "%d files could not be kept", k.failed)
	}
	return nil
}

// backupDue is what is said where blocks that backups of the metadata name have gone.
const backupDue = "Backups of the metadata from before lack the contents of these files: make a new one (docs/how-to/backup.md)"

func (k *keeping) tellBackups() (err error) {
	if k.kept > 0 {
		_, err = fmt.Fprintln(k.errOut, backupDue)
	}
	return err
}

// walk has a file kept, or all below a directory. An error ends all.
func (k *keeping) walk(ctx context.Context, group *errgroup.Group, path string, st *metadata.FileStatus) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !st.IsDir() {
		if st.Length == 0 || st.Length > metadata.MaxBody || st.Erasure != 0 {
			k.count(&k.others, 0)
			return nil
		}
		length := st.Length
		group.Go(func() error { return k.file(ctx, path, length) })
		return nil
	}
	entries, err := k.fs.List(ctx, path)
	if err != nil {
		return k.refused(ctx, path, err)
	}
	for i := range entries {
		below := path
		if below[len(below)-1] != '/' {
			below += "/"
		}
		if err := k.walk(ctx, group, below+entries[i].Name, &entries[i]); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeping) file(ctx context.Context, path string, length int64) error {
	kept, err := k.fs.Keep(ctx, path)
	switch {
	case err != nil:
		return k.refused(ctx, path, err)
	case kept:
		k.count(&k.kept, length)
	default:
		k.count(&k.there, 0)
	}
	return nil
}

func (k *keeping) count(what *int, bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	*what++
	k.bytes += bytes
}

// refused takes note of what could not be kept. The error is one that ends all.
func (k *keeping) refused(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil || errors.Is(err, metadata.ErrStandby) {
		return err
	}
	k.count(&k.failed, 0)
	k.mu.Lock()
	defer k.mu.Unlock()
	text := fmt.Sprintf("%s: %s", path, hadoopMessage(err))
	if errors.Is(err, metadata.ErrUnsupported) { // and so are all others below the directory
		if k.unfit++; k.unfit == 1 {
			k.first = text
		}
		return nil
	}
	_, err = fmt.Fprintln(k.errOut, text)
	return err
}

// tellUnfit tells of the files that may not become small files: how many they are, and why the first of them is one.
func (k *keeping) tellUnfit() (err error) {
	switch {
	case k.unfit == 1:
		_, err = fmt.Fprintln(k.errOut, k.first)
	case k.unfit > 1:
		_, err = fmt.Fprintf(k.errOut, "%d files may not become small files, the first because: %s\n", k.unfit, k.first)
	}
	return err
}
