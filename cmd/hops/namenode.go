package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/namenode"
)

// namenodeHealth is what a namenode says on /health; err is why it says nothing.
type namenodeHealth struct {
	ID       string `json:"id"`
	Cluster  string `json:"cluster"`
	State    string `json:"state"`
	Leader   string `json:"leader"`
	SafeMode string `json:"safe_mode,omitempty"`
	Joining  bool   `json:"joining"`
	Lag      uint64 `json:"lag"`
	Problem  string `json:"problem"`
	Stuck    bool   `json:"stuck"`
	// StuckAt is the entry at which it is stuck, and StuckSince since when.
	StuckAt    uint64 `json:"stuck_at"`
	StuckSince string `json:"stuck_since"`
	// Late is what it cannot say of itself.
	Late     []struct{ What string } `json:"late"`
	Stranger string                  `json:"stranger,omitempty"`
	Members  []namenode.Member       `json:"members"`

	http string
	err  error
}

func namenodeCommand() *cli.Command {
	file := &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/hops/hops.yaml", Usage: "configuration `FILE`, whose list of namenodes is asked"}
	return &cli.Command{
		Name:  "namenode",
		Usage: "the members of the namenodes' group: list, add, remove, transfer, reinstall, recover",
		Description: "docs/how-to/namenodes.md shows how a namenode is replaced. add, remove and transfer are for superusers; reinstall and recover\n" +
			"change the data of the namenode in the section namenode of FILE, which must not run.",
		Subcommands: []*cli.Command{
			{
				Name: "list", Aliases: []string{"ls"}, Usage: "who is a member, who leads, who lags behind",
				Flags: []cli.Flag{file, outputFlag()}, Action: listNamenodes,
			},
			{
				Name: "add", Usage: "make a namenode that runs on an empty directory a member, or change a member's address; it gets its vote when it has everything",
				ArgsUsage: "ID RAFT-ADDRESS", Flags: []cli.Flag{file, userFlag()}, Action: addNamenode,
			},
			{Name: "remove", Usage: "take a member out of the group", ArgsUsage: "ID", Flags: []cli.Flag{file, userFlag()}, Action: removeNamenode},
			{Name: "transfer", Usage: "have another member lead, the best one without ID", ArgsUsage: "[ID]", Flags: []cli.Flag{file, userFlag()}, Action: transferNamenode},
			{
				Name: "reinstall", Usage: "delete this machine's copy of the namespace; the next start gets it from the others",
				Flags: []cli.Flag{
					file,
					&cli.BoolFlag{Name: "force", Usage: "even if no other namenode leads"},
				},
				Action: reinstallNamenode,
			},
			{
				Name: "recover", Usage: "go on with this machine's namenode alone when the others are lost for good",
				Flags: []cli.Flag{
					file,
					&cli.BoolFlag{Name: "sole-survivor", Usage: "the other namenodes will never come back with the data that they had"},
					&cli.StringFlag{Name: "cluster", Usage: "`ID` of the cluster, to be sure that this one is meant"},
				},
				Action: recoverNamenode,
			},
		},
	}
}

// askTime is how long one server may take to say how it is.
var askTime = 3 * time.Second // a variable for tests

// askNamenode fetches /health.
func askNamenode(ctx context.Context, n config.NamenodeMember) namenodeHealth {
	h := namenodeHealth{ID: n.ID, http: n.HTTP, State: unreachable}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/health", nil)
	if err != nil {
		h.err = err
		return h
	}
	answer, err := toServers.Do(request)
	if err != nil {
		h.err = err
		return h
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&h); err != nil {
		h.err = fmt.Errorf("%s does not speak like a namenode: %w", n.HTTP, err)
	}
	return h
}

// askNamenodes asks all of the list; leader is nil when none of them leads.
func askNamenodes(c *cli.Context) (file *config.File, all []namenodeHealth, leader *namenodeHealth, err error) {
	if file, err = config.Load(c.String("config")); err != nil {
		return nil, nil, nil, err
	}
	if err = knowServersAs(file.Cluster.Identity, ""); err != nil {
		return nil, nil, nil, err
	}
	all = make([]namenodeHealth, len(file.Namenodes))
	done := make(chan struct{})
	for i, n := range file.Namenodes {
		go func() {
			all[i] = askNamenode(c.Context, n)
			done <- struct{}{}
		}()
	}
	for range all {
		<-done
	}
	for i := range all {
		if all[i].err == nil && all[i].State == "active" {
			leader = &all[i]
		}
	}
	return file, all, leader, nil
}

// unreachable is the state of a server that does not answer.
const unreachable = "unreachable"

// electionTime is how long a command that needs a leader waits for one while somebody answers: an election takes a second or
// a few.
var electionTime = 10 * time.Second // a variable for tests

// untilLed looks, and again until somebody leads; not if nobody answers, nor for longer than electionTime.
func untilLed(ctx context.Context, look func() (led, answered bool)) {
	for end := time.Now().Add(electionTime); ; {
		if led, answered := look(); led || !answered || time.Now().After(end) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// leadingNamenode is askNamenodes for who needs the leader: it waits for an election.
func leadingNamenode(c *cli.Context) (file *config.File, all []namenodeHealth, leader *namenodeHealth, err error) {
	untilLed(c.Context, func() (led, answered bool) {
		file, all, leader, err = askNamenodes(c)
		return leader != nil, slices.ContainsFunc(all, func(h namenodeHealth) bool { return h.err == nil })
	})
	return file, all, leader, err
}

// namenodeRow is one line of the list.
type namenodeRow struct {
	ID      string  `json:"id"`
	Raft    string  `json:"raft"`
	State   string  `json:"state"`
	Member  bool    `json:"member"`
	Voter   bool    `json:"voter"`
	Behind  uint64  `json:"behind"`
	Silent  float64 `json:"silent_s"`
	Remarks string  `json:"remarks,omitempty"`
}

func listNamenodes(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	file, all, leader, err := askNamenodes(c)
	if err != nil {
		return err
	}
	rows := namenodeRows(file, all, leader)
	if asJSON {
		if err := json.NewEncoder(c.App.Writer).Encode(rows); err != nil {
			return err
		}
	} else {
		t := newTable(c.App.Writer, "NAMENODE", "RAFT", "STATE", "VOTE", "BEHIND", "SILENT", "REMARKS")
		for _, r := range rows {
			vote := map[bool]string{true: "yes", false: "no"}[r.Voter]
			t.row(r.ID, r.Raft, r.State, vote, fmt.Sprint(r.Behind), fmt.Sprintf("%.1fs", r.Silent), r.Remarks)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if leader == nil {
		return fail(exitFailed, "no namenode leads: a majority of the members must run, or see `hops namenode recover`")
	}
	return nil
}

// namenodeRows joins the members that the leader knows, or else anybody, with what each of the list says of itself.
func namenodeRows(file *config.File, all []namenodeHealth, leader *namenodeHealth) []namenodeRow {
	view := leader
	for i := range all {
		if view == nil && len(all[i].Members) > 0 {
			view = &all[i]
		}
	}
	var rows []namenodeRow
	at := map[string]int{}
	var end uint64
	if view != nil {
		for _, m := range view.Members {
			end = max(end, m.Match)
		}
		for _, m := range view.Members {
			at[m.ID] = len(rows)
			r := namenodeRow{ID: m.ID, Raft: m.Address, State: unreachable, Member: true, Voter: m.Voter, Silent: m.Silent}
			if m.Known {
				r.Behind = end - m.Match
			}
			rows = append(rows, r)
		}
	}
	for i, n := range file.Namenodes {
		h := all[i]
		k, member := at[n.ID]
		if !member {
			k = len(rows)
			rows = append(rows, namenodeRow{ID: n.ID, Raft: n.Raft, Remarks: "not a member"})
		}
		r := &rows[k]
		r.State = h.State
		switch {
		case h.err != nil && member:
			r.Remarks = h.err.Error()
		case h.Stuck:
			what := "an entry"
			if h.StuckSince != "" {
				what = fmt.Sprintf("entry %d, since %s", h.StuckAt, h.StuckSince)
			}
			r.Remarks = "is stuck at " + what + ": look at its disks"
		case len(h.Late) > 0 && h.Problem != "":
			r.Remarks = h.Problem
		case h.SafeMode != "" && h.State == "active":
			r.Remarks = h.SafeMode
		case h.Stranger != "" && !member:
			r.Remarks = h.Stranger
		}
	}
	return rows
}

func addNamenode(c *cli.Context) error {
	if c.NArg() != 2 {
		return fail(exitUsage, "namenode add: give ID and RAFT-ADDRESS")
	}
	id := c.Args().Get(0)
	if err := operate(c, http.MethodPut, "/api/v1/namenodes/"+url.PathEscape(id), url.Values{"raft": {c.Args().Get(1)}}); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is a member and votes\n", id)
	return nil
}

func removeNamenode(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "namenode remove: give ID")
	}
	id := c.Args().First()
	if err := operate(c, http.MethodDelete, "/api/v1/namenodes/"+url.PathEscape(id), nil); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is no member any more\n", id)
	return nil
}

func transferNamenode(c *cli.Context) error {
	if c.NArg() > 1 {
		return fail(exitUsage, "namenode transfer: give one ID, or none")
	}
	return transferNamenodeTo(c, c.Args().First())
}

func transferNamenodeTo(c *cli.Context, id string) error {
	to := url.Values{}
	if id != "" {
		to.Set("to", id)
	}
	if err := operate(c, http.MethodPost, "/api/v1/leader", to); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "leadership was handed over")
	return nil
}

// operate sends a request to the operator's door of the namenode that leads.
func operate(c *cli.Context, method, path string, query url.Values) error {
	return operation(c, method, path, query, nil)
}

// operation is operate whose answer is wanted.
func operation(c *cli.Context, method, path string, query url.Values, into any) error {
	_, all, leader, err := leadingNamenode(c)
	if err != nil {
		return err
	}
	if leader == nil {
		return notLed(all)
	}
	as, err := operator(c.String("user"), filepath.Dir(c.String("config")))
	if err != nil {
		return err
	}
	return request(c.Context, leader.ID, leader.http, as, method, path, query, into)
}

// notLed says that none of the namenodes leads, and why the first of those is not known that did not answer.
func notLed(all []namenodeHealth) error {
	for _, n := range all {
		if n.err != nil {
			return fail(exitUnreachable, "no namenode that answers leads, and %s does not: %w", n.ID, n.err)
		}
	}
	return fail(exitUnreachable, "no namenode leads: `hops namenode list` shows who runs")
}

// request sends one to the operator's door of a namenode, in the name of as.
func request(ctx context.Context, id, addr, as, method, path string, query url.Values, into any) error {
	if query == nil {
		query = url.Values{}
	}
	query.Set("user.name", as)
	r, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	answer, err := toServers.Do(r)
	if err != nil {
		return fail(exitUnreachable, "namenode %s: %w", id, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		if into == nil {
			return nil
		}
		if err := json.NewDecoder(io.LimitReader(answer.Body, 64<<20)).Decode(into); err != nil {
			return fmt.Errorf("namenode %s: %w", id, err)
		}
		return nil
	}
	var body struct{ Error string }
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&body); err != nil {
		body.Error = answer.Status
	}
	code := exitFailed
	switch answer.StatusCode {
	case http.StatusForbidden, http.StatusUnauthorized:
		code = exitDenied
	case http.StatusBadRequest:
		code = exitUsage
	case http.StatusMisdirectedRequest, http.StatusServiceUnavailable: // it leads no more, or not yet
		code = exitUnreachable
	}
	return fail(code, "namenode %s: %s", id, body.Error)
}

// others are the namenodes of the list but this machine's.
func others(file *config.File, all []namenodeHealth) (out []namenodeHealth) {
	for i, n := range file.Namenodes {
		if n.ID != file.Namenode.ID {
			out = append(out, all[i])
		}
	}
	return out
}

// offlineNamenode loads what reinstall and recover work on.
func offlineNamenode(c *cli.Context) (b *roles.Builder, rest []namenodeHealth, err error) {
	file, all, _, err := askNamenodes(c)
	if err != nil {
		return nil, nil, err
	}
	if file.Namenode == nil {
		return nil, nil, fail(exitUsage, "%s has no section namenode, which says where this machine's namenode keeps its data", c.String("config"))
	}
	logger := slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b, err = roles.New(file, false, "", version, logger)
	return b, others(file, all), err
}

func reinstallNamenode(c *cli.Context) error {
	b, rest, err := offlineNamenode(c)
	if err != nil {
		return err
	}
	leads := false
	for _, h := range rest {
		leads = leads || h.err == nil && h.State == "active"
	}
	if !leads && !c.Bool("force") {
		return fail(exitFailed, "no other namenode leads, so this one's data may be the last: start the others first, or say --force")
	}
	if err := b.ReinstallNamenode(); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "the data of %s is gone; its next start gets everything from the others\n", b.File.Namenode.ID)
	return nil
}

func recoverNamenode(c *cli.Context) error {
	if !c.Bool("sole-survivor") || c.String("cluster") == "" {
		return fail(exitUsage, "namenode recover: give --sole-survivor and --cluster ID. What only the others had acknowledged is lost then, and they must never run again with the data that they have")
	}
	b, rest, err := offlineNamenode(c)
	if err != nil {
		return err
	}
	var mistakes []error
	for _, h := range rest {
		if h.err == nil && !h.Joining {
			mistakes = append(mistakes, fmt.Errorf("%s runs and has a vote", h.ID))
		}
	}
	if err := errors.Join(mistakes...); err != nil {
		return fail(exitFailed, "the others are not lost: %w. Start this one beside them, or stop them for good first", err)
	}
	if err := b.RecoverNamenode(c.String("cluster")); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is the only member now: start it, reinstall the others and add them again\n", b.File.Namenode.ID)
	return nil
}
