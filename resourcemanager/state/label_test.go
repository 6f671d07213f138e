package state

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// An administrator's labels and attributes win over the node manager's own, outlive its registration and a snapshot, and can be given back.
func TestLabelsAndAttributesOfNodes(t *testing.T) {
	c := newCluster(t, Config{})
	register := func(labels []string, attributes map[string]string) {
		n := &rm.Node{ID: "a:1", Incarnation: "i", State: rm.NodeRunning, Labels: labels}
		n.Attributes, _ = rm.NewAttributes(attributes)
		c.must(&statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: c.epoch, Node: Node(n)}}})
	}
	have := func(labels, attributes string) {
		t.Helper()
		var b bytes.Buffer
		f, _ := c.Freeze()
		if _, err := f.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		again := New(Config{})
		if err := again.Restore(&b); err != nil || again.Hash() != c.Hash() {
			t.Errorf("restored: %v", err)
		}
		for _, s := range []*State{c.State, again} {
			if n := s.View().Node("a:1"); strings.Join(n.Labels, ",") != labels || n.Attributes.String() != attributes {
				t.Errorf("%v %v, want %s %s", n.Labels, n.Attributes, labels, attributes)
			}
		}
	}
	mark := func(m *statepb.NodeMarks, known bool) error {
		m.Node = "a:1"
		return c.do(&statepb.Command{Op: &statepb.Command_MarkNodes{MarkNodes: &statepb.MarkNodes{Nodes: []*statepb.NodeMarks{m}, Known: known}}}).Err
	}
	change := func(add, remove []string) error {
		p := &statepb.ChangeLabels{Remove: remove}
		for _, l := range add {
			p.Add = append(p.Add, &statepb.Label{Name: l})
		}
		return c.do(&statepb.Command{Op: &statepb.Command_ChangeLabels{ChangeLabels: p}}).Err
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(err error, want string) {
		t.Helper()
		if !errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	register([]string{"gpu"}, map[string]string{"driver": "1", "zone": "x"})
	have("gpu", "driver=1,zone=x")
	refused(mark(&statepb.NodeMarks{Labels: &statepb.Labels{Names: []string{"ssd"}}}, true), "Not all labels being replaced contained by known label collections")
	ok(change([]string{"ssd"}, nil))
	refused(c.do(&statepb.Command{Op: &statepb.Command_ChangeLabels{ChangeLabels: &statepb.ChangeLabels{Add: []*statepb.Label{{Name: "ssd", Exclusive: true}}}}}).Err, "Exclusivity cannot be modified")
	refused(change([]string{"-x"}, nil), "label name should only contains")
	ok(mark(&statepb.NodeMarks{Labels: &statepb.Labels{Names: []string{"ssd", "gpu", "ssd"}}, Set: map[string]string{"driver": "2", "rack": "r"}}, true))
	have("gpu,ssd", "driver=2,rack=r,zone=x")
	register([]string{"cpu"}, map[string]string{"driver": "3"})
	have("gpu,ssd", "driver=2,rack=r")
	ok(mark(&statepb.NodeMarks{Drop: []string{"driver", "zone"}}, false)) // one that it does not have is gone already
	have("gpu,ssd", "driver=3,rack=r")
	refused(mark(&statepb.NodeMarks{Drop: []string{"driver"}}, false), "is its node manager's own")
	refused(change(nil, []string{"cpu"}), "is in the configuration of node manager a:1")
	refused(change(nil, []string{"none"}), "doesn't existed")
	ok(change(nil, []string{"ssd"}))
	have("gpu", "driver=3,rack=r")
	ok(mark(&statepb.NodeMarks{Labels: &statepb.Labels{}}, true))
	have("", "driver=3,rack=r")
	ok(mark(&statepb.NodeMarks{OwnLabels: true, Drop: []string{"rack"}}, false))
	have("cpu", "driver=3")
	if got := c.View().Labels(); len(got) != 0 || slices.Contains(got, rm.NodeLabel{Name: "ssd"}) {
		t.Errorf("labels %v", got)
	}
	if err := c.do(&statepb.Command{Op: &statepb.Command_MarkNodes{MarkNodes: &statepb.MarkNodes{Nodes: []*statepb.NodeMarks{{Node: "a:1", Set: map[string]string{"n": "1"}}, {Node: "b:1"}}}}}).Err; !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("an unknown node: %v", err)
	}
	have("cpu", "driver=3")
	// A node that is named twice has both.
	ok(c.do(&statepb.Command{Op: &statepb.Command_MarkNodes{MarkNodes: &statepb.MarkNodes{Nodes: []*statepb.NodeMarks{
		{Node: "a:1", Labels: &statepb.Labels{Names: []string{"ssd"}}, Set: map[string]string{"n": "1"}}, {Node: "a:1", Set: map[string]string{"m": "2"}},
	}}}}).Err)
	have("ssd", "driver=3,m=2,n=1")
	c.sound()
}
