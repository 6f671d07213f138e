package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/logfile"
	"github.com/gohops/hops/internal/program"
)

func serverCommand() *cli.Command {
	return &cli.Command{
		Name:  "server",
		Usage: "run one role of a cluster as a process of its own",
		Description: "hops server --role namenode -c /etc/hops/hops.yaml\n" +
			"hops server --role datanode -c /etc/hops/hops.yaml\n\n" +
			"The first start of a cluster's namenodes and resource managers needs --bootstrap, once.\n" +
			"The configuration is described in docs/reference/configuration.md.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "role", Required: true, Usage: "`ROLE`: namenode, datanode, resourcemanager or nodemanager; several with commas"},
			&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE`"},
			&cli.BoolFlag{Name: "bootstrap", Usage: "make a new cluster when no member of the list has data"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "`LEVEL`: debug, info, warn or error"},
		},
		Action: runServer,
	}
}

func runServer(c *cli.Context) error {
	started := time.Now()
	level, err := logLevel(c)
	if err != nil {
		return err
	}
	steadyHeap()
	var roleNames []string
	for _, list := range c.StringSlice("role") {
		roleNames = append(roleNames, strings.Split(list, ",")...)
	}
	for _, name := range roleNames {
		if !slices.Contains([]string{"namenode", "datanode", "resourcemanager", "nodemanager"}, name) {
			return fail(exitUsage, "unknown role %q: namenode, datanode, resourcemanager or nodemanager", name)
		}
	}
	if slices.Contains(roleNames, "namenode") || slices.Contains(roleNames, "resourcemanager") {
		spareProcessor()
	}
	file, err := config.Load(c.String("config"))
	if err != nil {
		return err
	}
	out, end, err := logOutput(file.Log, roleNames[0], c.App.ErrWriter, logEnds)
	if err != nil {
		return err
	}
	defer end()
	logger := loggerTo(out, level)
	if err := profiler(logger); err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	b, err := roles.New(file, c.Bool("bootstrap"), executable, version, logger)
	if err != nil {
		return err
	}
	b.Path = c.String("config")
	b.OnFatal = func(err error) {
		die(func() { // the reason may be a disk that keeps the log as well
			if file.Log.Dir != "" {
				tellEnd(err, logger, end, c.App.ErrWriter, logEnds)
			} else {
				logger.Error("stopping: the Raft store cannot go on", "err", err)
			}
		}, os.Exit)
	}
	p := program.Program{Logger: logger}
	p.Add(b.Membership()...)
	names := map[string]struct {
		configured bool
		make       func() ([]program.Part, error)
	}{
		"namenode":        {file.Namenode != nil, b.Namenode},
		"datanode":        {file.Datanode != nil, b.Datanode},
		"resourcemanager": {file.ResourceManager != nil, b.ResourceManager},
		"nodemanager":     {file.NodeManager != nil, b.NodeManager},
	}
	for _, name := range roleNames {
		role := names[name]
		if !role.configured {
			return fail(exitUsage, "%s has no section %q, which says where this machine's %s keeps its data", c.String("config"), name, name)
		}
		parts, err := role.make()
		if err != nil {
			if !strings.HasPrefix(err.Error(), name) {
				err = fmt.Errorf("%s: %w", name, err)
			}
			return err
		}
		p.Add(parts...)
	}
	p.Add(b.Awaited())
	err = cause(p.Run(c.Context, func() {
		fmt.Fprintf(c.App.Writer, "%s ready in %.1fs\n", strings.Join(roleNames, ", "), time.Since(started).Seconds())
	}), 3*logEnds)
	if err != nil && file.Log.Dir != "" {
		logger.Error("the server ends", "err", err)
	}
	return err
}

// newLogger makes the process's logger: text on standard error.
func newLogger(c *cli.Context) (*slog.Logger, error) {
	level, err := logLevel(c)
	return loggerTo(c.App.ErrWriter, level), err
}

func logLevel(c *cli.Context) (level slog.Level, err error) {
	if err := level.UnmarshalText([]byte(c.String("log-level"))); err != nil {
		return 0, fail(exitUsage, "unknown log level %q: debug, info, warn or error", c.String("log-level"))
	}
	return level, nil
}

func loggerTo(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// logEnds is how long the end of a server waits for its log's disk.
const logEnds = 2 * time.Second

// tellEnd says why the process ends at once, in the log, which end writes, and on errOut, for which it waits no longer than patience.
func tellEnd(err error, logger *slog.Logger, end func(), errOut io.Writer, patience time.Duration) {
	logger.Error("stopping: the Raft store cannot go on", "err", err)
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintf(errOut, "hops: stopping: the Raft store cannot go on: %v\n", err)
	}()
	end()
	select {
	case <-said:
	case <-time.After(patience):
	}
}

// logOutput is where a server of a role writes its log: errOut, or a file. end writes what is left, and waits no longer than patience for that.
func logOutput(l config.Log, role string, errOut io.Writer, patience time.Duration) (out io.Writer, end func(), err error) {
	if l.Dir == "" {
		return errOut, func() {}, nil
	}
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("log: %w", err)
	}
	path := filepath.Join(l.Dir, role+".log")
	file, err := logfile.Open(logfile.Config{
		Path: path, Size: int64(l.Size), Keep: l.Keep,
		Lost: func(n int) string {
			return fmt.Sprintf("level=WARN msg=\"%d lines are missing: the disk could not keep up\"\n", n)
		},
		Failed: func(err error) {
			fmt.Fprintf(errOut, "hops: the log cannot be written as it should be, and what it misses is lost: %v\n", err)
		},
		Again: func() { fmt.Fprintf(errOut, "hops: %s is written again\n", path) },
	})
	if err != nil {
		return nil, nil, fmt.Errorf("log: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := file.Run(ctx); err != nil {
			fmt.Fprintf(errOut, "hops: log: %v\n", err)
		}
	}()
	return file, func() {
		stop()
		select {
		case <-done:
		case <-time.After(patience):
		}
	}, nil
}
