package kerberos

import (
	"bytes"
	"encoding/asn1"
	"errors"
	"fmt"
)

// Names of mechanisms in SPNEGO (RFC 4178).
var (
	mechKerberos  = asn1.ObjectIdentifier{1, 2, 840, 113554, 1, 2, 2}
	mechMicrosoft = asn1.ObjectIdentifier{1, 2, 840, 48018, 1, 2, 2} // of old Windows, the same
)

// negotiation is NegTokenInit.
type negotiation struct {
	Mechanisms []asn1.ObjectIdentifier `asn1:"explicit,tag:0"`
	Flags      asn1.BitString          `asn1:"explicit,optional,tag:1"`
	Token      []byte                  `asn1:"explicit,optional,tag:2"`
	MIC        []byte                  `asn1:"explicit,optional,tag:3"`
}

// negotiated is NegTokenResp, of an acceptor that is satisfied.
type negotiated struct {
	State     asn1.Enumerated       `asn1:"explicit,tag:0"`
	Mechanism asn1.ObjectIdentifier `asn1:"explicit,tag:1"`
	Token     []byte                `asn1:"explicit,optional,tag:2"`
}

// Negotiate takes the token of an HTTP request that says Authorization: Negotiate (RFC 4559), which is one of SPNEGO or of
// Kerberos itself. It returns the short name of who sent it, and the token that proves this server to them.
func (a *Acceptor) Negotiate(token []byte) (user string, reply []byte, err error) {
	inner, mechanism, err := offered(token)
	if err != nil {
		return "", nil, fmt.Errorf("SPNEGO: %w", err)
	}
	c, reply, err := a.accept(inner)
	if err != nil {
		return "", nil, fmt.Errorf("Kerberos: %w", err)
	}
	if mechanism != nil {
		if reply, err = asn1.MarshalWithParams(negotiated{0, mechanism, reply}, "explicit,tag:1"); err != nil {
			return "", nil, fmt.Errorf("SPNEGO: %w", err)
		}
	}
	user, err = a.config.Rules.ShortName(c.peer)
	return user, reply, err
}

// offered is the token of Kerberos within one of SPNEGO; mechanism is nil when it came by itself.
func offered(token []byte) (inner []byte, mechanism asn1.ObjectIdentifier, err error) {
	if len(token) > MaxToken {
		return nil, nil, fmt.Errorf("a token of %d bytes is too long, %d are allowed", len(token), MaxToken)
	}
	if bytes.HasPrefix(token, []byte("NTLMSSP\x00")) {
		return nil, nil, errors.New("the client sent NTLM, because it has no Kerberos ticket for this server: kinit, and use the server's name as the KDC knows it")
	}
	if _, ok := framed(token, oidKerberos); ok {
		return token, nil, nil
	}
	body, ok := framed(token, oidSPNEGO)
	if !ok {
		return nil, nil, errors.New("it is no token of SPNEGO or Kerberos")
	}
	var n negotiation
	if rest, err := asn1.UnmarshalWithParams(body, &n, "explicit,tag:0"); err != nil || len(rest) > 0 || len(n.Mechanisms) == 0 {
		return nil, nil, errors.New("it is no token of SPNEGO that begins an exchange")
	}
	first := n.Mechanisms[0]
	if !first.Equal(mechKerberos) && !first.Equal(mechMicrosoft) || len(n.Token) == 0 {
		return nil, nil, fmt.Errorf("the client would begin with the mechanism %v, and Kerberos only is taken here: kinit first", first)
	}
	return n.Token, first, nil
}

// negotiationOf puts a token of Kerberos into one of SPNEGO.
func negotiationOf(token []byte) ([]byte, error) {
	type begin struct { // without the fields that are not sent
		Mechanisms []asn1.ObjectIdentifier `asn1:"explicit,tag:0"`
		Token      []byte                  `asn1:"explicit,tag:2"`
	}
	body, err := asn1.MarshalWithParams(begin{[]asn1.ObjectIdentifier{mechKerberos}, token}, "explicit,tag:0")
	if err != nil {
		return nil, err
	}
	return frame(oidSPNEGO, body), nil
}
