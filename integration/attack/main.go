package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	hops    string
	only    string
	json    string
	compare string
	show    string
	dir     string
	ceiling int64 // bytes
	long    bool
	list    bool
	keep    bool
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == childWord {
		os.Exit(runChild(os.Args[2:]))
	}
	var o options
	flag.StringVar(&o.hops, "hops", "bin/hops", "the hops `program` that is attacked")
	flag.StringVar(&o.only, "only", "", "`expression` that the names of attacks have to match")
	flag.StringVar(&o.json, "json", "", "`file` for the result; what it says of other attacks on the same binary stays")
	flag.StringVar(&o.compare, "compare", "", "`file` with an older result, shown beside this one")
	flag.StringVar(&o.show, "show", "", "`file` with a result: its table is shown, beside that of -compare, and nothing is attacked")
	flag.StringVar(&o.dir, "dir", "", "`directory` for the servers' data (default the system's for temporary files)")
	ceiling := flag.Int("ceiling", 3072, "`MiB` that the attacked process may grow by before the attack is ended; at twice that it is killed")
	flag.BoolVar(&o.long, "long", false, "with the figures of the attacks as they were first made: longer, more of each, and those that take minutes")
	flag.BoolVar(&o.list, "list", false, "list the attacks")
	flag.BoolVar(&o.keep, "keep", false, "keep the servers' logs and data")
	flag.Parse()
	o.ceiling = int64(*ceiling) * mib
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once; its children die with it
	slog.SetDefault(slog.New(slog.DiscardHandler))
	held, err := run(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "attack:", strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(2)
	}
	if !held {
		os.Exit(1)
	}
}

// harness is one run of the program.
type harness struct {
	options
	program string // this program, where every user may run it
	scenes  int
	calmFor time.Duration
}

// run reports whether every attack was held.
func run(ctx context.Context, o options) (held bool, err error) {
	pattern, err := regexp.Compile(o.only)
	if err != nil {
		return false, fmt.Errorf("-only: %w", err)
	}
	var chosen []attack
	for _, a := range attacks() {
		if pattern.MatchString(a.name) && (o.long || !a.long || o.only == a.name) {
			chosen = append(chosen, a)
		}
	}
	if o.list {
		for _, a := range chosen {
			fmt.Printf("%-22s %s\n", a.name, a.what)
		}
		return true, nil
	}
	if len(chosen) == 0 {
		return false, fmt.Errorf("-only %s: no attack has such a name; -list shows them", o.only)
	}
	var old *report
	if o.compare != "" {
		if old, err = readReport(o.compare); err != nil {
			return false, fmt.Errorf("-compare: %w", err)
		}
	}
	if o.show != "" {
		rep, err := readReport(o.show)
		if err != nil {
			return false, fmt.Errorf("-show: %w", err)
		}
		rep.print(os.Stdout, old)
		return rep.held(), nil
	}
	if o.hops, err = filepath.Abs(o.hops); err != nil {
		return false, err
	}
	version, err := exec.CommandContext(ctx, o.hops, "version").Output()
	if err != nil {
		return false, fmt.Errorf("%s does not run (%w): `make build` makes it", o.hops, err)
	}
	h := &harness{options: o, calmFor: 2 * time.Second}
	if h.options.dir, err = os.MkdirTemp(o.dir, "hops-attack-"); err != nil {
		return false, err
	}
	if err := os.Chmod(h.options.dir, 0o755); err != nil { // other users' children start from here
		return false, err
	}
	defer func() {
		if o.keep {
			fmt.Println("logs and data are in", h.options.dir)
		} else {
			err = errors.Join(err, os.RemoveAll(h.options.dir))
		}
	}()
	if h.program, err = copySelf(h.options.dir); err != nil {
		return false, err
	}
	rep := &report{Version: strings.TrimSpace(string(version)), Started: time.Now().UTC(), Long: o.long, Alone: !root(), Load: loadAverage()}
	for i, a := range chosen {
		fmt.Printf("[%2d of %d] %-22s ", i+1, len(chosen), a.name)
		r := h.attack(ctx, a)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		rep.Results = append(rep.Results, r)
		fmt.Printf("%.220s (%.0f s)\n", strings.Join(strings.Fields(r.verdict()), " "), r.Seconds)
	}
	rep.Seconds = time.Since(rep.Started).Seconds()
	if o.json != "" {
		if err := rep.write(o.json); err != nil {
			return false, fmt.Errorf("-json: %w", err)
		}
	}
	rep.print(os.Stdout, old)
	return rep.held(), nil
}

// attack makes one attack on a fresh cluster.
func (h *harness) attack(ctx context.Context, a attack) *result {
	r := &result{Name: a.name, What: a.what, Informative: a.informative}
	started := time.Now()
	if a.needsRoot && !root() {
		r.Skipped = "needs root: other users do the attacking"
		return r
	}
	most := 5 * time.Minute
	if a.long {
		most *= 3
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	s, err := h.scene(ctx, a.shape)
	if err == nil {
		err = a.run(ctx, s, r)
		r.Died = append(r.Died, s.dead()...)
		err = errors.Join(err, s.close())
	}
	if err != nil {
		r.Error = strings.Join(strings.Fields(err.Error()), " ")
	}
	r.judge()
	r.Seconds = time.Since(started).Seconds()
	return r
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
