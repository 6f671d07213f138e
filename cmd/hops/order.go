package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst moves the flags of a command line before its other arguments, where the library looks for them: people write
// `hops job status ID -o json`. What stands behind "--" stays, and so does everything behind the first argument of a
// command that takes a command line of its own.
func flagsFirst(app *cli.App, args []string) []string {
	if len(args) < 2 {
		return args
	}
	commands, at := app.Commands, 1
	var command *cli.Command
	for ; at < len(args); at++ {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(args[at]) })
		if i < 0 {
			break
		}
		command, commands = commands[i], commands[i].Subcommands
	}
	if command == nil || command.SkipFlagParsing || strings.HasPrefix(command.ArgsUsage, "-- ") {
		return args
	}
	flags := slices.Clone(args[:at])
	var others []string
	for ; at < len(args); at++ {
		arg := args[at]
		if arg == "--" {
			others = append(others, args[at:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			others = append(others, arg)
			continue
		}
		flags = append(flags, arg)
		name := strings.TrimLeft(arg, "-")
		if !strings.Contains(name, "=") && takesValue(command, name) && at+1 < len(args) {
			at++
			flags = append(flags, args[at])
		}
	}
	return append(flags, others...)
}

// takesValue reports whether a command has a flag of that name that is not a switch.
func takesValue(command *cli.Command, name string) bool {
	for _, f := range command.Flags {
		if _, isSwitch := f.(*cli.BoolFlag); !isSwitch && slices.Contains(f.Names(), name) {
			return true
		}
	}
	return false
}
