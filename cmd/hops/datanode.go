package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/namenode"
)

func datanodeCommand() *cli.Command {
	return &cli.Command{
		Name:        "datanode",
		Usage:       "the datanodes: list, forget",
		Description: "docs/how-to/datanodes.md shows how a datanode is added, stopped for a while, and removed.",
		Subcommands: []*cli.Command{{
			Name: "list", Aliases: []string{"ls"}, Usage: "which are live, stale or dead, their volumes, space and blocks",
			Flags: []cli.Flag{confFlag(), outputFlag()}, Action: listDatanodes,
		}, datanodeForgetCommand()},
	}
}

// datanodeRow is a datanode as the leading namenode reports it, and as it sees itself.
type datanodeRow struct {
	namenode.DatanodeStatus
	// Remarks are what the datanode's own /health complains of, or why it does not answer.
	Remarks []string `json:"remarks,omitempty"`
}

func listDatanodes(c *cli.Context) error {
	if c.Args().Present() {
		return fail(exitUsage, "datanode list takes no argument: %q", c.Args().First())
	}
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	conf, _, err := clusterConf(c.String("conf"))
	if err != nil {
		return err
	}
	addresses := namenodePages(conf)
	if len(addresses) == 0 {
		return noCluster("the configuration of clients names no dfs.namenode.http-address: take the directory that the namenodes write (cluster.conf)")
	}
	rows, err := reportedDatanodes(c.Context, addresses)
	if err != nil {
		return fail(exitUnreachable, "%w", err)
	}
	remark(c.Context, rows)
	slices.SortFunc(rows, func(a, b *datanodeRow) int { return cmp.Compare(a.Transfer, b.Transfer) })
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(rows)
	}
	t := newTable(c.App.Writer, "DATANODE", "STATE", "SILENT", "BLOCKS", "USED", "FREE", "CAPACITY", "VOLUMES", "REMARKS")
	for _, r := range rows {
		var used, free, capacity int64
		failed, slow := 0, 0
		for _, v := range r.Volumes {
			if v.Failed {
				failed++
				continue
			}
			if v.Slow {
				slow++
			}
			used, free, capacity = used+v.Used, free+v.Remaining, capacity+v.Capacity
		}
		volumes := fmt.Sprint(len(r.Volumes))
		if failed > 0 {
			volumes += fmt.Sprintf(", %d failed", failed)
		}
		if slow > 0 {
			volumes += fmt.Sprintf(", %d slow", slow)
		}
		silent := time.Duration(r.Silent * float64(time.Second)).Round(time.Second)
		t.row(r.Transfer, r.state(), silent.String(), fmt.Sprint(r.Blocks), size.About(used), size.About(free), size.About(capacity), volumes, strings.Join(r.Remarks, "; "))
	}
	return t.flush()
}

// state is the state for people, with what keeps a datanode that is to leave.
func (r *datanodeRow) state() string {
	switch {
	case r.Admin == "" || r.Admin == namenode.Normal.Word():
		return r.State
	case r.Left == 0:
		return r.State + ", " + r.Admin
	}
	text := fmt.Sprintf("%s, %s: %d blocks left", r.State, r.Admin, r.Left)
	if r.LeftOpen > 0 {
		text += fmt.Sprintf(", %d of them being written", r.LeftOpen)
	}
	return text
}

// reportedDatanodes asks the namenodes for their datanodes. Those that the leader knows count.
func reportedDatanodes(ctx context.Context, addresses []string) ([]*datanodeRow, error) {
	answers, errs := make([]namenode.DatanodeList, len(addresses)), make([]error, len(addresses))
	untilLed(ctx, func() (led, answered bool) {
		done := make(chan struct{})
		for i, address := range addresses {
			go func() {
				defer func() { done <- struct{}{} }()
				answers[i] = namenode.DatanodeList{}
				errs[i] = getJSON(ctx, "http://"+address+"/api/v1/datanodes", &answers[i])
			}()
		}
		for range addresses {
			<-done
		}
		for i, a := range answers {
			led, answered = led || errs[i] == nil && a.Leader, answered || errs[i] == nil
		}
		return led, answered
	})
	for i, a := range answers {
		switch {
		case errs[i] == nil && a.Leader:
			rows := make([]*datanodeRow, len(a.Datanodes))
			for i, d := range a.Datanodes {
				rows[i] = &datanodeRow{DatanodeStatus: d}
			}
			return rows, nil
		case errs[i] == nil:
			errs[i] = fmt.Errorf("%s does not lead", addresses[i])
		}
	}
	return nil, fmt.Errorf("no namenode leads: %w", errors.Join(errs...))
}

// remark asks the datanodes that are not dead what they complain of.
func remark(ctx context.Context, rows []*datanodeRow) {
	var servers []*server
	var of []*datanodeRow
	for _, r := range rows {
		if r.State != "dead" {
			servers, of = append(servers, &server{role: "datanode", address: r.HTTP}), append(of, r)
		}
	}
	ask(ctx, servers)
	for i, s := range servers {
		switch {
		case s.err != nil:
			of[i].Remarks = []string{s.err.Error()}
		case s.health.Problem != "":
			of[i].Remarks = append([]string{s.health.Problem}, s.health.Warnings...)
		default:
			of[i].Remarks = s.health.Warnings
		}
	}
}

// getJSON fetches what one server says.
func getJSON(ctx context.Context, url string, into any) error {
	return getJSONBy(ctx, toServers, url, into)
}

func getJSONBy(ctx context.Context, by *http.Client, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := by.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return json.NewDecoder(io.LimitReader(answer.Body, 64<<20)).Decode(into)
}
