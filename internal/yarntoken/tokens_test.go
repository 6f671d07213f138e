package yarntoken

import (
	"bytes"
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

var (
	noon    = time.UnixMilli(1_790_000_000_000)
	attempt = rm.AttemptID{Application: rm.ApplicationID{Cluster: 1_789_000_000_000, Sequence: 21}, Number: 1}
)

// The identifier of an AMRMToken as Hadoop 3.4.1 made it.
func TestTheIdentifierOfHadoopsAMRMToken(t *testing.T) {
	want, _ := base64.StdEncoding.DecodeString("Cg0KCQgVEKWH/eifNBABEIjsp7z7/////wE=")
	var p pb.AMRMTokenIdentifierProto
	if err := p.UnmarshalVT(want); err != nil {
		t.Fatal(err)
	}
	id, ok := pb.ParseAttempt(p.AppAttemptId)
	if !ok || id.Number != 1 || id.Application.Sequence != 21 {
		t.Fatalf("it is of %v, %v", id, ok)
	}
	got, err := (&pb.AMRMTokenIdentifierProto{AppAttemptId: pb.Attempt(id), KeyId: p.KeyId}).MarshalVT()
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got  %x, %v\nwant %x", got, err, want)
	}
}

func TestWhatEachTokenSays(t *testing.T) {
	issuer := NewIssuer(security.NewSecret().MAC)
	master := issuer.Master(noon, attempt)
	password, who, key, err := issuer.CheckMaster(noon, master.Identifier)
	if err != nil || who != attempt || !bytes.Equal(password, master.Password) || key != KeyID(noon) {
		t.Errorf("AMRMToken: %v %d %v", who, key, err)
	}
	v := NewVerifier(issuer.NodeKeys(noon, "n1:8042"))
	visit := Visit{attempt, "n1:8041", "alice"}
	node := issuer.Node(noon, "n1:8042", visit)
	password, got, err := v.Node(noon, node.Identifier)
	if err != nil || got != visit || !bytes.Equal(password, node.Password) {
		t.Errorf("NMToken: %v %v", got, err)
	}
	other, err := rm.NewAmounts(map[string]int64{"acme.com/fpga": 2})
	if err != nil {
		t.Fatal(err)
	}
	grant := Grant{
		Container: rm.ContainerID{Attempt: attempt, Epoch: 3, Number: 7}, Address: "n1:8041", User: "alice",
		Resource: rm.Resource{Memory: 896 << 20, VCores: 1, GPUs: 1, Other: other}, Expires: metadata.TimeOf(noon) + 1, Created: metadata.TimeOf(noon), Priority: 4, Request: -1,
	}
	container := issuer.Container(noon, "n1:8042", grant)
	if got, err := v.Container(noon, container); err != nil || !reflect.DeepEqual(got, grant) {
		t.Errorf("ContainerToken: %+v, %v", got, err)
	}
	if _, err := v.Container(noon.Add(time.Second), container); !errors.Is(err, ErrExpired) {
		t.Errorf("a second too late: %v", err)
	}
	for _, token := range [][]byte{master.Password, node.Password, container.Password} {
		if len(token) != 20 {
			t.Errorf("a password of %d bytes, as Hadoop's have 20", len(token))
		}
	}
}

func TestTokensThatDoNotCount(t *testing.T) {
	issuer := NewIssuer(security.NewSecret().MAC)
	grant := Grant{Container: rm.ContainerID{Attempt: attempt, Number: 1}, Address: "n1:8041", User: "alice", Expires: metadata.TimeOf(noon.Add(100 * Period))}
	v := NewVerifier(issuer.NodeKeys(noon, "n1:8042"))
	refused := func(what string, err error) {
		t.Helper()
		if metadata.KindOf(err) != metadata.ErrToken {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := v.Container(noon, issuer.Container(noon, "n2:8042", grant))
	refused("a token for another node", err)
	_, err = v.Container(noon, NewIssuer(security.NewSecret().MAC).Container(noon, "n1:8042", grant))
	refused("a token of another cluster", err)
	forged := issuer.Container(noon, "n1:8042", grant)
	forged.Identifier = bytes.Replace(bytes.Clone(forged.Identifier), []byte("alice"), []byte("carol"), 1)
	_, err = v.Container(noon, forged)
	refused("a token with another user", err)
	// A key that counts and is not known here yet is no reason for a refusal that is final; one that does not count is.
	for what, early := range map[string]*Verifier{"without keys": NewVerifier(nil), "that has heard nothing for long": NewVerifier(issuer.NodeKeys(noon.Add(-2*Period), "n1:8042"))} {
		_, err = early.Container(noon, issuer.Container(noon, "n1:8042", grant))
		_, _, err2 := early.Node(noon, issuer.Node(noon, "n1:8042", Visit{attempt, "n1:8041", "alice"}).Identifier)
		if !errors.Is(err, metadata.ErrRetriable) || !errors.Is(err2, metadata.ErrRetriable) {
			t.Errorf("a verifier %s: %v, %v", what, err, err2)
		}
		_, err = early.Container(noon, issuer.Container(noon.Add(-3*Period), "n1:8042", grant))
		refused("a token of an old key by a verifier "+what, err)
	}

	for _, c := range []struct {
		age  time.Duration
		want bool
	}{{0, true}, {Period, true}, {-Period, true}, {2 * Period, false}, {-2 * Period, false}} {
		_, _, _, err := issuer.CheckMaster(noon, issuer.Master(noon.Add(-c.age), attempt).Identifier)
		if (err == nil) != c.want {
			t.Errorf("an AMRMToken of %v ago: %v", c.age, err)
		}
		_, err = NewVerifier(issuer.NodeKeys(noon.Add(-c.age), "n1:8042")).Container(noon, issuer.Container(noon.Add(-c.age), "n1:8042", grant))
		if (err == nil) != c.want {
			t.Errorf("a ContainerToken of %v ago: %v", c.age, err)
		}
	}
	// The keys of a node manager that has heard nothing for a period know what was made after.
	if _, err := v.Container(noon.Add(Period), issuer.Container(noon.Add(Period), "n1:8042", grant)); err != nil {
		t.Errorf("a token of the next period: %v", err)
	}
	// A node's token is of no use as a master's, whose identifier it is: the keys differ by kind.
	m := issuer.Master(noon, attempt)
	if password, _, err := v.Node(noon, m.Identifier); err == nil && hmac.Equal(password, m.Password) {
		t.Error("an AMRMToken is taken by a node manager")
	}
}

func FuzzTokens(f *testing.F) {
	issuer := NewIssuer(func(purpose string, _ ...[]byte) []byte { return []byte(purpose) })
	v := NewVerifier(issuer.NodeKeys(noon, "n1:8042"))
	f.Add(issuer.Master(noon, attempt).Identifier)
	f.Add(issuer.Node(noon, "n1:8042", Visit{attempt, "n1:8041", "alice"}).Identifier)
	f.Add(issuer.Container(noon, "n1:8042", Grant{Container: rm.ContainerID{Attempt: attempt, Number: 1}}).Identifier)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _, _ = issuer.CheckMaster(noon, b)
		_, _, _ = v.Node(noon, b)
		k := issuer.NodeKeys(noon, "n1:8042")[1]
		token := Read(Write(issuer.Master(noon, attempt)))
		token.Identifier, token.Password = b, sign(k.Container, b)
		_, _ = v.Container(noon, token)
	})
}
