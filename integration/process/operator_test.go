package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// The shell blocks of docs/how-to/namenodes.md are run as they stand there, each behind the misfortune that it is for.
func TestPageOnNamenodesDoesWhatItSays(t *testing.T) {
	if testing.Short() {
		t.Skip("four processes")
	}
	k := Lay(t, processes.Config{
		Namenodes: 4,
		Adjust: func(name string, f *config.File) {
			all := f.Namenodes
			f.Namenodes = all[:3]
			if name == "nn4" { // in nn3's place
				f.Namenodes = []config.NamenodeMember{all[0], all[1], all[3]}
			}
		},
	})
	k.must(k.Start("nn1"))
	k.Await("the cluster's identity", func() error { _, err := os.Stat(k.File().Cluster.Identity); return err })
	for _, name := range []string{"nn2", "nn3"} {
		k.must(k.Start(name))
	}
	for _, name := range []string{"nn1", "nn2", "nn3"} {
		k.awaitVote(name)
	}
	o := &operator{Cluster: k, blocks: pageBlocks(t, "../../docs/how-to/namenodes.md")}
	cluster := o.health("nn1").Cluster
	o.replace = strings.NewReplacer(
		"NN4-RAFT-ADDRESS", k.File().Namenodes[3].Raft, "NN2-RAFT-ADDRESS", k.File().Namenodes[1].Raft, "CLUSTER-ID", cluster)

	if said := o.run("See who is there"); strings.Count(said, "yes") != 3 || !strings.Contains(said, "active") {
		t.Fatalf("the list:\n%s", said)
	}
	o.lose("nn3")
	o.run("Its disk was lost or replaced")
	k.awaitVote("nn3")

	k.Hops().Fails(1, []string{"in use by another process"}, "namenode", "reinstall", "-c", o.file("nn3"))
	k.must(k.Kill("nn3"))
	o.run("Its data is damaged")
	k.awaitVote("nn3")

	k.must(k.Kill("nn3"))
	said := o.run("Another namenode takes its place")
	k.awaitVote("nn4")
	if strings.Contains(said, "nn3") || !strings.Contains(said, "nn4") {
		t.Fatalf("the list:\n%s", said)
	}
	o.run("Before maintenance")
	k.Await("nn1 leads", func() error {
		h, err := o.ask("nn1")
		if err == nil && h.State != "active" { // on a busy machine another one may have been elected since
			r := o.Hops().Run("namenode", "transfer", "nn1", "-c", o.file("nn4"))
			err = fmt.Errorf("nn1 is %s; transferred again: %s", h.State, r.Stderr)
		}
		return err
	})

	k.Hops().Fails(1, []string{"the others are not lost", "nn2 runs and has a vote"},
		"namenode", "recover", "--sole-survivor", "--cluster", cluster, "-c", o.file("nn1"))
	o.lose("nn2")
	o.lose("nn4")
	k.must(k.Kill("nn1"))
	k.Hops().Fails(1, []string{"belongs to cluster", "not to"}, "namenode", "recover", "--sole-survivor", "--cluster", "CID-other", "-c", o.file("nn1"))
	o.run("Two of three are lost for good")
	k.awaitVote("nn2")
}

// operator runs the commands of a page.
type operator struct {
	*Cluster
	blocks  map[string][]string
	replace *strings.Replacer
}

// pageBlocks are the lines of the shell blocks under each heading of a page.
func pageBlocks(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	heading, inside := "", false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside:
			blocks[heading] = append(blocks[heading], line)
		case strings.HasPrefix(line, "## "):
			heading = strings.TrimPrefix(line, "## ")
		}
	}
	return blocks
}

func (o *operator) file(name string) string {
	return filepath.Join(filepath.Dir(o.Log(name)), name+".yaml")
}

// run runs the blocks of a heading and returns what the last command said.
func (o *operator) run(heading string) string {
	o.T.Helper()
	if len(o.blocks[heading]) == 0 {
		o.T.Fatalf("the page has no commands under %q", heading)
	}
	said := ""
	for _, line := range o.blocks[heading] {
		line, _, _ = strings.Cut(line, " # ")
		words := strings.Fields(o.replace.Replace(line))
		if words[0] == "hops" && (words[1] == "cluster" || words[1] == "namenode") && !slices.Contains(words, "-c") { // there it finds the configuration of the machine
			words = slices.Insert(words, 3, "-c", "nn1.yaml")
		}
		if words[0] == "cp" {
			if out, err := exec.Command("cp", words[1:]...).CombinedOutput(); err != nil {
				o.T.Fatalf("%s: %v\n%s", line, err, out)
			}
			continue
		}
		if words[0] != "hops" {
			o.T.Fatalf("%q is no command of the kind that this test runs", line)
		}
		if i := slices.Index(words, "-c"); i > 0 {
			name := strings.TrimSuffix(words[i+1], ".yaml")
			words[i+1] = o.file(name)
			if words[1] == "server" {
				o.must(o.Start(name))
				if strings.HasPrefix(name, "nn") {
					o.Await(name+" answers", func() error { _, err := o.ask(name); return err })
				}
				continue
			}
		}
		o.Await(line, func() error { // a leader may be about to be elected
			r := o.Hops().Run(words[1:]...)
			if r.Status != 0 {
				return fmt.Errorf("status %d: %s%s", r.Status, r.Stdout, r.Stderr)
			}
			said = r.Stdout
			return nil
		})
		o.T.Logf("%s\n%s", line, said)
	}
	return said
}

// lose ends a namenode and deletes what it has stored.
func (o *operator) lose(name string) {
	o.T.Helper()
	o.must(o.Kill(name))
	f, err := o.Server(name)
	o.must(err)
	o.must(os.RemoveAll(f.Namenode.Data))
}

func (o *operator) health(name string) operatorHealth {
	o.T.Helper()
	h, err := o.ask(name)
	o.must(err)
	return h
}

// awaitVote waits until a namenode knows a leader and has a vote.
func (k *Cluster) awaitVote(name string) {
	k.T.Helper()
	k.Await(name+" votes", func() error {
		h, err := k.ask(name)
		if err == nil && (h.Joining || h.Cluster == "") {
			err = fmt.Errorf("%s is %s", name, h.State)
		}
		return err
	})
}
