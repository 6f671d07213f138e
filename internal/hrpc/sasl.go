package hrpc

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Offer is a method of SASL that a server has.
type Offer struct {
	// Method is Hadoop's name of it (sasl.Token, …), Mechanism that of SASL.
	Method, Mechanism string
	// Protocol and ServerID are what the client's side of the mechanism is told: the service and host of a principal of Kerberos.
	Protocol, ServerID string
	// TLS: it is offered within TLS only.
	TLS bool
	// First: the first step, of no bytes, makes a challenge, which goes out with the offer. Only the first offer may.
	First bool
	// New makes the acceptor of one exchange with a peer.
	New func(p *security.Peer) (sasl.Mechanism, error)
}

// maxSteps is how many messages a client may send until it is known: three are enough for every mechanism of Hadoop's.
const maxSteps = 12

// exchange is the negotiation of SASL with a client.
type exchange struct {
	steps      int
	negotiated bool   // the offers were sent
	chosen     string // the method of the mechanism, sasl.Simple without one
	mechanism  sasl.Mechanism
	done       bool
}

// simple reports whether the peer's bare name counts.
func (c *serverConn) simple() bool {
	door := c.server.config.Door
	return door.Simple(door.Peer(c.conn))
}

// offers are the methods for this connection.
func (c *serverConn) offers() []Offer {
	return slices.DeleteFunc(slices.Clone(c.server.config.Offers), func(o Offer) bool { return o.TLS && !c.secure() })
}

func (c *serverConn) secure() bool {
	return c.server.config.Door.Peer(c.conn).Secure() || withinTLS(c.conn)
}

func withinTLS(conn net.Conn) bool {
	for {
		switch w := conn.(type) {
		case interface{ ConnectionState() tls.ConnectionState }:
			return true
		case interface{ NetConn() net.Conn }:
			conn = w.NetConn()
		default:
			return false
		}
	}
}

// refuseMethod tells a client that it cannot be known in the way that it wants, in Hadoop's words.
func (c *serverConn) refuseMethod(method string) error {
	var available []string
	for _, o := range c.offers() {
		available = append(available, o.Method)
	}
	if c.simple() {
		available = append(available, sasl.Simple)
	}
	text := fmt.Sprintf("%s authentication is not enabled.  Available:[%s]", method, strings.Join(available, ", "))
	if err := c.server.config.Door.Peer(c.conn).Err(); err != nil && method == sasl.Simple { // Hadoop's words first, then what would help
		text += "; " + err.Error()
	}
	return c.unauthenticated(metadata.Errorf(metadata.ErrPermission, "%s", text), "")
}

// unauthenticated ends the connection of a client that is not known, and tells it and the audit log why.
func (c *serverConn) unauthenticated(err error, claimed string) error {
	class, message := classSASL, err.Error()
	switch {
	case errors.Is(err, metadata.ErrPermission):
		class = classAccessControl
	default:
		if _, ok := errors.AsType[*metadata.Kind](err); ok {
			class, message = c.server.config.Exception(err)
		}
	}
	if metadata.KindOf(err) != metadata.ErrStandby {
		c.server.config.Door.Refuse(c.server.config.Door.Peer(c.conn), claimed, "", err)
	}
	return c.fatal(callUnauthorized, -1, nil, detailUnauthorized, class, message)
}

// sasl serves a message of SASL.
func (c *serverConn) sasl(h requestHeader, body []byte) error {
	message, _ := cut(body)
	var request hadooppb.RpcSaslProto
	if err := request.UnmarshalVT(message); err != nil {
		return c.fatal(h.callID, h.retry, h.clientID, detailDeserializing, classRPCServer, "SASL message: "+err.Error())
	}
	x := c.exchange
	if request.GetState() == hadooppb.RpcSaslProto_WRAP {
		if c.layer == nil {
			return c.fatal(h.callID, h.retry, h.clientID, detailInvalidHeader, classSASL, "Server is not wrapping data")
		}
		return c.unwrap(request.GetToken())
	}
	if x == nil || c.known || x.done {
		return c.fatal(h.callID, h.retry, h.clientID, detailInvalidHeader, classRPCServer, "SASL protocol not requested by client")
	}
	if x.steps++; x.steps > maxSteps {
		return c.unauthenticated(fmt.Errorf("%w: %d messages, and the client is not known", sasl.ErrMessage, maxSteps), "")
	}
	switch state := request.GetState(); state {
	case hadooppb.RpcSaslProto_NEGOTIATE:
		if x.negotiated {
			return c.unauthenticated(fmt.Errorf("%w: Client already attempted negotiation", sasl.ErrMessage), "")
		}
		return c.negotiate()
	case hadooppb.RpcSaslProto_INITIATE:
		return c.initiate(&request)
	case hadooppb.RpcSaslProto_RESPONSE:
		if x.mechanism == nil || x.chosen == "" {
			return c.unauthenticated(fmt.Errorf("%w: a response, and nothing was asked", sasl.ErrMessage), "")
		}
		return c.step(request.GetToken())
	default:
		return c.unauthenticated(fmt.Errorf("%w: Client sent unsupported state %v", sasl.ErrMessage, state), "")
	}
}

// negotiate says what is offered; a client of which nobody asks anything need not negotiate.
func (c *serverConn) negotiate() error {
	x, offers := c.exchange, c.offers()
	x.negotiated = true
	if len(offers) == 0 && c.simple() {
		return c.send(&responseHeader{callID: callSASL, retry: -1}, &hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_SUCCESS.Enum()})
	}
	answer := &hadooppb.RpcSaslProto{Version: new(uint32), State: hadooppb.RpcSaslProto_NEGOTIATE.Enum()}
	for i, o := range offers {
		auth := &hadooppb.RpcSaslProto_SaslAuth{Method: &o.Method, Mechanism: &o.Mechanism, Protocol: &o.Protocol, ServerId: &o.ServerID}
		if i == 0 && o.First {
			mechanism, err := o.New(c.server.config.Door.Peer(c.conn))
			if err != nil {
				return c.unauthenticated(err, "")
			}
			if auth.Challenge, _, err = mechanism.Step(nil); err != nil {
				return c.unauthenticated(err, "")
			}
			x.mechanism = mechanism
		}
		answer.Auths = append(answer.Auths, auth)
	}
	if c.simple() {
		answer.Auths = append(answer.Auths, &hadooppb.RpcSaslProto_SaslAuth{Method: new(sasl.Simple), Mechanism: new("")})
	}
	return c.send(&responseHeader{callID: callSASL, retry: -1}, answer)
}

// initiate begins the exchange of the mechanism that a client has chosen.
func (c *serverConn) initiate(request *hadooppb.RpcSaslProto) error {
	x := c.exchange
	if len(request.Auths) != 1 || x.chosen != "" {
		return c.unauthenticated(fmt.Errorf("%w: Client mechanism is malformed", sasl.ErrMessage), "")
	}
	auth := request.Auths[0]
	if auth.GetMethod() == sasl.Simple {
		if !c.simple() {
			return c.refuseMethod(sasl.Simple)
		}
		x.chosen, x.mechanism = sasl.Simple, nil
		return nil // nobody waits for an answer
	}
	offers := c.offers()
	i := slices.IndexFunc(offers, func(o Offer) bool { return o.Method == auth.GetMethod() && o.Mechanism == auth.GetMechanism() })
	if i < 0 {
		return c.refuseMethod(string(printable([]byte(auth.GetMethod()))))
	}
	x.chosen = offers[i].Method
	if i > 0 || !offers[i].First || x.mechanism == nil {
		var err error
		if x.mechanism, err = offers[i].New(c.server.config.Door.Peer(c.conn)); err != nil {
			return c.unauthenticated(err, "")
		}
	}
	return c.step(request.GetToken())
}

// step hands a token to the mechanism, and its answer to the client.
func (c *serverConn) step(token []byte) error {
	x := c.exchange
	reply, done, err := x.mechanism.Step(token)
	if err != nil {
		return c.unauthenticated(err, "")
	}
	answer := &hadooppb.RpcSaslProto{Version: new(uint32), State: hadooppb.RpcSaslProto_CHALLENGE.Enum(), Token: reply}
	if done {
		answer.State = hadooppb.RpcSaslProto_SUCCESS.Enum()
	}
	if err := c.send(&responseHeader{callID: callSASL, retry: -1}, answer); err != nil || !done {
		return err
	}
	x.done = true
	if c.layer = x.mechanism.Layer(); c.layer != nil {
		c.inner = newFrames(nil, maxFirstFrame)
		c.inner.account = c.requests
	}
	return nil
}

// unwrap serves what is in a protected message: frames, the last of which may go on in the next message.
func (c *serverConn) unwrap(token []byte) error {
	plain, err := c.layer.Unwrap(token)
	if err != nil {
		return c.unauthenticated(err, c.caller.User)
	}
	for f := &c.inner; len(plain) > 0; {
		n := copy(f.room(), plain)
		f.took(n)
		plain = plain[n:]
		for {
			frame, ok, err := f.next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if err := c.handle(frame, true); err != nil {
				return err
			}
		}
		if n := f.unpaid(); n > 0 {
			if err := c.payFrame(f, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendWrapped appends a frame that protects others.
func appendWrapped(dst []byte, layer sasl.Layer, plain, header []byte) ([]byte, error) {
	token, err := layer.Wrap(plain)
	if err != nil {
		return nil, err
	}
	dst, at := beginFrame(dst)
	dst = appendDelimited(dst, header)
	dst, err = appendMessage(dst, &hadooppb.RpcSaslProto{Version: new(uint32), State: hadooppb.RpcSaslProto_WRAP.Enum(), Token: token})
	return endFrame(dst, at), err
}

// context learns who calls.
func (c *serverConn) context(h requestHeader, body []byte) error {
	message, n := cut(body)
	var request hadooppb.IpcConnectionContextProto
	if n == 0 {
		return c.fatal(h.callID, h.retry, h.clientID, detailDeserializing, classRPCServer, "the frame holds no connection context")
	}
	if err := request.UnmarshalVT(message); err != nil {
		return c.fatal(h.callID, h.retry, h.clientID, detailDeserializing, classRPCServer, "connection context: "+err.Error())
	}
	caller, err := c.callerOf(request.GetUserInfo())
	if err != nil {
		class := classAccessControl
		if request.GetUserInfo().GetRealUser() != "" {
			class = classAuthorization
		}
		return c.fatal(callUnauthorized, -1, nil, detailUnauthorized, class, err.Error())
	}
	c.caller, c.known, c.exchange = caller, true, nil
	limit := c.server.config.MaxFrame
	if c.frames.limit = limit; c.layer != nil {
		c.frames.limit, c.inner.limit = limit+wrapOverhead, limit
	}
	return nil
}

// wrapOverhead is what protection adds to a frame at most.
const wrapOverhead = 1 << 10

// callerOf is who calls: whom the exchange has proved, or a bare name where that counts.
func (c *serverConn) callerOf(user *hadooppb.UserInformationProto) (metadata.Caller, error) {
	door := c.server.config.Door
	peer, x := door.Peer(c.conn), c.exchange
	c.method, c.proof, c.own = sasl.Simple, door.Proof(peer), door.OwnPeer(peer)
	if x == nil || !x.done {
		if !c.simple() || x != nil && x.chosen != "" && x.chosen != sasl.Simple {
			return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "the client has not proved who it is")
		}
		return door.Claim(peer, c.server.config.Name(peer, user.GetEffectiveUser()), user.GetRealUser())
	}
	id := x.mechanism.Identity()
	c.method, c.key, c.proof = id.Method, id.Key, security.Proved
	claimed := user.GetEffectiveUser()
	if l, ok := x.mechanism.(lasting); ok {
		c.lasting = l
		return door.TokenPeer(l.Claims(), peer, claimed)
	}
	switch {
	case claimed == "" || claimed == id.Principal || security.ShortName(claimed) == id.Name:
		return door.Authenticated(peer, id.Name, id.RealUser)
	case id.Method == sasl.Token: // which stands for one user, and nobody else
		err := metadata.Errorf(metadata.ErrUnauthorized, "Authenticated user (%s) doesn't match what the client claims to be (%s)", id.Name, claimed)
		door.Refuse(peer, claimed, id.Name, err)
		return metadata.Caller{}, err
	}
	return door.Proxied(peer, id.Name, security.ShortName(claimed))
}
