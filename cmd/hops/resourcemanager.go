package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/resourcemanager/rest"
)

func resourcemanagerCommand() *cli.Command {
	file := &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE`, whose list of resource managers is asked"}
	return &cli.Command{
		Name:        "resourcemanager",
		Usage:       "the members of the resource managers' group: list, add, remove, transfer, recover, restore",
		Description: "docs/how-to/namenodes.md has a section on them. add, remove and transfer are for superusers.",
		Subcommands: []*cli.Command{
			{
				Name: "list", Aliases: []string{"ls"}, Usage: "who is a member, who leads, who lags behind",
				Flags: []cli.Flag{file, outputFlag()}, Action: listManagers,
			},
			{
				Name: "add", Usage: "make a resource manager that runs on an empty directory a member, or change a member's address; it gets its vote when it has everything",
				ArgsUsage: "ID RAFT-ADDRESS", Flags: []cli.Flag{file, userFlag()}, Action: addManager,
			},
			{Name: "remove", Usage: "take a member out of the group", ArgsUsage: "ID", Flags: []cli.Flag{file, userFlag()}, Action: removeManager},
			{
				Name: "recover", Usage: "go on with this machine's resource manager alone when the others are lost for good",
				Description: "It must not run. What only the others had acknowledged is lost then, and they must never run again with the data that they have: `hops cluster replace` takes\n" +
					"each out, when this one runs again.",
				Flags:  []cli.Flag{file, &cli.BoolFlag{Name: "sole-survivor", Usage: "yes, the others are lost"}},
				Action: recoverManager,
			},
			restoreManagerCommand(),
			{Name: "transfer", Usage: "have another member lead, the best one without ID", ArgsUsage: "[ID]", Flags: []cli.Flag{file, userFlag()}, Action: transferManager},
		},
	}
}

// managerRow is one line of the list.
type managerRow struct {
	ID      string  `json:"id"`
	Raft    string  `json:"raft"`
	State   string  `json:"state"`
	Member  bool    `json:"member"`
	Voter   bool    `json:"voter"`
	Behind  uint64  `json:"behind"`
	Silent  float64 `json:"silent_s"`
	Remarks string  `json:"remarks,omitempty"`
}

// askManagers asks every resource manager of the list what it is; leader is nil when none of them leads.
func askManagers(c *cli.Context) (rows []managerRow, leader *config.ManagerMember, err error) {
	file, err := config.Load(c.String("config"))
	if err != nil {
		return nil, nil, err
	}
	if err := knowServersAs(file.Cluster.Identity, ""); err != nil {
		return nil, nil, err
	}
	rows = make([]managerRow, len(file.ResourceManagers))
	done := make(chan struct{})
	for i, m := range file.ResourceManagers {
		go func() {
			rows[i] = managerRow{ID: m.ID, Raft: m.Raft, State: unreachable}
			var h struct {
				State string `json:"state"`
			}
			ctx, cancel := context.WithTimeout(c.Context, askTime)
			defer cancel()
			if err := requestManager(ctx, m, "", http.MethodGet, "/health", nil, &h); err != nil {
				rows[i].Remarks = err.Error()
			} else {
				rows[i].State = h.State
			}
			done <- struct{}{}
		}()
	}
	for range rows {
		<-done
	}
	for i := range rows {
		if rows[i].State == "active" {
			leader = &file.ResourceManagers[i]
		}
	}
	return rows, leader, nil
}

// leadingManager is askManagers for who needs the leader: it waits for an election.
func leadingManager(c *cli.Context) (rows []managerRow, leader *config.ManagerMember, err error) {
	untilLed(c.Context, func() (led, answered bool) {
		rows, leader, err = askManagers(c)
		return leader != nil, slices.ContainsFunc(rows, func(r managerRow) bool { return r.State != unreachable })
	})
	return rows, leader, err
}

// requestManager sends a request to a resource manager, in the name of a user; empty: in nobody's. It reads the answer, JSON.
func requestManager(ctx context.Context, m config.ManagerMember, as, method, path string, query url.Values, into any) error {
	answer, err := sendManager(ctx, m, as, method, path, query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	if err != nil {
		return fail(exitUnreachable, "resource manager %s: %w", m.ID, err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("resource manager %s: %w", m.ID, err)
	}
	return nil
}

// sendManager is requestManager for an answer that is read as it comes. The caller closes its body.
func sendManager(ctx context.Context, m config.ManagerMember, as, method, path string, query url.Values) (*http.Response, error) {
	if query == nil {
		query = url.Values{}
	}
	if as != "" {
		query.Set("user.name", as)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+m.HTTP+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := toServers.Do(r)
	if err != nil {
		return nil, fail(exitUnreachable, "resource manager %s: %w", m.ID, err)
	}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return nil, fail(exitUnreachable, "resource manager %s: %w", m.ID, err)
	}
	var said struct{ Detail string }
	if json.Unmarshal(text, &said) != nil || said.Detail == "" {
		said.Detail = answer.Status
	}
	code := exitFailed
	switch answer.StatusCode {
	case http.StatusForbidden, http.StatusUnauthorized:
		code = exitDenied
	case http.StatusBadRequest:
		code = exitUsage
	}
	return nil, fail(code, "resource manager %s: %s", m.ID, said.Detail)
}

// operateManagers sends a request of an operator's to the resource manager that leads.
func operateManagers(c *cli.Context, method, path string, query url.Values) error {
	_, leader, err := leadingManager(c)
	if err != nil {
		return err
	}
	if leader == nil {
		return fail(exitUnreachable, "no resource manager leads: `hops resourcemanager list` shows who runs")
	}
	as, err := operator(c.String("user"), filepath.Dir(c.String("config")))
	if err != nil {
		return err
	}
	return requestManager(c.Context, *leader, as, method, path, query, &struct{}{})
}

func listManagers(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	rows, leader, err := askManagers(c)
	if err != nil {
		return err
	}
	if leader != nil {
		var known struct{ Members []rest.MemberView }
		if err := requestManager(c.Context, *leader, "", http.MethodGet, "/api/v1/resourcemanagers", nil, &known); err != nil {
			return err
		}
		for i := range rows {
			if !slices.ContainsFunc(known.Members, func(m rest.MemberView) bool { return m.ID == rows[i].ID }) {
				rows[i].Remarks = "not a member"
			}
		}
		for _, m := range known.Members {
			i := slices.IndexFunc(rows, func(r managerRow) bool { return r.ID == m.ID })
			if i < 0 {
				i = len(rows)
				rows = append(rows, managerRow{ID: m.ID, State: "unknown", Remarks: "not in the list of resource managers"})
			}
			r := &rows[i]
			r.Raft, r.Member, r.Voter, r.Behind, r.Silent = m.Raft, true, m.Voter, m.Behind, m.Silent
		}
	}
	if asJSON {
		if err := json.NewEncoder(c.App.Writer).Encode(rows); err != nil {
			return err
		}
	} else {
		t := newTable(c.App.Writer, "RESOURCE MANAGER", "RAFT", "STATE", "VOTE", "BEHIND", "SILENT", "REMARKS")
		for _, r := range rows {
			silent := fmt.Sprintf("%.1fs", r.Silent)
			if r.Silent < 0 {
				silent = "always"
			}
			t.row(r.ID, r.Raft, r.State, map[bool]string{true: "yes", false: "no"}[r.Voter], fmt.Sprint(r.Behind), silent, r.Remarks)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if leader == nil {
		return fail(exitFailed, "no resource manager leads: a majority of the members must run")
	}
	return nil
}

func addManager(c *cli.Context) error {
	if c.NArg() != 2 {
		return fail(exitUsage, "resourcemanager add: give ID and RAFT-ADDRESS")
	}
	id := c.Args().Get(0)
	if err := operateManagers(c, http.MethodPut, "/api/v1/resourcemanagers/"+url.PathEscape(id), url.Values{"raft": {c.Args().Get(1)}}); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is a member and votes\n", id)
	return nil
}

func removeManager(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "resourcemanager remove: give ID")
	}
	id := c.Args().First()
	if err := operateManagers(c, http.MethodDelete, "/api/v1/resourcemanagers/"+url.PathEscape(id), nil); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is no member any more\n", id)
	return nil
}

func recoverManager(c *cli.Context) error {
	if !c.Bool("sole-survivor") {
		return fail(exitUsage, "resourcemanager recover: give --sole-survivor. What only the others had acknowledged is lost then, and they must never run again with the data that they have")
	}
	file, err := config.Load(c.String("config"))
	if err != nil {
		return err
	}
	if file.ResourceManager == nil {
		return fail(exitUsage, "%s has no section resourcemanager, which says where this machine's resource manager keeps its data", c.String("config"))
	}
	if others := managersThatRun(c.Context, file); len(others) > 0 {
		return fail(exitFailed, "the others are not lost, something answers at the addresses of %s: start this one beside them, or stop them for good first", strings.Join(others, ", "))
	}
	b, err := roles.New(file, false, "", version, slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	if err := b.RecoverManager(); err != nil {
		return err
	}
	if err := likeTree(file.ResourceManager.Data, filepath.Dir(file.Cluster.Identity)); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is the only member now: start it, and replace the others (`hops cluster replace`)\n", file.ResourceManager.ID)
	return nil
}

func transferManager(c *cli.Context) error {
	if c.NArg() > 1 {
		return fail(exitUsage, "resourcemanager transfer: give one ID, or none")
	}
	return transferManagerTo(c, c.Args().First())
}

func transferManagerTo(c *cli.Context, id string) error {
	to := url.Values{}
	if id != "" {
		to.Set("to", id)
	}
	if err := operateManagers(c, http.MethodPost, "/api/v1/leader", to); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "leadership was handed over")
	return nil
}
