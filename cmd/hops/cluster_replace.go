package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/namenode/roster"
	nnserver "github.com/gohops/hops/namenode/server"
)

// replaceCommand and transferCommand are of `hops cluster`.
func replaceCommand(file cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "replace", Usage: "take a machine out that is lost, and print the line by which a new one takes its place", ArgsUsage: "NAME",
		Description: "The new machine gets the roles of the old one, and its name unless you change --machine in the line. Its disks are empty: namenode and\n" +
			"resource manager receive everything from the others, blocks are copied from other datanodes.",
		Flags: []cli.Flag{
			file, userFlag(), outputFlag(),
			&cli.BoolFlag{Name: "force", Usage: "although a server of the machine answers"},
			&cli.DurationFlag{Name: "ttl", Value: 24 * time.Hour, Usage: "`TIME` that the line is good for, up to 720h"},
		},
		Action: clusterReplace,
	}
}

func transferCommand(file cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "transfer", Usage: "have another namenode or resource manager lead, the best one without ID", ArgsUsage: "namenode|resourcemanager [ID]",
		Flags: []cli.Flag{file, userFlag()}, Action: clusterTransfer,
	}
}

func clusterTransfer(c *cli.Context) error {
	if n := c.NArg(); n < 1 || n > 2 {
		return fail(exitUsage, "cluster transfer: give namenode or resourcemanager, and the ID of one or none")
	}
	switch role, id := c.Args().First(), c.Args().Get(1); authority.Role(role) {
	case authority.Namenode:
		return transferNamenodeTo(c, id)
	case authority.ResourceManager:
		return transferManagerTo(c, id)
	default:
		return fail(exitUsage, "cluster transfer: %q has no leader: say namenode or resourcemanager", role)
	}
}

// removeMachine takes a machine out of the resource managers' group and of the cluster. last: although its resource manager is the last.
func removeMachine(c *cli.Context, name string, last bool) error {
	rows, leader, err := leadingManager(c)
	if err != nil {
		return err
	}
	only := url.Values{}
	switch here := slices.ContainsFunc(rows, func(r managerRow) bool { return r.ID == name }); {
	case !here:
	case len(rows) == 1:
		if !last {
			return fail(exitUsage, "%s", roster.LastManager(name))
		}
		only.Set("last_resourcemanager", "true")
	default:
		switch {
		case leader == nil:
			return fail(exitUnreachable, "no resource manager leads, who could take that of %s out: `hops resourcemanager list` shows who runs", name)
		case leader.ID == name:
			return fail(exitUsage, "the resource manager of %s leads: hand that over first (`hops cluster transfer resourcemanager`)", name)
		}
		var known struct{ Members []struct{ ID string } }
		if err := requestManager(c.Context, *leader, "", http.MethodGet, "/api/v1/resourcemanagers", nil, &known); err != nil {
			return err
		}
		if slices.ContainsFunc(known.Members, func(m struct{ ID string }) bool { return m.ID == name }) { // not after a remove that was interrupted here
			as, err := operator(c.String("user"), filepath.Dir(c.String("config")))
			if err != nil {
				return err
			}
			if err := requestManager(c.Context, *leader, as, http.MethodDelete, "/api/v1/resourcemanagers/"+url.PathEscape(name), nil, &struct{}{}); err != nil {
				return err
			}
		}
	}
	return operate(c, http.MethodDelete, "/api/v1/cluster/machines/"+url.PathEscape(name), only)
}

func clusterReplace(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "cluster replace: give the NAME of one machine; `hops cluster nodes` lists them")
	}
	name := c.Args().First()
	var all nnserver.Machines
	if err := operation(c, http.MethodGet, "/api/v1/cluster/machines", nil, &all); err != nil {
		return err
	}
	i := slices.IndexFunc(all.Machines, func(m nnserver.ListedMachine) bool { return m.Name == name })
	if i < 0 {
		return fail(exitUsage, "machine %s is not known: `hops cluster nodes` lists those that joined", name)
	}
	lost := all.Machines[i]
	file, err := config.Load(c.String("config")) // as it is before
	if err != nil {
		return err
	}
	if !c.Bool("force") {
		if answers, err := answering(c, name); err != nil || answers != "" {
			if err == nil {
				err = fail(exitUsage, "%s is not lost, its %s answers: stop its servers, or say --force", name, answers)
			}
			return err
		}
	}
	if lost.Removed.IsZero() { // a replace whose line was lost is said again
		if err := removeMachine(c, name, true); err != nil { // what it has is lost already
			return err
		}
	}
	var token nnserver.Token
	if err := operation(c, http.MethodPost, "/api/v1/cluster/tokens", tokenQuery(lost.Roles, c.Duration("ttl"), 1), &token); err != nil {
		return err
	}
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%s --roles %s --machine %s", joinLine(token), roleNames(lost.Roles), name)
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(map[string]string{"token": token.Token, "line": line})
	}
	fmt.Fprintf(c.App.Writer, "%s is no member any more. On the machine that takes its place, within %v (it is a secret):\n\n%s\n", name, c.Duration("ttl"), line)
	if slices.Contains(lost.Roles, authority.ResourceManager) && !slices.ContainsFunc(file.ResourceManagers, func(m config.ManagerMember) bool { return m.ID != name }) {
		fmt.Fprintln(c.App.Writer, "\nIts resource manager was the last: the new one begins without applications. `hops resourcemanager restore` gives it those of a backup.")
	}
	return nil
}

// answering is the role of a server of the machine that answers; empty: none does.
func answering(c *cli.Context, name string) (string, error) {
	_, all, _, err := askNamenodes(c)
	if err != nil {
		return "", err
	}
	for _, n := range all {
		if n.ID == name && n.err == nil {
			return "namenode", nil
		}
	}
	rows, _, err := askManagers(c)
	for _, r := range rows {
		if r.ID == name && r.State != unreachable {
			return "resource manager", nil
		}
	}
	return "", err
}
