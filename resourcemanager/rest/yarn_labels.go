package rest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Labels of nodes as YARN has them (partitions, YARN-796). Here a node has those that its node manager is configured with, or that an
// administrator has set in their place; any number of them, and none keeps others off: an ask that wants a label is placed on nodes with it.

type labelInfo struct {
	Name      string         `json:"name"`
	Exclusive bool           `json:"exclusivity"`
	Partition *partitionInfo `json:"partitionInfo,omitempty"`
	Active    int            `json:"activeNMs,omitempty"`
}

type partitionInfo struct {
	Available resourceInfo `json:"resourceAvailable"`
}

type labelList struct {
	List []labelInfo `json:"nodeLabelInfo"`
}

type labelNodes struct {
	Nodes     []string       `json:"nodes"`
	Partition *partitionInfo `json:"partitionInfo"`
}

// knownLabel reports whether a node has a label; without one there is nothing to know.
func (q *request) knownLabel(label string) bool {
	if label == "" {
		return true
	}
	for n := range q.view.Nodes() {
		if slices.Contains(n.Labels, label) {
			return true
		}
	}
	return slices.ContainsFunc(q.view.Labels(), func(l rm.NodeLabel) bool { return l.Name == label })
}

// defaultPartition is YARN's name for the nodes without a label.
const defaultPartition = "<DEFAULT_PARTITION>"

// labelled are the nodes by label, and what those that serve have; without a label they are under "".
func (q *request) labelled() (names []string, nodes map[string][]string, info map[string]labelInfo) {
	nodes, info = map[string][]string{}, map[string]labelInfo{"": {Name: defaultPartition, Exclusive: true}}
	sums := map[string]rm.Resource{}
	for _, l := range q.view.Labels() {
		info[l.Name] = labelInfo{Name: l.Name, Exclusive: l.Exclusive}
		names = append(names, l.Name)
	}
	for n := range q.view.Nodes() {
		labels := n.Labels
		if len(labels) == 0 {
			labels = []string{""}
		}
		for _, l := range labels {
			i := info[l]
			if i.Name == "" {
				i.Name = l
				names = append(names, l)
			}
			nodes[l] = append(nodes[l], string(n.ID))
			if n.State != rm.NodeLost && n.Wish == nil {
				i.Active++
				sums[l] = sums[l].Add(n.Capacity)
			}
			info[l] = i
		}
	}
	for l, i := range info {
		i.Partition = &partitionInfo{resource(sums[l])}
		info[l] = i
	}
	slices.Sort(names)
	return names, nodes, info
}

func (q *request) nodeLabels() {
	names, _, info := q.labelled()
	var out labelList
	for _, n := range names {
		out.List = append(out.List, info[n])
	}
	q.answer("nodeLabelsInfo", jersey.Mapped, out)
}

// rmNodeLabels is nodeLabels with the nodes that have none.
func (q *request) rmNodeLabels() {
	names, _, info := q.labelled()
	var out labelList
	for _, n := range append([]string{""}, names...) {
		out.List = append(out.List, info[n])
	}
	q.answer("nodeLabelsInfo", jersey.Mapped, out)
}

func bareLabels(names []string) (out labelList) {
	for _, n := range names {
		out.List = append(out.List, labelInfo{Name: n})
	}
	return out
}

func (q *request) labelsOfNode() {
	id := q.r.PathValue("node")
	if !strings.Contains(id, ":") {
		q.illegalArgument(fmt.Sprintf("Invalid NodeId [%s]. Expected host:port", id))
		return
	}
	var out labelList
	if n := q.view.Node(rm.NodeID(id)); n != nil {
		out = bareLabels(n.Labels)
	}
	q.answer("nodeLabelsInfo", jersey.Mapped, out)
}

func (q *request) nodeToLabels() {
	var out struct {
		Map jersey.Map[labelList] `json:"nodeToLabels"`
	}
	for n := range q.view.Nodes() {
		if len(n.Labels) > 0 {
			out.Map.Put(string(n.ID), bareLabels(n.Labels))
		}
	}
	q.answer("nodeToLabelsInfo", jersey.Mapped, out)
}

func (q *request) labelMappings() {
	type pair struct {
		Key   labelInfo  `json:"key"`
		Value labelNodes `json:"value"`
	}
	var out struct {
		Map struct {
			Entry []pair `json:"entry"`
		} `json:"labelsToNodes"`
	}
	wanted := q.list("labels")
	names, nodes, info := q.labelled()
	for _, n := range names {
		if len(wanted) == 0 || slices.Contains(wanted, n) {
			out.Map.Entry = append(out.Map.Entry, pair{labelInfo{Name: n}, labelNodes{nodes[n], info[n].Partition}})
		}
	}
	q.answer("labelsToNodesInfo", jersey.Mapped, out)
}

// labelsMayChange answers who may not change labels, in YARN's words.
func (q *request) labelsMayChange() bool {
	if !q.caller.Superuser {
		what := q.r.URL.Path[strings.LastIndexByte(q.r.URL.Path, '/')+1:]
		q.remoteException(http.StatusUnauthorized, "AuthorizationException", fmt.Sprintf("User %s not authorized for post to .../%s ", q.caller.User, what),
			"org.apache.hadoop.security.authorize.AuthorizationException")
		return false
	}
	return q.operated()
}

// labelsChanged answers a change of labels.
func (q *request) labelsChanged(err error) {
	switch {
	case err == nil:
		q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
		q.w.WriteHeader(http.StatusOK)
	case errors.Is(err, metadata.ErrInvalidArgument), errors.Is(err, metadata.ErrNotExist):
		q.badRequest("java.io.IOException: " + err.Error())
	default:
		q.fail(err)
	}
}

func (q *request) addLabels() {
	var body labelList
	if !q.labelsMayChange() || !q.read("nodeLabelsInfo", jersey.Bare, &body) {
		return
	}
	var add []rm.NodeLabel
	for _, l := range body.List {
		add = append(add, rm.NodeLabel{Name: l.Name, Exclusive: l.Exclusive})
	}
	q.labelsChanged(q.Operator.ChangeLabels(q.r.Context(), q.caller, add, nil))
}

func (q *request) removeLabels() {
	if q.labelsMayChange() {
		q.labelsChanged(q.Operator.ChangeLabels(q.r.Context(), q.caller, nil, q.r.URL.Query()["labels"]))
	}
}

// replaceLabels sets the labels of several nodes.
func (q *request) replaceLabels() {
	var body struct {
		List []struct {
			Node   string   `json:"nodeId"`
			Labels []string `json:"labels"`
		} `json:"nodeToLabels"`
	}
	if !q.labelsMayChange() || !q.read("nodeToLabelsEntryList", jersey.Bare, &body) {
		return
	}
	var marks []NodeMarks
	for _, n := range body.List {
		marks = append(marks, NodeMarks{Node: n.Node, Labels: wanted(n.Labels)})
	}
	q.labelsChanged(q.Operator.MarkNodes(q.r.Context(), q.caller, marks, true))
}

// wanted are the labels of a request, never nil; an empty one is none.
func wanted(labels []string) []string {
	return slices.DeleteFunc(append([]string{}, labels...), func(l string) bool { return strings.TrimSpace(l) == "" })
}

func (q *request) replaceLabelsOfNode() {
	if q.labelsMayChange() {
		q.labelsChanged(q.Operator.MarkNodes(q.r.Context(), q.caller, []NodeMarks{{Node: q.r.PathValue("node"), Labels: wanted(q.r.URL.Query()["labels"])}}, true))
	}
}
