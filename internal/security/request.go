package security

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Requests between a container and those who know its token are signed with a key that follows from the token, and never
// carry the token: whoever listens in place of the one meant, on the port of a process that is gone, learns nothing that
// is good for another request, at another address, or twice. docs/reference/contracts.md has the recipe for other
// languages.

// SignatureScheme is the scheme of Authorization in signed requests.
const SignatureScheme = "Hops-HMAC-SHA256"

// UserHeader names the user for whom the resource manager passes a request on. It is part of what is signed.
const UserHeader = "X-Hops-User"

// ProofHeader of an answer shows that who answers has the key, too.
const ProofHeader = "X-Hops-Proof"

// The purposes of keys. A key of one purpose is of no use for another.
const (
	// ExecutorRequests: from an executor to its controller, with the token of the executor's container.
	ExecutorRequests = "executor"
	// ManagerRequests: from a container to the resource managers, with its token.
	ManagerRequests = "resourcemanager"
	// ProxiedRequests: from the resource manager to a master, with the token of the master's container.
	ProxiedRequests = "proxy"
)

// MaxSkew is how far apart the clocks of a signer and of who checks may be.
const MaxSkew = 5 * time.Minute

// UnsignedBody stands for the hash of a body that the signature does not cover, because it is passed on as a stream.
const UnsignedBody = "-"

// RequestKey signs requests.
type RequestKey []byte

// NewRequestKey derives the key of a purpose from the token of a container.
func NewRequestKey(token, purpose string) RequestKey {
	return RequestKey(hmacOf([]byte(token), "hops "+purpose))
}

func hmacOf(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	io.WriteString(h, text)
	return h.Sum(nil)
}

// BodySum is the hash of a body, as a signature covers it.
func BodySum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Signature is what Authorization says of a signed request.
type Signature struct {
	// Container is the one whose token the key comes from.
	Container string
	// Number is the time of signing in nanoseconds since 1970, a little later if that number was given already: no signer
	// gives one twice.
	Number int64
	// Body is BodySum of the body, or UnsignedBody.
	Body string
	mac  []byte
}

// text is what is signed: one line each, none of which can hold the end of a line.
func (s *Signature) text(r *http.Request, target, host string) string {
	return strings.Join([]string{
		"hops-request-1", r.Method, target, host, r.Header.Get(UserHeader), s.Container, strconv.FormatInt(s.Number, 10), s.Body,
	}, "\n")
}

// Sign sets the Authorization of a request that is about to be sent; everything else in it must be final.
func (k RequestKey) Sign(r *http.Request, s Signature) {
	mac := hmacOf(k, s.text(r, r.URL.RequestURI(), cmp.Or(r.Host, r.URL.Host)))
	r.Header.Set("Authorization", fmt.Sprintf("%s container=%s, number=%d, body=%s, signature=%x", SignatureScheme, s.Container, s.Number, s.Body, mac))
}

// ParseSignature reads the Authorization of a request; ok is false when it is no signature.
func ParseSignature(r *http.Request) (s Signature, ok bool) {
	fields, ok := strings.CutPrefix(r.Header.Get("Authorization"), SignatureScheme+" ")
	if !ok {
		return s, false
	}
	var number, mac string
	into := map[string]*string{"container": &s.Container, "number": &number, "body": &s.Body, "signature": &mac}
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		at := into[name]
		if at == nil {
			return s, false
		}
		*at = value
		delete(into, name)
	}
	var err1, err2 error
	s.Number, err1 = strconv.ParseInt(number, 10, 64)
	s.mac, err2 = hex.DecodeString(mac)
	return s, len(into) == 0 && err1 == nil && err2 == nil && s.Number > 0
}

// Signed reports whether a request that arrived here, at the address host, was signed with the key for this address.
func (k RequestKey) Signed(r *http.Request, host string, s Signature) bool {
	return len(k) > 0 && r.Host == host && hmac.Equal(s.mac, hmacOf(k, s.text(r, r.RequestURI, host)))
}

// Proof shows to the signer of a request that its answer comes from somebody who has the key.
func (k RequestKey) Proof(number int64, status int, body []byte) string {
	return hex.EncodeToString(hmacOf(k, fmt.Sprintf("hops-answer-1\n%d\n%d\n%s", number, status, BodySum(body))))
}

// Numbers gives the numbers of a signer's requests. It is safe for concurrent use; the zero value is ready.
type Numbers struct {
	mu   sync.Mutex
	last int64
}

// Next is larger than every number before.
func (n *Numbers) Next() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = max(n.last+1, time.Now().UnixNano())
	return n.last
}

var (
	// ErrSkew: a request was signed too long ago or too far ahead; the clocks differ, or the request lay somewhere.
	ErrSkew = errors.New("the clocks differ")
	// ErrRepeated: a request came a second time, or behind so many newer ones that this cannot be told any more.
	ErrRepeated = errors.New("the request was made before")
)

// maxNumbers bounds what an Admission remembers: a signer has fewer requests under way at a time.
const maxNumbers = 1024

// Admission lets each request of one key in once. It is safe for concurrent use; the zero value is ready. It keeps the
// newest 1,024 numbers: a request older than all of them is refused too.
type Admission struct {
	mu   sync.Mutex
	seen []int64 // ascending
	// floor: numbers at or below it were dropped from seen.
	floor int64
}

// Admit takes a number whose signature was found good. Errors: ErrSkew, ErrRepeated.
func (a *Admission) Admit(number int64, now time.Time) error {
	if behind := now.Sub(time.Unix(0, number)); behind.Abs() > MaxSkew {
		way := "behind"
		if behind < 0 {
			way = "ahead of"
		}
		return fmt.Errorf("%w: the request was signed %v %s this machine's time, and %v are allowed: set the clocks of both machines",
			ErrSkew, behind.Abs().Round(time.Second), way, MaxSkew)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i, found := slices.BinarySearch(a.seen, number)
	if found || number <= a.floor {
		return fmt.Errorf("%w, under number %d: sign it anew", ErrRepeated, number)
	}
	a.seen = slices.Insert(a.seen, i, number)
	if len(a.seen) > maxNumbers {
		a.floor = a.seen[0]
		a.seen = append(a.seen[:0], a.seen[1:]...)
	}
	return nil
}
