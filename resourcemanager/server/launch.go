package server

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/internal/jobsecret"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/state"
)

// newSalt draws what a container's token is made of beside the cluster's secret. The token itself is stored nowhere: whoever
// leads makes it again.
func newSalt() []byte {
	salt := make([]byte, 16)
	rand.Read(salt)
	return salt
}

func (s *Server) token(salt []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.config.Credentials.MAC("container token", salt))
}

// logDir is where a container's log files go in the file system.
func (s *Server) logDir(user string, id rm.ContainerID) string {
	return path.Join(s.config.LogRoot, user, id.Attempt.Application.String(), id.String())
}

// spec is everything that a node manager needs to start a container.
func (s *Server) spec(view *state.View, c *rm.Container) (*pb.ContainerSpec, error) {
	a := view.Application(c.ID.Attempt.Application)
	if a == nil {
		return nil, fmt.Errorf("the application of %v is forgotten", c.ID)
	}
	launch, err := s.launch(view, a, c)
	if err != nil {
		return nil, err
	}
	spec := &pb.ContainerSpec{
		ContainerId: c.ID.String(), ApplicationId: a.ID.String(), Attempt: int32(c.ID.Attempt.Number), User: a.User, Queue: a.Queue,
		Argv: launch.Argv, Env: map[string]string{}, Resources: resourcesOf(c.Resource), GpuUuids: c.GPUs, LogDir: s.logDir(a.User, c.ID),
		GraceMs: launch.Grace.Milliseconds(), Token: s.token(c.Salt), ApplicationMaster: c.Master, Priority: int64(c.Priority),
	}
	spec.Dialect, spec.Tokens = launch.Dialect, len(launch.Tokens) > 0 || speaksYARN(a, c, launch)
	if launch.Fenced {
		spec.Fencing = pb.Fencing_FENCING_STRICT
	}
	if ownProgram(a, c) {
		spec.Secrets = secretsOf(a)
	}
	for _, v := range launch.Env {
		spec.Env[v.Name] = v.Value
	}
	if speaksYARN(a, c, launch) {
		maps.Copy(spec.Env, yarnEnvironment(a))
	}
	for name, value := range s.environment(a, c) { // ours win: they say who the container is
		spec.Env[name] = value
	}
	if _, member := spec.Env[job.EnvArrayCount]; member && c.Instance >= 0 {
		spec.Env[job.EnvArrayIndex] = strconv.Itoa(c.Instance)
	}
	for _, f := range launch.Artifacts {
		spec.Artifacts = append(spec.Artifacts, &pb.Artifact{
			Name: f.Name, Uri: f.URI, Kind: f.Kind, Size: f.Size, Sha256: f.SHA256,
			Timestamp: f.Timestamp, Visibility: f.Visibility, Content: f.Content, Pattern: f.Pattern,
		})
	}
	return spec, nil
}

// ownProgram reports whether a program of the user's runs in a container, and not one of ours on the user's behalf.
func ownProgram(a *rm.Application, c *rm.Container) bool { return !c.Master || a.Kind == rm.KindMaster }

// secretsOf are the names of the secrets that the containers of a job are given.
func secretsOf(a *rm.Application) []string {
	var document struct {
		Secrets []string `json:"secrets"`
	}
	if json.Unmarshal(a.Document, &document) != nil || jobsecret.CheckNames(document.Secrets) != nil {
		return nil // submitted by YARN's protocol, which has none
	}
	return document.Secrets
}

// launch is what runs in a container: what its ask said, or the master of its application.
func (s *Server) launch(view *state.View, a *rm.Application, c *rm.Container) (*rm.Launch, error) {
	if !c.Master {
		l := view.Launch(a.ID, c.Launch)
		if l == nil {
			return nil, fmt.Errorf("what runs in %v is forgotten", c.ID)
		}
		return l, nil
	}
	document, err := masterDocument(a)
	if err != nil {
		return nil, err
	}
	file := rm.Artifact{Name: job.File, Kind: "file", Size: int64(len(document)), Visibility: "application", Content: document}
	switch a.Kind {
	case rm.KindExperiment:
		return &rm.Launch{Argv: []string{s.config.Executable, "controller"}, Artifacts: []rm.Artifact{file}}, nil
	case rm.KindMaster:
		spec, err := job.Read(document)
		if err != nil {
			return nil, fmt.Errorf("the document of %v: %w", a.ID, err)
		}
		launch := spec.Launch(nil)
		launch.Tokens = a.Tokens
		if launch.Dialect == rm.DialectOurs {
			launch.Artifacts = append(slices.Clone(launch.Artifacts), file)
		}
		return &launch, nil
	}
	return &rm.Launch{Argv: []string{s.config.Executable, "am"}, Artifacts: []rm.Artifact{file}}, nil
}

// masterDocument is the submitted document with what the resource manager knows better.
func masterDocument(a *rm.Application) ([]byte, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(a.Document, &fields); err != nil {
		return nil, fmt.Errorf("the document of %v: %w", a.ID, err)
	}
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { // what a reader takes for one of ours
		return slices.ContainsFunc([]string{"id", "user", "queue", "submitted"}, func(ours string) bool { return strings.EqualFold(name, ours) })
	})
	for name, value := range map[string]any{"id": a.ID.String(), "user": a.User, "queue": a.Queue, "submitted": int64(a.Submitted)} {
		b, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		fields[name] = b
	}
	return json.Marshal(fields)
}

// environment is what a container is told about itself and the cluster. What depends on its directories and devices is
// the node manager's to add.
func (s *Server) environment(a *rm.Application, c *rm.Container) map[string]string {
	var http []string
	for _, p := range *s.peers.Load() {
		http = append(http, p.HTTP)
	}
	e := map[string]string{
		"HOPS_APPLICATION_ID": a.ID.String(),
		"HOPS_ATTEMPT":        strconv.Itoa(c.ID.Attempt.Number),
		"HOPS_CONTAINER_ID":   c.ID.String(),
		"HOPS_USER":           a.User,
		"HOPS_QUEUE":          a.Queue,
		"HOPS_LOG_DIR":        s.logDir(a.User, c.ID),
		"HOPS_RM":             strings.Join(http, ","),
		"HOPS_RM_GRPC":        strings.Join(s.managers(), ","),
		"HADOOP_USER_NAME":    a.User,
	}
	if c.Instance >= 0 {
		e["HOPS_INSTANCE"] = strconv.Itoa(c.Instance)
	}
	now := s.surroundings.Load()
	for name, value := range map[string]string{
		"HOPS_FS": now.FS, "HOPS_WEBHDFS": strings.Join(now.WebHDFS, ","), "HADOOP_CONF_DIR": now.HadoopConfDir,
	} {
		if value != "" {
			e[name] = value
		}
	}
	return e
}

func resourcesOf(r rm.Resource) *pb.Resources {
	return &pb.Resources{Memory: r.Memory, Vcores: int32(r.VCores), Gpus: int32(r.GPUs), Other: r.Other.Map()}
}

// resourceOf reads an amount that was sent. Error: metadata.ErrInvalidArgument.
func resourceOf(p *pb.Resources) (rm.Resource, error) {
	other, err := rm.NewAmounts(p.GetOther())
	if err == nil && (p == nil || p.Memory < 0 || p.Vcores < 0 || p.Gpus < 0 || p.Memory > 1<<50 || p.Vcores > 1<<20 || p.Gpus > maxGPUs) {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "the resources are missing or out of range")
	}
	return rm.Resource{Memory: p.GetMemory(), VCores: int(p.GetVcores()), GPUs: int(p.GetGpus()), Other: other}, err
}
