package hrpc

import (
	"bytes"
	"errors"
	"fmt"
	"net"

	"github.com/gohops/hops/internal/security"
)

// ErrMute is what a connection ends in on which the server has not said a word before it hung up.
var ErrMute = errors.New("it hung up without a word")

// WrongPortError: what listens there does not speak Hadoop IPC, and never will.
type WrongPortError struct {
	Addr string
	// Speaks is what it does speak, as far as its first bytes tell: "HTTP", "TLS", "HTTP/2 (gRPC)", "SSH", the handshake of
	// our own servers, or something else; empty: it hangs up without a word, as ports for data transfer and for TLS do.
	Speaks string
}

func (e *WrongPortError) Error() string {
	if e.Speaks == "" {
		return e.Addr + " does not speak Hadoop IPC: it hangs up without a word, as ports for data transfer and for TLS do"
	}
	return fmt.Sprintf("%s speaks %s, not Hadoop IPC", e.Addr, e.Speaks)
}

// spoken names the protocol of a server's first bytes, if they are none of Hadoop IPC.
func spoken(first []byte) string {
	switch {
	case bytes.HasPrefix(first, []byte("HTTP/")):
		return "HTTP"
	case bytes.HasPrefix(first, []byte("SSH-")):
		return "SSH"
	case bytes.HasPrefix(first, []byte("HOPS")): // internal/security; 1.2 GB, as the length of an answer
		return "what the servers of a cluster speak among themselves"
	case len(first) >= 3 && (first[0] == 0x15 || first[0] == 0x16) && first[1] == 3 && first[2] <= 4: // an alert or a handshake
		return "TLS"
	// A SETTINGS frame: its length, which is a multiple of six, its type, no flags, stream 0. As an answer of Hadoop IPC it
	// would have a header of no bytes.
	case len(first) >= 9 && first[0] == 0 && first[1] == 0 && first[2]%6 == 0 && first[3] == 4 && bytes.Equal(first[4:9], make([]byte, 5)):
		return "HTTP/2 (gRPC)"
	}
	return ""
}

// hopeless reports whether trying again cannot help: it is another kind of port, or there is no such host.
func hopeless(err error) bool {
	if _, ok := errors.AsType[*WrongPortError](err); ok {
		return true
	}
	if errors.Is(err, security.ErrProof) { // it is somebody else
		return true
	}
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}
