package kerberos

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jcmturner/gofork/encoding/asn1"
	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"
)

const realm = "EXAMPLE.COM"

// world is a realm without a KDC: a keytab of a service, and tickets that a KDC would give.
type world struct {
	t        testing.TB
	path     string // of the keytab
	keys     *keytab.Keytab
	acceptor *Acceptor
	now      time.Time
	// Of the tickets that are made.
	service  Principal
	version  int
	enctype  int32
	start    time.Time
	lifetime time.Duration
	flags    []int
	// transited realms.
	transited []byte
	client    Principal
}

func newWorld(t testing.TB, enctype int32) *world {
	t.Helper()
	w := &world{
		t: t, path: filepath.Join(t.TempDir(), "nn.keytab"), keys: keytab.New(), now: time.Now(), service: principal(t, "nn/a.example.com@"+realm),
		version: 2, enctype: enctype, lifetime: time.Hour, client: principal(t, "alice@"+realm),
	}
	w.add(w.service, "secret of the service", 2)
	w.write()
	a, err := NewAcceptor(Config{Keytab: w.path, Principals: []Principal{w.service}, Now: func() time.Time { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	w.acceptor = a
	return w
}

func principal(t testing.TB, text string) Principal {
	t.Helper()
	p, err := ParsePrincipal(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *world) add(p Principal, password string, version uint8) {
	w.t.Helper()
	name := p.Service()
	if p.Host() != "" {
		name += "/" + p.Host()
	}
	if err := w.keys.AddEntry(name, p.Realm, password, time.Now(), version, w.enctype); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write() {
	w.t.Helper()
	b, err := w.keys.Marshal()
	if err == nil {
		err = os.WriteFile(w.path, b, 0o400)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// ticket is one of the client's for the service, with its session key.
func (w *world) ticket() (messages.Ticket, types.EncryptionKey) {
	w.t.Helper()
	bits := types.NewKrbFlags()
	for _, f := range w.flags {
		types.SetFlag(&bits, f)
	}
	start := w.start
	if start.IsZero() {
		start = w.now
	}
	start = start.UTC().Truncate(time.Second)
	name := func(p Principal) types.PrincipalName {
		return types.PrincipalName{NameType: 1, NameString: p.Components}
	}
	session := key{enctype: typeOf(w.t, w.enctype)}.randomKey()
	part := messages.EncTicketPart{
		Flags: bits, Key: types.EncryptionKey{KeyType: session.id, KeyValue: session.value}, CRealm: w.client.Realm, CName: name(w.client),
		Transited: messages.TransitedEncoding{Contents: w.transited}, AuthTime: start, StartTime: start, EndTime: start.Add(w.lifetime),
		RenewTill: start.Add(w.lifetime),
	}
	b, err := asn1.Marshal(part)
	if err != nil {
		w.t.Fatal(err)
	}
	k, _, err := w.keys.GetEncryptionKey(name(w.service), w.service.Realm, w.version, w.enctype)
	if err != nil {
		w.t.Fatal(err)
	}
	data, err := crypto.GetEncryptedData(asn1tools.AddASNAppTag(b, tagTicketPart), k, usageTicket, w.version)
	if err != nil {
		w.t.Fatal(err)
	}
	return messages.Ticket{TktVNO: 5, Realm: w.service.Realm, SName: name(w.service), EncPart: data}, part.Key
}

func typeOf(t testing.TB, id int32) *enctype {
	for i := range enctypes {
		if enctypes[i].id == id {
			return &enctypes[i]
		}
	}
	t.Fatalf("no type %d", id)
	return nil
}

// initiator is a client with a ticket, and its initial token.
func (w *world) initiator() (*Initiator, []byte) {
	w.t.Helper()
	i := (&Login{who: w.client}).Exchange(w.service)
	t, session := w.ticket()
	token, err := i.request(t, session)
	if err != nil {
		w.t.Fatal(err)
	}
	i.step = stepProof
	return i, token
}
