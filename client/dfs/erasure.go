package dfs

import (
	"context"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ErasurePolicyState is whether directories may be given a policy.
type ErasurePolicyState uint8

// The states, with HDFS's numbers.
const (
	ErasureDisabled ErasurePolicyState = 1
	ErasureEnabled  ErasurePolicyState = 2
	ErasureRemoved  ErasurePolicyState = 3
)

func (s ErasurePolicyState) String() string {
	return hadooppb.ErasureCodingPolicyState(s).String()
}

// ErasurePolicyInfo is a policy of the file system with its state.
type ErasurePolicyInfo struct {
	metadata.ErasurePolicy
	State ErasurePolicyState
}

// ErasurePolicies lists the policies of the file system.
func (c *Client) ErasurePolicies(ctx context.Context) ([]ErasurePolicyInfo, error) {
	var answer hadooppb.GetErasureCodingPoliciesResponseProto
	if err := c.call(ctx, "erasure coding policies", "", "getErasureCodingPolicies", new(hadooppb.GetErasureCodingPoliciesRequestProto), &answer); err != nil {
		return nil, err
	}
	var all []ErasurePolicyInfo
	for _, p := range answer.GetEcPolicies() {
		policy, _ := erasurePolicyOf(p) // one that cannot be used is listed
		all = append(all, ErasurePolicyInfo{policy, ErasurePolicyState(p.GetState())})
	}
	return all, nil
}

// ErasureCodec is a code, and what computes it at the servers.
type ErasureCodec struct{ Name, Coders string }

// ErasureCodecs lists the codes that the file system's policies can be of.
func (c *Client) ErasureCodecs(ctx context.Context) ([]ErasureCodec, error) {
	var answer hadooppb.GetErasureCodingCodecsResponseProto
	if err := c.call(ctx, "erasure coding codecs", "", "getErasureCodingCodecs", new(hadooppb.GetErasureCodingCodecsRequestProto), &answer); err != nil {
		return nil, err
	}
	var all []ErasureCodec
	for _, codec := range answer.GetCodec() {
		all = append(all, ErasureCodec{codec.GetCodec(), codec.GetCoders()})
	}
	return all, nil
}

// SwitchErasurePolicy enables a policy, or disables it: directories cannot be given it then, and what has it keeps it. Superusers only.
func (c *Client) SwitchErasurePolicy(ctx context.Context, policy string, enable bool) error {
	if enable {
		return c.call(ctx, "enable erasure coding policy", policy, "enableErasureCodingPolicy",
			&hadooppb.EnableErasureCodingPolicyRequestProto{EcPolicyName: &policy}, new(hadooppb.EnableErasureCodingPolicyResponseProto))
	}
	return c.call(ctx, "disable erasure coding policy", policy, "disableErasureCodingPolicy",
		&hadooppb.DisableErasureCodingPolicyRequestProto{EcPolicyName: &policy}, new(hadooppb.DisableErasureCodingPolicyResponseProto))
}

// RemoveErasurePolicy removes a policy that users have added. Superusers only.
func (c *Client) RemoveErasurePolicy(ctx context.Context, policy string) error {
	return c.call(ctx, "remove erasure coding policy", policy, "removeErasureCodingPolicy",
		&hadooppb.RemoveErasureCodingPolicyRequestProto{EcPolicyName: &policy}, new(hadooppb.RemoveErasureCodingPolicyResponseProto))
}

// SetErasurePolicy says how files that are made below a directory from now on are coded: the name of a policy, namenode.ReplicationPolicy for
// none; empty is the server's default.
func (c *Client) SetErasurePolicy(ctx context.Context, dir, policy string) error {
	dir, err := clean("set erasure coding policy", dir)
	if err != nil {
		return err
	}
	request := &hadooppb.SetErasureCodingPolicyRequestProto{Src: &dir}
	if policy != "" {
		request.EcPolicyName = &policy
	}
	return c.call(ctx, "set erasure coding policy", dir, "setErasureCodingPolicy", request, new(hadooppb.SetErasureCodingPolicyResponseProto))
}

// UnsetErasurePolicy leaves it to the directory above how files are coded.
func (c *Client) UnsetErasurePolicy(ctx context.Context, dir string) error {
	dir, err := clean("unset erasure coding policy", dir)
	if err != nil {
		return err
	}
	return c.call(ctx, "unset erasure coding policy", dir, "unsetErasureCodingPolicy",
		&hadooppb.UnsetErasureCodingPolicyRequestProto{Src: &dir}, new(hadooppb.UnsetErasureCodingPolicyResponseProto))
}

// ErasurePolicy is that of a file, or of the files that are made in a directory; nil: they are replicated.
func (c *Client) ErasurePolicy(ctx context.Context, name string) (*metadata.ErasurePolicy, error) {
	name, err := clean("erasure coding policy", name)
	if err != nil {
		return nil, err
	}
	var answer hadooppb.GetErasureCodingPolicyResponseProto
	if err := c.call(ctx, "erasure coding policy", name, "getErasureCodingPolicy", &hadooppb.GetErasureCodingPolicyRequestProto{Src: &name}, &answer); err != nil {
		return nil, err
	}
	if answer.GetEcPolicy() == nil {
		return nil, nil
	}
	policy, _ := erasurePolicyOf(answer.GetEcPolicy())
	return &policy, nil
}

// ErasureTopology says whether there are datanodes and racks enough for some policies, for those that are enabled if none is named. Superusers
// only.
func (c *Client) ErasureTopology(ctx context.Context, policies ...string) (namenode.ErasureTopology, error) {
	var answer hadooppb.GetECTopologyResultForPoliciesResponseProto
	err := c.call(ctx, "verify cluster setup", "", "getECTopologyResultForPolicies", &hadooppb.GetECTopologyResultForPoliciesRequestProto{Policies: policies}, &answer)
	return namenode.ErasureTopology{Supported: answer.GetResponse().GetIsSupported(), Message: answer.GetResponse().GetResultMessage()}, err
}

// erasurePolicyOf is a policy as it comes over the wire: of one that every HDFS has just the number. Errors: ErrUnsupported for what cannot be
// coded here; what is known of the policy comes with it.
func erasurePolicyOf(p *hadooppb.ErasureCodingPolicyProto) (metadata.ErasurePolicy, error) {
	policy, known := metadata.ErasurePolicyOf(metadata.ErasurePolicyID(p.GetId()))
	if !known || p.GetId() > 255 {
		s := p.GetSchema()
		policy = metadata.ErasurePolicy{
			ID: metadata.ErasurePolicyID(p.GetId()), Name: p.GetName(), Codec: s.GetCodecName(),
			Layout: stripe.Layout{Data: int(s.GetDataUnits()), Parity: int(s.GetParityUnits()), Cell: int64(p.GetCellSize())},
		}
	}
	if !policy.Built() || policy.Layout.Validate() != nil {
		return policy, metadata.Errorf(metadata.ErrUnsupported, "the erasure coding policy %s (number %d) is not supported", policy.Name, p.GetId())
	}
	return policy, nil
}

// coderOf is the coder of a policy as it comes over the wire, nil where there is none. The cells have to consist of whole chunks.
func coderOf(p *hadooppb.ErasureCodingPolicyProto, sum dtp.Checksum) (*erasure.Coder, error) {
	if p.GetId() == 0 {
		return nil, nil
	}
	policy, err := erasurePolicyOf(p)
	if err != nil {
		return nil, err
	}
	if policy.Layout.Cell%int64(sum.BytesPer) != 0 {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the erasure coding policy %s has cells of %d bytes, which are no whole chunks of %d", policy.Name, policy.Layout.Cell, sum.BytesPer)
	}
	return erasure.New(policy)
}
