package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

func ecCommand() *cli.Command {
	policy := []string{"-policy"}
	named := []neededOption{{"-policy", "Please specify the policy name."}}
	tool := &adminTool{name: "ec", usage: "erasure coding of directories", verbs: []*adminVerb{
		{name: "-listPolicies", help: "all policies, and whether directories may be given them", run: listPoliciesEC},
		{
			name: "-getPolicy", arguments: "-path <path>", help: "the policy of a file, or of files that are made in a directory",
			takes: []string{"-path"}, needs: []neededOption{{"-path", "Please specify the path with -path."}}, run: getPolicyEC,
		},
		{
			name: "-setPolicy", arguments: "-path <path> [-policy <policy>] [-replicate]", help: "code files that are made below a directory from now on; -replicate: do not",
			takes: []string{"-path", "-policy"}, flags: []string{"-replicate"}, needs: []neededOption{{"-path", "Please specify the path for setting the EC policy."}}, run: setPolicyEC,
		},
		{
			name: "-unsetPolicy", arguments: "-path <path>", help: "leave it to the directory above",
			takes: []string{"-path"}, needs: []neededOption{{"-path", "Please specify a path."}}, run: unsetPolicyEC,
		},
		{name: "-listCodecs", help: "the codes, and what computes them", run: listCodecsEC},
		{name: "-enablePolicy", arguments: "-policy <policy>", help: "let directories be given a policy", takes: policy, needs: named, run: switchPolicyEC(true)},
		{name: "-disablePolicy", arguments: "-policy <policy>", help: "end that; what has the policy keeps it", takes: policy, needs: named, run: switchPolicyEC(false)},
		{name: "-removePolicy", arguments: "-policy <policy>", help: "remove a policy that users have added", takes: policy, needs: named, run: removePolicyEC},
		{
			name: "-verifyClusterSetup", arguments: "[-policy <policy>...<policy>]", help: "whether there are datanodes and racks enough for policies, for those that are enabled if none is named",
			rest: "-policy", run: verifyEC,
		},
		{
			name: "convert", arguments: "-path <path> -policy <policy>|-replicate [-replication <replicas>]",
			help:  "hops' own: code the files that are there, or replicate them (as often as dfs.replication says, or else), one after the other and each in one step",
			takes: []string{"-path", "-policy", "-replication"}, flags: []string{"-replicate"}, needs: []neededOption{{"-path", "Please specify the path with -path."}}, run: convertEC,
		},
	}, absent: map[string]string{"-addPolicies": "there are the policies only that every HDFS has"}}
	return tool.command()
}

// exitECNotSet is the status of a -setPolicy that failed.
const exitECNotSet = 3

func listPoliciesEC(t *hadoopTool, _ *adminArguments) (int, error) {
	all, err := t.fs.ErasurePolicies(t.ctx)
	if err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
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

func listCodecsEC(t *hadoopTool, _ *adminArguments) (int, error) {
	all, err := t.fs.ErasureCodecs(t.ctx)
	if err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
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

func getPolicyEC(t *hadoopTool, a *adminArguments) (int, error) {
	path := a.value["-path"]
	p, err := t.fs.ErasurePolicy(t.ctx, a.at)
	switch {
	case err != nil:
		return t.failedAdmin(err, exitAdminFailed), nil
	case p == nil:
		t.printf("The erasure coding policy of %s is unspecified\n", path)
	default:
		t.printf("%s\n", p.Name)
	}
	return 0, nil
}

func setPolicyEC(t *hadoopTool, a *adminArguments) (int, error) {
	policy, path := a.value["-policy"], a.value["-path"]
	name := policy
	switch {
	case a.has("-replicate") && policy != "":
		fmt.Fprintf(t.errOut, "-setPolicy: -replicate and -policy cannot been used at the same time\n")
		return exitAdminFailed, nil
	case a.has("-replicate"):
		policy, name = namenode.ReplicationPolicy, namenode.ReplicationPolicy
	case policy == "":
		name = "default"
	}
	if err := t.fs.SetErasurePolicy(t.ctx, a.at, policy); err != nil {
		return t.failedAdmin(err, exitECNotSet), nil
	}
	t.printf("Set %s erasure coding policy on %s\n", name, path)
	if t.hasFiles(a.at) {
		t.printf("Warning: setting erasure coding policy on a non-empty directory will not automatically convert existing files to %s erasure coding policy\n", name)
	}
	return 0, nil
}

func unsetPolicyEC(t *hadoopTool, a *adminArguments) (int, error) {
	path := a.value["-path"]
	if err := t.fs.UnsetErasurePolicy(t.ctx, a.at); err != nil {
		t.failedAdmin(err, exitAdminFailed)
		if errors.Is(err, metadata.ErrNoErasureCoding) {
			fmt.Fprintln(t.errOut, "Use '-setPolicy -path <PATH> -replicate' to enforce default replication policy irrespective of EC policy defined on parent.")
		}
		return exitAdminFailed, nil
	}
	t.printf("Unset erasure coding policy from %s\n", path)
	if t.hasFiles(a.at) {
		t.printf("Warning: unsetting erasure coding policy on a non-empty directory will not automatically convert existing files to replicated data.\n")
	}
	return 0, nil
}

// hasFiles reports whether a directory has entries, as far as that can be found out.
func (t *hadoopTool) hasFiles(dir string) bool {
	st, err := t.fs.Stat(t.ctx, dir)
	return err == nil && st.Children > 0
}

func switchPolicyEC(enable bool) func(*hadoopTool, *adminArguments) (int, error) {
	return func(t *hadoopTool, a *adminArguments) (int, error) {
		policy := a.value["-policy"]
		if err := t.fs.SwitchErasurePolicy(t.ctx, policy, enable); err != nil {
			return t.failedAdmin(err, exitAdminFailed), nil
		}
		if !enable {
			t.printf("Erasure coding policy %s is disabled\n", policy)
			return 0, nil
		}
		t.printf("Erasure coding policy %s is enabled\n", policy)
		fits, err := t.fs.ErasureTopology(t.ctx, policy)
		switch {
		case err != nil:
			return t.failedAdmin(err, exitAdminFailed), nil
		case !fits.Supported:
			fmt.Fprintf(t.errOut, "Warning: The cluster setup does not support EC policy %s. Reason: %s\n", policy, fits.Message)
		}
		return 0, nil
	}
}

func removePolicyEC(t *hadoopTool, a *adminArguments) (int, error) {
	if err := t.fs.RemoveErasurePolicy(t.ctx, a.value["-policy"]); err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
	}
	t.printf("Erasure coding policy %s is removed\n", a.value["-policy"])
	return 0, nil
}

func verifyEC(t *hadoopTool, a *adminArguments) (int, error) {
	fits, err := t.fs.ErasureTopology(t.ctx, a.rest...)
	switch {
	case errors.Is(err, metadata.ErrInvalidArgument):
		fmt.Fprintf(t.errOut, "HadoopIllegalArgumentException: %s\n", hadoopMessage(err))
		return exitHadoop, nil
	case err != nil: // Java's main method ends with it
		fmt.Fprintln(t.errOut, hadoopMessage(err))
		return 1, nil
	}
	t.printf("%s\n", fits.Message)
	if !fits.Supported {
		return exitAdminFailed, nil
	}
	return 0, nil
}
