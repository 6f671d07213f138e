package main

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
)

// What follows has the words of YARN's RMAdminCLI.
const (
	noLabels   = "No cluster node-labels are specified"
	noMapping  = "No node-to-labels mappings are specified"
	badAdding  = "Input format for adding node-labels is not correct, it should be labelName1[(exclusive=true/false)],LabelName2[] .."
	badReplace = "node name cannot be empty"
)

// addedLabel is LABEL, or LABEL(exclusive=BOOL).
var addedLabel = regexp.MustCompile(`^([^()]+?)\s*(?:\(\s*exclusive\s*=\s*(true|false)\s*\))?$`)

// parseAdded reads the labels of -addToClusterNodeLabels; they are exclusive unless it is said that they are not.
func parseAdded(text string) (out []rm.NodeLabel, ok bool) {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		m := addedLabel.FindStringSubmatch(word)
		if m == nil {
			return nil, false
		}
		out = append(out, rm.NodeLabel{Name: m[1], Exclusive: m[2] != "false"})
	}
	return out, true
}

// labelArgument is the one argument of a command about labels.
func labelArgument(args []string) string {
	return strings.Join(args, " ") // a shell may have taken the quotes away
}

func addLabels(t *managerTool, o *managerOption, args []string) (int, error) {
	labels, ok := parseAdded(labelArgument(args))
	switch {
	case !ok:
		return t.failed(o.name, fmt.Errorf("%s", badAdding)), nil
	case len(labels) == 0:
		return t.failed(o.name, fmt.Errorf("%s", noLabels)), nil
	}
	var body struct {
		List []map[string]string `json:"nodeLabelInfo"`
	}
	for _, l := range labels {
		body.List = append(body.List, map[string]string{"name": l.Name, "exclusivity": fmt.Sprint(l.Exclusive)})
	}
	if err := t.ask(http.MethodPost, "/ws/v1/cluster/add-node-labels", body, nil); err != nil {
		return t.failed(o.name, err), nil
	}
	return 0, nil
}

func removeLabels(t *managerTool, o *managerOption, args []string) (int, error) {
	q := url.Values{}
	for word := range strings.SplitSeq(labelArgument(args), ",") {
		if word = strings.TrimSpace(word); word != "" {
			q.Add("labels", word)
		}
	}
	if len(q) == 0 {
		return t.failed(o.name, fmt.Errorf("%s", noLabels)), nil
	}
	if err := t.ask(http.MethodPost, "/ws/v1/cluster/remove-node-labels?"+q.Encode(), nil, nil); err != nil {
		return t.failed(o.name, err), nil
	}
	return 0, nil
}

// parseReplaced reads NODE=LABEL,… or, as YARN did once, NODE,LABEL,…
func parseReplaced(words []string) (out []rest.NodeMarks, err error) {
	for _, word := range words {
		if word == "" || strings.HasPrefix(word, "#") {
			continue
		}
		node, labels, ok := strings.Cut(word, "=")
		if !ok {
			node, labels, _ = strings.Cut(word, ",")
		}
		m := rest.NodeMarks{Node: strings.TrimSpace(node), Labels: []string{}}
		if m.Node == "" {
			return nil, fmt.Errorf("%s", badReplace)
		}
		for l := range strings.SplitSeq(labels, ",") {
			if l = strings.TrimSpace(l); l != "" {
				m.Labels = append(m.Labels, l)
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// replaceLabels refuses nodes that are not known, with -failOnUnknownNodes and without: there is nothing that could remember them.
func replaceLabels(t *managerTool, o *managerOption, args []string) (int, error) {
	var words []string
	for _, a := range args {
		if a == "-failOnUnknownNodes" {
			continue
		}
		words = append(words, strings.Fields(a)...)
	}
	marks, err := parseReplaced(words)
	if err == nil && len(marks) == 0 {
		err = fmt.Errorf("%s", noMapping)
	}
	if err != nil {
		return t.failed(o.name, err), nil
	}
	type entry struct {
		Node   string   `json:"nodeId"`
		Labels []string `json:"labels"`
	}
	var body struct {
		List []entry `json:"nodeToLabels"`
	}
	for _, m := range marks {
		body.List = append(body.List, entry{m.Node, m.Labels})
	}
	if err := t.ask(http.MethodPost, "/ws/v1/cluster/replace-node-to-labels", body, nil); err != nil {
		return t.failed(o.name, err), nil
	}
	return 0, nil
}
