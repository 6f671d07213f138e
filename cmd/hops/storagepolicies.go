package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

func storagePoliciesCommand() *cli.Command {
	path := []string{"-path"}
	tool := &adminTool{name: "storagepolicies", usage: "on what kind of volumes files lie", verbs: []*adminVerb{
		{name: "-listPolicies", help: "all policies: the types of the volumes of replicas, and what is taken where there are none", run: listPoliciesStorage},
		{
			name: "-setStoragePolicy", arguments: "-path <path> -policy <policy>", help: "where the blocks of a file, or of the files below a directory, are to lie; those that are written stay until -satisfyStoragePolicy",
			takes: []string{"-path", "-policy"}, needs: []neededOption{{"-path", "Please specify the path for setting the storage policy."}, {"-policy", "Please specify the policy name."}}, run: setPolicyStorage,
		},
		{
			name: "-unsetStoragePolicy", arguments: "-path <path>", help: "leave it to the directory above",
			takes: path, needs: []neededOption{{"-path", "Please specify the path from which the storage policy will be unsetd."}}, run: unsetPolicyStorage,
		},
		{
			name: "-getStoragePolicy", arguments: "-path <path>", help: "the policy of a file or directory, or of the next directory above that has one",
			takes: path, needs: []neededOption{{"-path", "Please specify the path with -path."}}, run: getPolicyStorage,
		},
		{
			name: "-satisfyStoragePolicy", arguments: "[-w] -path <path>", help: "move the blocks of a file, or of the files below a directory, to where the policies want them that hold there now; -w waits for it",
			takes: path, flags: []string{"-w"}, needs: []neededOption{{"-path", "Please specify the path for setting the storage policy."}}, run: satisfyPolicyStorage,
		},
	}}
	return tool.command()
}

// policyText is a policy as Java's BlockStoragePolicy prints itself.
func policyText(p *namenode.StoragePolicy) string {
	list := func(types []namenode.StorageType) string {
		var names []string
		for _, t := range types {
			names = append(names, t.String())
		}
		return "[" + strings.Join(names, ", ") + "]"
	}
	return fmt.Sprintf("BlockStoragePolicy{%s:%d, storageTypes=%s, creationFallbacks=%s, replicationFallbacks=%s}",
		p.Name, p.ID, list(p.Types), list(p.CreationFallback), list(p.ReplicationFallback))
}

func listPoliciesStorage(t *hadoopTool, _ *adminArguments) (int, error) {
	all, err := t.fs.StoragePolicies(t.ctx)
	if err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
	}
	t.printf("Block Storage Policies:\n")
	for i := range all {
		t.printf("\t%s\n", policyText(&all[i]))
	}
	return 0, nil
}

func setPolicyStorage(t *hadoopTool, a *adminArguments) (int, error) {
	path, policy := a.value["-path"], a.value["-policy"]
	if err := t.fs.SetStoragePolicy(t.ctx, a.at, policy); err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
	}
	t.printf("Set storage policy %s on %s\n", policy, path)
	return 0, nil
}

func unsetPolicyStorage(t *hadoopTool, a *adminArguments) (int, error) {
	path := a.value["-path"]
	if err := t.fs.UnsetStoragePolicy(t.ctx, a.at); err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
	}
	t.printf("Unset storage policy from %s\n", path)
	return 0, nil
}

func satisfyPolicyStorage(t *hadoopTool, a *adminArguments) (int, error) {
	path := a.value["-path"]
	if err := t.fs.SatisfyStoragePolicy(t.ctx, a.at); err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
	}
	t.printf("Scheduled blocks to move based on the current storage policy on %s\n", path)
	if !a.has("-w") {
		return 0, nil
	}
	stuck, err := t.satisfy(t.fs, []string{a.at})
	switch {
	case err != nil:
		return t.failedAdmin(err, exitAdminFailed), nil
	case stuck > 0:
		fmt.Fprintf(t.errOut, "%d blocks of %s cannot be moved to where the storage policy wants them\n", stuck, path)
		return exitAdminFailed, nil
	}
	t.printf("The storage policy is satisfied on %s\n", path)
	return 0, nil
}

func getPolicyStorage(t *hadoopTool, a *adminArguments) (int, error) {
	path := a.value["-path"]
	st, err := t.fs.Stat(t.ctx, a.at)
	switch {
	case errors.Is(err, metadata.ErrNotExist):
		fmt.Fprintf(t.errOut, "File/Directory does not exist: %s\n", path)
		return exitAdminFailed, nil
	case err != nil:
		return t.failedAdmin(err, exitAdminFailed), nil
	case st.StoragePolicy == 0:
		t.printf("The storage policy of %s is unspecified\n", path)
		return 0, nil
	}
	all, err := t.fs.StoragePolicies(t.ctx)
	if err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
	}
	for i := range all {
		if all[i].ID == st.StoragePolicy {
			t.printf("The storage policy of %s:\n%s\n", path, policyText(&all[i]))
			return 0, nil
		}
	}
	fmt.Fprintf(t.errOut, "Unable to identify the storage policy for %s\n", path)
	return exitAdminUsage, nil
}
