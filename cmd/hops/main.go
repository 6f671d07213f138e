// Command hops is the whole platform in one binary: servers, shell, jobs and experiments. Each command has a file of its
// own here; this one puts them together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/nearest"
)

// version is set at link time.
var version = "unknown"

// Exit statuses of the native commands; fs and the yarn-like ones have Hadoop's.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitDenied      = 4
	exitInterrupted = 130
)

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

// run is main with its world as arguments. It returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // the terminal is closed; nohup goes on
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	if len(args) < 2 || !slices.Contains([]string{"dev", "server", "demo"}, args[1]) { // what has processes ends them
		context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	}
	if code, ok := early(ctx, args, stdin, stdout, stderr); ok {
		return code
	}
	app := newApp(stdin, stdout, stderr)
	err := app.RunContext(ctx, flagsFirst(app, args))
	if err == nil {
		return 0
	}
	var status *statusError
	if !errors.As(err, &status) {
		status = &statusError{code: exitFailed, err: err}
		if strings.HasPrefix(err.Error(), "flag provided but not defined") || strings.Contains(err.Error(), "Required flag") {
			status.code = exitUsage
		}
		if isNoCluster(err) {
			status.code = exitUnreachable
		}
	}
	if status.err != nil {
		fmt.Fprintf(stderr, "hops: %v\n", status.err)
	}
	return status.code
}

// statusError ends the program with a status of its own; err may be nil when everything is said.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// fail makes an error with an exit status.
func fail(code int, format string, args ...any) error {
	return &statusError{code, fmt.Errorf(format, args...)}
}

// early runs what must not go through the command-line library: processes started by the node manager and the file
// system shell, whose options are Hadoop's and whose start must be quick.
func early(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (int, bool) {
	if len(args) < 2 {
		return 0, false
	}
	if status, ok := roles.Container(ctx, args[1:], stderr); ok {
		return status, true
	}
	switch args[1] {
	case "fs", "dfs":
		return fsMain(ctx, args[2:], stdin, stdout, stderr), true
	}
	return 0, false
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:                   "hops",
		Usage:                  "a platform for training models: files, GPUs, experiments",
		Version:                version,
		HideVersion:            true,
		EnableBashCompletion:   true,
		Suggest:                true,
		UseShortOptionHandling: true,
		// Values hold commas: -D hadoop.proxyuser.hue.hosts=a,b
		DisableSliceFlagSeparator: true,
		Reader:                    stdin,
		Writer:                    stdout,
		ErrWriter:                 stderr,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              usageError,
		Commands: []*cli.Command{
			devCommand(), serverCommand(), demoCommand(),
			fsCommand(), jobCommand(), experimentCommand(), appCommand(), nodeCommand(), logsCommand(),
			benchCommand(), doctorCommand(), versionCommand(), completionCommand(),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return unknownCommand(c)
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, command := range app.Commands {
		prepare(command)
	}
	return app
}

// prepare makes wrong words an error with status 2 at every level, where the library would print help to standard output.
func prepare(command *cli.Command) {
	command.OnUsageError = usageError
	if len(command.Subcommands) > 0 && command.Action == nil {
		command.Action = func(c *cli.Context) error {
			if c.Args().Present() {
				return unknownCommand(c)
			}
			return cli.ShowSubcommandHelp(c)
		}
	}
	for _, sub := range command.Subcommands {
		prepare(sub)
	}
}

func usageError(_ *cli.Context, err error, _ bool) error { return &statusError{exitUsage, err} }

func unknownCommand(c *cli.Context) error {
	word := c.Args().First()
	commands := c.App.Commands
	if c.Command != nil && len(c.Command.Subcommands) > 0 {
		commands = c.Command.Subcommands
	}
	var names []string
	for _, command := range commands {
		names = append(names, command.Names()...)
	}
	return fail(exitUsage, "unknown command %q%s; `hops help` lists them", word, nearest.Hint(word, names))
}

// outputFlag is -o of the commands that people script.
func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table or json"}
}

// wantJSON reads outputFlag.
func wantJSON(c *cli.Context) (bool, error) {
	switch format := c.String("output"); {
	case format == "json":
		return true, nil
	case slices.Contains([]string{"table", "text"}, format):
		return false, nil
	default:
		return false, fail(exitUsage, "unknown output format %q: table or json", format)
	}
}
