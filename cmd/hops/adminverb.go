package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/metadata"
)

// What the commands have in common that stand in for those of Hadoop's AdminHelper, `hdfs ec` and `hdfs storagepolicies`: a verb with a
// dash, options that may stand in any order, and an error by the name of Java's class.

// adminTool is such a command.
type adminTool struct {
	name, usage string
	verbs       []*adminVerb
	// absent are verbs of Hadoop's that there is nothing for here, and why.
	absent map[string]string
}

// adminVerb is what such a command can be told to do.
type adminVerb struct {
	name, arguments, help string
	// takes are its options that have a value, flags those that have none.
	takes, flags []string
	// needs are options it must have, in the order in which they are asked for, and what is said without one.
	needs []neededOption
	// rest is an option that takes all words up to the end. It stands first.
	rest string
	run  func(t *hadoopTool, a *adminArguments) (int, error)
}

type neededOption struct{ option, missing string }

// adminArguments are what a verb was given.
type adminArguments struct {
	value map[string]string // by option; those without a value are there with an empty one
	rest  []string
	at    string // where the value of -path is
}

func (a *adminArguments) has(flag string) bool {
	_, given := a.value[flag]
	return given
}

// Exit statuses of those commands.
const (
	exitAdminUsage  = 1
	exitAdminFailed = 2
)

func (v *adminVerb) short() string { return strings.TrimSpace(v.name + " " + v.arguments) }

// command makes the command of a table of verbs.
func (tool *adminTool) command() *cli.Command {
	tool.verbs = append(tool.verbs, &adminVerb{name: "-help", help: "this", run: tool.help})
	var text strings.Builder
	fmt.Fprintf(&text, "Options, output and exit status are those of `hdfs %s`.\n\n", tool.name)
	for _, v := range tool.verbs {
		fmt.Fprintf(&text, "%s\n    %s\n", v.short(), v.help)
	}
	return hadoopCommand(tool.name, tool.usage+": the options and output of `hdfs "+tool.name+"`", "-OPTION [ARGUMENTS]", text.String(), tool.run)
}

func (tool *adminTool) run(t *hadoopTool, args []string) (int, error) {
	if len(args) == 0 {
		tool.printUsage(t)
		return exitAdminUsage, nil
	}
	at := slices.IndexFunc(tool.verbs, func(v *adminVerb) bool { return v.name == args[0] })
	if at < 0 {
		if why, known := tool.absent[args[0]]; known {
			fmt.Fprintf(t.errOut, "%s: not supported: %s\n", args[0][1:], why)
			return exitAdminFailed, nil
		}
		var names []string
		for _, v := range tool.verbs {
			names = append(names, v.name)
		}
		fmt.Fprintf(t.errOut, "Can't understand command '%s'%s\n", args[0], nearest.Hint(args[0], names))
		if !strings.HasPrefix(args[0], "-") {
			fmt.Fprintln(t.errOut, "Command names must start with dashes.")
		}
		tool.printUsage(t)
		return exitAdminUsage, nil
	}
	v := tool.verbs[at]
	a, code := v.read(t, args[1:])
	if code != 0 {
		return code, nil
	}
	if v.name == "-help" {
		return v.run(t, a)
	}
	var err error
	if given := a.value["-path"]; given != "" {
		a.at, err = t.at(given)
	} else {
		_, err = t.client()
	}
	if err != nil {
		return 0, err
	}
	return v.run(t, a)
}

func (tool *adminTool) printUsage(t *hadoopTool) {
	fmt.Fprintf(t.errOut, "Usage: hops %s [COMMAND]\n", tool.name)
	for _, v := range tool.verbs {
		fmt.Fprintf(t.errOut, "          [%s]\n", v.short())
	}
}

func (tool *adminTool) help(t *hadoopTool, _ *adminArguments) (int, error) {
	for _, v := range tool.verbs {
		t.printf("[%s]\n\n%s\n\n", v.short(), v.help)
	}
	return 0, nil
}

// read takes the options of a verb. A code that is not 0 is that of a mistake, which has been said.
func (v *adminVerb) read(t *hadoopTool, args []string) (*adminArguments, int) {
	a := &adminArguments{value: make(map[string]string)}
	if v.rest != "" && len(args) > 0 && args[0] == v.rest {
		if len(args) == 1 {
			fmt.Fprintln(t.errOut, "NotEnoughArgumentsException: Not enough arguments: expected 1 but got 0")
			return nil, exitHadoop
		}
		a.rest, args = args[1:], nil
	}
	for _, option := range v.takes {
		i := slices.Index(args, option)
		if i < 0 {
			continue
		}
		if i+1 == len(args) {
			fmt.Fprintf(t.errOut, "IllegalArgumentException: option %s requires 1 argument.\n", option)
			return nil, exitHadoop
		}
		a.value[option] = args[i+1]
		args = slices.Delete(slices.Clone(args), i, i+2)
	}
	for _, need := range v.needs {
		if a.value[need.option] == "" {
			fmt.Fprintf(t.errOut, "%s\nUsage: [%s]\n\n%s\n", need.missing, v.short(), v.help)
			return nil, exitAdminUsage
		}
	}
	for _, flag := range v.flags {
		if i := slices.Index(args, flag); i >= 0 {
			a.value[flag] = ""
			args = slices.Delete(slices.Clone(args), i, i+1)
		}
	}
	if len(args) > 0 {
		fmt.Fprintf(t.errOut, "%s: Too many arguments\n", v.name)
		return nil, exitAdminUsage
	}
	return a, 0
}

// javaClasses are the classes that those commands name errors by; the others are a RemoteException to them.
var javaClasses = []struct {
	kind  *metadata.Kind
	class string
}{
	{metadata.ErrNotExist, "FileNotFoundException"},
	{metadata.ErrInvalidRequest, "InvalidRequestException"},
	{metadata.ErrNoErasureCoding, "NoECPolicySetException"},
	{metadata.ErrPermission, "AccessControlException"},
	{metadata.ErrSafeMode, "SafeModeException"},
}

// failedAdmin says an error as AdminHelper.prettifyException does.
func (t *hadoopTool) failedAdmin(err error, code int) int {
	class := "RemoteException"
	for _, c := range javaClasses {
		if errors.Is(err, c.kind) {
			class = c.class
		}
	}
	fmt.Fprintf(t.errOut, "%s: %s\n", class, hadoopMessage(err))
	return code
}
