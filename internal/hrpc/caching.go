package hrpc

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What changes of cache pools and directives are about, as HDFS's audit log names it.

func directiveText(i *hadooppb.CacheDirectiveInfoProto) string {
	var parts []string
	if i.GetId() != 0 {
		parts = append(parts, fmt.Sprintf("id: %d", i.GetId()))
	}
	if i.GetPath() != "" {
		parts = append(parts, "path: "+i.GetPath())
	}
	if i.GetReplication() != 0 {
		parts = append(parts, fmt.Sprintf("replication: %d", i.GetReplication()))
	}
	if i.GetPool() != "" {
		parts = append(parts, "pool: "+i.GetPool())
	}
	if e := i.GetExpiration(); e != nil {
		parts = append(parts, "expiration: "+metadata.Expiration{Millis: e.GetMillis(), Relative: e.GetIsRelative()}.String())
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func idText(id int64) string { return fmt.Sprintf("{id: %d}", id) }

func poolText(name string) string { return "{poolName: " + name + "}" }
