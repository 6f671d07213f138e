package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/namenode/roster"
	nnserver "github.com/gohops/hops/namenode/server"
)

func clusterCommand() *cli.Command {
	file := &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE` of a machine of the cluster"}
	return &cli.Command{
		Name:  "cluster",
		Usage: "the machines of a cluster: make one, invite others, list, remove, replace, rotate the authority, finalize an upgrade, back up, restore",
		Description: "hops cluster init --name lab          on the first machine; it prints the line for the others\n" +
			"hops join HOST:PORT --token TOKEN     on each other machine\n" +
			"hops cluster nodes                    who is a member\n\n" +
			"docs/how-to/cluster.md tells more. all but init and join are for superusers.",
		Subcommands: []*cli.Command{
			{
				Name: "init", Usage: "make a new cluster, of which this is the first machine, and start its servers",
				Flags:  append([]cli.Flag{&cli.StringFlag{Name: "name", Value: "hops", Usage: "`NAME` of the cluster"}}, setupFlags("namenode,datanode,resourcemanager,nodemanager")...),
				Action: clusterInit,
			},
			{
				Name: "token", Usage: "print the line by which other machines join",
				Flags: []cli.Flag{
					file, userFlag(), outputFlag(),
					&cli.StringFlag{Name: "roles", Value: "datanode,nodemanager", Usage: "`ROLES` that may be asked for, with commas"},
					&cli.DurationFlag{Name: "ttl", Value: 24 * time.Hour, Usage: "`TIME` that the token is good for, up to 720h"},
					&cli.IntFlag{Name: "uses", Value: 1, Usage: "`NUMBER` of machines that may join with it"},
					&cli.StringFlag{Name: "withdraw", Usage: "make the token with this `ID` useless instead; `nodes` lists the ids"},
				},
				Action: clusterToken,
			},
			{Name: "nodes", Aliases: []string{"ls"}, Usage: "the machines, and the tokens that may still be used", Flags: []cli.Flag{file, userFlag(), outputFlag()}, Action: clusterNodes},
			removeCommand(file),
			{
				Name: "rotate", Usage: "replace the certificate authority, while everything runs",
				Flags: []cli.Flag{
					file, userFlag(),
					&cli.BoolFlag{Name: "finish", Usage: "take the next step although machines are not ready for it: they must join again"},
					&cli.BoolFlag{Name: "compromised", Usage: "somebody may have the old authority's key: it does not vouch for the new one, and users log in anew by its fingerprint"},
				},
				Action: clusterRotate,
			},
			clusterBackupCommand(), clusterRestoreCommand(),
			finalizeCommand(file),
			replaceCommand(file),
			transferCommand(file),
		},
	}
}

// askToken makes a token at a namenode, as an operator of the machine whose configuration is in dir.
func askToken(ctx context.Context, addr, dir string, may []authority.Role, life time.Duration, uses int) (nnserver.Token, error) {
	var token nnserver.Token
	as, err := operator("", dir)
	if err != nil {
		return token, err
	}
	for began := time.Now(); ; {
		err = request(ctx, addr, addr, as, http.MethodPost, "/api/v1/cluster/tokens", tokenQuery(may, life, uses), &token)
		unavailable, ok := errors.AsType[*statusError](err)
		if !ok || unavailable.code != exitUnreachable || time.Since(began) > leaderPatience {
			return token, err
		}
		select { // it serves, and leads in a moment
		case <-ctx.Done():
			return token, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// leaderPatience is how long the first namenode of a cluster that has just started may take to lead.
const leaderPatience = 30 * time.Second

func tokenQuery(may []authority.Role, life time.Duration, uses int) url.Values {
	return url.Values{"roles": {roleNames(may)}, "ttl": {life.String()}, "uses": {strconv.Itoa(uses)}}
}

func roleNames(may []authority.Role) string {
	var out []string
	for _, r := range may {
		out = append(out, string(r))
	}
	return strings.Join(out, ",")
}

// joinLine is what is pasted on other machines.
func joinLine(t nnserver.Token) string {
	return fmt.Sprintf("hops join %s --token %s", t.Address, t.Token)
}

func clusterToken(c *cli.Context) error {
	if id := c.String("withdraw"); id != "" {
		if err := operate(c, http.MethodDelete, "/api/v1/cluster/tokens/"+url.PathEscape(id), nil); err != nil {
			return err
		}
		fmt.Fprintf(c.App.Writer, "token %s lets nobody in any more\n", id)
		return nil
	}
	may, err := authority.ParseRoles(c.String("roles"))
	if err != nil {
		return fail(exitUsage, "--roles: %w", err)
	}
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	var token nnserver.Token
	if err := operation(c, http.MethodPost, "/api/v1/cluster/tokens", tokenQuery(may, c.Duration("ttl"), c.Int("uses")), &token); err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(token)
	}
	line := joinLine(token)
	if c.IsSet("roles") {
		line += " --roles " + c.String("roles")
	}
	fmt.Fprintln(c.App.Writer, line)
	return nil
}

func clusterNodes(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	var all nnserver.Machines
	if err := operation(c, http.MethodGet, "/api/v1/cluster/machines", nil, &all); err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(all)
	}
	when := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }
	t := newTable(c.App.Writer, "MACHINE", "ROLES", "ADDRESSES", "JOINED", "CERTIFICATE UNTIL", "VERSION", "REMARKS")
	for _, m := range all.Machines {
		remarks := ""
		if !m.Removed.IsZero() {
			remarks = "removed " + when(m.Removed)
		}
		t.row(m.Name, roleNames(m.Roles), strings.Join(m.Addresses, ","), when(m.Joined), when(m.Expires), versionsOf(all.Level, m.Name), remarks)
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, k := range all.Tokens {
		fmt.Fprintf(c.App.Writer, "token %s: for %s, %d uses left, until %s\n", k.ID, roleNames(k.Roles), k.Uses, when(k.Expires))
	}
	fmt.Fprintf(c.App.Writer, "authority sha256:%s\n", all.Authority)
	tellRotation(c, all.Rotation)
	if l := all.Level; l != nil {
		tellLevel(c.App.Writer, l)
	}
	return nil
}

func clusterRotate(c *cli.Context) error {
	query := url.Values{}
	if c.Bool("finish") {
		query.Set("finish", "true")
	}
	if c.Bool("compromised") {
		if c.Bool("finish") {
			return fail(exitUsage, "cluster rotate: --compromised and --finish are two steps: say --compromised first")
		}
		query.Set("compromised", "true")
	}
	var now roster.Rotation
	if err := operation(c, http.MethodPost, "/api/v1/cluster/rotation", query, &now); err != nil {
		return err
	}
	if now.Step == roster.Unrotated {
		fmt.Fprintln(c.App.Writer, "the new authority is the only one now")
	}
	tellRotation(c, now)
	return nil
}

// tellRotation says how far a rotation is.
func tellRotation(c *cli.Context, now roster.Rotation) {
	if now.Step == roster.Unrotated || now.Step == "" {
		return
	}
	what := map[string]string{
		roster.Announced: "a new authority is announced; it issues certificates when all machines trust it",
		roster.Issued:    "the new authority issues certificates; the old one goes when all machines have one",
	}[now.Step]
	fmt.Fprint(c.App.Writer, what)
	if len(now.Missing) > 0 {
		fmt.Fprintf(c.App.Writer, "; waiting for %s", strings.Join(now.Missing, ", "))
	}
	fmt.Fprintln(c.App.Writer)
}
