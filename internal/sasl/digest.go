package sasl

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// DigestMD5 is the name of the mechanism.
const DigestMD5 = "DIGEST-MD5"

// MaxToken is how large a message of an exchange may be, in bytes: RFC 2831 has 4,096, a ticket of Kerberos with the groups of a
// user is larger.
const MaxToken = 64 << 10

const (
	maxDirectives = 32
	// nonceBytes of a nonce, before base64.
	nonceBytes = 24
)

// Quality is what protects the messages after an exchange (RFC 2831 calls it quality of protection).
type Quality string

// The qualities, from the least to the best.
const (
	Authentication Quality = "auth"
	Integrity      Quality = "auth-int"
	Privacy        Quality = "auth-conf"
)

var qualityNames = map[string]Quality{"authentication": Authentication, "integrity": Integrity, "privacy": Privacy}

// ParseQualities reads Hadoop's list of them: authentication, integrity, privacy, separated by commas (hadoop.rpc.protection,
// dfs.data.transfer.protection). An empty list is an error.
func ParseQualities(list string) ([]Quality, error) {
	var out []Quality
	for name := range strings.SplitSeq(list, ",") {
		q, ok := qualityNames[strings.ToLower(strings.TrimSpace(name))]
		if !ok {
			return nil, fmt.Errorf("protection %q is none of authentication, integrity, privacy", strings.TrimSpace(name))
		}
		if !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out, nil
}

// FormatQualities writes what ParseQualities reads.
func FormatQualities(qualities []Quality) string {
	var names []string
	for _, q := range qualities {
		for name, known := range qualityNames {
			if known == q {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ",")
}

// Errors of an exchange. What a peer may know of them is in their text.
var (
	// ErrMessage: the peer's message is none of the mechanism's.
	ErrMessage = errors.New("malformed SASL message")
	// ErrPassword: the peer does not know the password.
	ErrPassword = errors.New("DIGEST-MD5: digest response format violation. Mismatched response.")
	// ErrQuality: the peer wants less protection than is asked for, or none that both have.
	ErrQuality = errors.New("quality of protection refused")
	// ErrLayer: a message was changed, repeated, left out or sealed under another key.
	ErrLayer = errors.New("SASL: a message fails its integrity check")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMessage}, args...)...)
}

// EncodeName is the name under which a token's identifier is known to DIGEST-MD5, EncodePassword its password's, both as Hadoop has
// them.
func EncodeName(identifier []byte) string { return base64.StdEncoding.EncodeToString(identifier) }

// EncodePassword is the password of a token as DIGEST-MD5 knows it.
func EncodePassword(password []byte) string { return base64.StdEncoding.EncodeToString(password) }

// DecodeName is the identifier of a name that EncodeName made.
func DecodeName(name string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(name)
	if err != nil {
		return nil, malformed("the user name is not a token's identifier in base64")
	}
	return b, nil
}

// AcceptorConfig describes the acceptor of one exchange of DIGEST-MD5.
type AcceptorConfig struct {
	// Service and Server make the digest-uri that the initiator has to name; the server's name is the realm, too.
	Service, Server string
	// Qualities that are offered; default: authentication.
	Qualities []Quality
	// Lookup answers with the password that belongs to a name and with whom it stands for. Its errors end the exchange as they are.
	Lookup func(name string) (password string, who Identity, err error)
}

// digestAcceptor is the acceptor's side of DIGEST-MD5.
type digestAcceptor struct {
	config     AcceptorConfig
	nonce      string
	challenged bool
	done       bool
	who        Identity
	layer      Layer
}

// NewAcceptor makes the acceptor of one exchange of DIGEST-MD5. Its first step, of no bytes, gives the challenge.
func NewAcceptor(config AcceptorConfig) Mechanism {
	if len(config.Qualities) == 0 {
		config.Qualities = []Quality{Authentication}
	}
	return &digestAcceptor{config: config, nonce: newNonce()}
}

func newNonce() string {
	b := make([]byte, nonceBytes)
	rand.Read(b) // never fails (crypto/rand)
	return base64.StdEncoding.EncodeToString(b)
}

// Step implements Mechanism.
func (a *digestAcceptor) Step(token []byte) (reply []byte, done bool, err error) {
	switch {
	case a.done:
		return nil, false, malformed("the exchange is over")
	case !a.challenged:
		if len(token) > 0 {
			return nil, false, malformed("DIGEST-MD5 begins with the acceptor's challenge")
		}
		a.challenged = true
		return a.challenge(), false, nil
	}
	reply, err = a.verify(token)
	if err != nil {
		return nil, false, err
	}
	a.done = true
	return reply, true, nil
}

// Identity implements Mechanism.
func (a *digestAcceptor) Identity() Identity { return a.who }

// Layer implements Mechanism.
func (a *digestAcceptor) Layer() Layer { return a.layer }

func (a *digestAcceptor) challenge() []byte {
	var names []string
	private := false
	for _, q := range a.config.Qualities {
		names = append(names, string(q))
		private = private || q == Privacy
	}
	b := fmt.Appendf(nil, "realm=%s,nonce=%s,qop=%s,charset=utf-8,algorithm=md5-sess", quote(a.config.Server), quote(a.nonce), quote(strings.Join(names, ",")))
	if private {
		b = fmt.Appendf(b, ",cipher=%s", quote(strings.Join(cipherNames, ",")))
	}
	return b
}

// verify checks the initiator's response and makes the answer that proves to it that this side has the password, too.
func (a *digestAcceptor) verify(token []byte) ([]byte, error) {
	d, err := parseDirectives(token)
	if err != nil {
		return nil, err
	}
	quality := Quality(d.value("qop"))
	if quality == "" {
		quality = Authentication
	}
	uri := d.value("digest-uri")
	switch {
	case d.value("nonce") != a.nonce:
		return nil, malformed("the nonce is another one than that of the challenge")
	case d.value("nc") != "00000001":
		return nil, malformed("the nonce count is not 1: nobody is authenticated a second time")
	case d.value("cnonce") == "":
		return nil, malformed("the response has no cnonce")
	case d.has("realm") && d.value("realm") != a.config.Server:
		return nil, malformed("the realm is %q, want %q", d.value("realm"), a.config.Server)
	case !strings.EqualFold(uri, a.config.Service+"/"+a.config.Server):
		return nil, malformed("the digest-uri is %q, want %q", uri, a.config.Service+"/"+a.config.Server)
	case d.has("authzid") && d.value("authzid") != d.value("username"):
		return nil, malformed("nobody may act for another one here")
	case !slices.Contains(a.config.Qualities, quality):
		return nil, fmt.Errorf("%w: %q is asked for, %q are offered", ErrQuality, quality, a.config.Qualities)
	}
	password, who, err := a.config.Lookup(d.value("username"))
	if err != nil {
		return nil, err
	}
	s := session{
		name: d.value("username"), realm: d.value("realm"), password: password, nonce: a.nonce, cnonce: d.value("cnonce"),
		authzid: d.value("authzid"), uri: uri, quality: quality,
	}
	s.derive()
	if !hmac.Equal([]byte(s.response("AUTHENTICATE")), []byte(strings.ToLower(d.value("response")))) {
		return nil, ErrPassword
	}
	if a.layer, err = s.layer(d.value("cipher"), true); err != nil {
		return nil, err
	}
	a.who = who
	return []byte("rspauth=" + s.response("")), nil
}

// InitiatorConfig describes the initiator of one exchange of DIGEST-MD5.
type InitiatorConfig struct {
	// Service and Server make the digest-uri.
	Service, Server string
	Name, Password  string
	// Qualities that are taken, the preferred one first; default: authentication.
	Qualities []Quality
}

// Initiator is the initiator's side of an exchange of DIGEST-MD5.
type Initiator struct {
	config  InitiatorConfig
	session session
	asked   bool
	done    bool
	layer   Layer
}

// NewInitiator makes the initiator of one exchange.
func NewInitiator(config InitiatorConfig) *Initiator {
	if len(config.Qualities) == 0 {
		config.Qualities = []Quality{Authentication}
	}
	return &Initiator{config: config}
}

// Step takes what the acceptor sent and returns what is sent back: its challenge first, then its proof, after which done is true.
func (i *Initiator) Step(token []byte) (reply []byte, done bool, err error) {
	d, err := parseDirectives(token)
	if err != nil {
		return nil, false, err
	}
	switch {
	case i.done:
		return nil, false, malformed("the exchange is over")
	case i.asked:
		if !hmac.Equal([]byte(i.session.response("")), []byte(strings.ToLower(d.value("rspauth")))) {
			return nil, false, errors.New("DIGEST-MD5: the server does not know the password: it is not the one that the token is for")
		}
		i.done = true
		return nil, true, nil
	}
	i.asked = true
	reply, err = i.respond(d)
	return reply, false, err
}

// Layer is nil for auth.
func (i *Initiator) Layer() Layer { return i.layer }

func (i *Initiator) respond(d directives) ([]byte, error) {
	if d.value("algorithm") != "md5-sess" || d.value("nonce") == "" {
		return nil, malformed("it is not a challenge of DIGEST-MD5")
	}
	offered := splitList(d.value("qop"))
	if len(offered) == 0 {
		offered = []string{string(Authentication)}
	}
	k := slices.IndexFunc(i.config.Qualities, func(q Quality) bool { return slices.Contains(offered, string(q)) })
	if k < 0 {
		return nil, fmt.Errorf("%w: the server offers %q, wanted is one of %q", ErrQuality, offered, i.config.Qualities)
	}
	realm := d.value("realm")
	i.session = session{
		name: i.config.Name, realm: realm, password: i.config.Password, nonce: d.value("nonce"), cnonce: newNonce(),
		uri: i.config.Service + "/" + i.config.Server, quality: i.config.Qualities[k],
	}
	i.session.derive()
	name := ""
	if i.session.quality == Privacy {
		offered := splitList(d.value("cipher"))
		c := slices.IndexFunc(cipherNames, func(name string) bool { return slices.Contains(offered, name) })
		if c < 0 {
			return nil, fmt.Errorf("%w: the server offers the ciphers %q, known here are %q", ErrQuality, offered, cipherNames)
		}
		name = cipherNames[c]
	}
	b := fmt.Appendf(nil, "charset=utf-8,username=%s,realm=%s,nonce=%s,nc=00000001,cnonce=%s,digest-uri=%s,response=%s,qop=%s",
		quote(i.session.name), quote(realm), quote(i.session.nonce), quote(i.session.cnonce), quote(i.session.uri),
		i.session.response("AUTHENTICATE"), i.session.quality)
	if name != "" {
		b = fmt.Appendf(b, ",cipher=%s", quote(name))
	}
	var err error
	i.layer, err = i.session.layer(name, false)
	return b, err
}

// session is what both sides of an exchange know.
type session struct {
	name, realm, password, nonce, cnonce, authzid, uri string
	quality                                            Quality
	a1                                                 [md5.Size]byte // H(A1)
}

// derive makes H(A1), RFC 2831 2.1.2.1.
func (s *session) derive() {
	secret := md5.Sum([]byte(s.name + ":" + s.realm + ":" + s.password))
	a1 := append(secret[:], (":" + s.nonce + ":" + s.cnonce)...)
	if s.authzid != "" {
		a1 = append(a1, (":" + s.authzid)...)
	}
	s.a1 = md5.Sum(a1)
}

// response is the response value: of the initiator for "AUTHENTICATE", of the acceptor for no method.
func (s *session) response(method string) string {
	a2 := method + ":" + s.uri
	if s.quality != Authentication {
		a2 += ":00000000000000000000000000000000"
	}
	h2 := md5.Sum([]byte(a2))
	sum := md5.Sum([]byte(hex.EncodeToString(s.a1[:]) + ":" + s.nonce + ":00000001:" + s.cnonce + ":" + string(s.quality) + ":" + hex.EncodeToString(h2[:])))
	return hex.EncodeToString(sum[:])
}

// directives are the name=value pairs of a message.
type directives map[string]string

func (d directives) value(name string) string { return d[name] }

func (d directives) has(name string) bool {
	_, ok := d[name]
	return ok
}

// parseDirectives reads a list of name=value and name="value", separated by commas. A name that comes twice is an error.
func parseDirectives(b []byte) (directives, error) {
	if len(b) > MaxToken {
		return nil, malformed("it has %d bytes, %d are allowed", len(b), MaxToken)
	}
	d := directives{}
	rest := string(b)
	for {
		rest = strings.TrimLeft(rest, " \t\r\n,")
		if rest == "" {
			return d, nil
		}
		name, after, ok := strings.Cut(rest, "=")
		if name = strings.ToLower(strings.TrimSpace(name)); !ok || name == "" || strings.ContainsAny(name, "\", \t\r\n") {
			return nil, malformed("a name=value was expected")
		}
		value, after, err := cutValue(strings.TrimLeft(after, " \t\r\n"))
		if err != nil {
			return nil, err
		}
		if d.has(name) {
			return nil, malformed("%s comes twice", name)
		}
		if len(d) == maxDirectives {
			return nil, malformed("it has more than %d directives", maxDirectives)
		}
		d[name] = value
		if rest = strings.TrimLeft(after, " \t\r\n"); rest != "" && rest[0] != ',' {
			return nil, malformed("a comma was expected after %s", name)
		}
	}
}

// cutValue cuts a token or a quoted string off the front of s.
func cutValue(s string) (value, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		n := strings.IndexAny(s, ", \t\r\n\"")
		if n < 0 {
			n = len(s)
		}
		return s[:n], s[n:], nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], nil
		case '\\':
			if i++; i == len(s) {
				return "", "", malformed("a quoted string does not end")
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", malformed("a quoted string does not end")
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}
