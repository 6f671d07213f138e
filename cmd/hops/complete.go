package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/shell"
	"github.com/gohops/hops/internal/login"
)

// completionFlag ends a command line of which the last word is to be completed; the word may be empty.
const completionFlag = "--generate-bash-completion"

// completionPatience is how long a shell waits for names that the cluster knows.
const completionPatience = 2 * time.Second

// maxCompletions bounds what is offered.
const maxCompletions = 1000

// complete prints what may stand in place of the last word, one on a line: commands, options, ids of jobs and experiments,
// paths of the filesystem. What cannot be had is not offered; nothing is an error.
func complete(ctx context.Context, words []string, stdout io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	var offers []string
	if len(words) > 1 && (words[0] == "fs" || words[0] == "dfs") {
		offers = completeFS(ctx, words[1:])
	} else {
		offers = completeCommand(ctx, words)
	}
	n := 0
	for _, o := range offers {
		if strings.HasPrefix(o, last) && n < maxCompletions {
			fmt.Fprintln(stdout, o)
			n++
		}
	}
}

func completeFS(ctx context.Context, words []string) (offers []string) {
	last := words[len(words)-1]
	if len(words) == 1 {
		for _, name := range shell.Verbs() {
			offers = append(offers, "-"+name)
		}
		return offers
	}
	if strings.HasPrefix(last, "-") {
		return shell.Options(words[0])
	}
	conf, own, err := clusterConf("")
	if err != nil {
		return nil
	}
	location, err := locate(conf, own, "/", "")
	if err != nil {
		return nil
	}
	location.Config.Logger = slog.New(slog.DiscardHandler)
	c, err := dfs.New(location.Config)
	if err != nil {
		return nil
	}
	defer c.Close()
	shown := last[:strings.LastIndexByte(last, '/')+1]
	dir := shown
	if !strings.HasPrefix(dir, "/") {
		dir = path.Join(c.Home(), dir)
	}
	page, err := c.List(ctx, path.Clean(dir))
	if err != nil {
		return nil
	}
	for _, e := range page {
		name := shown + e.Name
		if e.IsDir() {
			name += "/"
		}
		offers = append(offers, name)
	}
	return offers
}

func completeCommand(ctx context.Context, words []string) (offers []string) {
	app := newApp(nil, io.Discard, io.Discard)
	commands, flags := app.Commands, []cli.Flag(nil)
	var command *cli.Command
	at := 0
	for ; at < len(words)-1; at++ {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(words[at]) })
		if i < 0 {
			break
		}
		command, commands, flags = commands[i], commands[i].Subcommands, commands[i].Flags
	}
	last := words[len(words)-1]
	switch {
	case slices.Contains(words[at:len(words)-1], "--"): // the words of a command of their own
		return nil
	case strings.HasPrefix(last, "-"):
		for _, f := range flags {
			for _, name := range f.Names() {
				offers = append(offers, dashes(name)+name)
			}
		}
		return append(offers, "--help")
	case command != nil && at < len(words)-1 && strings.HasPrefix(words[len(words)-2], "-") && takesValue(command, strings.TrimLeft(words[len(words)-2], "-")):
		return nil // its value is anything
	case command == nil || len(commands) > 0:
		for _, c := range commands {
			if !c.Hidden {
				offers = append(offers, c.Name)
			}
		}
		return offers
	case command.Name == "completion":
		return []string{"bash", "zsh", "fish"}
	case strings.HasPrefix(command.ArgsUsage, "ID"):
		return completeIDs(ctx, words[0])
	}
	return nil
}

// completeIDs lists the newest jobs, or experiments.
func completeIDs(ctx context.Context, kind string) (offers []string) {
	config := client.Config{Logger: slog.New(slog.DiscardHandler)}
	own, err := login.Chosen()
	if err == nil && own == nil {
		config.ConfDir, err = findConf("")
	}
	if err != nil {
		return nil
	}
	c, err := client.New(config)
	if err != nil {
		return nil
	}
	defer c.Close()
	jobs, err := c.Jobs().List(ctx)
	if err != nil {
		return nil
	}
	for _, j := range jobs {
		if kind == "job" || j.Kind == "experiment" {
			offers = append(offers, j.ID)
		}
	}
	return offers
}
