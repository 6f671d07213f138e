package shell

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
)

// The verbs that tell about files or wait for them: -test, -stat, -setrep.

func runTest(ctx context.Context, s *Shell, args []string) error {
	if len(s.options) == 0 {
		return usageError{"No test flag given"}
	}
	if len(s.options) > 1 {
		return usageError{"Only one test flag is allowed"}
	}
	it, err := s.look(ctx, args[0])
	if err != nil {
		return err
	}
	ok := it.status != nil
	for flag := range s.options {
		switch {
		case !ok:
		case flag == "d":
			ok = it.isDir()
		case flag == "f":
			ok = !it.isDir()
		case flag == "s":
			ok = it.status.Length > 0
		case flag == "z":
			ok = it.status.Length == 0
		case flag == "r" || flag == "w":
			access := metadata.Read
			if flag == "w" {
				access = metadata.Write
			}
			err := s.fs.CheckAccess(ctx, it.path, access)
			if err != nil && !errors.Is(err, metadata.ErrPermission) {
				return err
			}
			ok = err == nil
		}
	}
	if !ok {
		return errSilent
	}
	return nil
}

func runStat(ctx context.Context, s *Shell, args []string) error {
	format := "%y"
	if strings.Contains(args[0], "%") {
		if format, args = args[0], args[1:]; len(args) == 0 {
			return usageError{"Not enough arguments: expected 1 but got 0"}
		}
	}
	return s.each(ctx, args, func(it item) error {
		if s.json {
			return s.encode(entryOf(it))
		}
		s.printf("%s\n", statFormat(format, it))
		return nil
	})
}

func statFormat(format string, it item) string {
	var b strings.Builder
	stamp := func(t metadata.Time) string { return t.Time().UTC().Format("2006-01-02 15:04:05") }
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		st := it.status
		switch format[i] {
		case 'a':
			fmt.Fprintf(&b, "%o", st.Mode)
		case 'A':
			b.WriteString(st.Mode.String())
		case 'b':
			b.WriteString(strconv.FormatInt(st.Length, 10))
		case 'F':
			if it.isDir() {
				b.WriteString("directory")
			} else {
				b.WriteString("regular file")
			}
		case 'g':
			b.WriteString(st.Group)
		case 'n':
			if it.path == "/" {
				break
			}
			b.WriteString(path.Base(it.path))
		case 'o':
			b.WriteString(strconv.FormatInt(st.BlockSize, 10))
		case 'r':
			b.WriteString(strconv.Itoa(int(st.Replication)))
		case 'u':
			b.WriteString(st.Owner)
		case 'x':
			b.WriteString(stamp(st.ATime))
		case 'X':
			b.WriteString(strconv.FormatInt(int64(st.ATime), 10))
		case 'y':
			b.WriteString(stamp(st.MTime))
		case 'Y':
			b.WriteString(strconv.FormatInt(int64(st.MTime), 10))
		default:
			b.WriteByte(format[i])
		}
	}
	return b.String()
}

func runSetrep(ctx context.Context, s *Shell, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		s.report(errors.New("Illegal replication, a positive integer expected"))
		return usageError{fmt.Sprintf("For input string: %q", args[0])}
	}
	if n < 1 {
		return usageError{"replication must be >= 1"}
	}
	s.options["R"] = "" // setrep always goes down
	var waiting []item
	err = s.walk(ctx, args[1:], func(it item) error {
		if it.isDir() {
			return nil
		}
		if it.status.Erasure != 0 {
			s.printf("Did not set replication for: %s, because it's an erasure coded file.\n", it.shown)
			return nil
		}
		ok, err := s.client.SetReplication(ctx, it.path, n)
		if err != nil {
			return err
		}
		if !ok {
			return &pathError{path: it.shown, text: "Could not set replication for: " + it.shown}
		}
		s.printf("Replication %d set: %s\n", n, it.shown)
		waiting = append(waiting, it)
		return nil
	})
	if err != nil || !s.option("w") {
		return err
	}
	for _, it := range waiting {
		if err := s.awaitReplication(ctx, it, n); err != nil {
			s.report(err)
		}
	}
	return nil
}

func (s *Shell) awaitReplication(ctx context.Context, it item, n int) error {
	s.printf("Waiting for %s ...", it.shown)
	warned := false
	for {
		blocks, err := s.client.BlockLocations(ctx, it.path, 0, it.status.Length)
		if err != nil {
			return err
		}
		ready, excess := true, false
		for _, b := range blocks {
			ready = ready && len(b.Datanodes) == n
			excess = excess || len(b.Datanodes) > n
		}
		if ready {
			s.printf(" done\n")
			return nil
		}
		if excess && !warned {
			s.printf("\nWARNING: the waiting time may be long for DECREASING the number of replications.\n")
			warned = true
		}
		s.printf(".")
		s.out.Flush()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
