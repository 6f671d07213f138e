package rest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
)

// SubmissionContext is an application as YARN's clients submit it, by whatever wire (ApplicationSubmissionContext).
type SubmissionContext struct {
	ID                rm.ApplicationID
	Name, Queue, Type string
	// Priority: nil was not given.
	Priority    *int
	MaxAttempts int
	Keep        bool
	Tags        []string
	// Lifetime bounds the life of the application; 0 is none.
	Lifetime time.Duration
	// Resource is what the master's container gets, Label what the node must carry that it gets it on; empty: any.
	Resource rm.Resource
	Label    string
	// Commands are joined by blanks to the command line that bash runs.
	Commands []string
	Env      map[string]string
	// Local are files for the work directory.
	Local []rm.Artifact
	// Tokens are credentials for the master, as a file of Hadoop's (HDTS); empty: none.
	Tokens []byte
}

// The limits that YARN has for tags.
const (
	maxTags   = 10
	maxTag    = 100
	maxYARNBy = 20 // characters of an application's type
)

// Submission translates: the command is the application's master, a job of kind master in YARN's dialect. Errors are of kind
// metadata.ErrInvalidArgument, in YARN's words where it has some.
func (c SubmissionContext) Submission() (Submission, error) {
	bad := func(format string, args ...any) (Submission, error) {
		return Submission{}, metadata.Errorf(metadata.ErrInvalidArgument, format, args...)
	}
	out := Submission{
		ID: c.ID, Name: c.Name, Queue: c.Queue, Type: c.Type, Kind: rm.KindMaster, Priority: -1, MaxAttempts: c.MaxAttempts,
		KeepContainers: c.Keep, Timeout: c.Lifetime, AcceptAnyQueue: true, Tokens: c.Tokens,
	}
	if out.Name == "" {
		out.Name = "N/A"
	}
	if out.Queue == "" {
		out.Queue = "default"
	}
	if len(out.Type) > maxYARNBy {
		out.Type = out.Type[:maxYARNBy]
	}
	if c.Priority != nil {
		out.Priority = *c.Priority
	}
	if len(c.Tags) > maxTags {
		return bad("Too many applicationTags, a maximum of only %d are allowed!", maxTags)
	}
	for _, t := range c.Tags {
		if len(t) > maxTag || strings.ContainsFunc(t, func(r rune) bool { return r < ' ' || r > '~' }) {
			return bad("Tag %.100q is longer than %d characters or not printable ASCII", t, maxTag)
		}
		out.Tags = append(out.Tags, strings.ToLower(t))
	}
	r := c.Resource
	spec := job.Spec{
		Name: out.Name, Kind: rm.KindMaster, Dialect: rm.DialectYARN, Queue: out.Queue, Env: c.Env, Argv: []string{strings.Join(c.Commands, " ")}, Artifacts: c.Local,
		Resources: job.Resources{Memory: job.Memory(r.Memory), VCores: r.VCores, GPUs: r.GPUs, Other: r.Other.Map(), Label: c.Label},
	}
	if strings.TrimSpace(spec.Argv[0]) == "" {
		out.Failure = "the submission has no command to run"
		spec.Argv[0] = "false"
	}
	document, err := json.Marshal(spec)
	if err != nil {
		return Submission{}, fmt.Errorf("application %v: %w", c.ID, err)
	}
	if _, err := job.Parse(document); err != nil {
		return Submission{}, err
	}
	out.Document = document
	return out, nil
}
