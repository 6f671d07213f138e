package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A name that is only claimed, or for which a lesser server stands, reads and writes as its user does; it gets no token, which would
// prove it elsewhere and for days, and a server's key does nothing of an operator's. Who tried what, and what happened.
func TestANameThatIsNotProved(t *testing.T) {
	credentials, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	// 127.1.0.0/16 is a trusted network, and all else is elsewhere but 127.0.0.1.
	c := newCluster(t, 1, func(conf *Config) {
		conf.Credentials = credentials
		conf.Door = security.NewDoor(security.Config{
			Member: credentials.Member, Supergroup: "supergroup", Simple: []netip.Prefix{netip.MustParsePrefix("127.1.0.0/16")},
			Here: func(remote, _ netip.Addr) bool { return remote == netip.MustParseAddr("127.0.0.1") },
		})
	})
	m := c.leader()
	me := m.config.Door.Daemon()
	from := func(address string, role authority.Role) func(context.Context, string, string) (net.Conn, error) {
		d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		if role == "" {
			return d.DialContext
		}
		joined, err := securitytest.Join(a, security.NewSecret(), role)
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return joined.Member.Connect(ctx, c, authority.Door{Roles: []authority.Role{authority.Namenode}, Strangers: true})
		}
	}
	const friend, stranger = "127.1.0.7", "127.2.0.7"
	home := m.rpc(t)
	mine, err := get(t, home, "ann")
	if err != nil {
		t.Fatal(err)
	}
	stat := func(c *hrpc.Client) error { return stat(t, c) }
	issue := func(c *hrpc.Client) error { _, err := get(t, c, "x"); return err }
	renew := func(c *hrpc.Client) error {
		_, err := rpcAsk[hadooppb.RenewDelegationTokenResponseProto](t, c, "renewDelegationToken", &hadooppb.RenewDelegationTokenRequestProto{Token: protoOf(mine)})
		return err
	}
	safemode := func(c *hrpc.Client) error {
		_, err := rpcAsk[hadooppb.SetSafeModeResponseProto](t, c, "setSafeMode", &hadooppb.SetSafeModeRequestProto{Action: hadooppb.SafeModeActionProto_SAFEMODE_LEAVE.Enum()})
		return err
	}
	forget := func(c *hrpc.Client) error {
		_, err := rpcAsk[hadooppb.RefreshNodesResponseProto](t, c, "refreshNodes", &hadooppb.RefreshNodesRequestProto{})
		return err
	}
	for _, x := range []struct {
		who, from string
		role      authority.Role
		user      string
		what      func(*hrpc.Client) error
		words     string
	}{
		{"a friend reads", friend, "", "ann", stat, ""},
		{"a friend asks for a token", friend, "", "ann", issue, "Delegation Token can be issued only with kerberos"},
		{"a friend claims the superuser's name and asks for a token", friend, "", me, issue, "Delegation Token can be issued only with kerberos"},
		{"a friend claims the renewer's name", friend, "", "ann", renew, "Delegation Token can be renewed only with kerberos"},
		{"a datanode acts for a user", stranger, authority.Datanode, "ann", stat, ""},
		{"a datanode asks for a user's token", stranger, authority.Datanode, "ann", issue, "Delegation Token can be issued only with kerberos"},
		{"a node manager asks for a user's token, from a trusted network", friend, authority.NodeManager, "ann", issue, "Delegation Token can be issued only with kerberos"},
		{"a datanode ends safe mode as the superuser", stranger, authority.Datanode, me, safemode, "setSafeMode is for operators"},
		{"a node manager changes the lists of hosts as the superuser", stranger, authority.NodeManager, me, forget, "refreshNodes is for operators"},
		{"a namenode asks", stranger, authority.Namenode, me, safemode, ""},
		{"a resource manager asks", stranger, authority.ResourceManager, me, safemode, ""},
	} {
		t.Run(x.who, func(t *testing.T) {
			c, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: x.user, DialTimeout: time.Minute, Dial: from(x.from, x.role)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := x.what(c); x.words == "" && err != nil || x.words != "" && (err == nil || !strings.Contains(err.Error(), x.words)) {
				t.Errorf("%v, want %q", err, x.words)
			}
		})
	}
	for _, x := range []struct {
		who, from    string
		role         authority.Role
		method, path string
		values       url.Values
		code         int
		words        string
	}{
		{"WebHDFS: a friend reads", friend, "", "GET", "/webhdfs/v1/", url.Values{"op": {"GETFILESTATUS"}, "user.name": {"ann"}}, 200, "DIRECTORY"},
		{"WebHDFS: a friend asks for a token", friend, "", "GET", "/webhdfs/v1/", url.Values{"op": {"GETDELEGATIONTOKEN"}, "user.name": {"ann"}}, 403, "can be issued only with kerberos"},
		{"WebHDFS: a friend renews", friend, "", "PUT", "/webhdfs/v1/", url.Values{"op": {"RENEWDELEGATIONTOKEN"}, "token": {mine.Text()}, "user.name": {"ann"}}, 403, "can be renewed only with kerberos"},
		{"a friend asks for a user token", friend, "", "POST", "/api/v1/user-tokens", url.Values{"user.name": {me}}, 403, "only says so"},
		{"a datanode's key asks for a token to join with", stranger, authority.Datanode, "POST", "/api/v1/cluster/tokens", url.Values{"user.name": {me}}, 401, "may not act as " + `"` + me},
		{"a node manager's key takes a namenode out", stranger, authority.NodeManager, "DELETE", "/api/v1/namenodes/nn1", url.Values{"user.name": {me}}, 401, "may not act as " + `"` + me},
		{"a datanode's key, without a name", stranger, authority.Datanode, "POST", "/api/v1/leader", nil, 403, "dr.who is not a superuser"},
		{"a datanode's key asks for a user token", stranger, authority.Datanode, "POST", "/api/v1/user-tokens", url.Values{"user.name": {me}}, 401, "may not act as " + `"` + me},
	} {
		t.Run(x.who, func(t *testing.T) {
			transport, scheme := &http.Transport{DisableKeepAlives: true}, "http"
			if x.role == "" {
				transport.DialContext = from(x.from, "")
			} else {
				transport.DialTLSContext, scheme = from(x.from, x.role), "https"
			}
			r, err := http.NewRequestWithContext(t.Context(), x.method, scheme+"://"+m.http+x.path+"?"+x.values.Encode(), strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			text, _ := io.ReadAll(answer.Body)
			if said := strings.ReplaceAll(string(text), `\"`, `"`); answer.StatusCode != x.code || !strings.Contains(said, x.words) {
				t.Errorf("%d %s, want %d %q", answer.StatusCode, text, x.code, x.words)
			}
		})
	}
}
