package hrpc

import (
	"log/slog"
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func TestASlowCallIsToldAndCounted(t *testing.T) {
	log := &journal{}
	slow := &slowlog.Log{Logger: slog.New(slog.NewTextHandler(log, nil))}
	s := newServer(t, ServerConfig{Slow: slow.Operation("rpc", time.Nanosecond)}) // every call takes that long
	s.Handle(nn, Method{
		Name: "getEvents", New: func() Message { return new(hadooppb.GetFileInfoRequestProto) }, Right: security.Anyone, Waits: true,
		Handle: func(c *Call) { c.Reply(nil) },
	})
	conn := dialRaw(t, start(t, s))
	_, _ = conn.Write(unhex(t, helloHex+contextHex))
	_, _ = conn.Write(request(1, 0, nn, "getEvents", &hadooppb.GetFileInfoRequestProto{Src: new("/")})) // which waits for as long as it was told to
	skimFrame(t, conn)
	_, _ = conn.Write(request(0, 0, nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/later")}))
	skimFrame(t, conn)
	eventually(t, func() bool { return s.Counts().Answered == 2 && len(log.all()) == 1 })
	want := regexp.MustCompile(`"Slow RPC : getFileInfo took \d+ milliseconds to process from client 127\.0\.0\.1:\d+ of \w+, the processing detail is ` +
		`connection=\d+ms, handler=\d+ms, queue=0ms, disk=0ms, others=0ms, apply=0ms, and the threshold time is 0 milliseconds\."`)
	if line := log.all()[0]; !want.MatchString(line) {
		t.Error(line)
	}
	if n := s.Counts(); n.Took <= 0 {
		t.Errorf("%+v", n)
	}
	b := s.Bean("NameNode", "ClientNamenodeProtocol", &net.TCPAddr{Port: 8020})
	if b.Name != "Hadoop:service=NameNode,name=RpcActivityForPort8020" {
		t.Error(b.Name)
	}
	for _, a := range b.Attributes {
		if a.Name == "RpcSlowCalls" && a.Value != int64(1) || a.Name == "TotalRequests" && a.Value != int64(2) {
			t.Errorf("%s is %v", a.Name, a.Value)
		}
	}
}
