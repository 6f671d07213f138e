package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/gohops/hops/client"
	rm "github.com/gohops/hops/resourcemanager"
)

func execCommand() *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a command in a container that runs",
		ArgsUsage: "APPLICATION|CONTAINER -- COMMAND [ARGUMENT ...]",
		Description: "hops job exec -it application_1700000000000_0001 -- bash\n" +
			"hops job exec application_1700000000000_0001 -- nvidia-smi\n\n" +
			"The command runs beside what the container is for: as its user, in its directory, with its environment, GPUs and limits.\n" +
			"It ends with the container, and when this program ends. The exit status is the command's: 128 and the signal for one\n" +
			"that a signal ended, 126 and 127 for one that cannot be started. A container has 8 such sessions at most.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "stdin", Aliases: []string{"i"}, Usage: "pass standard input on"},
			&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give the command a terminal, which this has to be too"},
			&cli.IntFlag{Name: "instance", Usage: "in instance `NUMBER` of the application, from 0 on", DefaultText: "the only one that runs"},
			confFlag(), userFlag(),
		},
		Action: runExec,
	}
}

func runExec(c *cli.Context) error {
	if c.NArg() < 2 {
		return fail(exitUsage, "job exec: name an application or a container, and a command after --")
	}
	name, argv := c.Args().First(), c.Args().Tail()
	if argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return fail(exitUsage, "job exec: give a command after --")
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	k, err := chosen(c, cl, name)
	if err != nil {
		return err
	}
	r, err := session(c, cl, k, argv)
	if c.Context.Err() != nil {
		return &statusError{code: exitInterrupted}
	}
	if err != nil {
		return explain(err)
	}
	return sessionStatus(k, r)
}

// session runs a command in a container, with standard input and a terminal if the command line says so.
func session(c *cli.Context, cl *client.Client, k client.JobContainer, argv []string) (client.ExecResult, error) {
	o := client.ExecOptions{Argv: argv, Stdout: c.App.Writer, Stderr: c.App.ErrWriter}
	if c.Bool("stdin") {
		o.Stdin = c.App.Reader
	}
	if c.Bool("tty") {
		t, restore, err := rawTerminal(c)
		if err != nil {
			return client.ExecResult{}, err
		}
		defer restore()
		o.Terminal = t
	}
	return cl.Exec(c.Context, k, o)
}

// sessionStatus is the error of a command that did not succeed.
func sessionStatus(k client.JobContainer, r client.ExecResult) error {
	if r.Status == 0 {
		return nil
	}
	status := &statusError{code: r.Status}
	if r.Note != "" {
		status.err = fmt.Errorf("%s: %s", k.ID, r.Note)
	}
	return status
}

// chosen is the container that the command line names.
func chosen(c *cli.Context, cl *client.Client, name string) (client.JobContainer, error) {
	none := client.JobContainer{}
	id, one := name, false
	if m := containerName.FindStringSubmatch(name); m != nil {
		id, one = "application_"+m[1], true
	}
	if one && c.IsSet("instance") {
		return none, fail(exitUsage, "--instance is for an application, %s is a container", name)
	}
	s, err := cl.Jobs().Get(c.Context, id)
	if err != nil {
		return none, explain(err)
	}
	if one {
		i := slices.IndexFunc(s.Containers, func(k client.JobContainer) bool { return k.ID == name })
		if i < 0 {
			return none, fail(exitFailed, "%s has no container %s", id, name)
		}
		if k := s.Containers[i]; k.State != rm.ContainerRunning {
			return none, fail(exitFailed, "container %s is %s: only in one that is %s can something be run", name, k.State, rm.ContainerRunning)
		}
		return s.Containers[i], nil
	}
	running := slices.DeleteFunc(slices.Clone(s.Containers), func(k client.JobContainer) bool {
		return k.State != rm.ContainerRunning || k.Master && s.Kind != string(rm.KindMaster) || c.IsSet("instance") && k.Instance() != c.Int("instance")
	})
	switch {
	case len(running) == 1:
		return running[0], nil
	case len(running) > 1:
		return none, fail(exitUsage, "%d containers of %s run: choose one with --instance NUMBER, or name it, as %s", len(running), id, running[0].ID)
	case s.Ended():
		return none, fail(exitFailed, "%s has ended: %s", id, s.Phase)
	case c.IsSet("instance"):
		return none, fail(exitFailed, "no instance %d of %s runs", c.Int("instance"), id)
	}
	return none, fail(exitFailed, "no container of %s runs: it is %s", id, progress(s))
}

// ownTerminal is the terminal of this program.
func ownTerminal(c *cli.Context) (*os.File, error) {
	in, ok := c.App.Reader.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, fail(exitUsage, "-t: standard input is no terminal; leave it out, -i passes standard input on without one")
	}
	return in, nil
}

// rawTerminal hands every key of the terminal to the container until restore is called, also Ctrl-C.
func rawTerminal(c *cli.Context) (t *client.Terminal, restore func(), err error) {
	in, err := ownTerminal(c)
	if err != nil {
		return nil, nil, err
	}
	size := func() (s client.TerminalSize, err error) {
		columns, rows, err := term.GetSize(int(in.Fd()))
		return client.TerminalSize{Rows: uint16(rows), Columns: uint16(columns)}, err
	}
	t = &client.Terminal{Kind: os.Getenv("TERM")}
	if t.Size, err = size(); err != nil {
		return nil, nil, fmt.Errorf("size of the terminal: %w", err)
	}
	var before *term.State
	if c.Bool("stdin") { // otherwise Ctrl-C is for this program
		if before, err = term.MakeRaw(int(in.Fd())); err != nil {
			return nil, nil, fmt.Errorf("terminal: %w", err)
		}
	}
	sizes := make(chan client.TerminalSize)
	t.Resize = sizes
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	ctx, cancel := context.WithCancel(c.Context)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			if s, err := size(); err == nil {
				select {
				case sizes <- s:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return t, func() {
		cancel()
		signal.Stop(changed)
		if before != nil {
			if err := term.Restore(int(in.Fd()), before); err != nil {
				fmt.Fprintf(c.App.ErrWriter, "the terminal is as it was in the container: run `reset` (%v)\n", err)
			}
		}
	}, nil
}
