// Package job is the document that describes a job: what users submit to POST /api/v1/jobs, what the application's
// master reads as job.json.
package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/jobsecret"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// MaxBytes bounds a document.
const MaxBytes = 512 << 10

// The other limits of a document.
const (
	MaxInstances = 10_000
	MaxArgs      = 1_000
	MaxText      = 128 << 10 // of the arguments, and of the environment
	MaxArtifacts = 1_000
	MaxName      = 255
	MaxTries     = 100
	MaxGang      = 1_000
)

// File is the name under which a master finds its document in its work directory.
const File = "job.json"

// Spec is a job. Only ID, User and Submitted are not the submitter's.
type Spec struct {
	Name string  `json:"name,omitempty"`
	Kind rm.Kind `json:"kind,omitempty"`
	// Queue is a path or an unambiguous name; empty: default.
	Queue string `json:"queue,omitempty"`
	// Priority: larger is served first.
	Priority int `json:"priority,omitempty"`
	// Resources are those of each container of a command, or of the master.
	Resources Resources `json:"resources,omitzero"`
	// Placement says beside what the containers of a command may be.
	Placement Placement `json:"placement,omitzero"`
	// Near says where the data of a command lies: its containers are placed there if there is room, or will be soon.
	Near Near `json:"near,omitzero"`
	// Instances of a command; 0 means 1.
	Instances int      `json:"instances,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	// Run is a shell command in place of Argv.
	Run       string            `json:"run,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Artifacts []rm.Artifact     `json:"artifacts,omitempty"`
	// Secrets are the names of the user's secrets that each container finds as files in $HOPS_SECRETS_DIR; masters get none, but those
	// that are jobs themselves.
	Secrets []string `json:"secrets,omitempty"`
	// Workdir is an archive of the file system in whose unpacked directory the command runs.
	Workdir string   `json:"workdir,omitempty"`
	Timeout Duration `json:"timeout,omitempty"`
	Retry   *Retry   `json:"retry,omitempty"`
	// Array runs a command once for each of some numbers: members that start, fail and are run again each on their own.
	Array *Array `json:"array,omitempty"`
	// After are the applications before whose outcome nothing of the job is started.
	After []After `json:"after,omitempty"`
	// Deadline is when the job has to have ended: a time with its zone (RFC 3339), or how long from the submission on.
	Deadline string `json:"deadline,omitempty"`
	// Grace lies between SIGTERM and SIGKILL; 0 is the node manager's default.
	Grace Duration `json:"grace,omitempty"`
	// Dialect of argv and env: empty, or yarn, see rm.Launch. Of a master only.
	Dialect string `json:"dialect,omitempty"`
	// Gang starts the instances of a command together or not at all; by default each starts when there is room for it.
	Gang Gang `json:"gang,omitzero"`
	// Fencing is none (default): containers go on while no resource manager speaks for their node, and should it be given up
	// meanwhile, a second try may run beside the first. Or strict: no process outlives its node's lease, so that there are
	// never two, and a longer outage of the resource managers ends it.
	Fencing string `json:"fencing,omitempty"`
	// Checkpoint and Experiment are the controller's.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	Experiment json.RawMessage `json:"experiment,omitempty"`

	// ID, User and Submitted (milliseconds) are set by the resource manager.
	ID        string `json:"id,omitempty"`
	User      string `json:"user,omitempty"`
	Submitted int64  `json:"submitted,omitempty"`
}

// The words of Spec.Fencing.
const (
	FencingNone   = "none"
	FencingStrict = "strict"
)

// Gang says how many instances must start at once. In JSON true means all of them, a number so many at least, and
// "2..4" two at least of four, which is then the number of instances.
type Gang struct {
	// All instances at once.
	All bool
	// Min at once, the rest as there is room; 0: no gang, or All.
	Min int
	// Max is the number of instances that the gang itself names; 0: it names none.
	Max int
}

// UnmarshalJSON reads true, false, a number or "MIN..MAX".
func (g *Gang) UnmarshalJSON(b []byte) error {
	var all bool
	var text string
	*g = Gang{}
	switch {
	case json.Unmarshal(b, &all) == nil:
		g.All = all
		return nil
	case json.Unmarshal(b, &g.Min) == nil && g.Min > 0:
		return nil
	case json.Unmarshal(b, &text) == nil:
		least, most, ok := strings.Cut(text, "..")
		var errs [2]error
		g.Min, errs[0] = strconv.Atoi(least)
		g.Max, errs[1] = strconv.Atoi(most)
		if ok && errs[0] == nil && errs[1] == nil && g.Min > 0 && g.Max >= g.Min {
			return nil
		}
	}
	return fmt.Errorf(`gang: %.100s is neither true, nor how many instances must start at once, nor "MIN..MAX"`, b)
}

// MarshalJSON writes what UnmarshalJSON reads.
func (g Gang) MarshalJSON() ([]byte, error) {
	switch {
	case g.Max > 0:
		return json.Marshal(fmt.Sprintf("%d..%d", g.Min, g.Max))
	case g.Min > 0:
		return json.Marshal(g.Min)
	}
	return json.Marshal(g.All)
}

// Size is how many of n instances must start at once; 0: each starts on its own.
func (g Gang) Size(n int) int {
	if g.All && n > 1 {
		return n
	}
	return g.Min
}

// Resources are an amount with what the GPUs must be like.
type Resources struct {
	Memory Memory `json:"memory,omitempty"`
	VCores int    `json:"vcores,omitempty"`
	GPUs   int    `json:"gpus,omitempty"`
	// Other are amounts of what else nodes have, by name.
	Other map[string]int64 `json:"other,omitempty"`
	// Model of GPU, a part of the model's name in any case.
	Model string `json:"gpu_model,omitempty"`
	// Island: all GPUs of a container in one NVLink island.
	Island bool `json:"gpu_island,omitempty"`
	// Profile is a MIG profile, such as 1g.10gb: gpus counts instances of that in place of whole GPUs.
	Profile string `json:"gpu_profile,omitempty"`
	// GPUMemory is the least of each GPU.
	GPUMemory Memory `json:"gpu_memory,omitempty"`
	// Within is the level of the network inside which a gang has to be: node, or the depth of a rack's path, 1 being the outermost.
	Within string `json:"within,omitempty"`
	// Label that the nodes must carry.
	Label string `json:"label,omitempty"`
}

// What a container gets when the document does not say.
const (
	DefaultMemory = 1 << 30
	DefaultVCores = 1
)

// Check verifies what the amounts are made of. MIG instances are named by their profile, or by the name of the resource that they are.
//
// Errors say which word is wrong.
func (r Resources) Check() error {
	if _, err := rm.NewAmounts(r.Other); err != nil {
		return fmt.Errorf("resources.other: %w", err)
	}
	if r.Profile == "" {
		if instances := r.Amount().Instances(); instances > 0 && (r.Model != "" || r.Island || r.GPUMemory > 0) && r.GPUs == 0 {
			return errProfile
		}
		return nil
	}
	switch {
	case !rm.ValidProfile(r.Profile):
		return fmt.Errorf("resources.gpu_profile: %.100q is no MIG profile, such as 1g.10gb", r.Profile)
	case r.GPUs == 0:
		return fmt.Errorf("resources.gpu_profile: %s of how many instances: give gpus", r.Profile)
	case r.Model != "" || r.Island || r.GPUMemory > 0:
		return errProfile
	}
	if _, err := rm.NewAmounts(r.amounts()); err != nil {
		return fmt.Errorf("resources: %w", err)
	}
	return nil
}

var errProfile = errors.New("resources: a MIG profile says what an instance is; gpu_model, gpu_memory and gpu_island are for whole GPUs (a label or an attribute of nodes says of which model its instances are)")

// amounts are Other with the MIG instances that the profile means.
func (r Resources) amounts() map[string]int64 {
	if r.Profile == "" || r.GPUs <= 0 {
		return r.Other
	}
	all := maps.Clone(r.Other)
	if all == nil {
		all = map[string]int64{}
	}
	all[rm.ProfileResource(r.Profile)] += int64(r.GPUs)
	return all
}

// Amount is the resource with defaults in place of zeros.
func (r Resources) Amount() rm.Resource {
	other, _ := rm.NewAmounts(r.amounts()) // see Check
	a := rm.Resource{Memory: int64(r.Memory), VCores: r.VCores, GPUs: r.GPUs, Other: other}
	if r.Profile != "" {
		a.GPUs = 0
	}
	if a.Memory == 0 {
		a.Memory = DefaultMemory
	}
	if a.VCores == 0 {
		a.VCores = DefaultVCores
	}
	return a
}

// Retry says how often, and for what, a failed container is run again.
type Retry struct {
	// Max is how many more times each instance may run.
	Max int `json:"max,omitempty"`
	// On lists the causes: failure, node_lost, preempted. Empty: all.
	On []string `json:"on,omitempty"`
}

// The causes of Retry.On.
const (
	OnFailure   = "failure"
	OnNodeLost  = "node_lost"
	OnPreempted = "preempted"
)

// Memory is a number of bytes; in JSON a number, or text with a unit: "8GiB".
type Memory int64

// UnmarshalJSON reads a number or text.
func (m *Memory) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	n, err := config.ParseSize(text)
	if err != nil {
		return err
	}
	*m = Memory(n)
	return nil
}

// Duration is a time span; in JSON text such as "2h", or a number of seconds.
type Duration time.Duration

// UnmarshalJSON reads text or a number.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var seconds float64
	if err := json.Unmarshal(b, &seconds); err == nil {
		if !(seconds >= 0 && seconds < 1e9) {
			return fmt.Errorf("%s seconds is no duration", b)
		}
		*d = Duration(seconds * float64(time.Second))
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s is neither a duration (\"2h\") nor a number of seconds", b)
	}
	v, err := time.ParseDuration(text)
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no duration (examples: 90s, 2h)", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// Parse reads and checks a document of a submitter. The error is of kind metadata.ErrInvalidArgument and names the field
// and the remedy.
func Parse(document []byte) (*Spec, error) {
	if len(document) > MaxBytes {
		return nil, bad("the document has %d bytes, the limit is %d: put large content into the file system", len(document), MaxBytes)
	}
	if err := Plain(document, "env", "experiment", "checkpoint"); err != nil {
		return nil, err
	}
	s, err := decode(document)
	if err != nil {
		return nil, err
	}
	s.ID, s.User, s.Submitted = "", "", 0
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// Read reads the document that the resource manager gave to a master.
func Read(document []byte) (*Spec, error) {
	s, err := decode(document)
	if err != nil {
		return nil, err
	}
	if _, err := rm.ParseApplicationID(s.ID); err != nil {
		return nil, fmt.Errorf("job document: %w", err)
	}
	return s, s.check()
}

func decode(document []byte) (*Spec, error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.DisallowUnknownFields()
	s := &Spec{}
	if err := d.Decode(s); err != nil {
		return nil, bad("the job document cannot be read: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if d.More() {
		return nil, bad("there is something behind the job document")
	}
	return s, nil
}

func bad(format string, args ...any) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, format, args...)
}

// check applies defaults and limits.
func (s *Spec) check() error {
	if s.Kind == "" {
		s.Kind = rm.KindCommand
	}
	if s.Queue == "" {
		s.Queue = "default"
	}
	if s.Instances == 0 {
		s.Instances = max(s.Gang.Max, 1)
	}
	var errs []error
	wrong := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	s.checkArray(wrong)
	wrong(len(s.Name) <= MaxName && !strings.ContainsFunc(s.Name, func(r rune) bool { return r < ' ' }), "name: at most %d characters, none of them control characters", MaxName)
	wrong(len(s.Queue) <= MaxName, "queue: at most %d characters", MaxName)
	wrong(s.Kind == rm.KindCommand || s.Kind == rm.KindExperiment || s.Kind == rm.KindMaster, "kind: %q is not command, experiment or master", s.Kind)
	r := s.Resources
	wrong(r.Memory == 0 || r.Memory >= rm.MiB && r.Memory <= 1<<50, "resources.memory: %d bytes are out of range, 1 MiB at least", r.Memory)
	wrong(r.VCores >= 0 && r.VCores <= 1<<20, "resources.vcores: %d is out of range", r.VCores)
	wrong(r.GPUs >= 0 && r.GPUs <= 1<<16, "resources.gpus: %d is out of range", r.GPUs)
	err := r.Check()
	wrong(err == nil, "%v", err)
	wrong(len(r.Model) <= MaxName && len(r.Label) <= MaxName, "resources: gpu_model and label have at most %d characters", MaxName)
	wrong(r.GPUMemory >= 0, "resources: gpu_memory is negative")
	wrong(rm.ValidWithin(r.Within), "resources: within %.100q is not node, or the depth of a rack's path", r.Within)
	_, err = s.Placement.Words()
	wrong(err == nil, "placement: %v", err)
	wrong(s.Placement.IsZero() || s.Kind == rm.KindCommand, "placement: only commands have one; a master gives it with what it asks for")
	_, err = s.Near.Words()
	wrong(err == nil, "%v", err)
	wrong(s.Near.IsZero() || s.Kind == rm.KindCommand, "near: only commands have one; a master gives it with what it asks for")
	wrong(s.Instances >= 1 && s.Instances <= MaxInstances, "instances: %d is not between 1 and %d", s.Instances, MaxInstances)
	wrong(len(s.Argv) <= MaxArgs && textLen(s.Argv) <= MaxText, "argv: at most %d arguments with %d bytes", MaxArgs, MaxText)
	wrong(len(s.Run) <= MaxText, "run: at most %d bytes", MaxText)
	wrong(s.Argv == nil || s.Run == "", "argv and run: give one of them")
	wrong(s.Gang.Max == 0 || s.Gang.Max == s.Instances, "gang: of %d instances, but instances says %d", s.Gang.Max, s.Instances)
	wrong(s.Gang.Size(s.Instances) <= s.Instances, "gang: %d cannot start at once, there are %d instances", s.Gang.Min, s.Instances)
	wrong(s.Gang.Size(s.Instances) <= MaxGang, "gang: at most %d start at once", MaxGang)
	wrong(slices.Contains([]string{"", FencingNone, FencingStrict}, s.Fencing), "fencing: %q is neither none nor strict", s.Fencing)
	names := 0
	for name, value := range s.Env {
		names += len(name) + len(value)
		wrong(name != "" && !strings.ContainsAny(name, "=\x00") && !strings.Contains(value, "\x00"), "env: %q is no name of a variable, or its value holds a zero byte", name)
	}
	wrong(names <= MaxText, "env: at most %d bytes", MaxText)
	wrong(len(s.Artifacts) <= MaxArtifacts, "artifacts: at most %d", MaxArtifacts)
	seen := map[string]bool{File: true}
	for i, a := range s.Artifacts {
		wrong(LocalName(a.Name), "artifacts[%d].name: %q is no path inside the work directory", i, a.Name)
		wrong(!seen[a.Name], "artifacts[%d].name: %q is taken", i, a.Name)
		seen[a.Name] = true
		pattern := a.Kind == "pattern" && s.Dialect == rm.DialectYARN
		wrong(a.Kind == "" || pattern || slices.Contains([]string{"file", "archive", "code"}, a.Kind), "artifacts[%d].kind: %q is not file, archive or code", i, a.Kind)
		wrong(a.Pattern == "" || pattern, "artifacts[%d].pattern: only artifacts of kind pattern have one", i)
		wrong((a.URI == "") != (a.Content == nil), "artifacts[%d]: needs a uri or content, and not both", i)
	}
	if err := jobsecret.CheckNames(s.Secrets); err != nil {
		wrong(false, "secrets: %v", err)
	}
	s.checkWhen(wrong)
	if s.Retry != nil {
		wrong(s.Retry.Max >= 0 && s.Retry.Max <= MaxTries, "retry.max: %d is not between 0 and %d", s.Retry.Max, MaxTries)
		for _, on := range s.Retry.On {
			wrong(slices.Contains([]string{OnFailure, OnNodeLost, OnPreempted}, on), "retry.on: %q is not failure, node_lost or preempted", on)
		}
	}
	wrong(s.Array == nil || s.Kind == rm.KindCommand, "array: only jobs of kind command have one")
	wrong(s.Dialect == "" || s.Kind == rm.KindMaster, "dialect: only jobs of kind master have one")
	switch s.Kind {
	case rm.KindCommand:
		wrong(len(s.Argv) > 0 && s.Argv[0] != "" || strings.TrimSpace(s.Run) != "", "argv: a command needs at least the program's name")
		wrong(s.Experiment == nil, "experiment: only jobs of kind experiment have one")
		wrong(s.Checkpoint == nil, "checkpoint: only jobs of kind experiment have one")
	case rm.KindMaster:
		wrong(len(s.Argv) > 0 && s.Argv[0] != "" || strings.TrimSpace(s.Run) != "", "argv: a master needs at least the program's name")
		wrong(s.Experiment == nil && s.Checkpoint == nil, "experiment and checkpoint: only jobs of kind experiment have them")
		wrong(s.Instances == 1 && s.Gang == Gang{}, "instances and gang: there is one master; the containers are its own to ask for")
		wrong(s.Retry == nil, "retry: a master that ends is started again by the resource manager")
		wrong(r.Model == "" && !r.Island && r.GPUMemory == 0 && r.Within == "", "resources: gpu_model, gpu_memory, gpu_island and within are for the containers that a master asks for")
		wrong(s.Dialect == rm.DialectOurs || s.Dialect == rm.DialectYARN && s.Run == "" && len(s.Argv) == 1 && s.Workdir == "", "dialect: %q is none, or without argv of one command line; run and workdir have no meaning there", s.Dialect)
	case rm.KindExperiment:
		wrong(s.Gang == Gang{}, "gang: only commands have one")
		wrong(len(s.Experiment) > 0 && s.Experiment[0] == '{', "experiment: a job of that kind needs an object here")
	}
	if err := errors.Join(errs...); err != nil {
		return bad("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

func textLen(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s)
	}
	return n
}

// LocalName reports whether name is a relative path that stays inside a directory.
func LocalName(name string) bool {
	return name != "" && len(name) <= MaxName && !strings.ContainsAny(name, "\x00\\") && !path.IsAbs(name) &&
		path.Clean(name) == name && name != "." && name != ".." && !strings.HasPrefix(name, "../")
}

// Ask is what the master of a command asks for at first, for all instances; ok is false of other kinds, whose masters decide for themselves.
func (s *Spec) Ask() (a rm.Ask, ok bool) {
	if s.Kind != rm.KindCommand {
		return rm.Ask{}, false
	}
	r := s.Resources
	a = rm.Ask{
		ID: "instances", Priority: 1, Resource: r.Amount(), Count: s.Instances, Gang: s.Gang.Size(s.Instances), Model: r.Model, Island: r.Island,
		Label: r.Label, GPUMemory: int64(r.GPUMemory), Within: r.Within,
	}
	a.Placement, _ = s.Placement.Words() // see check
	a.Near, _ = s.Near.Words()
	if a.Gang <= 1 {
		a.Gang = 0
	}
	if s.Array != nil && s.Array.AtOnce > 0 {
		a.Count = min(a.Count, s.Array.AtOnce)
	}
	return a, true
}

// Command is the command line of a command's containers.
func (s *Spec) Command() []string {
	argv := s.Argv
	if s.Run != "" {
		argv = []string{"/bin/sh", "-c", s.Run}
	}
	if s.Workdir != "" {
		return append([]string{"/bin/sh", "-c", `cd ` + workdir + ` && exec "$@"`, "sh"}, argv...)
	}
	return argv
}

// workdir is where Workdir is unpacked.
const workdir = "workdir"

// Launch is what runs in the containers of a command, or as the master; env is added to the document's.
func (s *Spec) Launch(env map[string]string) rm.Launch {
	l := rm.Launch{Argv: s.Command(), Artifacts: s.Artifacts, Grace: time.Duration(s.Grace), Fenced: s.Fencing == FencingStrict, Dialect: s.Dialect}
	if s.Workdir != "" {
		l.Artifacts = append(slices.Clone(l.Artifacts), rm.Artifact{Name: workdir, URI: s.Workdir, Kind: "archive", Visibility: "application"})
	}
	l.Env = Env(s.Env, env)
	return l
}

// Env merges environments, later ones winning, into a sorted list.
func Env(list ...map[string]string) []rm.EnvVar {
	all := map[string]string{}
	for _, e := range list {
		maps.Copy(all, e)
	}
	out := make([]rm.EnvVar, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, rm.EnvVar{Name: name, Value: all[name]})
	}
	return out
}
