package server

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/gohops/hops/internal/jmx"
	"github.com/gohops/hops/internal/status"
)

// beans are what tools that watch HDFS read at /jmx, with the names and types of Hadoop 3.4.3. What there is nothing of here is left out.
func (s *Server) beans() []jmx.Bean {
	h := s.health()
	var capacity, used, remaining int64
	var failed []string
	paths, volumes := []string{}, map[string]map[string]any{}
	for _, v := range h.Volumes {
		paths = append(paths, v.Path)
		if v.Failed != "" {
			failed = append(failed, v.Path)
			continue
		}
		capacity, used, remaining = capacity+v.Capacity, used+v.Used, remaining+v.Remaining
		volumes[v.Path] = map[string]any{"numBlocks": v.Replicas, "usedSpace": v.Used, "freeSpace": v.Remaining, "reservedSpace": s.cfg.Reserve, "storageType": v.Type}
	}
	host, _ := os.Hostname() // without one the tag is empty
	cacheCapacity, cacheUsed, cached := s.memory.Figures()
	sets := jmx.Pairs(
		"Capacity", capacity, "DfsUsed", used, "Remaining", remaining, "NumFailedVolumes", len(failed),
		"CacheCapacity", cacheCapacity, "CacheUsed", cacheUsed, "NumBlocksCached", int64(cached),
	)
	addresses, actors := map[string]string{}, []map[string]string{}
	for _, n := range h.Namenodes {
		addresses[n.Address] = h.BlockPool
		state, ha := "CONNECTING", "standby"
		if n.Registered {
			state = "RUNNING"
		}
		if n.Leader {
			ha = "active"
		}
		actors = append(actors, map[string]string{"NamenodeAddress": n.Address, "BlockPoolID": h.BlockPool, "ActorState": state, "NamenodeHaState": ha, "LastHeartbeat": fmt.Sprint(int64(n.Silent))})
	}
	out := []jmx.Bean{
		{Name: "Hadoop:service=DataNode,name=DataNodeInfo", Type: "org.apache.hadoop.hdfs.server.datanode.DataNode", Attributes: jmx.Pairs(
			"Version", status.Version, "SoftwareVersion", status.Version, "XceiverCount", h.Transfers, "ActiveTransferThreadCount", h.Transfers,
			"RpcPort", portOf(s.cfg.IPC.Addr()), "DataPort", portOf(s.cfg.Transfer.Addr()), "HttpPort", portOf(s.cfg.HTTP.Addr()), "DNStartedTimeInMillis", jmx.Started.UnixMilli(),
			"NamenodeAddresses", text(addresses), "DatanodeHostname", s.id.Host, "BPServiceActorInfo", text(actors), "VolumeInfo", text(volumes), "ClusterId", h.Cluster,
			"SecurityEnabled", len(s.cfg.Offers) > 0,
		)},
		{Name: "Hadoop:service=DataNode,name=FSDatasetState-" + h.UUID, Type: "org.apache.hadoop.hdfs.server.datanode.fsdataset.impl.FsDatasetImpl", Attributes: append(
			jmx.Pairs("StorageInfo", "FSDataset{dirpath='["+strings.Join(paths, ", ")+"]'}", "FailedStorageLocations", append([]string{}, failed...)), sets...,
		)},
		{Name: "Hadoop:service=DataNode,name=FSDatasetState", Type: "FSDatasetState", Attributes: append(
			jmx.Pairs("tag.Context", "FSDatasetState", "tag.StorageInfo", "FSDataset{dirpath='["+strings.Join(paths, ", ")+"]'}", "tag.Hostname", host), sets...,
		)},
	}
	if rpc := s.rpc.Load(); rpc != nil {
		out = append(out, rpc.Bean("DataNode", "ClientDatanodeProtocolService", s.cfg.IPC.Addr()))
	}
	return out
}

func portOf(a net.Addr) string {
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return ""
	}
	return port
}

// text is a value as JSON inside a string, as Hadoop has lists and maps in beans.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always can be
	}
	return string(b)
}
