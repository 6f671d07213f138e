package main

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/config"
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
	logger, err := newLogger(c)
	if err != nil {
		return err
	}
	steadyHeap()
	if err := profiler(logger); err != nil {
		return err
	}
	var roleNames []string
	for _, list := range c.StringSlice("role") {
		roleNames = append(roleNames, strings.Split(list, ",")...)
	}
	for _, name := range roleNames {
		if !slices.Contains([]string{"namenode", "datanode", "resourcemanager", "nodemanager"}, name) {
			return fail(exitUsage, "unknown role %q: namenode, datanode, resourcemanager or nodemanager", name)
		}
	}
	file, err := config.Load(c.String("config"))
	if err != nil {
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
	return p.Run(c.Context, func() {
		fmt.Fprintf(c.App.Writer, "%s ready in %.1fs\n", strings.Join(roleNames, ", "), time.Since(started).Seconds())
	})
}

// newLogger makes the process's logger: text on standard error.
func newLogger(c *cli.Context) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.String("log-level"))); err != nil {
		return nil, fail(exitUsage, "unknown log level %q: debug, info, warn or error", c.String("log-level"))
	}
	return slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: level})), nil
}
