package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/shell"
)

func manCommand() *cli.Command {
	return &cli.Command{
		Name:  "man",
		Usage: "print the manual page, hops(1), in roff",
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fail(exitUsage, "man: it takes no arguments")
			}
			_, err := c.App.Writer.Write(manual(newApp(nil, nil, nil)))
			return err
		},
	}
}

// manual makes the manual page from the commands themselves, in the macros of man(7). It has no date, so that the same program
// gives the same page.
func manual(app *cli.App) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH HOPS 1 \"\" \"hops %s\" \"User Commands\"\n", roff(app.Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", app.Name, roff(app.Usage))
	fmt.Fprint(&b, ".SH SYNOPSIS\n.B hops\n.I COMMAND\n.RI [ OPTION ]...\n.RI [ ARGUMENT ]...\n")
	fmt.Fprint(&b, ".SH DESCRIPTION\nOne program is every server of a cluster, the shell of its filesystem, and its jobs and experiments.\n")
	fmt.Fprint(&b, "Every command finds the cluster in the same way: the directory of\n.BR \\-\\-conf ,\nelse that of\n.BR HADOOP_CONF_DIR ,\n"+
		"else the login of\n.BR \"hops login\" ,\nelse the\n.B hops dev\nof the same user that runs, else the configuration\n.I /etc/hops/conf\nof this machine's servers.\n.B hops help\n.I COMMAND\ndescribes one command.\n")
	fmt.Fprint(&b, ".SH COMMANDS\n")
	for _, c := range app.Commands {
		manualCommand(&b, app.Name, c)
	}
	fmt.Fprint(&b, ".SH EXIT STATUS\n")
	for _, s := range exitStatuses {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", s[0], roff(s[1]))
	}
	fmt.Fprint(&b, ".SH ENVIRONMENT\n")
	for _, e := range environment {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", e[0], roff(e[1]))
	}
	fmt.Fprint(&b, ".SH FILES\n")
	for _, f := range [][2]string{
		{"/etc/hops/hops.yaml", "configuration of the servers of this machine"},
		{"/etc/hops/conf", "configuration of its clients, which the servers keep up to date"},
		{"/var/lib/hops", "data of the servers"},
		{"/var/log/hops", "audit logs"},
	} {
		fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", f[0], roff(f[1]))
	}
	return b.Bytes()
}

var exitStatuses = [][2]string{
	{"0", "Done. With waiting: the job succeeded."},
	{"1", "Failed. Of job run without --detach: the status of the job's program, whatever it is. Of fs: an operation failed; of fs -test: no."},
	{"2", "Wrong words or values."},
	{"3", "No server answers."},
	{"4", "Denied."},
	{"130", "Interrupted."},
	{"255", "Of fs: wrong words. Of app, node and logs: any failure."},
}

var environment = [][2]string{
	{"HADOOP_CONF_DIR", "Directory of core-site.xml, hdfs-site.xml and yarn-site.xml, which name the cluster."},
	{"HADOOP_TOKEN_FILE_LOCATION", "File of Hadoop's credentials, whose delegation token is shown in place of any other proof."},
	{"HADOOP_USER_NAME", "Who acts, where that may be claimed."},
	{"GOMEMLIMIT", "Memory of a server process; by default nine tenths of the machine's, or of its control group's limit."},
}

func manualCommand(b *bytes.Buffer, prefix string, c *cli.Command) {
	if c.Hidden {
		return
	}
	name := prefix + " " + c.Name
	fmt.Fprintf(b, ".SS %s\n%s.\n", roff(strings.TrimSpace(name+" "+c.ArgsUsage)), roff(strings.TrimSuffix(c.Usage, ".")))
	if c.Description != "" {
		fmt.Fprint(b, ".PP\n.nf\n")
		for line := range strings.Lines(c.Description) {
			fmt.Fprintf(b, "%s\n", roff(strings.TrimRight(line, " \n")))
		}
		fmt.Fprint(b, ".fi\n")
	}
	if c.Name == "fs" {
		fmt.Fprintf(b, ".PP\nVerbs: %s.\n.B hops fs \\-help\n.I VERB\ndescribes one.\n", roff(strings.Join(shell.Verbs(), ", ")))
		return
	}
	for _, f := range c.Flags {
		var names []string
		for _, n := range f.Names() {
			names = append(names, roff(dashes(n)+n))
		}
		usage := ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			usage = strings.ReplaceAll(d.GetUsage(), "`", "")
			if d.GetDefaultText() != "" && d.TakesValue() && d.GetValue() != "" {
				usage += " (default " + d.GetDefaultText() + ")"
			}
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", strings.Join(names, ", "), roff(usage))
	}
	for _, sub := range c.Subcommands {
		manualCommand(b, name, sub)
	}
}

// roff escapes text: backslashes, minus signs that are to be copied, and what would be a request at the beginning of a line. An empty line
// is a paragraph.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\t", "    ").Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		switch {
		case l == "":
			lines[i] = `\&`
		case l[0] == '.' || l[0] == '\'':
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
