package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// quiet is the logger of clients: what they cannot do is an answer, not news.
var quiet = slog.New(slog.DiscardHandler)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case errors.Is(err, errFailures):
		os.Exit(1)
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case interrupted:
		fmt.Fprintln(os.Stderr, "compat: interrupted; there is no table of half a run")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(2)
	}
}

// needed is how much room the clusters take, with some to spare.
const needed = 2 << 30

func enoughSpace(dir string) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return err
	}
	if free := int64(fs.Bavail) * int64(fs.Bsize); free < needed {
		return fmt.Errorf("%s has %d MiB free, and %d are needed: make room, or set TMPDIR to another folder", dir, free>>20, int64(needed)>>20)
	}
	return nil
}

// errFailures: the run is whole, and something failed that is not known to.
var errFailures = errors.New("failures")

// started is when the program was.
var started = time.Now()

// say tells what is going on, and when.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "compat: %3.0f s: %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

// options of the command line.
type options struct {
	binary  string
	only    map[string]bool
	cases   string
	verbose bool
	keep    bool
	record  bool
	strict  bool
}

func (o *options) wants(row string) bool { return len(o.only) == 0 || o.only[row] }

func run(ctx context.Context, args []string) error {
	o := options{only: map[string]bool{}}
	fuzz := len(args) > 0 && args[0] == "fuzz"
	if fuzz {
		args = args[1:]
	}
	flags := flag.NewFlagSet("compat", flag.ContinueOnError)
	flags.StringVar(&o.binary, "hops", "bin/hops", "the hops `program`")
	only := flags.String("only", "", "`rows` to run, with commas; default all")
	flags.StringVar(&o.cases, "cases", "", "run only scenarios whose name contains `text`")
	flags.BoolVar(&o.verbose, "v", false, "print every difference in full")
	flags.BoolVar(&o.keep, "keep", false, "keep the data and logs of the clusters")
	flags.BoolVar(&o.strict, "strict", false, "random operations: compare the messages of exceptions too")
	seconds := flags.Int("seconds", 600, "fuzz: how long, in `seconds`")
	seed := flags.Uint64("seed", 1, "fuzz: `seed` of the sequences")
	flags.BoolVar(&o.record, "record", false, "write the answers of the stock HDFS into testdata/fsshell.txt")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	for row := range strings.SplitSeq(*only, ",") {
		if row != "" {
			o.only[row] = true
		}
	}
	var err error
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	if _, err := os.Stat(o.binary); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(root, "integration", "hadoop", "pom.xml")); err != nil {
		return fmt.Errorf("run it in the root of the source tree (make compat)")
	}
	if err := enoughSpace(os.TempDir()); err != nil {
		return err
	}
	c, err := openCache(root)
	if err != nil {
		return err
	}
	k, err := loadKnown(c.source)
	if err == nil {
		err = k.has(o.only)
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hops-compat-")
	if err != nil {
		return err
	}
	defer func() {
		if o.keep {
			say("data and logs are in %s", dir)
		} else {
			os.RemoveAll(dir)
		}
	}()
	s := &suite{options: o, cache: c, dir: dir}
	defer s.stop()
	if fuzz {
		return s.fuzz(ctx, *seconds, *seed)
	}
	return s.run(ctx)
}
