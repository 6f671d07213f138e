package dfs

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/gohops/hops/internal/diskplan"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// DatanodeVolumes is a datanode and what the namenode knows of its volumes.
type DatanodeVolumes struct {
	Datanode
	Volumes []namenode.Volume
}

// DatanodeVolumes lists the volumes of all datanodes that live. Superusers only.
func (c *Client) DatanodeVolumes(ctx context.Context) ([]DatanodeVolumes, error) {
	var answer hadooppb.GetDatanodeStorageReportResponseProto
	err := c.call(ctx, "storage report", "", "getDatanodeStorageReport",
		&hadooppb.GetDatanodeStorageReportRequestProto{Type: hadooppb.DatanodeReportTypeProto(LiveDatanodes).Enum()}, &answer)
	if err != nil {
		return nil, err
	}
	nodes := make([]DatanodeVolumes, len(answer.GetDatanodeStorageReports()))
	for i, r := range answer.GetDatanodeStorageReports() {
		nodes[i].Datanode = datanodeOf(r.GetDatanodeInfo())
		for _, v := range r.GetStorageReports() {
			nodes[i].Volumes = append(nodes[i].Volumes, namenode.Volume{
				ID: namenode.VolumeID(v.GetStorage().GetStorageUuid()), Type: namenode.StorageType(v.GetStorage().GetStorageType()),
				Capacity: int64(v.GetCapacity()), Used: int64(v.GetDfsUsed()), Remaining: int64(v.GetRemaining()), Failed: v.GetFailed(),
			})
		}
	}
	return nodes, nil
}

// VolumePaths asks the datanode at an IPC address where its volumes are, by their storage uuids. Superusers only.
func (c *Client) VolumePaths(ctx context.Context, addr string) (map[string]string, error) {
	var answer hadooppb.GetDiskBalancerSettingResponseProto
	err := c.at(ctx, "volumes", addr, clientDatanodeProtocol, "getDiskBalancerSetting", &hadooppb.GetDiskBalancerSettingRequestProto{Key: new(diskplan.SettingVolumes)}, &answer)
	if err != nil {
		return nil, err
	}
	var paths map[string]string
	if err := json.Unmarshal([]byte(answer.GetValue()), &paths); err != nil {
		return nil, wrap("volumes", "", errors.New("the datanode's answer is not JSON: "+err.Error()))
	}
	return paths, nil
}

// SubmitDiskPlan has the datanode at an IPC address carry out a plan, which was read from a file; old: it may be of any age. Superusers only.
func (c *Client) SubmitDiskPlan(ctx context.Context, addr, file string, text []byte, old bool) error {
	return c.at(ctx, "plan", addr, clientDatanodeProtocol, "submitDiskBalancerPlan", &hadooppb.SubmitDiskBalancerPlanRequestProto{
		PlanID: new(diskplan.ID(text)), Plan: new(string(text)), PlanVersion: new(uint64(diskplan.Version)), IgnoreDateCheck: &old, PlanFile: &file,
	}, new(hadooppb.SubmitDiskBalancerPlanResponseProto))
}

// CancelDiskPlan ends a plan by its id. Superusers only.
func (c *Client) CancelDiskPlan(ctx context.Context, addr, id string) error {
	return c.at(ctx, "plan", addr, clientDatanodeProtocol, "cancelDiskBalancerPlan", &hadooppb.CancelDiskBalancerPlanRequestProto{PlanID: &id}, new(hadooppb.CancelDiskBalancerPlanResponseProto))
}

// DiskPlan asks the datanode at an IPC address how far it is with a plan. Superusers only.
func (c *Client) DiskPlan(ctx context.Context, addr string) (diskplan.Status, error) {
	var answer hadooppb.QueryDiskBalancerPlanResponseProto
	if err := c.at(ctx, "plan", addr, clientDatanodeProtocol, "queryDiskBalancerPlan", new(hadooppb.QueryDiskBalancerPlanRequestProto), &answer); err != nil {
		return diskplan.Status{}, err
	}
	s := diskplan.Status{Result: diskplan.Result(answer.GetResult()), ID: answer.GetPlanID(), File: answer.GetPlanFile()}
	if text := strings.TrimSpace(answer.GetCurrentStatus()); text != "" {
		if err := json.Unmarshal([]byte(text), &s.Work); err != nil {
			return s, wrap("plan", "", errors.New("the datanode's answer is not JSON: "+err.Error()))
		}
	}
	return s, nil
}
