package webhdfs

import (
	"bytes"
	"encoding/json"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
)

// ecStatus is what a file's status has of its erasure coding policy.
type ecStatus struct {
	ECBit       bool      `json:"ecBit,omitempty"`
	ECPolicy    string    `json:"ecPolicy,omitempty"`
	ECPolicyObj *ecObject `json:"ecPolicyObj,omitempty"`
}

// ecObject is a policy as HDFS has it in the status of files (JsonUtil.getEcPolicyAsMap).
type ecObject struct {
	Name           string   `json:"name"`
	CellSize       int64    `json:"cellSize"`
	NumDataUnits   int      `json:"numDataUnits"`
	NumParityUnits int      `json:"numParityUnits"`
	CodecName      string   `json:"codecName"`
	ID             uint8    `json:"id"`
	ExtraOptions   struct{} `json:"extraOptions"`
}

func ecObjectOf(p metadata.ErasurePolicy) *ecObject {
	return &ecObject{Name: p.Name, CellSize: p.Layout.Cell, NumDataUnits: p.Layout.Data, NumParityUnits: p.Layout.Parity, CodecName: p.Codec, ID: uint8(p.ID)}
}

// ecPolicy is a policy as HDFS has it elsewhere, the fields of its Java class.
type ecPolicy struct {
	Name              string   `json:"name"`
	Schema            ecSchema `json:"schema"`
	CellSize          int64    `json:"cellSize"`
	ID                uint8    `json:"id"`
	NumDataUnits      int      `json:"numDataUnits"`
	NumParityUnits    int      `json:"numParityUnits"`
	CodecName         string   `json:"codecName"`
	ReplicationPolicy bool     `json:"replicationPolicy"`
	SystemPolicy      bool     `json:"systemPolicy"`
}

type ecSchema struct {
	CodecName      string   `json:"codecName"`
	NumDataUnits   int      `json:"numDataUnits"`
	NumParityUnits int      `json:"numParityUnits"`
	ExtraOptions   struct{} `json:"extraOptions"`
}

func ecPolicyOf(p metadata.ErasurePolicy) *ecPolicy {
	data, parity := p.Layout.Data, p.Layout.Parity
	return &ecPolicy{
		Name: p.Name, Schema: ecSchema{CodecName: p.Codec, NumDataUnits: data, NumParityUnits: parity}, CellSize: p.Layout.Cell, ID: uint8(p.ID),
		NumDataUnits: data, NumParityUnits: parity, CodecName: p.Codec, SystemPolicy: true,
	}
}

type ecPolicyInfo struct {
	State  string    `json:"state"`
	Policy *ecPolicy `json:"policy"`
}

func (q *request) ecPolicy() (response, error) {
	p, err := wait(q, func(done func(*metadata.ErasurePolicy, error)) { q.service.ErasurePolicy(q.caller, q.path, done) })
	if err != nil || p == nil {
		return body(nil), err
	}
	return body(ecPolicyOf(*p)), nil
}

func (q *request) setECPolicy() (response, error) {
	return nothing(finish(q, func(done func(error)) {
		q.service.SetErasurePolicy(q.caller, namenode.Retry{}, q.path, q.params["ecpolicy"], done)
	}))
}

func (q *request) unsetECPolicy() (response, error) {
	return nothing(finish(q, func(done func(error)) { q.service.UnsetErasurePolicy(q.caller, namenode.Retry{}, q.path, done) }))
}

func (q *request) enableECPolicy() (response, error)  { return q.switchECPolicy(true) }
func (q *request) disableECPolicy() (response, error) { return q.switchECPolicy(false) }

func (q *request) switchECPolicy(enable bool) (response, error) {
	return nothing(finish(q, func(done func(error)) { q.service.SwitchErasurePolicy(q.caller, q.params["ecpolicy"], enable, done) }))
}

func (q *request) ecPolicies() (response, error) {
	var out struct {
		ErasureCodingPolicies struct{ ErasureCodingPolicyInfo []ecPolicyInfo }
	}
	all, err := wait(q, func(done func([]namenode.ErasurePolicy, error)) { q.service.ErasurePolicies(q.caller, done) })
	for _, one := range all {
		state := "DISABLED"
		if one.Enabled {
			state = "ENABLED"
		}
		out.ErasureCodingPolicies.ErasureCodingPolicyInfo = append(out.ErasureCodingPolicies.ErasureCodingPolicyInfo, ecPolicyInfo{state, ecPolicyOf(one.ErasurePolicy)})
	}
	return body(out), err
}

// ecCodecs is an object whose members are the codes, in their order.
type ecCodecs []hdfs.ErasureCodec

// MarshalJSON implements json.Marshaler.
func (c ecCodecs) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, codec := range c {
		name, err := json.Marshal(codec.Name)
		if err != nil {
			return nil, err
		}
		coders, err := json.Marshal(codec.Coders)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(coders)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (q *request) ecCodecs() (response, error) {
	var out struct{ ErasureCodingCodecs ecCodecs }
	out.ErasureCodingCodecs = hdfs.ErasureCodecs()
	return body(out), nil
}
