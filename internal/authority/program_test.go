package authority

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/release"
)

// of makes a member that is of a version.
func of(t *testing.T, a *Authority, p release.Program, machine string, roles ...Role) *Member {
	t.Helper()
	m := newMember(t, a, start, machine, roles...)
	m.program = p
	return m
}

// TestWhichVersionsMeet has who tried what, and the line that the dialer is told.
func TestWhichVersionsMeet(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	for _, c := range []struct {
		who                string
		acceptor, dialer   release.Program
		raised, dialerHas  int // what the two have heard of the cluster
		serverIs, clientIs error
		clientSays         string
	}{
		{"the same version", release.Program{Level: 2, Oldest: 1}, release.Program{Level: 2, Oldest: 1}, 2, 2, nil, nil, ""},
		{"the version before, while the cluster is not raised", release.Program{Level: 2, Oldest: 1}, release.Program{Level: 1, Oldest: 1}, 1, 1, nil, nil, ""},
		{"the next version, while the cluster is not raised", release.Program{Level: 1, Oldest: 1}, release.Program{Level: 2, Oldest: 1}, 1, 1, nil, nil, ""},
		{
			"the version before, after the cluster was raised",
			release.Program{Level: 2, Oldest: 1},
			release.Program{Level: 1, Oldest: 1},
			2, 1, release.ErrOlder, ErrRefused,
			"it knows levels up to 1, the cluster has been raised to 2: install the version that the others run",
		},
		{
			"to a server of the version before, after the cluster was raised",
			release.Program{Level: 1, Oldest: 1},
			release.Program{Level: 2, Oldest: 1},
			1, 2, nil, release.ErrOlder,
			"it knows levels up to 1, the cluster has been raised to 2",
		},
		{
			"a version that has forgotten the cluster's level",
			release.Program{Level: 4, Oldest: 2},
			release.Program{Level: 5, Oldest: 4},
			3, 0, release.ErrNewer, ErrRefused,
			"it works with levels from 4 on, the cluster is at 3: install a version in between on all machines, and raise the cluster (`hops cluster finalize`), first",
		},
		{
			"a version that has forgotten this one, by who has heard nothing yet",
			release.Program{Level: 1, Oldest: 1},
			release.Program{Level: 3, Oldest: 2},
			0, 0, release.ErrNewer, ErrRefused,
			"a server knows levels up to 1",
		},
	} {
		nn, dn := of(t, a, c.acceptor, "m1", Namenode), of(t, a, c.dialer, "m2", Datanode)
		nn.Raise(c.raised)
		dn.Raise(c.dialerHas)
		_, _, serverErr, clientErr := meet(t, accept(t, nn, Door{}), connect(t, dn, Door{}))
		if !errors.Is(serverErr, c.serverIs) || c.serverIs == nil && serverErr != nil {
			t.Errorf("%s: the acceptor says %v", c.who, serverErr)
		}
		if !errors.Is(clientErr, c.clientIs) || c.clientIs == nil && clientErr != nil || clientErr != nil && !strings.Contains(clientErr.Error(), c.clientSays) {
			t.Errorf("%s: the dialer says %v", c.who, clientErr)
		}
	}

	t.Run("a certificate of the cluster without a word about the version", func(t *testing.T) {
		nn := of(t, a, release.Program{Level: 2, Oldest: 1}, "m1", Namenode)
		silent := func(c net.Conn) (*Conn, error) {
			dn := newMember(t, a, start, "m2", Datanode)
			return dn.Connect(t.Context(), c, Door{Strangers: true}) // where nothing is said
		}
		if _, _, err, _ := meet(t, accept(t, nn, Door{}), silent); err != nil {
			t.Errorf("before the cluster is raised: %v", err)
		}
		nn.Raise(2)
		if _, _, err, _ := meet(t, accept(t, nn, Door{}), silent); !errors.Is(err, release.ErrOlder) {
			t.Errorf("afterwards: %v", err)
		}
	})
	t.Run("ports for clients ask for no version", func(t *testing.T) {
		nn, dn := of(t, a, release.Program{Level: 2, Oldest: 1}, "m1", Namenode), of(t, a, release.Program{Level: 1, Oldest: 1}, "m2", Datanode)
		nn.Raise(2)
		s, _, err, clientErr := meet(t, accept(t, nn, Door{Strangers: true}), connect(t, dn, Door{Strangers: true}))
		if err != nil || clientErr != nil || s.Peer() == nil || s.Refused() != nil {
			t.Errorf("%v %v", err, clientErr)
		}
	})
}

// TestRaisingEndsConnectionsOfOlderVersions: at once, those that are open too; others stay, and the level does not fall.
func TestRaisingEndsConnectionsOfOlderVersions(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	next := release.Program{Level: 2, Oldest: 1}
	nn, older, same := of(t, a, next, "m1", Namenode), of(t, a, release.Program{Level: 1, Oldest: 1}, "m2", Datanode), of(t, a, next, "m3", Datanode)
	_, c2, _, err2 := meet(t, accept(t, nn, Door{}), connect(t, older, Door{}))
	s3, c3, _, err3 := meet(t, accept(t, nn, Door{}), connect(t, same, Door{}))
	if err2 != nil || err3 != nil || nn.Level() != 1 {
		t.Fatal(err2, err3, nn.Level())
	}
	nn.Raise(2)
	nn.Raise(1)
	if nn.Level() != 2 {
		t.Errorf("the level is %d", nn.Level())
	}
	if _, err := c2.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection of the version before: %v", err)
	}
	go s3.Write([]byte("x"))
	if _, err := c3.Read(make([]byte, 1)); err != nil {
		t.Errorf("another one: %v", err)
	}
}
