package dfs

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/metadata"
)

// ReplacePolicy says when another datanode has to take the place of one that failed while a block is written, and what
// happens if none can be had. The zero value is Hadoop's DEFAULT policy with a floor of two datanodes.
type ReplacePolicy struct {
	// When a replacement is asked for.
	When ReplaceWhen
	// BestEffort goes on with what is left when there is no replacement, be it one datanode
	// (dfs.client.block.write.replace-datanode-on-failure.best-effort).
	BestEffort bool
	// MinReplication is how many datanodes have to be left to go on without the replacement that was asked for
	// (dfs.client.block.write.replace-datanode-on-failure.min-replication). 0 means 2, so that a cluster of three can be
	// written to while one of them is down; -1 means that a replacement must be had, which is Hadoop's default.
	MinReplication int
}

// ReplaceWhen is one of Hadoop's policies.
type ReplaceWhen int

const (
	// ReplaceDefault asks if three or more replicas are wanted and either at most half of them are left or somebody counts
	// on what is written already: it was flushed, or the file is appended to.
	ReplaceDefault ReplaceWhen = iota
	// ReplaceAlways asks whenever there are fewer datanodes than replicas are wanted.
	ReplaceAlways
	// ReplaceNever never asks.
	ReplaceNever
)

const (
	replaceProperty        = "dfs.client.block.write.replace-datanode-on-failure."
	minReplicationProperty = replaceProperty + "min-replication"
	defaultMinReplication  = 2
)

// parseReplaceWhen reads the names that Hadoop has.
func parseReplaceWhen(v string) (ReplaceWhen, error) {
	switch strings.ToUpper(v) {
	case "DEFAULT":
		return ReplaceDefault, nil
	case "ALWAYS":
		return ReplaceAlways, nil
	case "NEVER":
		return ReplaceNever, nil
	}
	return 0, fmt.Errorf("neither DEFAULT, ALWAYS nor NEVER: %w", metadata.ErrInvalidArgument)
}

// asks reports whether a replacement is wanted where have datanodes are left of a file with so many replicas (Hadoop's
// ReplaceDatanodeOnFailure.satisfy).
func (p ReplacePolicy) asks(replication, have int, appended, promised bool) bool {
	if have == 0 || have >= replication {
		return false
	}
	switch p.When {
	case ReplaceAlways:
		return true
	case ReplaceNever:
		return false
	default:
		return replication >= 3 && (have <= replication/2 || appended || promised)
	}
}

// floor is how many datanodes have to be left if there is no replacement; 0: however few.
func (p ReplacePolicy) floor() int {
	switch {
	case p.BestEffort:
		return 0
	case p.MinReplication < 0:
		return metadata.MaxReplication
	case p.MinReplication == 0:
		return defaultMinReplication
	}
	return p.MinReplication
}

// goesOn reports whether have datanodes are enough without the replacement that was asked for.
func (p ReplacePolicy) goesOn(have int) bool { return have >= p.floor() }
