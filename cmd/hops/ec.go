package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

func ecCommand() *cli.Command {
	var text strings.Builder
	text.WriteString("Options, output and exit status are those of `hdfs ec`.\n\n")
	for _, v := range ecVerbs {
		fmt.Fprintf(&text, "%s\n    %s\n", strings.TrimSpace(v.name+" "+v.arguments), v.help)
	}
	return hadoopCommand("ec", "erasure coding of directories: the options and output of `hdfs ec`", "-OPTION [ARGUMENTS]", text.String(), ec)
}

// ecVerb is an option of ec.
type ecVerb struct {
	name, arguments, help string
	// path and policy: it takes these options; needs is which one it must have, and what is said without it.
	path, policy bool
	needs        string
	run          func(t *hadoopTool, a *ecArguments) (int, error)
}

// ecArguments are what an option was given.
type ecArguments struct {
	path, policy string
	policies     []string // of -verifyClusterSetup
	replicate    bool
}

var ecVerbs []*ecVerb

func init() { // the help is made of the table, and run by it
	ecVerbs = []*ecVerb{
		{"-listPolicies", "", "all policies, and whether directories may be given them", false, false, "", listPoliciesEC},
		{"-getPolicy", "-path <path>", "the policy of a file, or of files that are made in a directory", true, false, "Please specify the path with -path.", getPolicyEC},
		{"-setPolicy", "-path <path> [-policy <policy>] [-replicate]", "code files that are made below a directory from now on; -replicate: do not", true, true, "Please specify the path for setting the EC policy.", setPolicyEC},
		{"-unsetPolicy", "-path <path>", "leave it to the directory above", true, false, "Please specify a path.", unsetPolicyEC},
		{"-listCodecs", "", "the codes, and what computes them", false, false, "", listCodecsEC},
		{"-enablePolicy", "-policy <policy>", "let directories be given a policy", false, true, "Please specify the policy name.", switchPolicyEC(true)},
		{"-disablePolicy", "-policy <policy>", "end that; what has the policy keeps it", false, true, "Please specify the policy name.", switchPolicyEC(false)},
		{"-removePolicy", "-policy <policy>", "remove a policy that users have added", false, true, "Please specify the policy name.", removePolicyEC},
		{"-verifyClusterSetup", "[-policy <policy>...<policy>]", "whether there are datanodes and racks enough for policies, for those that are enabled if none is named", false, false, "", verifyEC},
		{"-help", "", "this", false, false, "", helpEC},
	}
}

// absentEC are options of Hadoop's that there is nothing for here.
var absentEC = map[string]string{"-addPolicies": "there are the policies only that every HDFS has"}

// Exit statuses of `hdfs ec`.
const (
	exitECUsage  = 1
	exitECFailed = 2
	exitECNotSet = 3 // of -setPolicy
)

func ec(t *hadoopTool, args []string) (int, error) {
	if len(args) == 0 {
		t.usageEC()
		return exitECUsage, nil
	}
	at := slices.IndexFunc(ecVerbs, func(v *ecVerb) bool { return v.name == args[0] })
	if at < 0 {
		if why, known := absentEC[args[0]]; known {
			fmt.Fprintf(t.errOut, "%s: not supported: %s\n", args[0][1:], why)
			return exitECFailed, nil
		}
		var names []string
		for _, v := range ecVerbs {
			names = append(names, v.name)
		}
		fmt.Fprintf(t.errOut, "Can't understand command '%s'%s\n", args[0], nearest.Hint(args[0], names))
		if !strings.HasPrefix(args[0], "-") {
			fmt.Fprintln(t.errOut, "Command names must start with dashes.")
		}
		t.usageEC()
		return exitECUsage, nil
	}
	v := ecVerbs[at]
	a, code := t.argumentsEC(v, args[1:])
	if code != 0 {
		return code, nil
	}
	if v.name != "-help" {
		if _, err := t.client(); err != nil {
			return 0, err
		}
	}
	return v.run(t, a)
}

func (t *hadoopTool) usageEC() {
	fmt.Fprintln(t.errOut, "Usage: hops ec [COMMAND]")
	for _, v := range ecVerbs {
		fmt.Fprintf(t.errOut, "          [%s]\n", strings.TrimSpace(v.name+" "+v.arguments))
	}
}

// argumentsEC reads the options of a verb. A code that is not 0 is that of a mistake, which has been said.
func (t *hadoopTool) argumentsEC(v *ecVerb, args []string) (*ecArguments, int) {
	a := &ecArguments{}
	verify := v.name == "-verifyClusterSetup"
	value := func(option string) (string, bool) {
		i := slices.Index(args, option)
		if i < 0 {
			return "", true
		}
		if i+1 == len(args) {
			fmt.Fprintf(t.errOut, "IllegalArgumentException: option %s requires 1 argument.\n", option)
			return "", false
		}
		word := args[i+1]
		args = slices.Delete(slices.Clone(args), i, i+2)
		return word, true
	}
	fine := true
	if v.path {
		if a.path, fine = value("-path"); !fine {
			return nil, exitHadoop
		}
	}
	if v.policy {
		if a.policy, fine = value("-policy"); !fine {
			return nil, exitHadoop
		}
	}
	switch {
	case v.needs != "" && (v.path && a.path == "" || !v.path && a.policy == ""):
		fmt.Fprintf(t.errOut, "%s\nUsage: [%s %s]\n\n%s\n", v.needs, v.name, v.arguments, v.help)
		return nil, exitECUsage
	case verify && len(args) > 0 && args[0] == "-policy":
		if len(args) == 1 {
			fmt.Fprintln(t.errOut, "NotEnoughArgumentsException: Not enough arguments: expected 1 but got 0")
			return nil, exitHadoop
		}
		a.policies, args = args[1:], nil
	case v.name == "-setPolicy":
		if i := slices.Index(args, "-replicate"); i >= 0 {
			a.replicate, args = true, slices.Delete(slices.Clone(args), i, i+1)
		}
	}
	if len(args) > 0 {
		fmt.Fprintf(t.errOut, "%s: Too many arguments\n", v.name)
		return nil, exitECUsage
	}
	return a, 0
}

// javaClasses are the classes that `hdfs ec` names errors by; the others are a RemoteException to it.
var javaClasses = []struct {
	kind  *metadata.Kind
	class string
}{
	{metadata.ErrNotExist, "FileNotFoundException"},
	{metadata.ErrNoErasureCoding, "NoECPolicySetException"},
	{metadata.ErrPermission, "AccessControlException"},
	{metadata.ErrSafeMode, "SafeModeException"},
}

// failedEC says an error as AdminHelper.prettifyException does.
func (t *hadoopTool) failedEC(err error, code int) int {
	class := "RemoteException"
	for _, c := range javaClasses {
		if errors.Is(err, c.kind) {
			class = c.class
		}
	}
	fmt.Fprintf(t.errOut, "%s: %s\n", class, hadoopMessage(err))
	return code
}

func helpEC(t *hadoopTool, _ *ecArguments) (int, error) {
	for _, v := range ecVerbs {
		t.printf("[%s]\n\n%s\n\n", strings.TrimSpace(v.name+" "+v.arguments), v.help)
	}
	return 0, nil
}

func listPoliciesEC(t *hadoopTool, _ *ecArguments) (int, error) {
	all, err := t.fs.ErasurePolicies(t.ctx)
	if err != nil {
		return t.failedEC(err, exitECFailed), nil
	}
	if len(all) == 0 {
		t.printf("There is no erasure coding policies in the cluster.\n")
		return 0, nil
	}
	t.printf("Erasure Coding Policies:\n")
	for _, p := range all {
		t.printf("ErasureCodingPolicy=[Name=%s, Schema=[ECSchema=[Codec=%s, numDataUnits=%d, numParityUnits=%d]], CellSize=%d, Id=%d], State=%s\n",
			p.Name, p.Codec, p.Layout.Data, p.Layout.Parity, p.Layout.Cell, p.ID, p.State)
	}
	return 0, nil
}

func listCodecsEC(t *hadoopTool, _ *ecArguments) (int, error) {
	all, err := t.fs.ErasureCodecs(t.ctx)
	if err != nil {
		return t.failedEC(err, exitECFailed), nil
	}
	if len(all) == 0 {
		t.printf("No erasure coding codecs are supported on the cluster.\n")
		return 0, nil
	}
	t.printf("Erasure Coding Codecs: Codec [Coder List]\n")
	for _, c := range all {
		t.printf("\t%s [%s]\n", strings.ToUpper(c.Name), strings.ToUpper(c.Coders))
	}
	return 0, nil
}

func getPolicyEC(t *hadoopTool, a *ecArguments) (int, error) {
	p, err := t.fs.ErasurePolicy(t.ctx, a.path)
	switch {
	case err != nil:
		return t.failedEC(err, exitECFailed), nil
	case p == nil:
		t.printf("The erasure coding policy of %s is unspecified\n", a.path)
	default:
		t.printf("%s\n", p.Name)
	}
	return 0, nil
}

func setPolicyEC(t *hadoopTool, a *ecArguments) (int, error) {
	policy, name := a.policy, a.policy
	switch {
	case a.replicate && policy != "":
		fmt.Fprintf(t.errOut, "-setPolicy: -replicate and -policy cannot been used at the same time\n")
		return exitECFailed, nil
	case a.replicate:
		policy, name = namenode.ReplicationPolicy, namenode.ReplicationPolicy
	case policy == "":
		name = "default"
	}
	if err := t.fs.SetErasurePolicy(t.ctx, a.path, policy); err != nil {
		return t.failedEC(err, exitECNotSet), nil
	}
	t.printf("Set %s erasure coding policy on %s\n", name, a.path)
	if t.hasFiles(a.path) {
		t.printf("Warning: setting erasure coding policy on a non-empty directory will not automatically convert existing files to %s erasure coding policy\n", name)
	}
	return 0, nil
}

func unsetPolicyEC(t *hadoopTool, a *ecArguments) (int, error) {
	if err := t.fs.UnsetErasurePolicy(t.ctx, a.path); err != nil {
		t.failedEC(err, exitECFailed)
		if errors.Is(err, metadata.ErrNoErasureCoding) {
			fmt.Fprintln(t.errOut, "Use '-setPolicy -path <PATH> -replicate' to enforce default replication policy irrespective of EC policy defined on parent.")
		}
		return exitECFailed, nil
	}
	t.printf("Unset erasure coding policy from %s\n", a.path)
	if t.hasFiles(a.path) {
		t.printf("Warning: unsetting erasure coding policy on a non-empty directory will not automatically convert existing files to replicated data.\n")
	}
	return 0, nil
}

// hasFiles reports whether a directory has entries, as far as that can be found out.
func (t *hadoopTool) hasFiles(dir string) bool {
	st, err := t.fs.Stat(t.ctx, dir)
	return err == nil && st.Children > 0
}

func switchPolicyEC(enable bool) func(*hadoopTool, *ecArguments) (int, error) {
	return func(t *hadoopTool, a *ecArguments) (int, error) {
		if err := t.fs.SwitchErasurePolicy(t.ctx, a.policy, enable); err != nil {
			return t.failedEC(err, exitECFailed), nil
		}
		if !enable {
			t.printf("Erasure coding policy %s is disabled\n", a.policy)
			return 0, nil
		}
		t.printf("Erasure coding policy %s is enabled\n", a.policy)
		fits, err := t.fs.ErasureTopology(t.ctx, a.policy)
		switch {
		case err != nil:
			return t.failedEC(err, exitECFailed), nil
		case !fits.Supported:
			fmt.Fprintf(t.errOut, "Warning: The cluster setup does not support EC policy %s. Reason: %s\n", a.policy, fits.Message)
		}
		return 0, nil
	}
}

func removePolicyEC(t *hadoopTool, a *ecArguments) (int, error) {
	if err := t.fs.RemoveErasurePolicy(t.ctx, a.policy); err != nil {
		return t.failedEC(err, exitECFailed), nil
	}
	t.printf("Erasure coding policy %s is removed\n", a.policy)
	return 0, nil
}

func verifyEC(t *hadoopTool, a *ecArguments) (int, error) {
	fits, err := t.fs.ErasureTopology(t.ctx, a.policies...)
	switch {
	case errors.Is(err, metadata.ErrInvalidArgument):
		fmt.Fprintf(t.errOut, "HadoopIllegalArgumentException: %s\n", hadoopMessage(err))
		return exitHadoop, nil
	case err != nil:
		return t.failedEC(err, exitHadoop), nil
	}
	t.printf("%s\n", fits.Message)
	if !fits.Supported {
		return exitECFailed, nil
	}
	return 0, nil
}
