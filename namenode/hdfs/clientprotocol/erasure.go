package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Of policies that every HDFS has only the number is sent, as HDFS does.

func (p *protocol) getErasureCodingPolicies(c *hrpc.Call, _ *pb.GetErasureCodingPoliciesRequestProto) {
	p.service.ErasurePolicies(c.Caller, result(c, func(all []namenode.ErasurePolicy) hrpc.Message {
		answer := &pb.GetErasureCodingPoliciesResponseProto{}
		for _, one := range all {
			state := pb.ErasureCodingPolicyState_DISABLED
			if one.Enabled {
				state = pb.ErasureCodingPolicyState_ENABLED
			}
			answer.EcPolicies = append(answer.EcPolicies, &pb.ErasureCodingPolicyProto{Id: ptr(uint32(one.ID)), State: state.Enum()})
		}
		return answer
	}))
}

func (p *protocol) getErasureCodingCodecs(c *hrpc.Call, _ *pb.GetErasureCodingCodecsRequestProto) {
	answer := &pb.GetErasureCodingCodecsResponseProto{}
	for _, codec := range hdfs.ErasureCodecs() {
		answer.Codec = append(answer.Codec, &pb.CodecProto{Codec: ptr(codec.Name), Coders: ptr(codec.Coders)})
	}
	c.Reply(answer)
}

func (p *protocol) getErasureCodingPolicy(c *hrpc.Call, r *pb.GetErasureCodingPolicyRequestProto) {
	p.service.ErasurePolicy(c.Caller, r.GetSrc(), result(c, func(policy *metadata.ErasurePolicy) hrpc.Message {
		answer := &pb.GetErasureCodingPolicyResponseProto{}
		if policy != nil {
			answer.EcPolicy = &pb.ErasureCodingPolicyProto{Id: ptr(uint32(policy.ID))}
		}
		return answer
	}))
}

func (p *protocol) setErasureCodingPolicy(c *hrpc.Call, r *pb.SetErasureCodingPolicyRequestProto) {
	p.service.SetErasurePolicy(c.Caller, retry(c), r.GetSrc(), r.GetEcPolicyName(), done(c))
}

func (p *protocol) unsetErasureCodingPolicy(c *hrpc.Call, r *pb.UnsetErasureCodingPolicyRequestProto) {
	p.service.UnsetErasurePolicy(c.Caller, retry(c), r.GetSrc(), done(c))
}

func (p *protocol) enableErasureCodingPolicy(c *hrpc.Call, r *pb.EnableErasureCodingPolicyRequestProto) {
	p.service.SwitchErasurePolicy(c.Caller, r.GetEcPolicyName(), true, done(c))
}

func (p *protocol) disableErasureCodingPolicy(c *hrpc.Call, r *pb.DisableErasureCodingPolicyRequestProto) {
	p.service.SwitchErasurePolicy(c.Caller, r.GetEcPolicyName(), false, done(c))
}

// maxPolicies is how many policies one addErasureCodingPolicies names; HDFS has room for 64 in all.
const maxPolicies = 64

// addErasureCodingPolicies answers for each policy as HDFS does where none may be added (dfs.namenode.ec.userdefined.policy.allowed).
func (p *protocol) addErasureCodingPolicies(c *hrpc.Call, r *pb.AddErasureCodingPoliciesRequestProto) {
	if len(r.EcPolicies) > maxPolicies {
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "%d erasure coding policies are more than %d", len(r.EcPolicies), maxPolicies))
		return
	}
	answer := &pb.AddErasureCodingPoliciesResponseProto{}
	for _, policy := range r.EcPolicies {
		answer.Responses = append(answer.Responses, &pb.AddErasureCodingPolicyResponseProto{
			Policy: policy, Succeed: no, ErrorMsg: ptr("Addition of user defined erasure coding policy is disabled."),
		})
	}
	c.Reply(answer)
}

// removeErasureCodingPolicy removes nothing: there are the policies only that every HDFS has, which it does not remove either.
func (p *protocol) removeErasureCodingPolicy(c *hrpc.Call, r *pb.RemoveErasureCodingPolicyRequestProto) {
	if _, known := metadata.ErasurePolicyNamed(r.GetEcPolicyName()); known {
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "System erasure coding policy %s cannot be removed", r.GetEcPolicyName()))
		return
	}
	c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "The policy name %s does not exist", r.GetEcPolicyName()))
}

func (p *protocol) getECTopologyResultForPolicies(c *hrpc.Call, r *pb.GetECTopologyResultForPoliciesRequestProto) {
	p.service.ErasureTopology(c.Caller, r.Policies, result(c, func(t namenode.ErasureTopology) hrpc.Message {
		return &pb.GetECTopologyResultForPoliciesResponseProto{
			Response: &pb.ECTopologyVerifierResultProto{ResultMessage: &t.Message, IsSupported: &t.Supported},
		}
	}))
}

func (p *protocol) beginRewrite(c *hrpc.Call, r *pb.BeginRewriteRequestProto) {
	if err := client(r.GetClientName()); err != nil {
		c.Fail(err)
		return
	}
	p.service.BeginRewrite(c.Caller, namenode.RewriteRequest{
		Retry: retry(c), File: file(r.GetFileId(), r.GetSrc()), Client: r.GetClientName(), Tail: r.GetTail(), Policy: r.GetPolicy(), Replication: int(int16(r.GetReplication())),
	}, result(c, func(made *namenode.Rewrite) hrpc.Message {
		f := &made.Status
		answer := &pb.BeginRewriteResponseProto{
			Source: ptr(uint64(f.ID)), Blocks: &made.Blocks, BlockSize: ptr(uint64(f.BlockSize)), Replication: ptr(uint32(f.Replication)), Length: ptr(uint64(made.Length)),
		}
		if f.Erasure != 0 {
			answer.EcPolicy = &pb.ErasureCodingPolicyProto{Id: ptr(uint32(f.Erasure))}
		}
		return answer
	}))
}

func (p *protocol) endRewrite(c *hrpc.Call, r *pb.EndRewriteRequestProto) {
	tail, err := p.block(r.Tail)
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.EndRewrite(c.Caller, namenode.EndRewriteRequest{
		Retry: retry(c), File: file(r.GetFileId(), r.GetSrc()), Client: r.GetClientName(), Tail: tail, Source: metadata.INodeID(r.GetSource()), Blocks: r.GetBlocks(),
	}, result(c, func(last *namenode.LocatedBlock) hrpc.Message {
		answer := &pb.EndRewriteResponseProto{}
		if last != nil {
			answer.Last = &pb.ExtendedBlockProto{
				PoolId: p.blockPool(), BlockId: ptr(uint64(last.Block.ID)), GenerationStamp: ptr(uint64(last.Block.Generation)), NumBytes: ptr(uint64(last.Block.Length)),
			}
		}
		return answer
	}))
}
