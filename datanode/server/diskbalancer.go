package server

import (
	"encoding/json"
	"strconv"

	"github.com/gohops/hops/datanode/diskbalance"
	"github.com/gohops/hops/internal/diskplan"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The calls of hdfs diskbalancer.

func (s *Server) submitPlan(m hrpc.Message) (hrpc.Message, error) {
	r := m.(*hadooppb.SubmitDiskBalancerPlanRequestProto)
	err := s.balancer.Submit(r.GetPlanID(), r.GetPlanVersion(), r.GetPlanFile(), []byte(r.GetPlan()), r.GetIgnoreDateCheck())
	return new(hadooppb.SubmitDiskBalancerPlanResponseProto), err
}

func (s *Server) cancelPlan(m hrpc.Message) (hrpc.Message, error) {
	err := s.balancer.Cancel(m.(*hadooppb.CancelDiskBalancerPlanRequestProto).GetPlanID())
	return new(hadooppb.CancelDiskBalancerPlanResponseProto), err
}

func (s *Server) queryPlan(hrpc.Message) (hrpc.Message, error) {
	now := s.balancer.Status()
	work := []byte("[ ]") // Java wants a list
	if len(now.Work) > 0 {
		var err error
		if work, err = json.MarshalIndent(now.Work, "", "  "); err != nil {
			return nil, err
		}
	}
	return &hadooppb.QueryDiskBalancerPlanResponseProto{
		Result: new(uint32(now.Result)), PlanID: new(now.ID), PlanFile: new(now.File), CurrentStatus: new(string(work)),
	}, nil
}

func (s *Server) balancerSetting(m hrpc.Message) (hrpc.Message, error) {
	var value string
	switch key := m.(*hadooppb.GetDiskBalancerSettingRequestProto).GetKey(); key {
	case diskplan.SettingVolumes:
		paths := map[string]string{}
		for _, v := range s.store.Volumes() {
			paths[v.ID] = v.Path
		}
		text, err := json.Marshal(paths)
		if err != nil {
			return nil, err
		}
		value = string(text)
	case diskplan.SettingBandwidth:
		value = strconv.Itoa(diskbalance.Bandwidth)
	default:
		return nil, diskbalance.UnknownKey(key)
	}
	return &hadooppb.GetDiskBalancerSettingResponseProto{Value: &value}, nil
}
