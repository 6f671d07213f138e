package server

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Who asks for listings of a large directory and reads none of them comes to hold a share of the memory, and another user
// is answered.
func TestListingsThatNobodyReadsAreBounded(t *testing.T) {
	answers := security.NewBudget(security.BudgetConfig{Purpose: "answers", Total: 8 << 20, Patience: time.Minute})
	const firstUser = 70002
	c := newCluster(t, 1, func(c *Config) {
		c.Answers = answers
		c.Door = security.NewDoor(security.Config{
			Groups: func(string) []string { return nil },
			Owner: func(conn security.ConnAddrs) (uint32, error) {
				last := conn.Remote.(*net.TCPAddr).IP.To4()[3]
				if last == 1 {
					return 0, nil // of the test itself
				}
				return firstUser - 2 + uint32(last), nil
			},
		})
	})
	m, root := c.leader(), c.root()
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			if err := root.Mkdirs(t.Context(), fmt.Sprintf("/large/directory-%04d", i), 0o755, true); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	as := func(uid uint32) (*net.Dialer, string) {
		return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(uid-firstUser+2))}}, strconv.FormatUint(uint64(uid), 10)
	}
	list := &hadoop.GetListingRequestProto{Src: new("/large"), StartAfter: []byte{}, NeedLocation: new(false)}
	method := &hadoop.RequestHeaderProto{MethodName: new("getListing"), DeclaringClassProtocolName: new(clientprotocol.Name), ClientProtocolVersion: new(uint64(1))}
	burst := bytes.Repeat(frame(rpcHeader(t, 1), encoded(t, method), encoded(t, list)), 200)
	for range 10 {
		dialer, user := as(firstUser)
		conn, err := dialer.DialContext(t.Context(), "tcp", m.ipc)
		if err != nil {
			t.Skipf("this machine has one loopback address only: %v", err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		who := &hadoop.IpcConnectionContextProto{UserInfo: &hadoop.UserInformationProto{EffectiveUser: &user}}
		_, _ = conn.Write(append([]byte("hrpc\x09\x00\x00"), frame(rpcHeader(t, -3), encoded(t, who))...))
		_, _ = conn.Write(burst)
	}
	eventually(t, "the share is used up", func() bool { return answers.Peak() > answers.Total()/3 })
	dialer, user := as(firstUser + 1)
	client, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: user, DialTimeout: limit, Dial: dialer.DialContext})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 20 {
		var r hadoop.GetListingResponseProto
		if err := client.Call(t.Context(), clientprotocol.Name, "getListing", list, &r); err != nil || len(r.GetDirList().GetPartialListing()) != 1000 {
			t.Fatalf("another user got %d entries, %v", len(r.GetDirList().GetPartialListing()), err)
		}
	}
	if answers.Peak() > answers.Total() {
		t.Errorf("%d bytes were held, %d are allowed", answers.Peak(), answers.Total())
	}
}
