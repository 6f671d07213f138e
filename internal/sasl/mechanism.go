package sasl

// The methods by which somebody is authenticated, by Hadoop's names.
const (
	Simple   = "SIMPLE"
	Token    = "TOKEN"
	Kerberos = "KERBEROS"
	Bearer   = "BEARER"
)

// Mechanism is the acceptor's side of one authentication exchange.
type Mechanism interface {
	// Step takes what the initiator sent and returns what is sent back; done says that the initiator is known after it.
	Step(token []byte) (reply []byte, done bool, err error)
	// Identity is who it was, once done.
	Identity() Identity
	// Layer wraps and unwraps messages when auth-int or auth-conf was agreed; nil for auth.
	Layer() Layer
}

// Identity is who was authenticated, and how.
type Identity struct {
	// Name as authenticated: the user of a token, or the short name of a principal.
	Name string
	// Principal is what the initiator calls itself, if that is another name: a principal of Kerberos.
	Principal string
	// RealUser of a token is who got it for Name as a proxy; empty otherwise.
	RealUser string
	// Method is one of Token, Kerberos, Bearer.
	Method string
	// Key is the number of the key that has signed a token, where several count at a time.
	Key int32
}

// Layer protects the messages after an exchange, in both directions. Wrap and Unwrap may be called at the same time, but each
// of them by one goroutine at a time and in the order of the messages.
type Layer interface {
	Wrap(p []byte) ([]byte, error)
	Unwrap(p []byte) ([]byte, error)
}
