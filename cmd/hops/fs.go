package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/shell"
	"github.com/gohops/hops/internal/login"
)

// fsCommand is here for help and completion; early has run `hops fs` before the library sees it, because Hadoop's
// options are not the library's.
func fsCommand() *cli.Command {
	command := &cli.Command{
		Name:            "fs",
		Aliases:         []string{"dfs"},
		Usage:           "work with files: the verbs, options and output of `hadoop fs` (hops fs -help)",
		ArgsUsage:       "-VERB [OPTIONS] [ARGUMENTS]",
		SkipFlagParsing: true,
	}
	for _, name := range shell.Verbs() {
		command.Subcommands = append(command.Subcommands, &cli.Command{Name: name, SkipFlagParsing: true, HideHelp: true})
	}
	return command
}

// fsMain is `hops fs`. Its exit statuses are Hadoop's.
func fsMain(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	dial := func(uri string, properties map[string]string) (*dfs.Client, string, error) {
		return dialShell(uri, properties, stderr)
	}
	s := &shell.Shell{Stdin: stdin, Stdout: stdout, Stderr: stderr, Dial: dial}
	if isTerminal(stderr) {
		s.Progress, s.Brief = stderr, true
	}
	return s.Run(ctx, args)
}

// dialShell finds the filesystem of a URI, by default the one that is configured.
func dialShell(uri string, properties map[string]string, stderr io.Writer) (*dfs.Client, string, error) {
	file, dir := properties["-conf"], ""
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		file, dir = "", file
	}
	if file == "" && dir == "" {
		own, err := login.Chosen()
		if err != nil {
			return nil, "", err
		}
		if own != nil {
			return dialLogin(own, uri, properties, stderr)
		}
	}
	conf, err := hadoopConf(dir)
	if err != nil {
		if _, authority, ok := strings.Cut(uri, "://"); !isNoCluster(err) || (!ok || authority == "" || authority[0] == '/') && file == "" || dir != "" {
			return nil, "", err
		}
		conf = &dfs.HadoopConf{Properties: map[string]string{}} // the URI says enough
	}
	if file != "" {
		if err := conf.LoadFile(file); err != nil {
			return nil, "", err
		}
	}
	maps.Copy(conf.Properties, properties)
	delete(conf.Properties, "-conf")
	if uri == "" {
		uri = conf.DefaultFS()
	}
	if uri == "" {
		return nil, "", fmt.Errorf("%s does not say fs.defaultFS", file)
	}
	location, err := conf.Locate(uri)
	if err != nil {
		return nil, "", err
	}
	location.Config.Logger = clientLogger(stderr)
	location.Config.Waiting = waiting(stderr)
	location.Config.Leaderless = leaderless
	client, err := dfs.New(location.Config)
	authority := location.Authority
	if authority == "" {
		authority = location.Config.Namenodes[0]
	}
	return client, "hdfs://" + authority, err
}

// dialLogin finds the filesystem of a URI in the cluster of a login, by default its own.
func dialLogin(own *login.File, uri string, properties map[string]string, stderr io.Writer) (*dfs.Client, string, error) {
	conf, err := loginConf(own)
	if err != nil {
		return nil, "", err
	}
	maps.Copy(conf.Properties, properties)
	if uri == "" {
		uri = conf.DefaultFS()
	}
	location, err := locate(conf, own, uri, "")
	if err != nil {
		return nil, "", err
	}
	location.Config.Logger, location.Config.Waiting, location.Config.Leaderless = clientLogger(stderr), waiting(stderr), leaderless
	c, err := dfs.New(location.Config)
	authority := location.Authority
	if authority == "" {
		authority = location.Config.Namenodes[0]
	}
	return c, "hdfs://" + authority, err
}

// waiting tells a person at a terminal, once, why a command says nothing: in a script it would be in the way of what the
// command itself says, so there it is nil.
func waiting(stderr io.Writer) func(why error) {
	if !isTerminal(stderr) {
		return nil
	}
	var once sync.Once
	return func(why error) {
		once.Do(func() { // in place of the line of a copy, if there is one
			fmt.Fprintf(stderr, "\r\x1b[Kwaiting for the cluster, Ctrl-C ends it: %v\n", why)
		})
	}
}

// leaderless is how long the shell waits for an election, which takes a second; more says that no majority runs.
const leaderless = 10 * time.Second

// clientLogger is for what the client does beside answering: a datanode that is left for another one. Hadoop's variable
// HADOOP_ROOT_LOGGER turns it on, as DEBUG,console.
func clientLogger(w io.Writer) *slog.Logger {
	word, _, _ := strings.Cut(os.Getenv("HADOOP_ROOT_LOGGER"), ",")
	var level slog.Level
	if word == "" || level.UnmarshalText([]byte(word)) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
