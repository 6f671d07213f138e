package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// The last part of the demo: a file with erasure coding on nine datanodes, of which three are killed.
const (
	codedDatanodes = 9
	codedPolicy    = "RS-6-3-1024k"
	codedDir       = "/demo/coded"
	codedSize      = 24 << 20
	codedLost      = 3
)

// later are the datanodes that are started for this part alone.
func later() (names []string) {
	for i := datanodes; i < codedDatanodes; i++ {
		names = append(names, "dn"+strconv.Itoa(i+1))
	}
	return names
}

// coded writes a file whose groups have a block on each of nine datanodes, kills three while it reads it, and compares every byte.
func (d *Demo) coded(ctx context.Context) error {
	for _, name := range append([]string{"dn2"}, later()...) {
		if err := d.cluster.Start(name); err != nil {
			return err
		}
	}
	super, err := d.super()
	if err != nil {
		return err
	}
	defer super.Close()
	patient := func(what string, do func(context.Context) error) error {
		return d.cluster.Await(patience, what, func() error {
			attempt, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			return errors.Join(ctx.Err(), do(attempt))
		})
	}
	if err := patient("nine datanodes", func(ctx context.Context) error {
		live, err := super.Datanodes(ctx, dfs.LiveDatanodes)
		if err == nil && len(live) != codedDatanodes {
			err = fmt.Errorf("%d of %d datanodes live", len(live), codedDatanodes)
		}
		return err
	}); err != nil {
		return err
	}
	if err := super.SwitchErasurePolicy(ctx, codedPolicy, true); err != nil {
		return err
	}
	if err := super.Mkdirs(ctx, codedDir, 0o777, true); err != nil {
		return err
	}
	if err := super.SetErasurePolicy(ctx, codedDir, codedPolicy); err != nil {
		return err
	}
	data := make([]byte, codedSize)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	name := codedDir + "/data"
	if err := super.WriteFile(ctx, name, data, true); err != nil {
		return err
	}
	var groups []dfs.BlockLocation
	// A write ends well with fewer blocks of a group than nine; what is missing is made up for before anything else is taken away.
	if err := patient("whole block groups", func(ctx context.Context) error {
		var err error
		if groups, err = super.BlockLocations(ctx, name, 0, codedSize); err != nil {
			return err
		}
		for _, g := range groups {
			if len(g.Datanodes) != codedDatanodes {
				return fmt.Errorf("a block group is on %d datanodes", len(g.Datanodes))
			}
		}
		return nil
	}); err != nil {
		return err
	}
	d.say("wrote %d MiB with %s on %d datanodes: %d block groups, half as much again for parity", codedSize>>20, codedPolicy, codedDatanodes, len(groups))

	r, err := super.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	got := make([]byte, codedSize)
	half := codedSize/2 + 12_345 // within a cell
	if _, err := io.ReadFull(r, got[:half]); err != nil {
		return fmt.Errorf("erasure coding: %w", err)
	}
	victims := d.victims(groups[len(groups)-1])
	if len(victims) != codedLost {
		return fmt.Errorf("erasure coding: the last block group is on none of %v", later())
	}
	k := &kill{what: "datanodes " + strings.Join(victims, ", "), at: time.Now()}
	if err := d.cluster.Kill(victims...); err != nil {
		return err
	}
	d.kills = append(d.kills, k)
	d.say("killed %s, in the middle of reading it", k.what)
	if _, err := io.ReadFull(r, got[half:]); err != nil {
		return fmt.Errorf("erasure coding without %s: %w", strings.Join(victims, ", "), err)
	}
	took := time.Since(k.at)
	if !bytes.Equal(got, data) {
		return fmt.Errorf("erasure coding without %s: other bytes than were written", strings.Join(victims, ", "))
	}
	again, err := super.ReadFile(ctx, name)
	if err == nil && !bytes.Equal(again, data) {
		err = errors.New("other bytes than were written")
	}
	if err != nil {
		return fmt.Errorf("erasure coding without %s, read again: %w", strings.Join(victims, ", "), err)
	}
	k.cost = fmt.Sprintf("the other half of %d MiB read on in %.1f s, computed from what is left, and all of it again, byte for byte", codedSize>>20, took.Seconds())
	d.say("%s: %s", k.what, k.cost)
	return nil
}

// victims are three of the later datanodes, those with data of a group before those with parity. The other datanodes have the files of the search.
func (d *Demo) victims(g dfs.BlockLocation) (names []string) {
	for _, at := range g.Datanodes { // in the order of the group: data, then parity
		for _, name := range later() {
			f, err := d.cluster.Server(name)
			if err == nil && strings.HasSuffix(f.Datanode.Transfer, ":"+strconv.Itoa(at.TransferPort)) && len(names) < codedLost && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
