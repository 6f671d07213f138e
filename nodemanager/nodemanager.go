// Package nodemanager names the things of a worker machine: containers with their states, what they may use, what they
// need in place, and how they ended. It has no behaviour beyond the words themselves; supervisor runs a container,
// localizer fills its directory, state remembers it, server speaks for the machine.
package nodemanager

import (
	"fmt"
	"regexp"
	"time"
)

// ContainerID identifies a container for ever: container_[e<epoch>_]<timestamp>_<application>_<attempt>_<number>.
type ContainerID string

var containerID = regexp.MustCompile(`^container_(e\d{2,}_)?\d{1,19}_\d{4,12}_\d{2,9}_\d{6,18}$`)

// Valid reports whether the id has YARN's form. Only valid ids become names of directories and control groups.
func (id ContainerID) Valid() bool { return len(id) <= 100 && containerID.MatchString(string(id)) }

// ApplicationID identifies an application: application_<timestamp>_<number>.
type ApplicationID string

// User is the name on whose behalf a container runs.
type User string

// Resources is what a container may use.
type Resources struct {
	// Memory in bytes; 0: not limited.
	Memory int64 `json:"memory"`
	VCores int   `json:"vcores"`
	// GPUs holds the UUIDs of the devices the container owns.
	GPUs []string `json:"gpus,omitempty"`
}

// ArtifactKind says what becomes of an artifact's bytes.
type ArtifactKind string

// The kinds of an artifact.
const (
	// File is put into the work directory as it is.
	File ArtifactKind = "file"
	// Archive (zip, tar, tar.gz) is unpacked into a directory of the artifact's name.
	Archive ArtifactKind = "archive"
	// Code is a zip with a manifest.json that lists every file with its sha256; it is verified and unpacked.
	Code ArtifactKind = "code"
	// Pattern is a zip of which those files are unpacked whose names match the artifact's Pattern, with the zip itself beside
	// them, as YARN does it. It is for shared artifacts only.
	Pattern ArtifactKind = "pattern"
)

// Visibility says whose containers may share a downloaded artifact.
type Visibility string

// The visibilities. Public artifacts are downloaded once for all users of a node, provided that everybody may read the file,
// those of an application are shared between its containers of one user, and any others between all containers of one user.
const (
	Public        Visibility = "public"
	OfApplication Visibility = "application"
)

// Artifact is something a container needs in its work directory before it starts.
type Artifact struct {
	// Name is a relative path in the work directory.
	Name string `json:"name"`
	// URI is hdfs://… or an absolute path of the cluster's filesystem. Empty: Content holds the bytes.
	URI  string       `json:"uri,omitempty"`
	Kind ArtifactKind `json:"kind"`
	// Size in bytes, checked when not 0.
	Size int64 `json:"size,omitempty"`
	// SHA256 in hexadecimal digits, checked when not empty.
	SHA256 string `json:"sha256,omitempty"`
	// Timestamp is the modification time in milliseconds, checked when not 0 and SHA256 is empty.
	Timestamp  int64      `json:"timestamp,omitempty"`
	Visibility Visibility `json:"visibility,omitempty"`
	// Pattern is a regular expression that whole names match, of an artifact of that kind.
	Pattern string `json:"pattern,omitempty"`
	Content []byte `json:"content,omitempty"`
}

// Spec is everything a node needs to run a container.
type Spec struct {
	ID          ContainerID       `json:"id"`
	Application ApplicationID     `json:"application"`
	Attempt     int               `json:"attempt"`
	User        User              `json:"user"`
	Queue       string            `json:"queue,omitempty"`
	Argv        []string          `json:"argv"`
	Env         map[string]string `json:"env,omitempty"`
	Artifacts   []Artifact        `json:"artifacts,omitempty"`
	Resources   Resources         `json:"resources"`
	// LogDir is the directory of the cluster's filesystem that receives the log files; empty: they stay here.
	LogDir string `json:"log_dir,omitempty"`
	// Grace lies between SIGTERM and SIGKILL.
	Grace time.Duration `json:"grace"`
	// Token is the container's secret towards the resource manager and its controller. It goes into a 0600 file.
	Token  string `json:"token,omitempty"`
	Master bool   `json:"master,omitempty"`
	// Secrets are names of the user's secrets that the container is given; their contents are in no record.
	Secrets []string `json:"secrets,omitempty"`
	// Strict: its processes are dead by the end of the node's lease (fencing, see resourcemanager/api). Otherwise no silence
	// of the resource managers ends it.
	Strict bool `json:"strict,omitempty"`
	// Dialect says how Argv and Env are meant.
	Dialect Dialect `json:"dialect,omitempty"`
	// Tokens: its launch brings credentials, which come with those of the container.
	Tokens bool `json:"tokens,omitempty"`
}

// Dialect says how the command and the environment of a container are meant.
type Dialect string

// The dialects. Ours is a program with its arguments, of which nothing is expanded. YARN's is one line for a shell.
const (
	Ours Dialect = ""
	YARN Dialect = "yarn"
)

// The limits of a Spec.
const (
	MaxArguments     = 4096
	MaxEnvironment   = 4096
	MaxSpecText      = 1 << 20 // bytes of argv and env together: execve takes 2 MiB
	MaxArtifacts     = 1024
	MaxGrace         = 10 * time.Minute
	DefaultGrace     = 5 * time.Second
	MaxInlineContent = 16 << 20
)

// Validate says what is wrong with the spec, naming the field.
func (s *Spec) Validate() error {
	if !s.ID.Valid() {
		return fmt.Errorf("container id %.120q has not YARN's form container_<timestamp>_<application>_<attempt>_<number>", string(s.ID))
	}
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return fmt.Errorf("container %s has no command", s.ID)
	}
	if len(s.Argv) > MaxArguments || len(s.Env) > MaxEnvironment || len(s.Artifacts) > MaxArtifacts {
		return fmt.Errorf("container %s has %d arguments, %d variables and %d artifacts; the most are %d, %d and %d",
			s.ID, len(s.Argv), len(s.Env), len(s.Artifacts), MaxArguments, MaxEnvironment, MaxArtifacts)
	}
	if s.Dialect != Ours && s.Dialect != YARN {
		return fmt.Errorf("container %s: dialect %.40q is none that this node manager knows", s.ID, string(s.Dialect))
	}
	if s.Dialect == YARN && len(s.Argv) != 1 {
		return fmt.Errorf("container %s: a launch in YARN's dialect is one command line, not %d", s.ID, len(s.Argv))
	}
	text := 0
	for _, a := range s.Argv {
		if hasNUL(a) {
			return fmt.Errorf("container %s: an argument contains a zero byte", s.ID)
		}
		text += len(a) + 1
	}
	for k, v := range s.Env {
		if !validName(k) || hasNUL(v) {
			return fmt.Errorf("container %s: %.60q is not the name of an environment variable, or its value contains a zero byte", s.ID, k)
		}
		text += len(k) + len(v) + 2
	}
	if text > MaxSpecText {
		return fmt.Errorf("container %s: arguments and environment are %d bytes, the most is %d", s.ID, text, MaxSpecText)
	}
	if s.Grace < 0 || s.Grace > MaxGrace {
		return fmt.Errorf("container %s: grace %v is outside 0..%v", s.ID, s.Grace, MaxGrace)
	}
	if s.Resources.Memory < 0 || s.Resources.VCores < 0 {
		return fmt.Errorf("container %s: negative resources", s.ID)
	}
	inline := 0
	for _, a := range s.Artifacts {
		inline += len(a.Content)
	}
	if inline > MaxInlineContent {
		return fmt.Errorf("container %s: %d bytes of inline artifacts, the most is %d", s.ID, inline, MaxInlineContent)
	}
	return nil
}

func hasNUL(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return true
		}
	}
	return false
}

func validName(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		if s[i] == 0 || s[i] == '=' {
			return false
		}
	}
	return true
}
