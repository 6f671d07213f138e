// Package topology is where machines stand: the rack of each, from a script or a table of the operator's, as in Hadoop.
package topology

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
)

// DefaultRack is where a machine stands of which nothing is known.
const DefaultRack = "/default-rack"

const (
	// batch is how many addresses a script is given at a time (Hadoop's net.topology.script.number.args).
	batch = 100
	// scriptTime is how long a script may take for a batch.
	scriptTime = 10 * time.Second
	// every is how often all machines are looked up again, for a script or table that was changed, or failed.
	every = time.Minute
	// maxRack is the length of a rack's longest name and maxLevels how many parts it has, which who places works through; maxTable the size of the largest table, in bytes; maxKnown is how many
	// addresses are remembered.
	maxRack, maxLevels, maxTable, maxKnown = 255, 8, 16 << 20, 100_000
	// doublings bounds how often in a row another rack has to be said before it is believed: once, and twice as often after each change.
	doublings = 6
	// calm is after how many times that the same rack was said the changes are forgotten: a day.
	calm = 24 * 60
)

// Config says where racks come from: from a script, a table, or nowhere.
type Config struct {
	// Script is a program that is given up to 100 addresses and prints a rack for each
	// (net.topology.script.file.name).
	Script string
	// Table is a file whose lines have an address or name, and its rack (net.topology.table.file.name).
	Table string
	// Changed hears of the rack of an address that was asked for, when it is found and when it is another one. It is called by one
	// goroutine, and by none while Lookup runs.
	Changed func(address, rack string)
	// Time is how long a script may take; default 10 s.
	Time   time.Duration
	Logger *slog.Logger
}

// Racks knows the racks of machines. Who asks never waits: what is not known yet is DefaultRack, and Changed hears of it. It is
// safe for concurrent use.
type Racks struct {
	config Config
	wanted chan struct{} // capacity 1: there is an address of which nothing is known

	mu     sync.Mutex
	known  map[string]*standing // by address
	failed bool                 // the last look-up did, and that was said
}

// standing is where a machine stands.
type standing struct {
	rack    string // empty: asked for, and not found yet
	changes int    // how often it was another one
	same    int    // how often in a row it was said since
	other   string // what was said last, where that is not rack
	said    int    // how often in a row
}

// hear takes what is said of a machine, and reports whether that is believed. Each change makes a cluster count, and perhaps copy, what lies on the
// machine, so a rack that changes again and again is believed after longer and longer.
func (s *standing) hear(rack string) (believed bool) {
	if rack == s.rack {
		s.other, s.said = "", 0
		if s.same++; s.same >= calm {
			s.changes, s.same = 0, 0
		}
		return true
	}
	if s.rack != "" {
		if s.same = 0; s.other != rack {
			s.other, s.said = rack, 0
		}
		if s.said++; s.said < 1<<min(s.changes, doublings) {
			return false
		}
		s.changes++
	}
	s.rack, s.other, s.said = rack, "", 0
	return true
}

// New makes Racks of which nothing is known.
func New(c Config) *Racks {
	c.Time = cmp.Or(c.Time, scriptTime)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Racks{config: c, wanted: make(chan struct{}, 1), known: map[string]*standing{}}
}

// Lookup is the rack of an address as far as it is known.
func (r *Racks) Lookup(address string) string {
	if r == nil || r.config.Script == "" && r.config.Table == "" {
		return DefaultRack
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.known[address]
	if s == nil && len(r.known) < maxKnown {
		r.known[address] = &standing{}
		select {
		case r.wanted <- struct{}{}:
		default:
		}
	}
	if s == nil {
		return DefaultRack
	}
	return cmp.Or(s.rack, DefaultRack)
}

// Run finds racks until ctx is done.
func (r *Racks) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	all := false
	for {
		r.find(ctx, all)
		select {
		case <-ctx.Done():
			return nil
		case <-r.wanted:
			all = false
		case <-tick.C:
			all = true
		}
	}
}

// find looks up the addresses of which nothing is known, or all.
func (r *Racks) find(ctx context.Context, all bool) {
	r.mu.Lock()
	var want []string
	for address, s := range r.known {
		if all || s.rack == "" {
			want = append(want, address)
		}
	}
	r.mu.Unlock()
	if len(want) == 0 {
		return
	}
	slices.Sort(want)
	var problem error
	doubted, doubtful := 0, ""
	for part := range slices.Chunk(want, batch) {
		var racks []string
		var err error
		if r.config.Script != "" {
			racks, err = r.ask(ctx, part)
		} else {
			racks, err = r.read(part)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			problem = err
			continue // what was known stays
		}
		for i, address := range part {
			if !r.learn(address, racks[i]) {
				doubted, doubtful = doubted+1, address
			}
		}
	}
	if doubted > 0 {
		r.config.Logger.Warn("the racks of machines change again and again: another one is believed when it has been said often enough", "machines", doubted, "one", doubtful,
			"stands", r.Lookup(doubtful), "every", every)
	}
	r.mu.Lock()
	tell := problem != nil && !r.failed
	r.failed = problem != nil
	r.mu.Unlock()
	if tell {
		r.config.Logger.Warn("the racks of machines are not known: until that is mended they stand in "+DefaultRack+", or where they stood", "error", problem)
	}
}

// learn reports whether what is said of an address is believed.
func (r *Racks) learn(address, rack string) bool {
	r.mu.Lock()
	s := r.known[address]
	before := s.rack
	believed := s.hear(rack)
	now := s.rack
	r.mu.Unlock()
	if now != before && r.config.Changed != nil {
		r.config.Changed(address, now)
	}
	return believed
}

// ask runs the script for a batch of addresses.
func (r *Racks) ask(ctx context.Context, addresses []string) ([]string, error) {
	script := r.config.Script
	limit, cancel := context.WithTimeout(ctx, r.config.Time)
	defer cancel()
	c := exec.CommandContext(limit, script, addresses...)
	c.Dir = path.Dir(script)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it has started ends with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second // for a child that has left its group and keeps the output open
	out, said := &bounded{left: batch * (maxRack + 2)}, &bounded{left: 1 << 10}
	c.Stdout, c.Stderr = out, said
	err := c.Run()
	switch {
	case limit.Err() != nil:
		return nil, fmt.Errorf("net.topology.script.file.name: %s did not end within %v", script, r.config.Time)
	case err != nil:
		return nil, fmt.Errorf("net.topology.script.file.name: %s: %w %s", script, err, strings.TrimSpace(said.String()))
	case out.cut:
		return nil, fmt.Errorf("net.topology.script.file.name: %s prints more than a rack for each address", script)
	}
	racks := strings.Fields(out.String())
	if len(racks) != len(addresses) {
		return nil, fmt.Errorf("net.topology.script.file.name: %s prints %d racks for %d addresses", script, len(racks), len(addresses))
	}
	for _, rack := range racks {
		if err := Check(rack); err != nil {
			return nil, fmt.Errorf("net.topology.script.file.name: %s prints %w", script, err)
		}
	}
	return racks, nil
}

// bounded keeps the beginning of what is written.
type bounded struct {
	text bytes.Buffer // not embedded: io.Copy would fill it past the end
	left int
	cut  bool
}

func (b *bounded) String() string { return b.text.String() }

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.cut = b.cut || n < len(p)
	b.text.Write(p[:n])
	return len(p), nil
}

// Check says what is wrong with the name of a rack: it is a path of at most 8 parts, as /row7/rack3.
func Check(rack string) error {
	if !strings.HasPrefix(rack, "/") || rack == "/" || path.Clean(rack) != rack || len(rack) > maxRack || strings.Count(rack, "/") > maxLevels ||
		strings.ContainsFunc(rack, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar }) {
		return fmt.Errorf("%.100q, which is no path of a rack, as /row7/rack3, of at most %d parts", rack, maxLevels)
	}
	return nil
}

// read looks addresses up in the table.
func (r *Racks) read(addresses []string) ([]string, error) {
	f, err := os.Open(r.config.Table)
	if err != nil {
		return nil, fmt.Errorf("net.topology.table.file.name: %w", err)
	}
	defer f.Close()
	table, err := ParseTable(f)
	if err != nil {
		return nil, fmt.Errorf("net.topology.table.file.name: %s: %w", r.config.Table, err)
	}
	racks := make([]string, len(addresses))
	for i, a := range addresses {
		racks[i] = cmp.Or(table[a], DefaultRack)
	}
	return racks, nil
}

// ParseTable reads a table: a line has an address or name, and its rack, with blanks between them; what follows # is a
// comment. A mistake in any line refuses the table.
func ParseTable(r io.Reader) (map[string]string, error) {
	table := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(r, maxTable+1))
	total := 0
	for n := 1; lines.Scan(); n++ {
		if total += len(lines.Bytes()) + 1; total > maxTable {
			return nil, fmt.Errorf("more than %d bytes", maxTable)
		}
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d has %d columns, want an address and a rack", n, len(fields))
		}
		if err := Check(fields[1]); err != nil {
			return nil, fmt.Errorf("line %d has %w", n, err)
		}
		table[fields[0]] = fields[1]
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, errors.New("a line is too long")
	} else if err != nil {
		return nil, err
	}
	return table, nil
}
