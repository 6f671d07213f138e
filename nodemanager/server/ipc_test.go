package server

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/nodemanager/hadoop"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// Masters that come before the node manager has keys are told to come again; then they get the protection that is configured, and no less.
func TestTheDoorForMasters(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	ipc, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.IPC, c.RPCProtection = ipc, []sasl.Quality{sasl.Privacy}
	n := run(t, c)
	<-n.Ready()

	issuer, id := yarntoken.NewIssuer(security.NewSecret().MAC), rm.NodeID(n.config.NodeID)
	attempt := rm.AttemptID{Application: rm.ApplicationID{Cluster: 1, Sequence: 1}, Number: 1}
	call := func(quality sasl.Quality) error {
		shown := issuer.Node(time.Now(), id, yarntoken.Visit{Attempt: attempt, Address: n.ipcAddress(), User: me()})
		client, err := hrpc.Dial(t.Context(), ipc.Addr().String(), hrpc.DialConfig{
			Protocol: hadoop.Protocol, Qualities: []sasl.Quality{quality},
			Token: func(string) (hrpc.Token, bool) {
				return hrpc.Token{Identifier: shown.Identifier, Password: shown.Password}, true
			},
		})
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Call(t.Context(), hadoop.Protocol, "getContainerStatuses", &yarnpb.GetContainerStatusesRequestProto{}, &yarnpb.GetContainerStatusesResponseProto{})
	}
	early := call(sasl.Privacy)
	if remote, ok := errors.AsType[*hrpc.RemoteError](early); !ok || !strings.HasSuffix(remote.Class, "ipc.RetriableException") {
		t.Errorf("before there are keys: %v", early)
	}
	var keys []*rmpb.TokenKey
	for _, k := range issuer.NodeKeys(time.Now(), id) {
		keys = append(keys, &rmpb.TokenKey{Id: k.ID, Node: k.Node, Container: k.Container})
	}
	m.order(&rmpb.NodeOrders{TokenKeys: keys})
	eventually(t, "the keys", func() bool { return n.verifier.Load() != nil })
	if err := call(sasl.Privacy); err != nil {
		t.Errorf("with privacy: %v", err)
	}
	for _, less := range []sasl.Quality{sasl.Authentication, sasl.Integrity} {
		if err := call(less); err == nil {
			t.Errorf("%s is enough where privacy is configured", less)
		}
	}
}
