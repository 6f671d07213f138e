package hrpc

import (
	"fmt"
	"slices"
	"time"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Token is a delegation token, as far as it is shown to a server.
type Token struct{ Identifier, Password []byte }

// The digest-uri of tokens on Hadoop IPC is "/default" (SaslRpcServer.SASL_DEFAULT_REALM).
const (
	TokenService = ""
	TokenServer  = "default"
)

// Initiator is the client's side of an exchange of a mechanism: the mirror of sasl.Mechanism.
type Initiator interface {
	// Step takes what the server sent, nothing at first, and returns what is sent back; done says that nothing more is expected of
	// this side.
	Step(token []byte) (reply []byte, done bool, err error)
	// Layer protects what follows; nil for auth.
	Layer() sasl.Layer
}

// proof is what a client proves itself with: a method and mechanism of SASL.
type proof struct {
	method, mechanism string
	// begin makes the initiator for what the server says it is.
	begin func(offer *hadooppb.RpcSaslProto_SaslAuth) (Initiator, error)
}

func (c *Client) tokenProof(token Token) proof {
	return proof{sasl.Token, sasl.DigestMD5, func(*hadooppb.RpcSaslProto_SaslAuth) (Initiator, error) {
		return sasl.NewInitiator(sasl.InitiatorConfig{
			Service: TokenService, Server: TokenServer, Qualities: c.config.Qualities,
			Name: sasl.EncodeName(token.Identifier), Password: sasl.EncodePassword(token.Password),
		}), nil
	}}
}

func (c *Client) loginProof() proof {
	return proof{sasl.Kerberos, "GSSAPI", func(offer *hadooppb.RpcSaslProto_SaslAuth) (Initiator, error) {
		return c.config.Login(c.addr, offer.GetProtocol(), offer.GetServerId(), c.config.Qualities)
	}}
}

// prove proves to the server that was connected to who this is. A server that does not take the proof is refused: nothing would
// show that it is the one that was meant.
func (c *Client) prove(p proof, f *frames) error {
	_ = c.conn.SetDeadline(time.Now().Add(c.config.CallTimeout))
	hello := append([]byte(magic), version, 0, authSASL)
	if err := c.tell(hello, &hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_NEGOTIATE.Enum()}); err != nil {
		return err
	}
	var initiator Initiator
	known, finished := false, false
	for steps := 0; ; steps++ {
		m, err := c.hear(f, &known)
		if err != nil {
			return err
		}
		answer := &hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_RESPONSE.Enum()}
		challenge := m.GetToken()
		switch state := m.GetState(); {
		case steps > maxSteps:
			return fmt.Errorf("%w: the server asks and asks", sasl.ErrMessage)
		case state == hadooppb.RpcSaslProto_NEGOTIATE && steps == 0:
			i := slices.IndexFunc(m.Auths, func(a *hadooppb.RpcSaslProto_SaslAuth) bool {
				return a.GetMethod() == p.method && a.GetMechanism() == p.mechanism
			})
			if i < 0 {
				return c.unwilling(p)
			}
			chosen := m.Auths[i]
			if initiator, err = p.begin(chosen); err != nil {
				return fmt.Errorf("%s: %w", c.addr, err)
			}
			challenge, chosen.Challenge = chosen.Challenge, nil
			answer.State, answer.Auths = hadooppb.RpcSaslProto_INITIATE.Enum(), []*hadooppb.RpcSaslProto_SaslAuth{chosen}
			if len(challenge) == 0 && p.method == sasl.Token {
				if err := c.tell(nil, answer); err != nil {
					return err
				}
				continue
			}
		case state == hadooppb.RpcSaslProto_SUCCESS && steps == 0:
			return c.unwilling(p)
		case state == hadooppb.RpcSaslProto_SUCCESS && finished && len(challenge) == 0:
			c.layer = initiator.Layer()
			return c.conn.SetDeadline(time.Time{})
		case initiator == nil, state != hadooppb.RpcSaslProto_CHALLENGE && state != hadooppb.RpcSaslProto_SUCCESS:
			return fmt.Errorf("%w: state %v of the server", sasl.ErrMessage, state)
		}
		reply, done, err := initiator.Step(challenge)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", c.addr, err)
		case done && m.GetState() == hadooppb.RpcSaslProto_SUCCESS:
			c.layer = initiator.Layer()
			return c.conn.SetDeadline(time.Time{})
		case m.GetState() == hadooppb.RpcSaslProto_SUCCESS:
			return fmt.Errorf("%w: the server is content too early", sasl.ErrMessage)
		}
		finished, answer.Token = done, reply
		if err := c.tell(nil, answer); err != nil {
			return err
		}
	}
}

func (c *Client) unwilling(p proof) error {
	if p.method == sasl.Kerberos {
		return fmt.Errorf("%s takes no tickets of Kerberos, and this client is configured to show one (hadoop.security.authentication)", c.addr)
	}
	return fmt.Errorf("%s takes no delegation tokens: it is not the server that the token is for, or it has no security", c.addr)
}

// tell sends a message of SASL, after what is to come before it.
func (c *Client) tell(before []byte, m *hadooppb.RpcSaslProto) error {
	dst, at := beginFrame(before)
	dst = appendDelimited(dst, appendRequestHeader(nil, callSASL, -1, nil))
	dst, err := appendMessage(dst, m)
	if err != nil {
		return err
	}
	_, err = c.conn.Write(endFrame(dst, at))
	return err
}

// hear reads the server's next message of SASL. known: something has come before.
func (c *Client) hear(f *frames, known *bool) (*hadooppb.RpcSaslProto, error) {
	for {
		frame, ok, err := f.next()
		switch {
		case err != nil && !*known:
			return nil, &WrongPortError{Addr: c.addr, Speaks: "something else"}
		case err != nil:
			return nil, err
		case ok:
			*known = true
			return parseSASL(frame)
		}
		if err = f.fill(); !*known {
			err = c.greeted(f.buf[f.start:f.end], err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// parseSASL reads a frame of the server's that is one of SASL, or an error.
func parseSASL(frame []byte) (*hadooppb.RpcSaslProto, error) {
	head, n := cut(frame)
	if n == 0 {
		return nil, fmt.Errorf("%w: no response header", errMalformed)
	}
	h, err := parseResponseHeader(head)
	if err != nil {
		return nil, err
	}
	if h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
		return nil, &RemoteError{Class: h.class, Message: h.message, Detail: h.detail, Fatal: true}
	}
	body, k := cut(frame[n:])
	if h.callID != callSASL || k == 0 {
		return nil, fmt.Errorf("%w: not one of SASL", errMalformed)
	}
	m := new(hadooppb.RpcSaslProto)
	return m, m.UnmarshalVT(body)
}

// add sends a frame that encode appends, protected if that was agreed on; with now the caller sends it, if nobody else does.
func (c *Client) add(encode func([]byte) ([]byte, error), now bool) error {
	if c.layer == nil {
		return c.out.put(encode, now)
	}
	return c.out.put(func(dst []byte) ([]byte, error) {
		plain, err := encode(nil)
		if err != nil {
			return nil, err
		}
		return appendWrapped(dst, c.layer, plain, appendRequestHeader(nil, callSASL, -1, nil))
	}, now)
}

// unwrap delivers what is in a protected message: frames, the last of which may go on in the next message.
func (c *Client) unwrap(frame []byte, inner *frames) error {
	m, err := parseSASL(frame)
	if err != nil {
		return err
	}
	if m.GetState() != hadooppb.RpcSaslProto_WRAP {
		return fmt.Errorf("%w: an unprotected message, after protection was agreed on", sasl.ErrMessage)
	}
	plain, err := c.layer.Unwrap(m.GetToken())
	if err != nil {
		return err
	}
	for len(plain) > 0 {
		n := copy(inner.room(), plain)
		inner.took(n)
		plain = plain[n:]
		for {
			frame, ok, err := inner.next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if err := c.deliver(frame); err != nil {
				return err
			}
		}
	}
	return nil
}
