package kerberos

import (
	"cmp"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// MaxToken is the size of the largest token that is looked at, in bytes: tickets of Active Directory with many groups have 48 KiB.
const MaxToken = 64 << 10

// MaxSkew is how far apart the clocks of a client and of the acceptor may be.
const MaxSkew = 5 * time.Minute

// Config describes an Acceptor.
type Config struct {
	// Keytab is the file that has the keys. It is read again when a ticket has a newer key than it had.
	Keytab string
	// Principals are the services that tickets may be for. The first is the one that is offered to clients.
	Principals []Principal
	// Rules make short names of principals; nil: DefaultRules of the realm of the first principal.
	Rules *Rules
	// Now is the time; nil: time.Now.
	Now func() time.Time
}

// Acceptor takes tickets for services whose keys it has. It is safe for concurrent use.
type Acceptor struct {
	config  Config
	replays replays
	draw    func(key) (key, uint32) // a subkey like this one, and the number of the first message

	mu      sync.Mutex
	entries []keytabEntry
	read    time.Time // the modification time of the file that entries are from
}

// NewAcceptor reads the keytab, which must have a key of each principal.
func NewAcceptor(config Config) (*Acceptor, error) {
	if len(config.Principals) == 0 {
		return nil, errors.New("an acceptor needs a principal")
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Rules == nil {
		config.Rules = DefaultRules(config.Principals[0].Realm)
	}
	a := &Acceptor{config: config, draw: drawSubkey}
	if err := a.load(); err != nil {
		return nil, err
	}
	for _, p := range config.Principals {
		var types []string
		usable := false
		for _, e := range a.entries {
			if e.principal == p.String() {
				_, err := newKey(e.enctype, e.value)
				usable = usable || err == nil
				types = append(types, enctypeName(e.enctype))
			}
		}
		switch {
		case len(types) == 0:
			return nil, fmt.Errorf("keytab %s has no key of %s: it has %s", config.Keytab, p, listed(principalsOf(a.entries)))
		case !usable:
			return nil, fmt.Errorf("keytab %s has keys of %s of %s only, which are not supported: make one of aes256-cts", config.Keytab, p, listed(types))
		}
	}
	return a, nil
}

// listed joins names, of which there may be many.
func listed(names []string) string {
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > 5:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	}
	return strings.Join(names, ", ")
}

func drawSubkey(like key) (key, uint32) {
	k := like.randomKey()
	return k, binary.BigEndian.Uint32(like.randomKey().value)>>2 | 1
}

// Principal is the service that is offered to clients.
func (a *Acceptor) Principal() Principal { return a.config.Principals[0] }

func (a *Acceptor) load() error {
	info, err := os.Stat(a.config.Keytab) // first: one that is written while it is read is read again
	if err != nil {
		return fmt.Errorf("keytab: %w", err)
	}
	entries, err := loadKeytab(a.config.Keytab)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entries, a.read = entries, info.ModTime()
	return nil
}

// reload reads the keytab again if it is another one by now.
func (a *Acceptor) reload() bool {
	info, err := os.Stat(a.config.Keytab)
	a.mu.Lock()
	same := err != nil || info.ModTime().Equal(a.read)
	a.mu.Unlock()
	return !same && a.load() == nil
}

// find is the key of a service that a ticket names.
func (a *Acceptor) find(p Principal, version uint32, enctype int32) (key, error) {
	k, err := a.lookup(p, version, enctype)
	if err != nil && a.reload() {
		k, err = a.lookup(p, version, enctype)
	}
	return k, err
}

func (a *Acceptor) lookup(p Principal, version uint32, enctype int32) (key, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var has []string
	for _, e := range a.entries {
		if e.principal != p.String() {
			continue
		}
		// Old tools write the low byte of the version only.
		if e.enctype == enctype && (version == 0 || e.version == version || e.version == version&0xff) {
			return newKey(e.enctype, e.value)
		}
		has = append(has, fmt.Sprintf("version %d of %s", e.version, enctypeName(e.enctype)))
	}
	return key{}, fmt.Errorf("the ticket needs key version %d of %s of %s, and the keytab %s has %s: make the keytab anew, or log in again (kinit)",
		version, enctypeName(enctype), p, a.config.Keytab, listed(has))
}

// bit is a flag of a bit string; the first is the highest.
func bit(b asn1.BitString, i int) bool { return b.At(i) == 1 }

// accept takes the initial token of a client. The reply is for it; there is none when it did not want the acceptor's proof.
func (a *Acceptor) accept(token []byte) (*gssContext, []byte, error) {
	if len(token) > MaxToken {
		return nil, nil, fmt.Errorf("a Kerberos token of %d bytes is too long, %d are allowed", len(token), MaxToken)
	}
	message, err := kerberosToken(token, tokenAPReq)
	if err != nil {
		return nil, nil, err
	}
	var request apReq
	if decode(message, messageAPReq, &request) != nil || request.Version != 5 || request.Type != messageAPReq {
		return nil, nil, errToken
	}
	var t ticket
	if decode(request.Ticket.Bytes, tagTicket, &t) != nil || t.Version != 5 {
		return nil, nil, errToken
	}
	if bit(request.Options, optionSessionKey) {
		return nil, nil, errors.New("tickets from user to user are not taken: ask for one of the service")
	}
	part, err := a.open(&t)
	if err != nil {
		return nil, nil, err
	}
	session, err := newKey(part.Key.Type, part.Key.Value)
	if err != nil {
		return nil, nil, fmt.Errorf("the ticket's session key: %w", err)
	}
	auth, err := a.authenticate(&request, part, session)
	if err != nil {
		return nil, nil, err
	}
	return a.establish(&request, part, auth, session)
}

// open decrypts a ticket and checks when and for whom it is good.
func (a *Acceptor) open(t *ticket) (*ticketPart, error) {
	service := t.Name.in(t.Realm)
	if err := service.check(); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(a.config.Principals, func(p Principal) bool { return p.String() == service.String() }) {
		return nil, fmt.Errorf("the ticket is for %s, and this server is %s", service, a.Principal())
	}
	k, err := a.find(service, uint32(t.Part.Version), t.Part.Type)
	if err != nil {
		return nil, err
	}
	plain, err := k.usage(usageTicket).decrypt(t.Part.Cipher)
	if err != nil {
		return nil, fmt.Errorf("the ticket for %s: %w; the KDC has another key than the keytab %s, so make that anew", service, err, a.config.Keytab)
	}
	var part ticketPart
	if decode(plain, tagTicketPart, &part) != nil {
		return nil, errToken
	}
	who := part.Name.in(part.Realm)
	if err := who.check(); err != nil {
		return nil, err
	}
	now := a.config.Now()
	start := part.Start
	if start.IsZero() {
		start = part.AuthTime
	}
	switch {
	case bit(part.Flags, flagInvalid), start.Sub(now) > MaxSkew:
		return nil, fmt.Errorf("the ticket of %s is not good before %s, and it is %s here: set the clocks, or wait", who, clock(start), clock(now))
	case now.Sub(part.End) > MaxSkew:
		return nil, fmt.Errorf("the ticket of %s expired at %s, and it is %s here: kinit again", who, clock(part.End), clock(now))
	case len(part.Transited.Contents) > 0 && !bit(part.Flags, flagTransitedChecked):
		return nil, fmt.Errorf("the ticket of %s came through other realms, and no KDC has checked the way (transited policy)", who)
	}
	return &part, nil
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// authenticate checks that the client has the ticket's key, now.
func (a *Acceptor) authenticate(request *apReq, part *ticketPart, session key) (*authenticator, error) {
	who := part.Name.in(part.Realm)
	plain, err := session.usage(usageAuthenticator).decrypt(slices.Clone(request.Authenticator.Cipher))
	if err != nil {
		return nil, fmt.Errorf("the proof with the ticket of %s: %w", who, err)
	}
	var auth authenticator
	if decode(plain, tagAuthenticator, &auth) != nil {
		return nil, errToken
	}
	if claimed := auth.Name.in(auth.Realm); claimed.String() != who.String() {
		return nil, fmt.Errorf("%.200q shows a ticket of %s", claimed, who)
	}
	now := a.config.Now()
	if behind := now.Sub(auth.at()); behind.Abs() > MaxSkew {
		way := "behind"
		if behind < 0 {
			way = "ahead of"
		}
		return nil, fmt.Errorf("the clock of the machine of %s is %v %s this server's, and %v are allowed: set the clocks (NTP)",
			who, behind.Abs().Round(time.Second), way, MaxSkew)
	}
	if err := a.replays.add(request.Authenticator.Cipher, now, auth.at().Add(MaxSkew)); err != nil {
		return nil, fmt.Errorf("the login of %s: %w", who, err)
	}
	return &auth, nil
}

// The checksum in which GSS-API says what it wants (RFC 4121, section 4.1.1).
const (
	gssChecksum    = 0x8003
	gssMutual      = 2
	gssReplay      = 4
	gssSequence    = 8
	gssConfidence  = 16
	gssIntegrity   = 32
	gssDCE         = 0x1000
	gssBindingSize = 16
)

func (a *Acceptor) establish(request *apReq, part *ticketPart, auth *authenticator, session key) (*gssContext, []byte, error) {
	sum := auth.Checksum.Value
	if auth.Checksum.Type != gssChecksum || len(sum) < 4+gssBindingSize+4 || binary.LittleEndian.Uint32(sum) != gssBindingSize {
		return nil, nil, errors.New("the client does not speak GSS-API: its request has no checksum of type 0x8003")
	}
	flags := binary.LittleEndian.Uint32(sum[4+gssBindingSize:])
	if flags&gssDCE != 0 {
		return nil, nil, errors.New("DCE's three-way exchange of Kerberos is not supported")
	}
	base := session
	if len(auth.Subkey.Value) > 0 {
		k, err := newKey(auth.Subkey.Type, auth.Subkey.Value)
		if err != nil {
			return nil, nil, fmt.Errorf("the client's subkey: %w", err)
		}
		base = k
	}
	name := part.Name.in(part.Realm)
	if flags&gssMutual == 0 && !bit(request.Options, optionMutual) {
		return newContext(name, base, false, true, 0, uint32(auth.Sequence)), nil, nil
	}
	subkey, first := a.draw(base)
	plain, err1 := encode(tagAPRepPart, apRepPart{
		Time: auth.Time.UTC(), Micros: auth.Micros, Subkey: encryptionKey{subkey.id, subkey.value}, Sequence: int64(first),
	})
	message, err2 := encode(messageAPRep, apRep{5, messageAPRep, encryptedData{Type: session.id, Cipher: session.usage(usageAPRep).encrypt(nil, plain)}})
	if err := cmp.Or(err1, err2); err != nil {
		return nil, nil, fmt.Errorf("answer to %s: %w", name, err)
	}
	reply := frame(oidKerberos, append([]byte{tokenAPRep >> 8, tokenAPRep & 0xff}, message...))
	return newContext(name, subkey, true, true, first, uint32(auth.Sequence)), reply, nil
}
