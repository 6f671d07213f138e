package server

import (
	"encoding/json"
	"testing"

	"github.com/gohops/hops/internal/jmx/jmxtest"
)

func TestBeansAreThoseOfHadoop(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.datanode("dn-1")
	m := c.leader()
	got := jmxtest.Check(t, m.http,
		"Hadoop:service=NameNode,name=NameNodeInfo", "Hadoop:service=NameNode,name=NameNodeStatus", "Hadoop:service=NameNode,name=FSNamesystem",
		"Hadoop:service=NameNode,name=FSNamesystemState", "Hadoop:service=NameNode,name=RpcActivityForPort0", "java.lang:type=Memory", "java.lang:type=Runtime", "java.lang:type=Threading")
	info := got["Hadoop:service=NameNode,name=NameNodeInfo"]
	var live map[string]map[string]any
	if err := json.Unmarshal([]byte(info["LiveNodes"].(string)), &live); err != nil || len(live) != 1 {
		t.Errorf("%v, %v", info["LiveNodes"], err)
	}
	for _, n := range live {
		if n["adminState"] != "In Service" {
			t.Errorf("%v", n)
		}
	}
	if s := got["Hadoop:service=NameNode,name=NameNodeStatus"]; s["State"] != "active" || s["HostAndPort"] != m.ipc {
		t.Errorf("%v", s)
	}
	if s := got["Hadoop:service=NameNode,name=FSNamesystemState"]; s["FSState"] != "Operational" || s["NumLiveDataNodes"] != json.Number("1") {
		t.Errorf("%v", s)
	}
}
