package kerberos

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/gohops/hops/internal/sasl"
)

// Login is a client's: the tickets that kinit got, or a keytab that gets them. It is safe for concurrent use.
type Login struct {
	who   Principal // stays, whatever becomes of the cache
	cache string    // the file of a ticket cache; empty: the login is from a keytab

	mu     sync.Mutex
	client *client.Client
	read   time.Time // the modification time of the cache that client has
}

// Where MIT Kerberos looks unless KRB5_CONFIG and KRB5CCNAME say otherwise.
const (
	defaultConfig = "/etc/krb5.conf"
	defaultCache  = "/tmp/krb5cc_"
)

// loadConfig reads krb5.conf.
func loadConfig() (*config.Config, error) {
	path := cmp.Or(os.Getenv("KRB5_CONFIG"), defaultConfig)
	c, err := config.Load(path)
	var unsupported config.UnsupportedDirective // of what the rest does not need, such as includedir
	if err != nil && !errors.As(err, &unsupported) {
		return nil, fmt.Errorf("Kerberos: %s: %w", path, err)
	}
	return c, nil
}

// NewLogin takes the tickets of kinit, or, where there are none, those that the keytab KRB5_CLIENT_KTNAME gets for its first
// principal, as MIT's library does.
func NewLogin() (*Login, error) {
	l, err := LoginFromCache()
	path, ok := os.LookupEnv("KRB5_CLIENT_KTNAME")
	if err == nil || !ok {
		return l, err
	}
	path = strings.TrimPrefix(path, "FILE:")
	entries, err := loadKeytab(path)
	if err != nil {
		return nil, fmt.Errorf("Kerberos: KRB5_CLIENT_KTNAME: %w", err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("Kerberos: KRB5_CLIENT_KTNAME: keytab %s is empty", path)
	}
	who, err := ParsePrincipal(entries[0].principal)
	if err != nil {
		return nil, fmt.Errorf("Kerberos: KRB5_CLIENT_KTNAME: %w", err)
	}
	return LoginFromKeytab(path, who)
}

// LoginFromCache takes the tickets of kinit, from the file that KRB5CCNAME names. A cache that was written anew is read again.
func LoginFromCache() (*Login, error) {
	path := cmp.Or(os.Getenv("KRB5CCNAME"), defaultCache+strconv.Itoa(os.Getuid()))
	if kind, rest, ok := strings.Cut(path, ":"); ok {
		if kind != "FILE" {
			return nil, fmt.Errorf("Kerberos: KRB5CCNAME is %s: only files are read (KRB5CCNAME=FILE:/tmp/krb5cc_%d, and kinit again)", path, os.Getuid())
		}
		path = rest
	}
	l := &Login{cache: path}
	return l, l.refresh()
}

// refresh reads the ticket cache if it is another one by now.
func (l *Login) refresh() error {
	path := l.cache
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && l.client != nil && info.ModTime().Equal(l.read) {
		return nil
	}
	conf, err := loadConfig()
	if err != nil {
		return err
	}
	cache, written, err := readCache(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("Kerberos: there is no ticket cache %s: kinit first", path)
	case err != nil && l.client != nil: // it is being written
		return nil
	case err != nil:
		return fmt.Errorf("Kerberos: ticket cache %s: %w", path, err)
	}
	who := Principal{cache.DefaultPrincipal.PrincipalName.NameString, cache.DefaultPrincipal.Realm}
	if err := current(cache, time.Now()); err != nil {
		return fmt.Errorf("Kerberos: the tickets of %s in %s %w", who, path, err)
	}
	if l.client != nil && who.String() != l.who.String() {
		return fmt.Errorf("Kerberos: the ticket cache %s is %s's now, and this client began as %s", path, who, l.who)
	}
	c, err := client.NewFromCCache(cache, conf, client.DisablePAFXFAST(true))
	if err != nil {
		return fmt.Errorf("Kerberos: ticket cache %s: %w", path, err)
	}
	if l.client == nil {
		l.who = who
	}
	l.client, l.read = c, written
	return nil
}

// maxCache is the size of the largest ticket cache that is read, in bytes.
const maxCache = 4 << 20

// readCache reads a ticket cache, and says when it was written.
func readCache(path string) (*credentials.CCache, time.Time, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	if info.Size() > maxCache {
		return nil, time.Time{}, fmt.Errorf("%d bytes are too many", info.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	if !wholeCache(b) {
		return nil, time.Time{}, errors.New("it is no ticket cache of version 3 or 4, or ends in the middle: kinit again")
	}
	cache := new(credentials.CCache)
	return cache, info.ModTime(), cache.Unmarshal(b)
}

// wholeCache walks through a ticket cache: the library believes the lengths in it.
func wholeCache(b []byte) bool {
	if len(b) < 4 || b[0] != 5 || b[1] != 3 && b[1] != 4 {
		return false
	}
	r := reader{rest: b[2:]}
	if b[1] == 4 {
		r.text() // fields that are not used
	}
	data := func() { r.take(int(r.number(4))) }
	principal := func() {
		r.number(4)
		for range min(r.number(4), maxComponents) + 1 { // and the realm
			data()
		}
	}
	pairs := func() {
		for n := r.number(4); n > 0 && !r.short; n-- {
			r.number(2)
			data()
		}
	}
	for principal(); len(r.rest) > 0; {
		principal()
		principal()
		r.number(2)
		if b[1] == 3 {
			r.number(2)
		}
		data()
		r.take(4*4 + 1 + 4) // times, whether it is a session key, flags
		pairs()             // addresses
		pairs()             // restrictions
		data()
		data()
	}
	return !r.short
}

// current refuses a cache without a ticket that is good now.
func current(cache *credentials.CCache, now time.Time) error {
	var last time.Time
	for _, c := range cache.GetEntries() {
		if c.EndTime.After(last) {
			last = c.EndTime
		}
	}
	switch {
	case last.IsZero():
		return errors.New("are gone: kinit again")
	case now.After(last):
		return fmt.Errorf("expired at %s, and it is %s: kinit again", clock(last), clock(now))
	}
	return nil
}

// LoginFromKeytab logs in as a principal whose key the file has, and again when tickets run out.
func LoginFromKeytab(path string, who Principal) (*Login, error) {
	conf, err := loadConfig()
	if err != nil {
		return nil, err
	}
	entries, err := loadKeytab(path)
	if err != nil {
		return nil, fmt.Errorf("Kerberos: %w", err)
	}
	if !slices.Contains(principalsOf(entries), who.String()) {
		return nil, fmt.Errorf("Kerberos: keytab %s has no key of %s: it has %s", path, who, listed(principalsOf(entries)))
	}
	keys, err := keytab.Load(path)
	if err != nil {
		return nil, fmt.Errorf("Kerberos: keytab %s: %w", path, err)
	}
	c := client.NewWithKeytab(strings.Join(who.Components, "/"), who.Realm, keys, conf, client.DisablePAFXFAST(true))
	if err := c.Login(); err != nil {
		return nil, fmt.Errorf("Kerberos: login as %s: %w", who, explain(err, who.Realm))
	}
	return &Login{client: c, who: who}, nil
}

// ticket asks for a ticket of a service.
func (l *Login) ticket(service Principal) (messages.Ticket, types.EncryptionKey, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refresh(); err != nil {
		return messages.Ticket{}, types.EncryptionKey{}, err
	}
	t, session, err := l.client.GetServiceTicket(strings.Join(service.Components, "/"))
	if err != nil {
		return t, session, fmt.Errorf("Kerberos: ticket for %s: %w", service, explain(err, l.who.Realm))
	}
	return t, session, nil
}

// Principal is who has logged in.
func (l *Login) Principal() Principal { return l.who }

// Close ends the renewal of tickets.
func (l *Login) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client.Destroy()
}

// explain says what went wrong at the KDC.
func explain(err error, realm string) error {
	text := err.Error()
	for _, known := range []struct{ has, means string }{
		{"KDC_ERR_S_PRINCIPAL_UNKNOWN", "the KDC does not know the server's principal: make one (kadmin addprinc), or check the server's name"},
		{"KDC_ERR_C_PRINCIPAL_UNKNOWN", "the KDC does not know the client's principal"},
		{"KDC_ERR_PREAUTH_FAILED", "the key in the keytab is not the KDC's: make the keytab anew"},
		{"password/keytab incorrect", "the key in the keytab is not the KDC's: make the keytab anew"},
		{"KRB_AP_ERR_SKEW", "the clocks of this machine and of the KDC are too far apart: set the clocks (NTP)"},
		{"KRB_AP_ERR_TKT_EXPIRED", "the ticket has expired: kinit again"},
		{"TGT is expired", "the ticket has expired: kinit again"},
		{"no KDCs defined", "krb5.conf names no KDC of realm " + realm},
		{"KDC_ERR_ETYPE_NOSUPP", "the KDC and this side have no encryption type in common: allow aes256-cts"},
		{"communication", "no KDC of realm " + realm + " answers: is it running, and is krb5.conf right?"},
	} {
		if strings.Contains(text, known.has) {
			return fmt.Errorf("%s (%.300s)", known.means, strings.Join(strings.Fields(text), " "))
		}
	}
	return fmt.Errorf("%.300s", strings.Join(strings.Fields(text), " "))
}

// Initiator is the client's side of one exchange of GSSAPI.
type Initiator struct {
	login     *Login
	service   Principal
	qualities []sasl.Quality
	step      int
	sent      types.Authenticator
	session   key
	base      key // the client's subkey
	context   *gssContext
	layer     sasl.Layer
}

const (
	stepBegin  = iota // the server's first word, which is empty, or nothing has come
	stepProof         // the server proves itself
	stepChoose        // the server offers layers
	stepDone
)

// Exchange begins one exchange with a service, in which one of qualities has to be agreed, the preferred one first; none means
// authentication. Its first step takes nothing and returns the initial token.
func (l *Login) Exchange(service Principal, qualities ...sasl.Quality) *Initiator {
	if len(qualities) == 0 {
		qualities = []sasl.Quality{sasl.Authentication}
	}
	return &Initiator{login: l, service: service, qualities: qualities}
}

// Step takes what the acceptor sent and returns what is sent back; done says that there is nothing more to send after it.
func (i *Initiator) Step(token []byte) (reply []byte, done bool, err error) {
	step := i.step
	i.step = stepDone // after an error
	switch step {
	case stepBegin:
		if reply, err = i.begin(); err != nil {
			return nil, false, err
		}
		i.step = stepProof
		return reply, false, nil
	case stepProof:
		if err := i.verify(token); err != nil {
			return nil, false, fmt.Errorf("Kerberos: %w", err)
		}
		i.step = stepChoose
		return nil, false, nil
	case stepChoose:
		reply, err = i.choose(token)
		return reply, err == nil, err
	}
	return nil, false, fmt.Errorf("%w: the exchange is over", sasl.ErrMessage)
}

// Layer implements the same as that of sasl.Mechanism.
func (i *Initiator) Layer() sasl.Layer { return i.layer }

// Negotiate is the token of SPNEGO for Authorization: Negotiate, for HTTP/HOST. The server's proof is not looked at: TLS is
// for that.
func (l *Login) Negotiate(service Principal) ([]byte, error) {
	i := l.Exchange(service)
	token, err := i.begin()
	if err != nil {
		return nil, err
	}
	return negotiationOf(token)
}

func (i *Initiator) begin() ([]byte, error) {
	t, session, err := i.login.ticket(i.service)
	if err != nil {
		return nil, err
	}
	token, err := i.request(t, session)
	if err != nil {
		return nil, fmt.Errorf("Kerberos: %w", err)
	}
	return token, nil
}

// request makes the initial token from a ticket.
func (i *Initiator) request(t messages.Ticket, session types.EncryptionKey) ([]byte, error) {
	var err error
	if i.session, err = newKey(session.KeyType, session.KeyValue); err != nil {
		return nil, err
	}
	i.base = i.session.randomKey()
	auth, err := types.NewAuthenticator(i.login.who.Realm, types.PrincipalName{NameType: 1, NameString: i.login.who.Components})
	if err != nil {
		return nil, err
	}
	sum := binary.LittleEndian.AppendUint32(nil, gssBindingSize)
	sum = append(sum, make([]byte, gssBindingSize)...)
	sum = binary.LittleEndian.AppendUint32(sum, gssMutual|gssReplay|gssSequence|gssConfidence|gssIntegrity)
	auth.Cksum = types.Checksum{CksumType: gssChecksum, Checksum: sum}
	auth.SubKey = types.EncryptionKey{KeyType: i.base.id, KeyValue: i.base.value}
	auth.CTime = auth.CTime.Truncate(time.Second)
	request, err := messages.NewAPReq(t, session, auth)
	if err != nil {
		return nil, err
	}
	types.SetFlag(&request.APOptions, flags.APOptionMutualRequired)
	message, err := request.Marshal()
	if err != nil {
		return nil, err
	}
	i.sent = auth
	return frame(oidKerberos, append([]byte{tokenAPReq >> 8, tokenAPReq & 0xff}, message...)), nil
}

// verify checks the acceptor's proof.
func (i *Initiator) verify(token []byte) error {
	message, err := kerberosToken(token, tokenAPRep)
	if err != nil {
		return err
	}
	var answer apRep
	if decode(message, messageAPRep, &answer) != nil || answer.Type != messageAPRep {
		return errToken
	}
	plain, err := i.session.usage(usageAPRep).decrypt(answer.Part.Cipher)
	if err != nil {
		return fmt.Errorf("%s does not prove who it is: %w", i.service, err)
	}
	var part apRepPart
	if decode(plain, tagAPRepPart, &part) != nil {
		return errToken
	}
	if !part.Time.Equal(i.sent.CTime) || part.Micros != i.sent.Cusec {
		return fmt.Errorf("%s does not prove who it is: it answers another request", i.service)
	}
	k, subkey := i.base, false
	if len(part.Subkey.Value) > 0 {
		if k, err = newKey(part.Subkey.Type, part.Subkey.Value); err != nil {
			return err
		}
		subkey = true
	}
	i.context = newContext(i.service, k, subkey, false, uint32(i.sent.SeqNumber), uint32(part.Sequence))
	return nil
}

// choose takes the first quality wanted that the acceptor offers.
func (i *Initiator) choose(token []byte) ([]byte, error) {
	p, _, err := i.context.unwrap(bytes.Clone(token))
	if err != nil || len(p) < 4 {
		return nil, fmt.Errorf("%w: GSSAPI: the offer of layers: %w", sasl.ErrMessage, cmp.Or(err, errWrap))
	}
	k := slices.IndexFunc(i.qualities, func(q sasl.Quality) bool { return p[0]&layerBits[q] != 0 })
	if k < 0 {
		return nil, fmt.Errorf("%w: GSSAPI: the server offers the layers %03b, wanted is one of %q (hadoop.rpc.protection)", sasl.ErrQuality, p[0], i.qualities)
	}
	limit := maxMessage
	if i.qualities[k] == sasl.Authentication {
		limit = 0
	}
	reply := i.context.wrap(binary.BigEndian.AppendUint32(nil, uint32(layerBits[i.qualities[k]])<<24|uint32(limit)), false)
	i.layer = layerOf(i.context, i.qualities[k])
	return reply, nil
}
