package resourcemanager

import (
	"strings"
	"testing"
)

// TestCellsOfQueues: what is guaranteed below fits into what is above, is of one kind, and is backed by GPUs.
func TestCellsOfQueues(t *testing.T) {
	cells := func(kind string, n int) map[string]int { return map[string]int{kind: n} }
	tree := func(capacity string, own map[string]int, below ...map[string]int) QueueConfig {
		a := QueueConfig{Capacity: capacity, Cells: own, Children: map[string]QueueConfig{}}
		for i, c := range below {
			a.Children[string(rune('x'+i))] = QueueConfig{Capacity: "1w", Cells: c}
		}
		return QueueConfig{Children: map[string]QueueConfig{"a": a, "b": {Capacity: "1w"}}}
	}
	for _, test := range []struct {
		config QueueConfig
		says   string
	}{
		{tree("50%", cells("node/8", 4)), ""},
		{tree("2w", cells("node/8", 4), cells("node/8", 3), cells("node/8", 1)), ""},
		{tree("[gpu=32,memory=50%]", cells("node/8", 4)), ""},
		{tree("50%", cells("node/8", 3), cells("node/8", 3), cells("node/8", 1)), "queue root.a: cells: those of its children add up to 4, and it has 3"},
		{tree("50%", nil, cells("node/8", 1)), "queue root.a: cells: those of its children add up to 1, and it has 0"},
		{tree("50%", cells("node/8", 2), cells("node/4", 1)), "queue root.a.x: cells: node/4 beside node/8 of another queue"},
		{tree("[gpu=31,memory=50%]", cells("node/8", 4)), "node/8=4 is 32 GPUs, more than the 31 that its capacity guarantees"},
		{tree("[memory=50%]", cells("node/8", 4)), "node/8=4 is 32 GPUs, more than the 0"},
		{tree("0%", cells("node/8", 4)), "its capacity guarantees no GPUs"},
		{tree("50%", map[string]int{"node/8": 1, "node/4": 1}), "2 kinds"},
		{tree("50%", cells("island", 1)), `"island" is not node/GPUS`},
		{tree("50%", cells("node", 1)), `"node" is not node/GPUS`},
		{tree("50%", cells("node/0", 1)), `"node/0" is not node/GPUS`},
		{tree("50%", cells("node/8", 0)), "0 of node/8: not between 1 and 1000000"},
		{tree("50%", cells("node/8", -1)), "-1 of node/8"},
		{QueueConfig{Cells: cells("node/8", 1)}, "queue root: cells: it has the whole cluster"},
		{QueueConfig{Children: map[string]QueueConfig{"a": {Capacity: "100%", Cells: cells("node/8", 1), AutoCreate: &QueueConfig{Cells: cells("node/8", 1)}}}}, "queue root.a: auto_create: the queues that are made are guaranteed no cells"},
	} {
		q, err := NewQueues(test.config)
		switch {
		case test.says == "" && err != nil, test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%v: %v, not %q", test.config, err, test.says)
		case err == nil && (q.Find("root.a").Cells != 4 || q.CellGPUs != 8):
			t.Errorf("%v: %d of %d", test.config, q.Find("root.a").Cells, q.CellGPUs)
		}
	}
	plain, err := NewQueues(tree("50%", nil))
	if err != nil {
		t.Fatal(err)
	}
	with, err := NewQueues(tree("50%", cells("node/8", 4)))
	if err != nil {
		t.Fatal(err)
	}
	if plain.Hash() == with.Hash() || strings.Contains(string(plain.Config().Document()), "cells") {
		t.Fatal("cells are no part of what tells trees apart, or are written where there are none")
	}
	again, err := ParseQueueConfig(with.Config().Document())
	if err != nil || again.Children["a"].Cells["node/8"] != 4 {
		t.Fatal(again, err)
	}
}

func TestCellsInYarnsWords(t *testing.T) {
	for text, want := range map[string]string{"": "", " node/8 = 4 ": "node/8=4", "node/8=4": "node/8=4"} {
		if c, err := ParseCells(text); err != nil || FormatCells(c) != want {
			t.Errorf("%q: %v, %v", text, c, err)
		}
	}
	for _, text := range []string{"4", "node/8", "node/8=x", "node/8=4,node/4=1", "island=2"} {
		if c, err := ParseCells(text); err == nil {
			t.Errorf("%q: %v", text, c)
		}
	}
}
