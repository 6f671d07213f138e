package hrpc

import (
	"net"
	"os"
	"time"

	"github.com/gohops/hops/internal/jmx"
)

// Bean is Hadoop's bean of what a port has served, for /jmx (RpcMetrics). service is "NameNode" or "DataNode", name Hadoop's of what is
// served. Times are means in milliseconds since the start.
func (s *Server) Bean(service, name string, addr net.Addr) jmx.Bean {
	n := s.Counts()
	port := "0"
	if _, p, err := net.SplitHostPort(addr.String()); err == nil {
		port = p
	}
	mean := func(sum time.Duration) float64 {
		return float64(sum.Microseconds()) / 1e3 / float64(max(n.Answered, 1))
	}
	host, _ := os.Hostname() // without one the tag is empty
	kind := "RpcActivityForPort" + port
	return jmx.Bean{Name: "Hadoop:service=" + service + ",name=" + kind, Type: kind, Attributes: jmx.Pairs(
		"tag.port", port, "tag.serverName", name, "tag.Context", "rpc", "tag.Hostname", host,
		"RpcCallSuccesses", n.Calls-n.Failures, "RpcQueueTimeNumOps", n.Answered, "RpcQueueTimeAvgTime", mean(n.Queued),
		"RpcProcessingTimeNumOps", n.Answered, "RpcProcessingTimeAvgTime", mean(n.Took), "RpcSlowCalls", s.config.Slow.Count(),
		"TotalRequests", n.Calls, "NumOpenConnections", n.Connections,
	)}
}
