package state

import (
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// The exported functions of this file translate words into their stored form for commands; the others back.

// ApplicationID encodes an id.
func ApplicationID(id rm.ApplicationID) *statepb.ApplicationID {
	return &statepb.ApplicationID{Cluster: id.Cluster, Sequence: id.Sequence}
}

func appIDOf(p *statepb.ApplicationID) rm.ApplicationID {
	return rm.ApplicationID{Cluster: p.GetCluster(), Sequence: p.GetSequence()}
}

// ContainerID encodes an id; the zero id is nil.
func ContainerID(id rm.ContainerID) *statepb.ContainerID {
	if id.IsZero() {
		return nil
	}
	return &statepb.ContainerID{
		Application: ApplicationID(id.Attempt.Application), Attempt: int32(id.Attempt.Number),
		Epoch: id.Epoch, Number: id.Number,
	}
}

func containerIDOf(p *statepb.ContainerID) rm.ContainerID {
	if p == nil {
		return rm.ContainerID{}
	}
	return rm.ContainerID{Attempt: rm.AttemptID{Application: appIDOf(p.Application), Number: int(p.Attempt)}, Epoch: p.Epoch, Number: p.Number}
}

// Resource encodes an amount.
func Resource(r rm.Resource) *statepb.Resource {
	return &statepb.Resource{Memory: r.Memory, Vcores: int64(r.VCores), Gpus: int64(r.GPUs), Other: r.Other.Map()}
}

func resourceOf(p *statepb.Resource) rm.Resource {
	other, _ := rm.NewAmounts(p.GetOther()) // validated when it was written
	return rm.Resource{Memory: p.GetMemory(), VCores: int(p.GetVcores()), GPUs: int(p.GetGpus()), Other: other}
}

// Application encodes an application.
func Application(a *rm.Application) *statepb.Application {
	p := &statepb.Application{
		Id: ApplicationID(a.ID), Name: a.Name, User: a.User, Queue: a.Queue, Kind: string(a.Kind), Type: a.Type, Tags: a.Tags,
		Priority: int32(a.Priority), Master: Resource(a.Master), Document: a.Document, MaxAttempts: int32(a.MaxAttempts),
		KeepContainers: a.KeepContainers, TimeoutMs: a.Timeout.Milliseconds(), IdempotencyKey: a.IdempotencyKey, Digest: a.Digest,
		State: string(a.State), Final: string(a.Final), Diagnostics: a.Diagnostics, TrackingUrl: a.TrackingURL,
		SubmittedMs: int64(a.Submitted), LaunchedMs: int64(a.Launched), FinishedMs: int64(a.Finished), Failures: int32(a.Failures),
		SpentMib: a.Spent.MiB, SpentVcores: a.Spent.VCores, SpentGpus: a.Spent.GPUs, Containers: a.Containers,
		LastEvent: a.LastEvent, LastLaunch: a.LastLaunch, Acknowledged: a.Acknowledged, Ended: a.Ended, ExpiresMs: int64(a.Expires), Tokens: a.Tokens,
		DeadlineMs: int64(a.Deadline),
	}
	if a.Size != (rm.Size{}) {
		p.Size = &statepb.Size{Max: int32(a.Size.Max), Min: int32(a.Size.Min)}
	}
	p.Remembers, p.Succeeded = a.Remembers, a.Succeeded.Gaps()
	for _, m := range a.Members {
		p.Members = append(p.Members, &statepb.Member{Number: m.Number, Killed: m.Killed, Forgiven: m.Forgiven})
	}
	for _, d := range a.After {
		p.After = append(p.After, &statepb.Dependency{Application: ApplicationID(d.Application), State: string(d.Outcome)})
	}
	for _, t := range a.Attempts {
		p.Attempts = append(p.Attempts, &statepb.Attempt{
			Number: int32(t.Number), State: string(t.State), Container: ContainerID(t.Container),
			Node: string(t.Node), StartedMs: int64(t.Started), FinishedMs: int64(t.Finished), Http: t.HTTP, TrackingUrl: t.TrackingURL,
			Epoch: t.Epoch, Sequence: t.Sequence, Diagnostics: t.Diagnostics, HttpCertificate: t.Certificate,
			Host: t.Host, Port: int32(t.Port),
		})
	}
	return p
}

func applicationOf(p *statepb.Application) *rm.Application {
	a := &rm.Application{
		ID: appIDOf(p.GetId()), Name: p.Name, User: p.User, Queue: p.Queue, Kind: rm.Kind(p.Kind), Type: p.Type, Tags: p.Tags,
		Priority: int(p.Priority), Master: resourceOf(p.Master), Document: p.Document, MaxAttempts: int(p.MaxAttempts),
		KeepContainers: p.KeepContainers, Timeout: time.Duration(p.TimeoutMs) * time.Millisecond, IdempotencyKey: p.IdempotencyKey, Digest: p.Digest,
		State: rm.State(p.State), Final: rm.FinalStatus(p.Final), Diagnostics: p.Diagnostics, TrackingURL: p.TrackingUrl,
		Submitted: metadata.Time(p.SubmittedMs), Launched: metadata.Time(p.LaunchedMs), Finished: metadata.Time(p.FinishedMs), Failures: int(p.Failures),
		Spent: rm.Spent{MiB: p.SpentMib, VCores: p.SpentVcores, GPUs: p.SpentGpus}, Containers: p.Containers,
		LastEvent: p.LastEvent, LastLaunch: p.LastLaunch, Acknowledged: p.Acknowledged, Ended: p.Ended, Expires: metadata.Time(p.ExpiresMs), Tokens: p.Tokens,
		Deadline: metadata.Time(p.DeadlineMs), Size: rm.Size{Max: int(p.GetSize().GetMax()), Min: int(p.GetSize().GetMin())},
	}
	a.Remembers, a.Succeeded = p.Remembers, rm.NumbersOf(p.Succeeded)
	for _, m := range p.Members {
		a.Members = append(a.Members, rm.Member{Number: m.Number, Killed: m.Killed, Forgiven: m.Forgiven})
	}
	for _, d := range p.After {
		a.After = append(a.After, rm.Dependency{Application: appIDOf(d.Application), Outcome: rm.Outcome(d.State)})
	}
	for _, t := range p.Attempts {
		a.Attempts = append(a.Attempts, rm.Attempt{
			Number: int(t.Number), State: rm.AttemptState(t.State), Container: containerIDOf(t.Container),
			Node: rm.NodeID(t.Node), Started: metadata.Time(t.StartedMs), Finished: metadata.Time(t.FinishedMs), HTTP: t.Http, TrackingURL: t.TrackingUrl,
			Epoch: t.Epoch, Sequence: t.Sequence, Diagnostics: t.Diagnostics, Certificate: t.HttpCertificate,
			Host: t.Host, Port: int(t.Port),
		})
	}
	return a
}

// Ask encodes an ask.
func Ask(a rm.Ask) *statepb.Ask {
	return &statepb.Ask{
		Id: a.ID, Priority: int32(a.Priority), Resource: Resource(a.Resource), Count: int32(a.Count), Gang: int32(a.Gang),
		Model: a.Model, Island: a.Island, Nodes: a.Nodes, Strict: a.Strict, Excluded: a.Excluded, Label: a.Label, Launch: a.Launch,
		Instances: a.Instances, Held: a.Held,
		GpuMemory: a.GPUMemory, Within: a.Within, WalltimeMs: a.Walltime.Milliseconds(), Placement: placement(a.Placement), Near: near(a.Near),
	}
}

func askOf(p *statepb.Ask) rm.Ask {
	return rm.Ask{
		ID: p.Id, Priority: int(p.Priority), Resource: resourceOf(p.Resource), Count: int(p.Count), Gang: int(p.Gang),
		Model: p.Model, Island: p.Island, Nodes: p.Nodes, Strict: p.Strict, Excluded: p.Excluded, Label: p.Label, Launch: p.Launch,
		Instances: p.Instances, Held: p.Held,
		GPUMemory: p.GpuMemory, Within: p.Within, Walltime: time.Duration(p.WalltimeMs) * time.Millisecond, Placement: placementOf(p.Placement), Near: nearOf(p.Near),
	}
}

func near(n rm.Near) *statepb.AskNear {
	if n.IsZero() {
		return nil
	}
	w := n.Words()
	out := &statepb.AskNear{Paths: w.Paths, Racks: w.Racks}
	for _, h := range w.Hosts {
		out.Hosts = append(out.Hosts, &statepb.AskNearHost{Host: h.Host, Weight: int32(h.Weight)})
	}
	if w.Wait != 0 {
		out.WaitMs = new(max(w.Wait.Milliseconds(), 0))
	}
	return out
}

func nearOf(p *statepb.AskNear) rm.Near {
	w := rm.NearWords{Paths: p.GetPaths(), Racks: p.GetRacks()}
	for _, h := range p.GetHosts() {
		w.Hosts = append(w.Hosts, rm.NearHost{Host: h.Host, Weight: int(h.Weight)})
	}
	if p != nil && p.WaitMs != nil {
		if w.Wait = time.Duration(*p.WaitMs) * time.Millisecond; w.Wait == 0 {
			w.Wait = rm.NoWait
		}
	}
	n, _ := rm.NewNear(w) // validated when it was written
	return n
}

func placement(p rm.Placement) *statepb.AskPlacement {
	if p.IsZero() {
		return nil
	}
	out := &statepb.AskPlacement{Attributes: p.Attributes.Map(), Exclusive: p.Exclusive, Tags: p.Tags.List()}
	for _, c := range p.Constraints.List() {
		out.Constraints = append(out.Constraints, &statepb.Constraint{Tag: c.Tag, Scope: c.Scope, Min: int32(c.Min), Max: new(int32(c.Max))})
	}
	return out
}

func placementOf(p *statepb.AskPlacement) rm.Placement {
	attributes, _ := rm.NewConditions(p.GetAttributes()) // validated when they were written
	list := make([]rm.Constraint, 0, len(p.GetConstraints()))
	for _, c := range p.GetConstraints() {
		list = append(list, rm.Constraint{Tag: c.Tag, Scope: c.Scope, Min: int(c.Min), Max: int(c.GetMax())})
	}
	constraints, _ := rm.NewConstraints(list)
	return rm.Placement{Attributes: attributes, Exclusive: p.GetExclusive(), Tags: tagsOf(p.GetTags()), Constraints: constraints}
}

func tagsOf(list []string) rm.Tags {
	tags, _ := rm.NewTags(list) // validated when they were written
	return tags
}

// Launch encodes a launch.
func Launch(l *rm.Launch) *statepb.Launch {
	p := &statepb.Launch{Argv: l.Argv, GraceMs: l.Grace.Milliseconds(), Fenced: l.Fenced, Dialect: l.Dialect, Tokens: l.Tokens}
	for _, v := range l.Env {
		p.Env = append(p.Env, &statepb.EnvVar{Name: v.Name, Value: v.Value})
	}
	for _, a := range l.Artifacts {
		p.Artifacts = append(p.Artifacts, &statepb.Artifact{
			Name: a.Name, Uri: a.URI, Kind: a.Kind, Size: a.Size, Sha256: a.SHA256,
			Timestamp: a.Timestamp, Visibility: a.Visibility, Content: a.Content, Pattern: a.Pattern,
		})
	}
	return p
}

func launchOf(p *statepb.Launch) *rm.Launch {
	l := &rm.Launch{Argv: p.GetArgv(), Grace: time.Duration(p.GetGraceMs()) * time.Millisecond, Fenced: p.GetFenced(), Dialect: p.GetDialect(), Tokens: p.GetTokens()}
	for _, v := range p.GetEnv() {
		l.Env = append(l.Env, rm.EnvVar{Name: v.Name, Value: v.Value})
	}
	for _, a := range p.GetArtifacts() {
		l.Artifacts = append(l.Artifacts, rm.Artifact{
			Name: a.Name, URI: a.Uri, Kind: a.Kind, Size: a.Size, SHA256: a.Sha256,
			Timestamp: a.Timestamp, Visibility: a.Visibility, Content: a.Content, Pattern: a.Pattern,
		})
	}
	return l
}

// Node encodes a node.
func Node(n *rm.Node) *statepb.Node {
	p := &statepb.Node{
		Id: string(n.ID), Incarnation: n.Incarnation, Host: n.Host, Http: n.HTTP, Rack: n.Rack, Labels: n.Labels,
		Version: n.Version, Datanode: n.Datanode, State: string(n.State), HealthReport: n.HealthReport, Capacity: Resource(n.Capacity),
		RegisteredMs: int64(n.Registered), Level: uint32(n.Level), Machine: n.Machine, Wish: Wish(n.Wish), Retired: n.Retired, Ipc: n.IPC,
		Attributes: n.Attributes.Map(),
	}
	if n.Labelled {
		p.Labels, p.OwnLabels = n.SetLabels, &statepb.Labels{Names: n.OwnLabels}
	}
	if !n.SetAttributes.IsZero() {
		p.SetAttributes, p.OwnAttributes = n.SetAttributes.Map(), n.OwnAttributes.Map()
	}
	if !n.Resized.IsZero() {
		p.Reported, p.Resized = Resource(n.Reported), Resource(n.Resized)
	}
	for _, g := range n.GPUs {
		p.Gpus = append(p.Gpus, &statepb.GPU{
			Uuid: g.UUID, Model: g.Model, Memory: g.Memory, Minor: int32(g.Minor), Pci: g.PCI, Island: g.Island,
			Simulated: g.Simulated, Health: string(g.Health), HealthReason: g.HealthReason, Profile: g.Profile, Parent: g.Parent,
		})
	}
	return p
}

func nodeOf(p *statepb.Node) *rm.Node {
	attributes, _ := rm.NewAttributes(p.Attributes) // validated when they were written
	n := &rm.Node{
		Attributes: attributes,
		ID:         rm.NodeID(p.Id), Incarnation: p.Incarnation, Host: p.Host, HTTP: p.Http, Rack: p.Rack, Labels: p.Labels,
		Version: p.Version, Datanode: p.Datanode, State: rm.NodeState(p.State), HealthReport: p.HealthReport, Capacity: resourceOf(p.Capacity),
		Registered: metadata.Time(p.RegisteredMs), Level: int(p.Level), Machine: p.Machine, Resized: resourceOf(p.Resized), Wish: wishOf(p.Wish), Retired: p.Retired, IPC: p.Ipc,
	}
	if n.OwnLabels = n.Labels; p.OwnLabels != nil {
		n.Labelled, n.SetLabels, n.OwnLabels = true, p.Labels, p.OwnLabels.Names
	}
	if n.OwnAttributes = n.Attributes; len(p.SetAttributes) > 0 {
		n.OwnAttributes, _ = rm.NewAttributes(p.OwnAttributes)
		n.SetAttributes, _ = rm.NewAttributes(p.SetAttributes)
	}
	n.Mark()
	if n.Reported = n.Capacity; p.Reported != nil {
		n.Reported = resourceOf(p.Reported)
	}
	for _, g := range p.Gpus {
		n.GPUs = append(n.GPUs, rm.GPU{
			UUID: g.Uuid, Model: g.Model, Memory: g.Memory, Minor: int(g.Minor), PCI: g.Pci, Island: g.Island,
			Simulated: g.Simulated, Health: rm.GPUHealth(g.Health), HealthReason: g.HealthReason, Profile: g.Profile, Parent: g.Parent,
		})
	}
	return n
}

// Wish encodes a wish; nil is nil.
func Wish(w *rm.Wish) *statepb.Wish {
	if w == nil {
		return nil
	}
	return &statepb.Wish{
		Maintenance: w.Maintenance, Listed: w.Listed, SinceMs: int64(w.Since), DeadlineMs: int64(w.Deadline), UntilMs: int64(w.Until), By: w.By,
		Cordon: w.Cordon, Reason: w.Reason,
	}
}

func wishOf(p *statepb.Wish) *rm.Wish {
	if p == nil {
		return nil
	}
	return &rm.Wish{
		Maintenance: p.Maintenance, Listed: p.Listed, Since: metadata.Time(p.SinceMs), Deadline: metadata.Time(p.DeadlineMs),
		Until: metadata.Time(p.UntilMs), By: p.By, Cordon: p.Cordon, Reason: p.Reason,
	}
}

func containerPB(c *rm.Container) *statepb.Container {
	return &statepb.Container{
		Id: ContainerID(c.ID), Node: string(c.Node), User: c.User, Resource: Resource(c.Resource), Gpus: c.GPUs, Ask: c.Ask,
		Priority: int32(c.Priority), Launch: c.Launch, Master: c.Master, State: string(c.State), Salt: c.Salt,
		GrantedMs: int64(c.Granted), StartedMs: int64(c.Started), FinishedMs: int64(c.Finished), StopStatus: int32(c.StopStatus),
		StopReason: c.StopReason, Exit: int32(c.Exit), Diagnostics: c.Diagnostics, Ended: c.Ended,
		Instance: int32(c.Instance + 1), Gang: c.Gang, CheckpointedMs: int64(c.Checkpointed), Step: c.Step, Notice: noticePB(c.Notice), Exclusive: c.Exclusive, Tags: c.Tags.List(),
		Asked: askedPB(c.Asked),
	}
}

func noticePB(n *rm.Notice) *statepb.Notice {
	if n == nil {
		return nil
	}
	return &statepb.Notice{SinceMs: int64(n.Since), DeadlineMs: int64(n.Deadline), Application: noticeFor(n), Ask: n.Ask, Queue: n.Queue, Resized: n.Resized, Moves: n.Moves}
}

func noticeOf(p *statepb.Notice) *rm.Notice {
	if p == nil {
		return nil
	}
	return &rm.Notice{Since: metadata.Time(p.SinceMs), Deadline: metadata.Time(p.DeadlineMs), For: appIDOf(p.Application), Ask: p.Ask, Queue: p.Queue, Resized: p.Resized, Moves: p.Moves}
}

// noticeFor is for whom a container goes; nil: for nobody.
func noticeFor(n *rm.Notice) *statepb.ApplicationID {
	if n.For.IsZero() {
		return nil
	}
	return ApplicationID(n.For)
}

func askedPB(a *rm.Ask) *statepb.Ask {
	if a == nil {
		return nil
	}
	return Ask(*a)
}

func askedOf(p *statepb.Ask) *rm.Ask {
	if p == nil {
		return nil
	}
	return new(askOf(p))
}

func containerOf(p *statepb.Container) *rm.Container {
	return &rm.Container{
		ID: containerIDOf(p.Id), Node: rm.NodeID(p.Node), User: p.User, Resource: resourceOf(p.Resource), GPUs: p.Gpus, Ask: p.Ask,
		Priority: int(p.Priority), Launch: p.Launch, Master: p.Master, State: rm.ContainerState(p.State), Salt: p.Salt,
		Granted: metadata.Time(p.GrantedMs), Started: metadata.Time(p.StartedMs), Finished: metadata.Time(p.FinishedMs),
		StopStatus: rm.ExitStatus(p.StopStatus), StopReason: p.StopReason, Exit: rm.ExitStatus(p.Exit), Diagnostics: p.Diagnostics, Ended: p.Ended,
		Instance: int(p.Instance) - 1, Gang: p.Gang, Checkpointed: metadata.Time(p.CheckpointedMs), Step: p.Step, Notice: noticeOf(p.Notice), Exclusive: p.Exclusive, Tags: tagsOf(p.Tags),
		Asked: askedOf(p.Asked),
	}
}

func eventPB(e Event) *statepb.Event {
	return &statepb.Event{
		Application: ApplicationID(e.Application), Sequence: e.Sequence, Granted: ContainerID(e.Granted),
		Completed: ContainerID(e.Completed), NodeLost: string(e.NodeLost), Preempt: ContainerID(e.Preempt), Changed: e.Changed,
	}
}

func eventOf(p *statepb.Event) Event {
	return Event{
		Application: appIDOf(p.Application), Sequence: p.Sequence, Granted: containerIDOf(p.Granted),
		Completed: containerIDOf(p.Completed), NodeLost: rm.NodeID(p.NodeLost), Preempt: containerIDOf(p.Preempt), Changed: p.Changed,
	}
}

// Credential encodes a credential.
func Credential(c *rm.Credential) *statepb.Credential {
	return &statepb.Credential{
		Application: ApplicationID(c.Application), Number: c.Number, Sealed: c.Sealed, GotMs: int64(c.Got), MaxMs: int64(c.Max),
		RenewedMs: int64(c.Renewed), ExpiresMs: int64(c.Expires),
	}
}

func credentialOf(p *statepb.Credential) *rm.Credential {
	return &rm.Credential{
		Application: appIDOf(p.Application), Number: p.Number, Sealed: p.Sealed, Got: metadata.Time(p.GotMs), Max: metadata.Time(p.MaxMs),
		Renewed: metadata.Time(p.RenewedMs), Expires: metadata.Time(p.ExpiresMs),
	}
}

func ledgerPB(l ledgerRow) *statepb.LedgerLine {
	return &statepb.LedgerLine{
		Sequence: l.number, Container: ContainerID(l.Container), Node: string(l.Node), Gpus: l.GPUs,
		FromMs: int64(l.From), ToMs: int64(l.To),
	}
}

func ledgerOf(p *statepb.LedgerLine) ledgerRow {
	return ledgerRow{p.Sequence, rm.Grant{
		Container: containerIDOf(p.Container), Node: rm.NodeID(p.Node), GPUs: p.Gpus,
		From: metadata.Time(p.FromMs), To: metadata.Time(p.ToMs),
	}}
}
