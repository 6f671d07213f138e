package kerberos

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/gohops/hops/internal/sasl"
)

// GSSAPI is the name of the SASL mechanism (RFC 4752).
const GSSAPI = "GSSAPI"

// maxMessage is the size of the largest wrapped message that is announced to a peer, in bytes: the greatest that RFC 4752 can
// say. Who reads messages has limits of its own. A peer's announcement is not kept to either, as in Hadoop, whose messages are
// not cut.
const maxMessage = 1<<24 - 1

// The bits of RFC 4752's layers.
var layerBits = map[sasl.Quality]byte{sasl.Authentication: 1, sasl.Integrity: 2, sasl.Privacy: 4}

// acceptorExchange is the acceptor's side of GSSAPI.
type acceptorExchange struct {
	acceptor  *Acceptor
	qualities []sasl.Quality
	step      int
	context   *gssContext
	who       sasl.Identity
	layer     sasl.Layer
}

const (
	stepToken = iota // the initial token is to come
	stepReply        // the client has the acceptor's proof and says nothing
	stepOffer        // the client chooses a layer
	stepOver
)

// Exchange makes the acceptor's side of one exchange of GSSAPI, which offers qualities; none means authentication. Its first
// step takes the client's initial token; an empty one is answered with nothing.
func (a *Acceptor) Exchange(qualities ...sasl.Quality) sasl.Mechanism {
	if len(qualities) == 0 {
		qualities = []sasl.Quality{sasl.Authentication}
	}
	return &acceptorExchange{acceptor: a, qualities: qualities}
}

// Step implements sasl.Mechanism.
func (x *acceptorExchange) Step(token []byte) (reply []byte, done bool, err error) {
	switch x.step {
	case stepToken:
		if len(token) == 0 {
			return nil, false, nil
		}
		x.step = stepOver // after an error
		if x.context, reply, err = x.acceptor.accept(token); err != nil {
			return nil, false, fmt.Errorf("Kerberos: %w", err)
		}
		if len(reply) > 0 {
			x.step = stepReply
			return reply, false, nil
		}
		return x.offer()
	case stepReply:
		x.step = stepOver
		if len(token) > 0 {
			return nil, false, fmt.Errorf("%w: GSSAPI: nothing was expected after the acceptor's token", sasl.ErrMessage)
		}
		return x.offer()
	case stepOffer:
		x.step = stepOver
		return nil, true, x.choose(token)
	}
	return nil, false, fmt.Errorf("%w: the exchange is over", sasl.ErrMessage)
}

// offer tells the client which layers there are.
func (x *acceptorExchange) offer() ([]byte, bool, error) {
	x.step = stepOffer
	var bits byte
	limit := 0
	for _, q := range x.qualities {
		bits |= layerBits[q]
		if q != sasl.Authentication {
			limit = maxMessage
		}
	}
	return x.context.wrap(binary.BigEndian.AppendUint32(nil, uint32(bits)<<24|uint32(limit)), false), false, nil
}

func (x *acceptorExchange) choose(token []byte) error {
	p, _, err := x.context.unwrap(token)
	if err != nil {
		return fmt.Errorf("%w: GSSAPI: %w", sasl.ErrMessage, err)
	}
	if len(p) < 4 {
		return fmt.Errorf("%w: GSSAPI: the choice of a layer has %d bytes", sasl.ErrMessage, len(p))
	}
	quality, err := chosen(p[0], x.qualities)
	if err != nil {
		return err
	}
	peer := x.context.peer
	if as := string(p[4:]); as != "" && as != peer.String() {
		return fmt.Errorf("GSSAPI: %s may not log in as %.200q", peer, as)
	}
	short, err := x.acceptor.config.Rules.ShortName(peer)
	if err != nil {
		return err
	}
	x.who = sasl.Identity{Name: short, Principal: peer.String(), Method: sasl.Kerberos}
	x.layer = layerOf(x.context, quality)
	return nil
}

// chosen is the quality of one bit.
func chosen(bit byte, from []sasl.Quality) (sasl.Quality, error) {
	name := fmt.Sprintf("layer %d", bit)
	for q, b := range layerBits {
		if b == bit {
			if slices.Contains(from, q) {
				return q, nil
			}
			name = string(q)
		}
	}
	return "", fmt.Errorf("%w: GSSAPI: %s is asked for, %q are offered (hadoop.rpc.protection)", sasl.ErrQuality, name, from)
}

// Identity implements sasl.Mechanism.
func (x *acceptorExchange) Identity() sasl.Identity { return x.who }

// Layer implements sasl.Mechanism.
func (x *acceptorExchange) Layer() sasl.Layer { return x.layer }

// layer protects messages by the context.
type layer struct {
	context      *gssContext
	confidential bool
}

func layerOf(c *gssContext, q sasl.Quality) sasl.Layer {
	if q == sasl.Authentication {
		return nil
	}
	return &layer{c, q == sasl.Privacy}
}

// Wrap implements sasl.Layer.
func (l *layer) Wrap(p []byte) ([]byte, error) { return l.context.wrap(p, l.confidential), nil }

// Unwrap implements sasl.Layer. What it returns is a part of p.
func (l *layer) Unwrap(p []byte) ([]byte, error) {
	out, confidential, err := l.context.unwrap(p)
	if err == nil && confidential != l.confidential {
		err = errors.New("a message is confidential and others are not")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: GSSAPI: %w", sasl.ErrLayer, err)
	}
	return out, nil
}
