package main

import (
	"strings"
	"testing"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/namenode"
)

func TestNobodyOverlooksAStuckNamenode(t *testing.T) {
	file := &config.File{Namenodes: []config.NamenodeMember{{ID: "nn1"}, {ID: "nn2"}}}
	members := []namenode.Member{{ID: "nn1", Voter: true}, {ID: "nn2", Voter: true}}
	all := []namenodeHealth{{ID: "nn1", State: "active", Members: members}, {ID: "nn2", State: "standby", Stuck: true}}
	rows := namenodeRows(file, all, &all[0])
	if len(rows) != 2 || rows[0].Remarks != "" || !strings.Contains(rows[1].Remarks, "look at its disks") {
		t.Errorf("%+v", rows)
	}
}
