package hadoop

import (
	"strings"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/nodemanager"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// maxTokens bounds the credentials of a launch, in bytes.
const maxTokens = 128 << 10

var kinds = map[pb.LocalResourceTypeProto]nodemanager.ArtifactKind{
	pb.LocalResourceTypeProto_FILE: nodemanager.File, pb.LocalResourceTypeProto_ARCHIVE: nodemanager.Archive, pb.LocalResourceTypeProto_PATTERN: nodemanager.Pattern,
}

// launchOf takes a launch context for what it is to the rest of the cluster: a launch in YARN's dialect. Errors name what is not
// taken.
func launchOf(c *pb.ContainerLaunchContextProto) (*rmpb.Launch, error) {
	command := strings.Join(c.GetCommand(), " ")
	if strings.TrimSpace(command) == "" {
		return nil, refuse(classYARN, "the launch context has no command")
	}
	if n := len(c.GetLocalResources()); n > nodemanager.MaxArtifacts {
		return nil, refuse(classYARN, "the launch context has %d local resources, the most are %d: put files into an archive", n, nodemanager.MaxArtifacts)
	}
	if n := len(c.GetEnvironment()); n > nodemanager.MaxEnvironment {
		return nil, refuse(classYARN, "the launch context has %d variables, the most are %d", n, nodemanager.MaxEnvironment)
	}
	text := len(command)
	l := &rmpb.Launch{Argv: []string{command}, Env: map[string]string{}, Dialect: rm.DialectYARN, Tokens: c.GetTokens()}
	for _, v := range c.GetEnvironment() {
		l.Env[v.GetKey()] = v.GetValue()
		text += len(v.GetKey()) + len(v.GetValue()) + 2
	}
	if text > nodemanager.MaxSpecText {
		return nil, refuse(classYARN, "command and environment of the launch context are %d bytes, the most is %d", text, nodemanager.MaxSpecText)
	}
	if n := len(l.Tokens); n > maxTokens {
		return nil, refuse(classYARN, "the launch context brings %d bytes of tokens, the most is %d", n, maxTokens)
	}
	if len(l.Tokens) > 0 {
		file, err := token.ParseFile(l.Tokens)
		if err != nil {
			return nil, refuse(classYARN, "the tokens of the launch context: %v", err)
		}
		l.Tokens = nil // without what is behind them
		if len(file.Tokens) > 0 || len(file.Secrets) > 0 {
			l.Tokens = file.Encode()
		}
	}
	for _, r := range c.GetLocalResources() {
		a, err := artifactOf(r)
		if err != nil {
			return nil, err
		}
		if n := len(a.Name) + len(a.Uri); n > 8<<10 {
			return nil, refuse(classYARN, "local resource %.100q: its name and place are %d bytes", a.Name, n)
		}
		l.Artifacts = append(l.Artifacts, a)
	}
	return l, nil
}

func artifactOf(p *pb.StringLocalResourceMapProto) (*rmpb.Artifact, error) {
	r, name := p.GetValue(), p.GetKey()
	if r.GetResource() == nil {
		return nil, refuse(classYARN, "Null resource URL for local resource %s : %s", name, "it has no place")
	}
	kind, ok := kinds[r.GetType()]
	if !ok || r.Type == nil {
		return nil, refuse(classYARN, "Null resource type for local resource %s", name)
	}
	if r.Visibility == nil {
		return nil, refuse(classYARN, "Null resource visibility for local resource %s", name)
	}
	if err := linkName(name); err != "" {
		return nil, refuse(classYARN, "local resource %.100q: %s", name, err)
	}
	return &rmpb.Artifact{
		Name: name, Uri: pb.URL(r.GetResource()), Kind: string(kind), Size: max(0, r.GetSize()), Timestamp: r.GetTimestamp(),
		Visibility: strings.ToLower(r.GetVisibility().String()), Pattern: r.GetPattern(),
	}, nil
}

// linkName says what is wrong with the name of a link in the work directory.
func linkName(name string) string {
	switch {
	case name == "":
		return "the link has no name"
	case strings.HasPrefix(name, "/"), name == "..", strings.HasPrefix(name, "../"), strings.Contains(name, "/../"), strings.HasSuffix(name, "/.."):
		return "the link would lie outside of the container's directory"
	case strings.ContainsRune(name, 0):
		return "the link's name has a zero byte"
	}
	return ""
}
