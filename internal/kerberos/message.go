package kerberos

import (
	"encoding/asn1"
	"errors"
	"fmt"
	"time"
)

// The messages of RFC 4120, section 5, that an acceptor reads and writes.

// Numbers of messages, and of the keys that encrypt parts of them (RFC 4120, sections 5.10 and 7.5.1).
const (
	messageAPReq     = 14
	messageAPRep     = 15
	tagTicket        = 1
	tagAuthenticator = 2
	tagTicketPart    = 3
	tagAPRepPart     = 27

	usageTicket        = 2
	usageAuthenticator = 11
	usageAPRep         = 12
)

// Flags, counted from the highest bit (RFC 4120, sections 5.5.1 and 5.3).
const (
	optionSessionKey = 1
	optionMutual     = 2

	flagInvalid          = 7
	flagTransitedChecked = 12
)

type principalName struct {
	Type  int32    `asn1:"explicit,tag:0"`
	Parts []string `asn1:"explicit,tag:1"`
}

func (n principalName) in(realm string) Principal { return Principal{n.Parts, realm} }

type encryptedData struct {
	Type    int32  `asn1:"explicit,tag:0"`
	Version int64  `asn1:"explicit,optional,tag:1"`
	Cipher  []byte `asn1:"explicit,tag:2"`
}

type encryptionKey struct {
	Type  int32  `asn1:"explicit,tag:0"`
	Value []byte `asn1:"explicit,tag:1"`
}

type checksum struct {
	Type  int32  `asn1:"explicit,tag:0"`
	Value []byte `asn1:"explicit,tag:1"`
}

type apReq struct {
	Version       int            `asn1:"explicit,tag:0"`
	Type          int            `asn1:"explicit,tag:1"`
	Options       asn1.BitString `asn1:"explicit,tag:2"`
	Ticket        asn1.RawValue  `asn1:"explicit,tag:3"`
	Authenticator encryptedData  `asn1:"explicit,tag:4"`
}

type ticket struct {
	Version int           `asn1:"explicit,tag:0"`
	Realm   string        `asn1:"explicit,tag:1"`
	Name    principalName `asn1:"explicit,tag:2"`
	Part    encryptedData `asn1:"explicit,tag:3"`
}

type transited struct {
	Type     int32  `asn1:"explicit,tag:0"`
	Contents []byte `asn1:"explicit,tag:1"`
}

// ticketPart is EncTicketPart up to what an acceptor reads.
type ticketPart struct {
	Flags     asn1.BitString `asn1:"explicit,tag:0"`
	Key       encryptionKey  `asn1:"explicit,tag:1"`
	Realm     string         `asn1:"explicit,tag:2"`
	Name      principalName  `asn1:"explicit,tag:3"`
	Transited transited      `asn1:"explicit,tag:4"`
	AuthTime  time.Time      `asn1:"generalized,explicit,tag:5"`
	Start     time.Time      `asn1:"generalized,explicit,optional,tag:6"`
	End       time.Time      `asn1:"generalized,explicit,tag:7"`
}

// authenticator is Authenticator up to what an acceptor reads.
type authenticator struct {
	Version  int           `asn1:"explicit,tag:0"`
	Realm    string        `asn1:"explicit,tag:1"`
	Name     principalName `asn1:"explicit,tag:2"`
	Checksum checksum      `asn1:"explicit,optional,tag:3"`
	Micros   int           `asn1:"explicit,tag:4"`
	Time     time.Time     `asn1:"generalized,explicit,tag:5"`
	Subkey   encryptionKey `asn1:"explicit,optional,tag:6"`
	Sequence int64         `asn1:"explicit,optional,tag:7"`
}

func (a *authenticator) at() time.Time { return a.Time.Add(time.Duration(a.Micros) * time.Microsecond) }

type apRep struct {
	Version int           `asn1:"explicit,tag:0"`
	Type    int           `asn1:"explicit,tag:1"`
	Part    encryptedData `asn1:"explicit,tag:2"`
}

type apRepPart struct {
	Time     time.Time     `asn1:"generalized,explicit,tag:0"`
	Micros   int           `asn1:"explicit,tag:1"`
	Subkey   encryptionKey `asn1:"explicit,optional,tag:2"`
	Sequence int64         `asn1:"explicit,optional,tag:3"`
}

// decode reads one message with the number of its kind around it.
func decode(b []byte, tag int, into any) error {
	_, err := asn1.UnmarshalWithParams(b, into, fmt.Sprintf("application,explicit,tag:%d", tag))
	return err
}

func encode(tag int, from any) ([]byte, error) {
	return asn1.MarshalWithParams(from, fmt.Sprintf("application,explicit,tag:%d", tag))
}

// The frame of initial tokens (RFC 2743, section 3.1), and the objects in it.
var (
	oidKerberos = []byte{0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02}
	// oidMicrosoft is what old Windows calls Kerberos in SPNEGO.
	oidMicrosoft = []byte{0x06, 0x09, 0x2a, 0x86, 0x48, 0x82, 0xf7, 0x12, 0x01, 0x02, 0x02}
	oidSPNEGO    = []byte{0x06, 0x06, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x02}
)

// What a framed token holds (RFC 4121, section 4.1).
const (
	tokenAPReq = 0x0100
	tokenAPRep = 0x0200
	tokenError = 0x0300
)

var errToken = errors.New("it is no Kerberos token, or only a part of one")

// framed takes the frame off an initial token of a mechanism.
func framed(b, oid []byte) ([]byte, bool) {
	var outer asn1.RawValue
	rest, err := asn1.Unmarshal(b, &outer)
	if err != nil || len(rest) > 0 || outer.Class != asn1.ClassApplication || outer.Tag != 0 || !outer.IsCompound {
		return nil, false
	}
	if len(outer.Bytes) < len(oid) || string(outer.Bytes[:len(oid)]) != string(oid) {
		return nil, false
	}
	return outer.Bytes[len(oid):], true
}

// frame puts the frame of initial tokens around a token of a mechanism.
func frame(oid, inner []byte) []byte {
	b, err := asn1.Marshal(asn1.RawValue{Class: asn1.ClassApplication, Tag: 0, IsCompound: true, Bytes: append(append([]byte(nil), oid...), inner...)})
	if err != nil {
		panic(err) // of fields that are set here
	}
	return b
}

// kerberosToken is the message of a token of the Kerberos mechanism, which is to be of one kind.
func kerberosToken(b []byte, kind uint16) ([]byte, error) {
	inner, ok := framed(b, oidKerberos)
	if !ok || len(inner) < 2 {
		return nil, errToken
	}
	if got := uint16(inner[0])<<8 | uint16(inner[1]); got != kind {
		return nil, fmt.Errorf("a Kerberos token of kind %04x came where %04x was expected", got, kind)
	}
	return inner[2:], nil
}
