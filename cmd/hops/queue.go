package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
)

// yarnQueue is a queue as /ws/v1/cluster/scheduler describes it.
type yarnQueue struct {
	Name         string                        `json:"queueName"`
	Path         string                        `json:"queuePath"`
	State        string                        `json:"state"`
	Capacity     float64                       `json:"capacity"`
	Used         float64                       `json:"usedCapacity"`
	Max          float64                       `json:"maxCapacity"`
	Weight       float64                       `json:"weight"`
	MaxParallel  int                           `json:"maxParallelApps"`
	NoPreemption bool                          `json:"preemptionDisabled"`
	NoIntraQueue bool                          `json:"intraQueuePreemptionDisabled"`
	Labels       []string                      `json:"nodeLabels"`
	Queues       *struct{ Queue []*yarnQueue } `json:"queues"`
}

func queueCommand() *cli.Command {
	changing := []cli.Flag{
		&cli.BoolFlag{Name: "dry-run", Usage: "change nothing, and say what would be affected"},
		&cli.BoolFlag{Name: "force", Usage: "change it although applications lose their queue or are beyond a limit"},
		confFlag(), userFlag(), outputFlag(),
	}
	words := "QUEUE [WORD=VALUE]... [QUEUE WORD=VALUE...]..."
	about := "Words are those of docs/reference/configuration.md, as capacity=40% max_applications=100 acl_submit=ann,bob; WORD= takes one back to its\n" +
		"default. Queues that are named behind change at the same time, as capacities of siblings have to:\n" +
		"   hops queue set root.a capacity=30% root.b capacity=70%"
	return &cli.Command{
		Name:  "queue",
		Usage: "queues, as `yarn queue` shows them (-list, -status QUEUE), and changes of them",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list all queues, or those below a queue that is named"},
			&cli.StringFlag{Name: "status", Usage: "describe `QUEUE`"},
			confFlag(), userFlag(), outputFlag(),
		},
		ArgsUsage: "[QUEUE|all]",
		Action: func(c *cli.Context) error {
			if c.Bool("list") == (c.String("status") != "") {
				return fail(exitYarn, "queue: give -list, -status QUEUE, or one of show, set, create, delete, stop and start")
			}
			return yarnError(withClient(c, showYarnQueues))
		},
		Subcommands: []*cli.Command{
			{
				Name: "show", Usage: "queues with what they are guaranteed, may use and use; of one queue, its words too", ArgsUsage: "[QUEUE]",
				Flags:  []cli.Flag{confFlag(), userFlag(), outputFlag()},
				Action: func(c *cli.Context) error { return withClient(c, showQueues) },
			},
			{Name: "set", Usage: "change queues", ArgsUsage: words, Description: about, Flags: changing, Action: changeQueues("set")},
			{Name: "create", Usage: "make a queue", ArgsUsage: words, Description: about, Flags: changing, Action: changeQueues("create")},
			{Name: "delete", Usage: "take queues away that are stopped and empty", ArgsUsage: "QUEUE... [QUEUE WORD=VALUE...]...", Description: "A queue behind the first that has words is changed at the same time, as capacities of siblings have to:\n   hops queue delete root.a root.b capacity=100%", Flags: changing, Action: changeQueues("delete")},
			{Name: "stop", Usage: "a queue takes no more applications; what is there goes on", ArgsUsage: "QUEUE...", Flags: changing, Action: changeQueues("stop")},
			{Name: "start", Usage: "a stopped queue takes applications again", ArgsUsage: "QUEUE...", Flags: changing, Action: changeQueues("start")},
		},
	}
}

func withClient(c *cli.Context, f func(*cli.Context, *client.Client) error) error {
	cl, err := dial(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(c, cl)
}

// queuePart is a number as QueueCLI writes it: with two decimals, and no zero before the point.
func queuePart(f float64) string {
	s := strconv.FormatFloat(f, 'f', 2, 64)
	if rest, ok := strings.CutPrefix(s, "0."); ok {
		s = "." + rest
	}
	return s
}

func showYarnQueues(c *cli.Context, cl *client.Client) error {
	var answer struct {
		Scheduler struct {
			Info yarnQueue `json:"schedulerInfo"`
		}
	}
	if err := yarn(c, cl, "scheduler", &answer); err != nil {
		return err
	}
	root := &answer.Scheduler.Info
	root.State = "RUNNING"
	var all []*yarnQueue
	var walk func(q *yarnQueue)
	walk = func(q *yarnQueue) {
		if q.Queues == nil {
			return
		}
		all = append(all, q.Queues.Queue...)
		for _, child := range q.Queues.Queue {
			walk(child)
		}
	}
	walk(root)
	find := func(name string) *yarnQueue {
		var found []*yarnQueue
		for _, q := range append([]*yarnQueue{root}, all...) {
			if q.Path == name {
				return q
			}
			if q.Name == name {
				found = append(found, q)
			}
		}
		if len(found) == 1 {
			return found[0]
		}
		return nil
	}
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	name := c.String("status")
	list := all
	if c.Bool("list") {
		if name = c.Args().First(); name == "" || name == "all" {
			name = "root"
		}
	}
	q := find(name)
	if q == nil {
		fmt.Fprintf(c.App.Writer, "Cannot get queue from RM by queueName = %s, please check.\n", name)
		return &statusError{code: exitYarn}
	}
	if !c.Bool("list") {
		list = []*yarnQueue{q}
	} else if q != root {
		all = []*yarnQueue{q}
		walk(q)
		list = all
	}
	switch {
	case asJSON:
		return json.NewEncoder(c.App.Writer).Encode(list)
	case c.Bool("list"):
		yarnQueueTable(c.App.Writer, list)
	default:
		on := map[bool]string{false: "enabled", true: "disabled"}
		label := strings.Join(q.Labels, ",")
		if label == "" {
			label = "*"
		}
		fmt.Fprintf(c.App.Writer, "Queue Information : \nScheduler Name : CapacityScheduler\nQueue Name : %s\nQueue Path : %s\n\tState : %s\n\tCapacity : %s%%\n\tCurrent Capacity : %s%%\n"+
			"\tMaximum Capacity : %s%%\n\tWeight : %s\n\tMaximum Parallel Apps : %d\n\tDefault Node Label expression : <DEFAULT_PARTITION>\n\tAccessible Node Labels : %s\n"+
			"\tPreemption : %s\n\tIntra-queue Preemption : %s\n",
			q.Name, q.Path, q.State, queuePart(q.Capacity), queuePart(q.Used), queuePart(q.Max), queuePart(q.Weight), q.MaxParallel, label, on[q.NoPreemption], on[q.NoIntraQueue])
	}
	return nil
}

// yarnQueueTable is the table of `yarn queue -list`: every cell is centered.
func yarnQueueTable(w io.Writer, list []*yarnQueue) {
	rows := [][]string{{"Queue Name", "Queue Path", "State", "Capacity", "Current Capacity", "Maximum Capacity", "Weight", "Maximum Parallel Apps"}}
	for _, q := range list {
		rows = append(rows, []string{
			q.Name, q.Path, q.State, queuePart(q.Capacity) + "%", queuePart(q.Used) + "%", queuePart(q.Max) + "%", queuePart(q.Weight), strconv.Itoa(q.MaxParallel),
		})
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	center := func(s string, width int) string {
		left := (width - len(s)) / 2
		return strings.Repeat(" ", left) + s + strings.Repeat(" ", width-len(s)-left)
	}
	line, whole := "+", len(widths)-1
	for _, n := range widths {
		line += strings.Repeat("-", n+2) + "+"
		whole += n + 2
	}
	top := "+" + strings.Repeat("-", whole) + "+"
	fmt.Fprintln(w, top)
	fmt.Fprintf(w, "|%s|\n", center(fmt.Sprintf("%d queues were found", len(list)), whole))
	fmt.Fprintln(w, line)
	for i, row := range rows {
		fmt.Fprint(w, "|")
		for j, cell := range row {
			fmt.Fprint(w, " "+center(cell, widths[j])+" |")
		}
		fmt.Fprintln(w)
		if i == 0 {
			fmt.Fprintln(w, line)
		}
	}
	fmt.Fprintln(w, line)
}

func queues(c *cli.Context, cl *client.Client) (view rest.QueuesView, all []rest.QueueView, err error) {
	raw, err := cl.Jobs().Raw(c.Context, http.MethodGet, "/api/v1/queues", nil)
	if err == nil {
		err = json.Unmarshal(raw, &view)
	}
	var walk func(q rest.QueueView)
	walk = func(q rest.QueueView) {
		all = append(all, q)
		for _, child := range q.Children {
			walk(child)
		}
	}
	walk(view.Root)
	return view, all, err
}

func showQueues(c *cli.Context, cl *client.Client) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	view, all, err := queues(c, cl)
	if err != nil {
		return err
	}
	name := c.Args().First()
	if name == "" {
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(view)
		}
		t := newTable(c.App.Writer, "QUEUE", "STATE", "CAPACITY", "MAX", "USED", "GPUS", "APPLICATIONS")
		for _, q := range all {
			capacity, limit := q.Config.Capacity, q.Config.Max
			if q.Created {
				capacity = "made"
			}
			t.row(q.Path, string(q.State), capacity, limit, fmt.Sprintf("%.1f%%", 100*q.UsedShare), fmt.Sprintf("%d of %d, at most %d", q.Used.GPUs, q.Guaranteed.GPUs, q.Maximum.GPUs), strconv.Itoa(q.Applications))
		}
		return t.flush()
	}
	i, err := findQueue(all, name)
	if err != nil {
		return err
	}
	all[i].Children = nil
	e := json.NewEncoder(c.App.Writer)
	if !asJSON {
		e.SetIndent("", "  ")
	}
	return e.Encode(all[i])
}

// findQueue finds a queue by its path, or by a name that it alone has.
func findQueue(all []rest.QueueView, name string) (int, error) {
	found := -1
	for i, q := range all {
		if q.Path == name {
			return i, nil
		}
		if strings.HasSuffix(q.Path, "."+name) && !strings.Contains(name, ".") {
			if found >= 0 {
				return 0, fail(exitUsage, "queue: several queues are named %s: give the path", name)
			}
			found = i
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("there is no queue %q: hops queue show lists them", name)
	}
	return found, nil
}

// queueWord is a word with its value as JSON; an empty one takes it back.
func queueWord(arg string) (name string, value any, err error) {
	name, text, _ := strings.Cut(arg, "=")
	t := reflect.TypeFor[rm.QueueConfig]()
	var known []string
	for i := range t.NumField() {
		tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		kind := t.Field(i).Type.Kind()
		cells := tag == "cells"
		if kind == reflect.Map && !cells || kind == reflect.Slice && t.Field(i).Type.Elem().Kind() != reflect.String {
			continue // children and mapping
		}
		known = append(known, tag)
		if tag != name {
			continue
		}
		switch {
		case text == "":
		case kind == reflect.String:
			value = text
		case cells && !strings.HasPrefix(text, "{"):
			if value, err = rm.ParseCells(text); err != nil {
				return name, nil, fail(exitUsage, "queue: %s: %v", name, err)
			}
		case kind == reflect.Slice:
			list := words(text)
			if len(list) == 0 {
				return name, nil, fail(exitUsage, "queue: %s: %q has no name in it: %s= alone takes it back", name, text, name)
			}
			value = list
		case json.Valid([]byte(text)): // a number, a truth, or an object of words
			value = json.RawMessage(text)
		default:
			return name, nil, fail(exitUsage, "queue: %s: %q is neither a number nor true or false, nor an object as JSON", name, text)
		}
		return name, value, nil
	}
	return name, nil, fail(exitUsage, "queue: there is no word %q: they are %s", name, strings.Join(known, ", "))
}

func changeQueues(how string) func(*cli.Context) error {
	return func(c *cli.Context) error {
		return withClient(c, func(c *cli.Context, cl *client.Client) error {
			asJSON, err := wantJSON(c)
			if err != nil {
				return err
			}
			_, all, err := queues(c, cl)
			if err != nil {
				return err
			}
			body, err := queueChanges(how, c.Args().Slice(), all)
			if err != nil {
				return err
			}
			raw, err := cl.Jobs().Raw(c.Context, http.MethodPatch, fmt.Sprintf("/api/v1/queues?dry_run=%v&force=%v", c.Bool("dry-run"), c.Bool("force")), body)
			if err != nil {
				return err
			}
			if asJSON {
				_, err = fmt.Fprintln(c.App.Writer, string(raw))
				return err
			}
			var done rest.QueueChange
			if err := json.Unmarshal(raw, &done); err != nil {
				return err
			}
			for _, a := range done.Affected {
				fmt.Fprintln(c.App.Writer, a.Text)
			}
			if c.Bool("dry-run") {
				fmt.Fprintf(c.App.Writer, "%d affected; nothing was changed\n", len(done.Affected))
			} else {
				fmt.Fprintf(c.App.Writer, "changed: the queues are of version %d\n", done.Version)
			}
			return nil
		})
	}
}

// queueChanges makes the body of the change of arguments: queues with their words.
func queueChanges(how string, args []string, all []rest.QueueView) (map[string]map[string]any, error) {
	if len(args) == 0 || strings.Contains(args[0], "=") {
		return nil, fail(exitUsage, "queue %s: name a queue first", how)
	}
	out := map[string]map[string]any{}
	path, first := "", ""
	for n, arg := range args {
		if strings.Contains(arg, "=") {
			if how == "stop" || how == "start" || how == "delete" && path == first {
				return nil, fail(exitUsage, "queue %s: %q: name queues only", how, arg)
			}
			name, value, err := queueWord(arg)
			if err != nil {
				return nil, err
			}
			out[path][name] = value
			continue
		}
		i, err := findQueue(all, arg)
		fresh := n == 0 && how == "create"
		switch {
		case fresh && err == nil:
			return nil, fmt.Errorf("there is a queue %s already: hops queue set changes it", all[i].Path)
		case fresh && !strings.HasPrefix(arg, "root."):
			return nil, fail(exitUsage, "queue create: %q: a new queue is named by its path, as root.%s", arg, arg)
		case fresh:
			path = arg
		case err != nil:
			return nil, err
		default:
			path = all[i].Path
		}
		if n == 0 {
			first = path
		}
		if _, twice := out[path]; twice {
			return nil, fail(exitUsage, "queue %s: %s is named twice", how, path)
		}
		switch how {
		case "stop", "start":
			out[path] = map[string]any{"state": map[string]rm.QueueState{"stop": rm.QueueStopped, "start": rm.QueueRunning}[how]}
		default:
			out[path] = map[string]any{}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(out)) {
		switch {
		case len(out[path]) > 0 || how == "create" && path == first:
		case how == "delete":
			out[path] = nil
		default:
			return nil, fail(exitUsage, "queue %s: no word is given for %s, as capacity=40%%", how, path)
		}
	}
	return out, nil
}
