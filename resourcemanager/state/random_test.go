package state

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// TestRandomHistories throws commands of two leaders, who plan from views that are out of date, of masters and of node
// managers at a state. At every step the state is sound, and the ledger never shows a device in two hands; a replica
// that replays the log, and one that starts from a snapshot in its middle, end in the same state.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := Config{MaxApplications: 12, MaxBytes: 12_000, MaxEnded: 4, MaxEndedContainers: 8, MaxLedger: 1000}
		s := New(config)
		var log [][]byte
		views := []*View{s.View()}
		snapshotAt := rapid.IntRange(0, 119).Draw(t, "snapshot at")
		var frozen raftstore.Snapshot
		for step := range 120 {
			view := views[max(0, len(views)-1-rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "staleness"))]
			b, err := Encode(drawCommand(t, view, int64(step)))
			if err != nil {
				t.Fatal(err)
			}
			log = append(log, b)
			s.Apply(uint64(len(log)), [][]byte{b})
			for _, err := range s.Check() {
				t.Fatalf("step %d: %v", step, err)
			}
			views = append(views, s.View())
			if step == snapshotAt {
				f, err := s.Freeze()
				if err != nil {
					t.Fatal(err)
				}
				frozen = f
			}
		}
		// The snapshot is written long after it was taken.
		var b bytes.Buffer
		if _, err := frozen.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		late := New(config)
		if err := late.Restore(&b); err != nil {
			t.Fatal(err)
		}
		for i := late.AppliedIndex(); i < uint64(len(log)); i++ {
			late.Apply(i+1, [][]byte{log[i]})
		}
		if s.Hash() != late.Hash() {
			t.Fatal("a replica from the snapshot differs")
		}
		if errs := late.Check(); errs != nil {
			t.Fatal(errs)
		}
		replay := New(config)
		for i, b := range log {
			replay.Apply(uint64(i+1), [][]byte{b})
		}
		if replay.Hash() != s.Hash() {
			t.Fatal("a replica that replays the log differs")
		}
		checkLedger(t, s.View())
	})
}

// checkLedger: no device in two grants at once, and no MIG instance granted while its GPU is somebody's as a whole.
func checkLedger(t *rapid.T, v *View) {
	last := map[string]rm.Grant{}
	for g := range v.Ledger() {
		for _, u := range g.GPUs {
			for _, other := range []string{u, strings.TrimRight(u, "ab")} { // an instance's name is its GPU's with a letter
				if p, ok := last[other]; ok && (p.To == 0 || p.To > g.From) {
					t.Fatalf("GPU %s: %v until %d, %v from %d with %s", other, p.Container, p.To, g.Container, g.From, u)
				}
			}
			last[u] = g
		}
	}
}

func drawCommand(t *rapid.T, v *View, now int64) *statepb.Command {
	c := &statepb.Command{NowMs: now}
	var apps []*rm.Application
	for a := range v.Live() {
		apps = append(apps, a)
	}
	nodes := []string{"a:1", "b:1"}
	epoch := v.Epoch()
	if epoch > 1 && rapid.IntRange(0, 9).Draw(t, "old leader") == 0 {
		epoch--
	}
	node := rapid.SampledFrom(nodes).Draw(t, "node")
	kind := rapid.SampledFrom([]int{0, 1, 1, 2, 2, 4, 5, 5, 5, 5, 8, 8, 8, 8, 8, 8, 8, 8, 11, 11, 11, 11, 12, 12, 12, 12, 12, 12, 14, 15, 16, 16, 17, 18, 18, 18, 19, 19, 20, 21, 22, 23, 24, 24, 25, 26, 26, 27, 28, 28, 29, 29, 30}).Draw(t, "kind")
	if len(apps) == 0 && (kind > 4 && kind < 20 || kind > 25 && kind < 28 || kind > 28) {
		kind = 2
	}
	if v.Epoch() == 0 {
		kind = 0
	}
	var a *rm.Application
	if len(apps) > 0 {
		a = rapid.SampledFrom(apps).Draw(t, "app")
	}
	switch kind {
	case 0:
		c.Op = &statepb.Command_Begin{Begin: &statepb.Begin{Level: rapid.SampledFrom([]int32{0, release.Forgetting}).Draw(t, "level")}}
	case 1, 3:
		n := &rm.Node{
			ID: rm.NodeID(node), State: rm.NodeRunning, Incarnation: rapid.SampledFrom([]string{"i", "i", "i", "i", "i", "i", "j"}).Draw(t, "incarnation"),
			Capacity: rm.Resource{Memory: 6, VCores: 6, GPUs: 3},
		}
		for i := range 3 {
			g := rm.GPU{UUID: fmt.Sprint(node, i)}
			if i == 2 && rapid.Bool().Draw(t, "divided") { // it is divided now, or whole again
				n.GPUs = append(n.GPUs, rm.GPU{UUID: g.UUID + "a", Profile: "1g", Parent: g.UUID}, rm.GPU{UUID: g.UUID + "b", Profile: "1g", Parent: g.UUID})
				continue
			}
			n.GPUs = append(n.GPUs, g)
		}
		n.Capacity.DropDevices()
		for i := range n.GPUs {
			n.Capacity.AddDevice(&n.GPUs[i])
		}
		n.Attributes, _ = rm.NewAttributes(map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")})
		c.Op = &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: epoch, Node: Node(n)}}
	case 2:
		app := &rm.Application{User: rapid.SampledFrom([]string{"u", "u", "v"}).Draw(t, "user"), Queue: rapid.SampledFrom([]string{"root.a", "root.b", "root.u.x"}).Draw(t, "into"), Document: make([]byte, rapid.IntRange(0, 2000).Draw(t, "bytes")), Master: rm.Resource{Memory: 1, VCores: 1}, MaxAttempts: 2, KeepContainers: rapid.Bool().Draw(t, "keep")}
		var all []rm.ApplicationID
		for other := range v.Applications() {
			all = append(all, other.ID)
		}
		for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "dependencies") {
			on := rm.ApplicationID{Cluster: 1, Sequence: 404}
			if len(all) > 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0 {
				on = rapid.SampledFrom(all).Draw(t, "on")
			}
			app.After = append(app.After, rm.Dependency{Application: on, Outcome: rm.Outcome(rapid.SampledFrom(rm.Outcomes).Draw(t, "outcome"))})
		}
		if rapid.Bool().Draw(t, "keyed") {
			app.IdempotencyKey = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "key")
		}
		c.Op = &statepb.Command_Submit{Submit: &statepb.Submit{Application: Application(app)}}
	case 20:
		var wish *rm.Wish
		if rapid.Bool().Draw(t, "leaves") {
			wish = &rm.Wish{Maintenance: rapid.Bool().Draw(t, "maintenance"), Until: metadata.Time(rapid.Int64Range(0, 120).Draw(t, "until")), By: "ops"}
			if rapid.Bool().Draw(t, "cordon") {
				wish.Maintenance, wish.Cordon = false, true
			}
		}
		c.Op = &statepb.Command_AdministerNodes{AdministerNodes: &statepb.AdministerNodes{Nodes: []string{node}, Wish: Wish(wish), Over: wish == nil && rapid.Bool().Draw(t, "over")}}
	case 21:
		c.Op = &statepb.Command_ExcludeNodes{ExcludeNodes: &statepb.ExcludeNodes{Names: rapid.SampledFrom([][]string{nil, nil, {"a"}, {"b:1", "a"}}).Draw(t, "list"), DeadlineMs: now, By: "ops"}}
	case 22:
		c.Op = &statepb.Command_RetireNode{RetireNode: &statepb.RetireNode{Epoch: epoch, Node: node}}
	case 23:
		c.Op = &statepb.Command_ResizeNode{ResizeNode: &statepb.ResizeNode{Node: node, Resource: Resource(rapid.SampledFrom([]rm.Resource{{}, {Memory: 2, VCores: 2}, {Memory: 9, VCores: 9}}).Draw(t, "size"))}}
	case 24:
		u := &statepb.UpdateApplication{Application: ApplicationID(rm.ApplicationID{Cluster: 1, Sequence: 404})}
		for a := range v.Live() {
			if u.Application = ApplicationID(a.ID); rapid.Bool().Draw(t, "this") {
				break
			}
		}
		if rapid.Bool().Draw(t, "prioritized") {
			priority := rapid.Int32Range(-1, 20).Draw(t, "priority")
			u.Priority = &priority
		}
		u.Queue = rapid.SampledFrom([]string{"", "root.a", "root.b", "root.u.x", "root.other"}).Draw(t, "queue")
		u.ExpiresMs = rapid.Int64Range(-1, 100).Draw(t, "expires")
		c.Op = &statepb.Command_UpdateApplication{UpdateApplication: u}
	case 28:
		if labels := rapid.SampledFrom([][]string{nil, {"x"}, {"x", "y"}}).Draw(t, "cluster's labels"); labels != nil {
			p := &statepb.ChangeLabels{}
			if rapid.Bool().Draw(t, "removed") {
				p.Remove = labels
			} else {
				for _, l := range labels {
					p.Add = append(p.Add, &statepb.Label{Name: l, Exclusive: rapid.Bool().Draw(t, "exclusive")})
				}
			}
			c.Op = &statepb.Command_ChangeLabels{ChangeLabels: p}
			break
		}
		m := &statepb.NodeMarks{Node: node, OwnLabels: rapid.Bool().Draw(t, "own"), Drop: rapid.SampledFrom([][]string{nil, {"k"}}).Draw(t, "drop")}
		if rapid.Bool().Draw(t, "labelled") {
			m.Labels = &statepb.Labels{Names: rapid.SampledFrom([][]string{nil, {"y", "x"}, {"z"}}).Draw(t, "labels")}
		}
		if rapid.Bool().Draw(t, "attributed") {
			m.Set = map[string]string{"k": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value")}
		}
		c.Op = &statepb.Command_MarkNodes{MarkNodes: &statepb.MarkNodes{Nodes: []*statepb.NodeMarks{m}, Known: rapid.Bool().Draw(t, "only known")}}
	case 25:
		document := rm.QueueConfig{Children: map[string]rm.QueueConfig{
			"a": {Capacity: "40%", MaxApplications: 3}, "b": {Capacity: "30%", MaxApplicationsPerUser: 1}, "u": {Capacity: "30%", MaxApplications: 2, AutoCreate: &rm.QueueConfig{}},
		}}.Document()
		version, _, _ := v.QueuesVersion()
		c.Op = &statepb.Command_SetQueues{SetQueues: &statepb.SetQueues{Epoch: epoch, Document: document, After: version, Force: true}}
	case 4:
		c.Op = &statepb.Command_LoseNode{LoseNode: &statepb.LoseNode{Epoch: epoch, Node: node}}
	case 5, 6, 7:
		status := &statepb.Statuses{Epoch: epoch, Node: node}
		if n := v.Node(rm.NodeID(node)); n != nil {
			status.Incarnation = n.Incarnation
		}
		for _, k := range v.On(rm.NodeID(node)) {
			if rapid.Bool().Draw(t, "told") {
				state := rapid.SampledFrom([]rm.ContainerState{rm.ContainerLocalizing, rm.ContainerRunning, rm.ContainerComplete, rm.ContainerComplete}).Draw(t, "state")
				status.Statuses = append(status.Statuses, &statepb.Status{
					Container: ContainerID(k.ID), State: string(state),
					Exit: int32(rapid.SampledFrom([]int{0, 1, 137, -100}).Draw(t, "exit")),
				})
			}
		}
		c.Op = &statepb.Command_Statuses{Statuses: status}
	case 8, 9, 10:
		c.Op = &statepb.Command_Grant{Grant: drawGrant(t, v, apps, epoch)}
	case 11:
		c.Op = &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{
			Application: ApplicationID(a.ID), Attempt: int32(len(a.Attempts)), Level: rapid.SampledFrom([]int32{0, release.Level}).Draw(t, "level"),
		}}
	case 12, 13:
		al := &statepb.Allocate{Application: ApplicationID(a.ID), Attempt: int32(len(a.Attempts)), Acknowledged: uint64(rapid.IntRange(0, 5).Draw(t, "ack"))}
		if at := a.Attempt(); at != nil {
			al.Epoch, al.Sequence = at.Epoch, at.Sequence+uint64(rapid.IntRange(0, 1).Draw(t, "next"))
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "asks") {
			al.Asks = append(al.Asks, &statepb.WantedAsk{Ask: Ask(rm.Ask{
				ID: fmt.Sprint(i), Count: rapid.IntRange(0, 3).Draw(t, "count"),
				Resource: rm.Resource{Memory: 1, VCores: 1, GPUs: i, Other: rapid.SampledFrom([]rm.Amounts{{}, {}, oneInstance}).Draw(t, "instance")}, Held: rapid.Bool().Draw(t, "held"),
			}), Launch: &statepb.Launch{Argv: []string{rapid.SampledFrom([]string{"p", "q"}).Draw(t, "argv")}}})
			if ask := al.Asks[i].Ask; rapid.Bool().Draw(t, "numbered") {
				ask.Instances = rapid.SliceOfNDistinct(rapid.Int32Range(0, 4), int(ask.Count), int(ask.Count), rapid.ID[int32]).Draw(t, "numbers")
			}
		}
		for _, k := range v.Containers(a.ID) {
			if rapid.IntRange(0, 4).Draw(t, "release") == 0 {
				al.Release = append(al.Release, ContainerID(k.ID))
			}
		}
		if rapid.IntRange(0, 4).Draw(t, "cancels") == 0 {
			al.Cancel = []string{"0"}
		}
		c.Op = &statepb.Command_Allocate{Allocate: al}
	case 14:
		f := &statepb.Finish{Application: ApplicationID(a.ID), Attempt: int32(len(a.Attempts)), Final: "SUCCEEDED"}
		if at := a.Attempt(); at != nil {
			f.Epoch = at.Epoch
		}
		c.Op = &statepb.Command_Finish{Finish: f}
	case 16:
		k := &statepb.KeepCredentials{Epoch: epoch}
		for n := range int64(3) {
			p := &statepb.Credential{Application: ApplicationID(a.ID), Number: n + 1, Sealed: []byte{byte(n)}, GotMs: now}
			if rapid.Bool().Draw(t, "kept") {
				k.Keep = append(k.Keep, p)
			} else {
				k.Drop = append(k.Drop, p)
			}
		}
		c.Op = &statepb.Command_KeepCredentials{KeepCredentials: k}
	case 18:
		l := &statepb.LaunchContainers{Application: ApplicationID(a.ID), Attempt: int32(len(a.Attempts))}
		if at := a.Attempt(); at != nil {
			l.Epoch = at.Epoch
		}
		for range rapid.IntRange(1, 2).Draw(t, "launches") {
			p := &statepb.ContainerLaunch{Launch: &statepb.Launch{
				Argv: []string{rapid.SampledFrom([]string{"p", "q"}).Draw(t, "what")}, Tokens: make([]byte, rapid.SampledFrom([]int{0, 3000}).Draw(t, "tokens")),
			}}
			for _, other := range apps { // also of others
				for _, k := range v.Containers(other.ID) {
					if rapid.Bool().Draw(t, "named") {
						p.Containers = append(p.Containers, ContainerID(k.ID))
					}
				}
			}
			l.Launches = append(l.Launches, p)
		}
		c.Op = &statepb.Command_LaunchContainers{LaunchContainers: l}
	case 19:
		s := &statepb.Stop{Epoch: epoch, Status: -100, Held: rapid.Bool().Draw(t, "only held")}
		for k := range v.Held() {
			s.Containers = append(s.Containers, ContainerID(k.ID))
		}
		c.Op = &statepb.Command_Stop{Stop: s}
	case 26:
		p := &statepb.PreemptContainers{Epoch: epoch, DeadlineMs: now + int64(rapid.IntRange(0, 3).Draw(t, "notice"))}
		for _, other := range apps {
			e := &statepb.Eviction{Application: ApplicationID(rapid.SampledFrom(apps).Draw(t, "for").ID), Queue: "root.a", Moves: rapid.Bool().Draw(t, "moves")}
			for _, k := range v.Containers(other.ID) {
				switch rapid.IntRange(0, 3).Draw(t, "go or stay") {
				case 0:
					e.Containers = append(e.Containers, ContainerID(k.ID))
				case 1:
					p.Spared = append(p.Spared, ContainerID(k.ID))
				}
			}
			p.Evictions = append(p.Evictions, e)
		}
		c.Op = &statepb.Command_PreemptContainers{PreemptContainers: p}
	case 27:
		p := &statepb.Checkpoint{Application: ApplicationID(rapid.SampledFrom(apps).Draw(t, "whose").ID), Step: 7}
		for _, other := range apps {
			for _, k := range v.Containers(other.ID) {
				if rapid.Bool().Draw(t, "saved") {
					p.Containers = append(p.Containers, ContainerID(k.ID))
				}
			}
		}
		c.Op = &statepb.Command_Checkpoint{Checkpoint: p}
	case 29:
		r := &statepb.ResizeJob{Application: ApplicationID(a.ID), Max: rapid.Int32Range(0, 4).Draw(t, "max"), Min: rapid.Int32Range(0, 2).Draw(t, "min"), DeadlineMs: now + 2, Reason: rm.Resized}
		c.Op = &statepb.Command_ResizeJob{ResizeJob: r}
	case 30:
		m := &statepb.ChangeMembers{Application: ApplicationID(a.ID), Retry: rapid.Bool().Draw(t, "retry"), Reason: "killed"}
		m.Numbers = rapid.SliceOfNDistinct(rapid.Int32Range(0, 4), 0, 3, rapid.ID[int32]).Draw(t, "members")
		c.Op = &statepb.Command_ChangeMembers{ChangeMembers: m}
	case 17:
		c.Op = &statepb.Command_Fail{Fail: &statepb.Fail{Epoch: epoch, Application: ApplicationID(a.ID), Diagnostics: "no token"}}
	default:
		c.Op = &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(a.ID)}}
	}
	return c
}

// oneInstance is what an ask for a MIG instance wants.
var oneInstance = func() rm.Amounts {
	one, err := rm.NewAmounts(map[string]int64{rm.ProfileResource("1g"): 1})
	if err != nil {
		panic(err)
	}
	return one
}()

// drawGrant plans carelessly: any device of any node, free or not.
func drawGrant(t *rapid.T, v *View, apps []*rm.Application, epoch uint64) *statepb.Grant {
	g := &statepb.Grant{Epoch: epoch}
	for _, a := range apps {
		at := a.Attempt()
		if at == nil {
			continue
		}
		asks := v.Asks(a.ID)
		if a.WantsMaster() {
			asks = append(asks, rm.Ask{Resource: a.Master, Count: 1})
		}
		for _, ask := range asks {
			group := &statepb.Group{Application: ApplicationID(a.ID), Attempt: int32(at.Number), Ask: ask.ID, KeepsAsk: rapid.Bool().Draw(t, "keeps")}
			for range rapid.IntRange(1, 2).Draw(t, "unit") {
				node := rapid.SampledFrom([]string{"a:1", "b:1"}).Draw(t, "on")
				p := &statepb.Placement{Node: node, Resource: Resource(ask.Resource)}
				for range ask.Resource.GPUs {
					p.Gpus = append(p.Gpus, fmt.Sprint(node, rapid.IntRange(0, 2).Draw(t, "device")))
				}
				for range ask.Resource.Instances() {
					p.Gpus = append(p.Gpus, fmt.Sprint(node, 2, rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "instance")))
				}
				group.Placements = append(group.Placements, p)
			}
			g.Groups = append(g.Groups, group)
		}
	}
	return g
}
