package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/namenode"
)

// erasureItem is the item of the register that says which policies are enabled.
const erasureItem = "erasure"

// enabledPolicies is the value of that item.
type enabledPolicies struct {
	// Enabled are names, sorted.
	Enabled []string `json:"enabled"`
}

// enabledErasure are the names of the enabled policies, and the version of the item. Where nobody has said anything it is HDFS's default policy;
// below the level there is none.
func (s *Server) enabledErasure() (names []string, version uint64, err error) {
	value, version := s.ns.Item(erasureItem)
	switch {
	case s.group.Level() < release.ErasureCoding:
		return nil, version, nil
	case value == nil:
		return []string{metadata.DefaultErasurePolicy}, version, nil
	}
	var kept enabledPolicies
	if err := json.Unmarshal(value, &kept); err != nil {
		return nil, version, fmt.Errorf("item %s of the register: %w", erasureItem, err)
	}
	return kept.Enabled, version, nil
}

// ErasurePolicies implements namenode.Erasure.
func (s *Server) ErasurePolicies(c metadata.Caller, done func([]namenode.ErasurePolicy, error)) {
	ask(s, &c, done, func() ([]namenode.ErasurePolicy, error) {
		enabled, _, err := s.enabledErasure()
		if err != nil {
			return nil, err
		}
		var all []namenode.ErasurePolicy
		for _, p := range metadata.ErasurePolicies() {
			all = append(all, namenode.ErasurePolicy{ErasurePolicy: p, Enabled: slices.Contains(enabled, p.Name)})
		}
		slices.SortFunc(all, func(a, b namenode.ErasurePolicy) int { return cmp.Compare(a.Name, b.Name) })
		return all, nil
	})
}

// switchTries is how often a change of the enabled policies is tried while others change them.
const switchTries = 10

// SwitchErasurePolicy implements namenode.Erasure.
func (s *Server) SwitchErasurePolicy(c metadata.Caller, name string, enable bool, done func(error)) {
	operation := "disableErasureCodingPolicy"
	if enable {
		operation = "enableErasureCodingPolicy"
	}
	p, known := metadata.ErasurePolicyNamed(name)
	_, err := s.leading()
	if err == nil {
		err = s.safe.check(s)
	}
	switch {
	case err != nil:
	case !c.Superuser:
		err = metadata.NeedsSuperuser(c.User, operation)
	case !known:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "The policy name %s does not exist", name)
	case enable && !p.Built():
		err = metadata.Errorf(metadata.ErrUnsupported, "%s: the code %s of policy %s is not supported", operation, p.Codec, name)
	default:
		err = s.codes()
	}
	if err != nil {
		done(err)
		return
	}
	s.switchErasure(name, enable, switchTries, done)
}

// switchErasure changes the register, again if others have changed it meanwhile.
func (s *Server) switchErasure(name string, enable bool, tries int, done func(error)) {
	names, version, err := s.enabledErasure()
	switch {
	case err != nil:
	case slices.Contains(names, name) == enable:
		done(nil)
		return
	case tries == 0:
		err = metadata.Errorf(metadata.ErrRetriable, "others change the erasure coding policies at the same time: try again")
	}
	if err != nil {
		done(err)
		return
	}
	after := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
	if enable {
		after = append(after, name)
		slices.Sort(after)
	}
	s.proposeItems([]*logpb.ItemChange{itemChange(erasureItem, enabledPolicies{Enabled: after}, version)}, func(changed bool, err error) {
		if err != nil || changed {
			done(err)
			return
		}
		s.switchErasure(name, enable, tries-1, done)
	})
}

// codes refuses erasure coding while members may run that do not know it.
func (s *Server) codes() error {
	if s.group.Level() < release.ErasureCoding {
		return metadata.Errorf(metadata.ErrUnsupported, "erasure coding needs a cluster of level %d: raise it (`hops cluster finalize`)", release.ErasureCoding)
	}
	return nil
}

// erasureNamed is 1 + the number of a policy that directories and files may be given, as commands have it.
func (s *Server) erasureNamed(name string) (uint32, error) {
	if strings.EqualFold(name, namenode.ReplicationPolicy) {
		return 1, nil
	}
	enabled, _, err := s.enabledErasure()
	if err != nil {
		return 0, err
	}
	p, known := metadata.ErasurePolicyNamed(name)
	if !known || !slices.Contains(enabled, name) {
		return 0, metadata.Errorf(metadata.ErrInvalidArgument, "Policy '%s' does not match any enabled erasure coding policies: [%s]. "+
			"An erasure coding policy can be enabled by enableErasureCodingPolicy API.", name, strings.Join(enabled, ", "))
	}
	return 1 + uint32(p.ID), nil
}

// SetErasurePolicy implements namenode.Erasure.
func (s *Server) SetErasurePolicy(c metadata.Caller, retry namenode.Retry, path, policy string, done func(error)) {
	if policy == "" {
		policy = metadata.DefaultErasurePolicy
	}
	if _, err := s.leading(); err != nil {
		done(err)
		return
	}
	number, err := s.erasureNamed(policy)
	if err != nil {
		done(err)
		return
	}
	if s.group.Level() < release.ErasureCoding { // all is replicated, and MapReduce asks for it
		s.replicated(c, path, done)
		return
	}
	s.setErasure(c, retry, path, number, done)
}

// UnsetErasurePolicy implements namenode.Erasure.
func (s *Server) UnsetErasurePolicy(c metadata.Caller, retry namenode.Retry, path string, done func(error)) {
	if s.group.Level() >= release.ErasureCoding {
		s.setErasure(c, retry, path, 0, done)
		return
	}
	s.replicated(c, path, func(err error) {
		if err == nil {
			err = metadata.Errorf(metadata.ErrNoErasureCoding, "No erasure coding policy explicitly set on %s", path)
		}
		done(err)
	})
}

func (s *Server) setErasure(c metadata.Caller, retry namenode.Retry, path string, number uint32, done func(error)) {
	t, err := target(path)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetErasurePolicy{SetErasurePolicy: &logpb.SetErasurePolicy{Target: t, Policy: number}}
	s.simple(&c, retry, e, done)
}

// replicated checks what a change of a directory's policy would, while there is no policy.
func (s *Server) replicated(c metadata.Caller, path string, done func(error)) {
	s.Stat(c, path, func(f *metadata.FileStatus, err error) {
		switch {
		case err != nil:
		case f == nil:
			err = metadata.Errorf(metadata.ErrNotExist, "Path not found: %s", path)
		case !f.IsDir():
			err = metadata.Errorf(metadata.ErrIO, "Attempt to set an erasure coding policy for a file %s", path)
		}
		if err != nil {
			done(err)
			return
		}
		s.CheckAccess(c, path, metadata.Write, done)
	})
}

// ErasurePolicy implements namenode.Erasure.
func (s *Server) ErasurePolicy(c metadata.Caller, path string, done func(*metadata.ErasurePolicy, error)) {
	s.Stat(c, path, func(f *metadata.FileStatus, err error) {
		if err == nil && f == nil {
			err = metadata.Errorf(metadata.ErrNotExist, "Path not found: %s", path)
		}
		if err != nil {
			done(nil, err)
			return
		}
		s.CheckAccess(c, path, metadata.Read, func(err error) {
			p, coded := metadata.ErasurePolicyOf(f.Erasure)
			if err != nil || !coded {
				done(nil, err)
				return
			}
			done(&p, nil)
		})
	})
}

// ErasureTopology implements namenode.Erasure, in the words of HDFS's ECTopologyVerifier: as many datanodes as the largest group has internal
// blocks, and racks enough that a group survives the loss of one.
func (s *Server) ErasureTopology(c metadata.Caller, policies []string, done func(namenode.ErasureTopology, error)) {
	if !c.Superuser {
		done(namenode.ErasureTopology{}, metadata.NeedsSuperuser(c.User, "getECTopologyResultForPolicies"))
		return
	}
	ask(s, &c, done, func() (namenode.ErasureTopology, error) {
		if len(policies) == 0 {
			var err error
			if policies, _, err = s.enabledErasure(); err != nil {
				return namenode.ErasureTopology{}, err
			}
		}
		nodes, racks, names := 0, 0, make([]string, 0, len(policies))
		for _, name := range policies {
			p, known := metadata.ErasurePolicyNamed(name)
			if !known {
				return namenode.ErasureTopology{}, metadata.Errorf(metadata.ErrInvalidArgument, "The given erasure coding policy %s does not exist.", name)
			}
			nodes, racks = max(nodes, p.Layout.Units()), max(racks, (p.Layout.Units()+p.Layout.Parity-1)/p.Layout.Parity)
			names = append(names, name)
		}
		return s.topologyFor(nodes, racks, strings.Join(names, ", ")), nil
	})
}

func (s *Server) topologyFor(nodes, racks int, names string) namenode.ErasureTopology {
	if nodes == 0 {
		return namenode.ErasureTopology{Supported: true, Message: "No erasure coding policy is given."}
	}
	live, stand := 0, map[string]struct{}{}
	for _, n := range s.Datanodes() {
		if n.Alive {
			live++
			stand[n.Node.Rack] = struct{}{}
		}
	}
	switch {
	case live < nodes:
		return namenode.ErasureTopology{Message: fmt.Sprintf("%d DataNodes are required for the erasure coding policies: %s. The number of DataNodes is only %d.", nodes, names, live)}
	case len(stand) < racks:
		return namenode.ErasureTopology{Message: fmt.Sprintf("%d racks are required for the erasure coding policies: %s. The number of racks is only %d.", racks, names, len(stand))}
	}
	return namenode.ErasureTopology{Supported: true, Message: "The cluster setup can support EC policies: " + names}
}

// enabledNames are the names of the enabled policies as HDFS's JMX has them.
func (s *Server) enabledNames() string {
	names, _, _ := s.enabledErasure() // what cannot be read is said where policies are asked for
	return strings.Join(names, ", ")
}
