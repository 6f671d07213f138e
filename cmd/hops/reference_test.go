package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/shell"
)

var update = flag.Bool("update", false, "rewrite docs/reference/cli.md")

const referencePath = "../../docs/reference/cli.md"

// TestCommandReferenceIsCurrent keeps docs/reference/cli.md, which is made from the commands themselves.
func TestCommandReferenceIsCurrent(t *testing.T) {
	want := reference()
	if *update {
		if err := os.WriteFile(referencePath, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referencePath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("docs/reference/cli.md is not current: go test ./cmd/hops -run TestCommandReference -update")
	}
}

func reference() []byte {
	var b bytes.Buffer
	b.WriteString(`# Commands

Made from the program itself by ` + "`go test ./cmd/hops -run TestCommandReference -update`" + `.

| exit status | native commands | fs | app, node, logs |
| --- | --- | --- | --- |
| 0 | done; with waiting: the job succeeded | done | done |
| 1 | failed; job run without --detach: the status of the job's program, whatever it is | an operation failed; -test: no | |
| 2 | wrong words or values | | |
| 3 | no server answers | | |
| 4 | denied; or a server and this program do not take each other for what they say they are | | |
| 130 | interrupted | interrupted | |
| 255 | | wrong words | any failure |

Every command finds the cluster in the same way: ` + "`--conf DIR` (`hops fs -conf DIR`), else HOPS_LOGIN, else HADOOP_CONF_DIR, else `hops login`, else the `hops dev`" + ` of the same
user that runs, else the configuration of this machine's servers, /etc/hops/conf. If there is none, the command says so at once. HADOOP_USER_NAME says who acts, where that may
be claimed; HADOOP_TOKEN_FILE_LOCATION names a file with delegation tokens, which prove it. In a container the commands have what the container was given, and no login.
`)
	app := newApp(nil, nil, nil)
	for _, c := range app.Commands {
		describe(&b, "hops", c)
	}
	return b.Bytes()
}

func describe(b *bytes.Buffer, prefix string, c *cli.Command) {
	name := prefix + " " + c.Name
	fmt.Fprintf(b, "\n## %s\n\n", strings.TrimSpace(name+" "+c.ArgsUsage))
	fmt.Fprintf(b, "%s\n", c.Usage)
	if c.Description != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", c.Description)
	}
	if c.Name == "fs" {
		fmt.Fprintf(b, "\nVerbs: %s. `hops fs -help VERB` describes one.\n", strings.Join(shell.Verbs(), ", "))
		return
	}
	for i, f := range c.Flags {
		if i == 0 {
			b.WriteString("\n| option | |\n| --- | --- |\n")
		}
		names := ""
		for _, n := range f.Names() {
			dashes := "--"
			if len(n) == 1 {
				dashes = "-"
			}
			names += ", " + dashes + n
		}
		usage := ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			usage = strings.ReplaceAll(d.GetUsage(), "`", "")
			if d.GetDefaultText() != "" && d.TakesValue() && d.GetValue() != "" {
				usage += " (default " + d.GetDefaultText() + ")"
			}
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", names[2:], usage)
	}
	for _, sub := range c.Subcommands {
		describe(b, name, sub)
	}
}
