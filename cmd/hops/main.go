// Command hops is the whole platform in one binary: servers, shell, jobs and experiments. Each command has a file of its
// own here; this one puts them together.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/internal/security"
	serverstatus "github.com/gohops/hops/internal/status"
	_ "github.com/gohops/hops/nodemanager/supervisor/early" // is the whole program of a supervisor
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

func main() {
	slackenTimers(os.Args) // before there are signals that would be lost
	serverstatus.Version = version
	code := run(os.Args, os.Stdin, os.Stdout, os.Stderr)
	hangUp()
	os.Exit(code)
}

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
	if len(args) > 2 && args[1] == "help" && (args[2] == "fs" || args[2] == "dfs") {
		return fsMain(ctx, append([]string{"-help"}, args[3:]...), stdin, stdout, stderr)
	}
	if len(args) > 2 && args[1] == "help" { // the library's leaves out what is below a command
		args = append(append([]string{args[0]}, args[2:]...), "--help")
	}
	app := newApp(stdin, stdout, stderr)
	err := app.RunContext(ctx, flagsFirst(app, args))
	if err == nil {
		return 0
	}
	return ended(ctx, err, stderr)
}

// ended says an error of a command, and is its exit status. What could not be reached was interrupted, if the user did that; and where one end of a connection is not who
// the other one takes it for, there was an answer: a refusal.
// Who interrupts a command is told nothing but what it has left.
func ended(ctx context.Context, err error, stderr io.Writer) int {
	var status *statusError
	if !errors.As(err, &status) {
		status = &statusError{code: exitFailed, err: err}
		if strings.Contains(err.Error(), "Required flag") {
			status.code = exitUsage
		}
		if isNoCluster(err) {
			status.code = exitUnreachable
		}
	}
	code := status.code
	switch {
	case ctx.Err() != nil && (code == exitUnreachable || errors.Is(err, context.Canceled)):
		if _, leaves := errors.AsType[*leftError](err); !leaves {
			return exitInterrupted
		}
		code = exitInterrupted
	case code == exitUnreachable && notLetIn(err):
		code = exitDenied
	}
	if status.err != nil {
		fmt.Fprintf(stderr, "hops: %v\n", err)
	}
	return code
}

// leftError marks an error that says what a command has left, or how to find out.
type leftError struct{ error }

func (e *leftError) Unwrap() error { return e.error }

// notLetIn reports whether an error is that of a connection of which one end is not who the other one takes it for, or of a handshake that failed otherwise.
func notLetIn(err error) bool {
	for _, known := range []error{security.ErrProof, authority.ErrForeign, authority.ErrTime, authority.ErrRole} {
		if errors.Is(err, known) {
			return true
		}
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	return alerted(err)
}

// alerted reports whether one of the causes of an error, in whichever branch, is an alert of TLS, which crypto/tls has as net has what becomes of a connection.
func alerted(err error) bool {
	switch e := err.(type) { //nolint:errorlint // it is the walk
	case *net.OpError:
		return e.Op == "remote error" || e.Op == "local error" || alerted(e.Err)
	case interface{ Unwrap() error }:
		return alerted(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), alerted)
	}
	return false
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
	if args[len(args)-1] == completionFlag {
		complete(ctx, args[1:len(args)-1], stdout)
		return 0, true
	}
	if status, ok := roles.Container(ctx, args[1:], stderr); ok {
		return status, true
	}
	switch args[1] {
	case "--version", "-version", "-v":
		fmt.Fprintf(stdout, "hops %s\n", version)
		return 0, true
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
			devCommand(), clusterCommand(), joinCommand(), serverCommand(), demoCommand(),
			fsCommand(), jobCommand(), secretCommand(), experimentCommand(), modelCommand(), mlflowCommand(), appCommand(), applicationAttemptCommand(), containerCommand(), nodeCommand(), gpuCommand(), queueCommand(), topCommand(), namenodeCommand(), resourcemanagerCommand(), datanodeCommand(), logsCommand(),
			dfsadminCommand(), ecCommand(), storagePoliciesCommand(), cacheadminCommand(), smallFilesCommand(), fsckCommand(), haadminCommand(), rmadminCommand(), balancerCommand(), diskBalancerCommand(), moverCommand(),
			loginCommand(), logoutCommand(), whoamiCommand(), userCommand(),
			fetchdtCommand(), lsSnapshottableDirCommand(), lsSnapshotCommand(), snapshotDiffCommand(), benchCommand(), simCommand(), doctorCommand(), operatorCommand(), versionCommand(), completionCommand(), manCommand(),
		},
		Action: func(c *cli.Context) error {
			if ours, ok := hadoops[c.Args().First()]; ok {
				return fail(exitUsage, "there is no command %q here; see %s, and `hops help`", c.Args().First(), ours)
			}
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
	if action := command.Action; action != nil && command.ArgsUsage == "" && len(command.Subcommands) == 0 && !command.SkipFlagParsing {
		command.Action = func(c *cli.Context) error {
			if c.Args().Present() {
				return fail(exitUsage, "%s takes no argument: %q", c.Command.HelpName, c.Args().First())
			}
			return action(c)
		}
	}
	for _, sub := range command.Subcommands {
		prepare(sub)
	}
}

// The wordings of the library, whose words are Go's.
var (
	unknownOption = regexp.MustCompile(`^flag provided but not defined: -+(.+)$`)
	wrongValue    = regexp.MustCompile(`^invalid value (".*") for flag -([^:]+): (.*)$`)
	noValue       = regexp.MustCompile(`^flag needs an argument: -+(.+)$`)
)

// usageError says what is wrong with the options of a command line.
func usageError(c *cli.Context, err error, _ bool) error {
	text := err.Error()
	if m := unknownOption.FindStringSubmatch(text); m != nil {
		name, _, _ := strings.Cut(m[1], "=")
		var names []string
		command := "hops"
		flags := c.App.Flags
		if c.Command != nil && len(c.Command.Flags) > 0 {
			flags, command = c.Command.Flags, c.Command.HelpName
		}
		for _, f := range flags {
			names = append(names, f.Names()...)
		}
		near := nearest.Hint(name, names)
		near = strings.Replace(near, "mean ", "mean "+dashes(strings.TrimSuffix(strings.TrimPrefix(near, " (did you mean "), "?)")), 1)
		return fail(exitUsage, "unknown option %s%s%s; `%s --help` lists them", dashes(name), name, near, command)
	}
	if m := wrongValue.FindStringSubmatch(text); m != nil {
		what := m[3]
		if strings.HasPrefix(what, "parse error") || strings.Contains(what, "strconv") {
			what = "is not a whole number"
		}
		return fail(exitUsage, "%s%s: %s %s", dashes(m[2]), m[2], m[1], what)
	}
	if m := noValue.FindStringSubmatch(text); m != nil {
		return fail(exitUsage, "%s%s needs a value", dashes(m[1]), m[1])
	}
	return &statusError{exitUsage, err}
}

// dashes stand before an option.
func dashes(name string) string {
	if len(name) == 1 {
		return "-"
	}
	return "--"
}

// hadoops are commands of Hadoop that people try, and what answers here.
var hadoops = map[string]string{
	"hdfs": "hops fs, hops dfsadmin", "hadoop": "hops fs",
	"yarn": "hops app, hops node, hops logs", "mapred": "hops job",
}

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
