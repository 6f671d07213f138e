package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/login"
)

func benchCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "against", Usage: "`URI` of the filesystem, hdfs://host:port; stock HDFS works too. Default: the configured one"},
		&cli.IntFlag{Name: "outstanding", Value: 64, Usage: "requests at once"},
		&cli.IntFlag{Name: "connections", Value: 4, Usage: "clients over which they are spread"},
		&cli.DurationFlag{Name: "time", Value: 10 * time.Second, Usage: "how long each phase runs"},
		&cli.IntFlag{Name: "replication", Value: 1, Usage: "of files with data"},
		&cli.StringFlag{Name: "size", Value: "1GiB", Usage: "`SIZE` of the file of io, and of the files of smallfiles (there 4KiB)"},
		&cli.StringFlag{Name: "servers", Usage: "`NAME=PID,...` of the servers, whose CPU time is then shown"},
		&cli.StringFlag{Name: "tls", Hidden: true, Usage: "speak TLS on this machine too, with servers of the authorities in `FILE`"},
		confFlag(), userFlag(), outputFlag(),
	}
	command := func(name, usage string, run func(c *cli.Context, b *bench.Bench) (any, error), more ...cli.Flag) *cli.Command {
		return &cli.Command{Name: name, Usage: usage, Flags: append(more, flags...), Action: func(c *cli.Context) error { return runBench(c, run) }}
	}
	phase := func(name, usage string, run func(c *cli.Context, b *bench.Bench) ([]bench.Result, error), more ...cli.Flag) *cli.Command {
		return command(name, usage, func(c *cli.Context, b *bench.Bench) (any, error) { return run(c, b) }, more...)
	}
	return &cli.Command{
		Name:  "bench",
		Usage: "load a filesystem, hops or stock HDFS, and measure it",
		Subcommands: []*cli.Command{
			phase("meta", "mkdir, create, stat, open, list, rename and delete, each by itself", func(c *cli.Context, b *bench.Bench) ([]bench.Result, error) { return b.Meta(c.Context) }),
			phase("mix", "the Spotify mix of metadata operations",
				func(c *cli.Context, b *bench.Bench) ([]bench.Result, error) {
					return b.Mix(c.Context, c.Bool("shared"))
				},
				&cli.BoolFlag{Name: "shared", Usage: "all workers in the same directories, not each in its own"}),
			phase("io", "one large file, written and read", func(c *cli.Context, b *bench.Bench) ([]bench.Result, error) { return b.Sequential(c.Context) }),
			phase("smallfiles", "small files, written and read", func(c *cli.Context, b *bench.Bench) ([]bench.Result, error) {
				size := 4 << 10
				if c.IsSet("size") {
					size = int(b.Bytes)
				}
				return b.Small(c.Context, size)
			}, &cli.BoolFlag{Name: "ordinary", Usage: "as Hadoop's clients make and read them, on datanodes"}),
			phase("hflush", "16 writers that append 200 bytes and hflush", func(c *cli.Context, b *bench.Bench) ([]bench.Result, error) { return b.Flush(c.Context, 16) }),
			command("failover", "writers that create files while a server is killed; then every acknowledged file is looked for",
				runFailover,
				&cli.IntFlag{Name: "writers", Value: 16, Usage: "writers at once"},
				&cli.IntFlag{Name: "kill-pid", Usage: "`PID` that gets SIGKILL"},
				&cli.StringFlag{Name: "kill-command", Usage: "shell `COMMAND` that ends a server, in place of --kill-pid"}),
			command("subtree", "fill a directory, rename and delete it, and measure what other clients feel",
				func(c *cli.Context, b *bench.Bench) (any, error) {
					filled, err := b.Fill(c.Context, c.Int("files"), 24*time.Hour)
					if err != nil {
						return nil, err
					}
					trees, err := b.Subtrees(c.Context, 1)
					return struct {
						Fill     bench.Result     `json:"fill"`
						Subtrees []bench.Subtree  `json:"subtrees"`
						Resident map[string]int64 `json:"resident_bytes,omitempty"`
					}{filled, trees, b.Resident()}, err
				},
				&cli.IntFlag{Name: "files", Value: 1_000_000, Usage: "files in the directory"}),
		},
	}
}

func runFailover(c *cli.Context, b *bench.Bench) (any, error) {
	pid, command := c.Int("kill-pid"), c.String("kill-command")
	if (pid == 0) == (command == "") {
		return nil, &statusError{exitUsage, errors.New("bench failover: say what to kill with --kill-pid or --kill-command")}
	}
	return b.Failover(c.Context, bench.FailoverConfig{Writers: c.Int("writers"), Kill: func() error {
		if command != "" {
			if out, err := exec.CommandContext(c.Context, "sh", "-c", command).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
			return nil
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	}})
}

func runBench(c *cli.Context, run func(*cli.Context, *bench.Bench) (any, error)) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	uri := c.String("against")
	conf, own, err := clusterConf(c.String("conf"))
	switch {
	case err != nil && !isNoCluster(err):
		return &statusError{exitUsage, fmt.Errorf("bench: %w", err)}
	case err != nil && uri == "":
		return &statusError{exitUsage, fmt.Errorf("bench: %w; or name a filesystem with --against hdfs://host:port", err)}
	case err != nil:
		conf = &dfs.HadoopConf{Properties: map[string]string{}} // the URI says enough
	case uri == "":
		uri = conf.DefaultFS()
	}
	location, err := locate(conf, own, strings.TrimRight(uri, "/")+"/", c.String("user"))
	if err != nil {
		return &statusError{exitUsage, err}
	}
	if roots := c.String("tls"); roots != "" {
		dialer, err := login.Dialer(roots, nil)
		if err != nil {
			return fail(exitUsage, "--tls: %w", err)
		}
		dialer.Here = func(netip.Addr, netip.Addr) bool { return false }
		location.Config.Dial = func(ctx context.Context, role, addr string) (net.Conn, error) {
			return dialer.Dial(ctx, addr, authority.Role(role))
		}
	}
	size, err := config.ParseSize(c.String("size"))
	if err != nil {
		return fail(exitUsage, "--size: %w", err)
	}
	servers := map[string]int{}
	for pair := range strings.SplitSeq(c.String("servers"), ",") {
		name, pid, ok := strings.Cut(pair, "=")
		if pair == "" {
			continue
		}
		n, err := strconv.Atoi(pid)
		if err != nil || !ok {
			return fail(exitUsage, "--servers: %q is not NAME=PID", pair)
		}
		servers[name] = n
	}
	location.Config.NoSmallFiles = c.Bool("ordinary")
	o := bench.Options{
		Clients:     func(int) (*dfs.Client, error) { return dfs.New(location.Config) },
		Connections: c.Int("connections"), Outstanding: c.Int("outstanding"), Time: c.Duration("time"),
		Replication: c.Int("replication"), Bytes: int64(size), Servers: servers,
	}
	o.Progress, o.Live = c.App.Writer, isTerminal(c.App.Writer)
	if asJSON { // the output gets results alone
		o.Progress, o.Live = nil, isTerminal(c.App.ErrWriter)
		if o.Live {
			o.Progress = c.App.ErrWriter
		}
	}
	b, err := bench.New(c.Context, o)
	if err != nil {
		return explain(err)
	}
	results, err := run(c, b)
	closing, cancel := context.WithTimeout(context.WithoutCancel(c.Context), time.Minute) // an interrupted run cleans up too
	defer cancel()
	if cerr := b.Close(closing); err == nil {
		err = cerr
	}
	if err != nil {
		return explain(err)
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(results)
	}
	return nil
}

// isTerminal reports whether what is written there is seen by a person at once.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
