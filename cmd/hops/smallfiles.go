package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/namenode"
)

func smallFilesCommand() *cli.Command {
	return &cli.Command{
		Name: "smallfiles", Usage: "whether the namenodes keep small files below a directory", ArgsUsage: "PATH [on|off|inherit]",
		Description: "hops smallfiles /data              says whether they do, and whether the directory itself says so\n" +
			"hops smallfiles /data/tmp off\n" +
			"hops smallfiles /data/tmp inherit  as the directory above says\n\n" +
			"That is for files that are made from now on, by hops and its clients, with 64 KiB at most (namenode.small_file_limit); they stay as they are made.\n" +
			"docs/how-to/small-files.md tells more.",
		Flags: []cli.Flag{confFlag()}, Action: smallFiles,
	}
}

var smallFilePolicies = map[string]namenode.SmallFilePolicy{
	"on": namenode.SmallFilesOn, "off": namenode.SmallFilesOff, "inherit": namenode.SmallFilesInherit,
}

func smallFiles(c *cli.Context) error {
	path, word := c.Args().Get(0), c.Args().Get(1)
	policy, known := smallFilePolicies[word]
	if path == "" || c.NArg() > 2 || word != "" && !known {
		return fail(exitUsage, "smallfiles takes a path, and on, off or inherit to change what holds there")
	}
	properties := map[string]string{}
	if dir := c.String("conf"); dir != "" {
		properties["-conf"] = dir
	}
	fs, _, err := dialShell("", properties, c.App.ErrWriter)
	if err != nil {
		return err
	}
	defer fs.Close()
	if known {
		return fs.SetSmallFilePolicy(c.Context, path, policy)
	}
	policy, own, err := fs.SmallFilePolicy(c.Context, path)
	if err != nil {
		return err
	}
	from := "as no directory says otherwise"
	if own {
		from = "as the directory itself says"
	} else if policy == namenode.SmallFilesOff {
		from = "as a directory above says, or a cluster at a level below 6"
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s: %s, %s\n", path, policy, from)
	return err
}
