package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
)

// maxAnswer bounds what is read of one answer, in bytes.
const maxAnswer = 256 << 20

// Error is what a server answered. Status is HTTP's.
type Error struct {
	Status  int
	Title   string
	Message string
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%d %s", e.Status, e.Title)
	}
	return e.Message
}

// ErrUnreachable is wrapped by errors of calls that no resource manager answered.
var ErrUnreachable = errors.New("no resource manager answers")

// rest calls whichever resource manager leads.
type rest struct {
	addresses []string
	user      string
	scheme    string // http; https with a login
	claim     string // how a query names the user; empty: the token does
	http      *http.Client
	proxied   *http.Client // for what lies behind a resource manager's proxy
	nodes     *http.Client // for node managers
	active    atomic.Int32
	reached   atomic.Bool // some server has answered
	waiting   func(error) // may be nil
}

func newREST(addresses []string, user string, dialer *security.Dialer, waiting func(error)) *rest {
	to := func(role authority.Role, answer time.Duration) *http.Client {
		t := dialer.Transport(role)
		t.MaxIdleConnsPerHost, t.ResponseHeaderTimeout = 16, answer
		return &http.Client{Transport: t}
	}
	return &rest{
		addresses: addresses, user: user, scheme: "http", claim: "user.name", waiting: waiting,
		http: to(authority.ResourceManager, answerTimeout), proxied: to(authority.ResourceManager, 0), nodes: to(authority.NodeManager, answerTimeout),
	}
}

// loginREST is for the resource managers of a login's cluster, which its token is shown to. A user who is not the token's is acted
// for.
func loginREST(own *login.File, user string, waiting func(error)) *rest {
	r := &rest{user: user, scheme: "https", waiting: waiting}
	for _, m := range own.ResourceManagers {
		r.addresses = append(r.addresses, "https://"+m)
	}
	if user != own.User {
		r.claim = "doas"
	}
	r.http = &http.Client{Transport: own.Transport(authority.ResourceManager, answerTimeout)}
	r.proxied = &http.Client{Transport: own.Transport(authority.ResourceManager, 0)}
	r.nodes = &http.Client{Transport: own.Transport(authority.NodeManager, answerTimeout)}
	return r
}

// maxToken is the size of the largest file with the token of a container, in bytes.
const maxToken = 4096

// sign has what goes to resource managers on other machines signed with the token of the container in which this runs; outside of one
// nothing is signed.
func (r *rest) sign() error {
	container, path := os.Getenv("HOPS_CONTAINER_ID"), os.Getenv("HOPS_TOKEN")
	if container == "" || path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the container's token (HOPS_TOKEN): %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return fmt.Errorf("the container's token (HOPS_TOKEN): %w", err)
	}
	for _, c := range []*http.Client{r.http, r.proxied} {
		c.Transport = &security.Signing{Container: container, Token: strings.TrimSpace(string(text)), Next: c.Transport}
	}
	return nil
}

// answerTimeout bounds the wait for the beginning of a server's answer: who takes longer
// stands still, and another one may lead. Masters behind the proxy take what time they want.
var answerTimeout = 30 * time.Second // a variable for tests

// target is a path with the user's name.
func (r *rest) target(address, path string) string {
	if r.claim == "" {
		return address + path
	}
	joiner := "?"
	if strings.Contains(path, "?") {
		joiner = "&"
	}
	return address + path + joiner + r.claim + "=" + url.QueryEscape(r.user)
}

// patience is how long a call looks for a resource manager that answers; refusedPatience, while all that was ever heard is
// that nobody listens there: then none is being replaced, none runs.
const (
	patience        = 10 * time.Second
	refusedPatience = time.Second
	waitingAfter    = time.Second
	// longestPause lies between two rounds of asking all of them: so late at most it is noticed that one leads again.
	longestPause = 200 * time.Millisecond
)

// call makes one request, which may be repeated: connections that are refused or break, also in the middle of an answer,
// and answers by which a server says "not now" (unavailable) are tried again, at all addresses, for ten
// seconds, or one if nobody listens there and nobody ever did. Other answers that are not 2xx are an *Error. An answer without the document that was asked for is no success.
func (r *rest) call(ctx context.Context, method, path string, body any, header http.Header, into any) error {
	return r.each(ctx, method, path, body, header, func(answer *http.Response) error {
		defer answer.Body.Close()
		text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
		if err != nil {
			return err
		}
		if _, raw := into.(*json.RawMessage); raw && len(text) == 0 && (answer.ContentLength == 0 || answer.Uncompressed) {
			return nil // a whole answer (gzip says where it ends), with nothing in it, as YARN gives some
		}
		if len(text) == 0 {
			return io.ErrUnexpectedEOF
		}
		if err := json.Unmarshal(text, into); err != nil {
			return &Error{Status: answer.StatusCode, Title: http.StatusText(answer.StatusCode), Message: fmt.Sprintf("%s %s: the answer cannot be read: %v", method, path, err)}
		}
		return nil
	})
}

// open is call for an answer that is read as it comes. The caller closes its body.
func (r *rest) open(ctx context.Context, method, path string) (answer *http.Response, err error) {
	err = r.each(ctx, method, path, nil, nil, func(a *http.Response) error {
		answer = a
		return nil
	})
	return answer, err
}

// firstTurn is how long one of several resource managers may take to accept a connection until the next one is asked; in the round after
// that twice as long. One that has accepted it and does not answer is looked for as often: its machine may be gone since.
const firstTurn = time.Second

// errGone: nobody takes a connection, though nobody refuses it either.
var errGone = errors.New("does not answer, and accepts no connection: its machine is off, or the network is cut")

// ask sends a request to one of several resource managers, and gives up when its machine is not there.
func (r *rest) ask(client *http.Client, request *http.Request, turn time.Duration) (*http.Response, error) {
	if len(r.addresses) == 1 {
		return client.Do(request)
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	over := make(chan struct{})
	defer close(over)
	var ended atomic.Bool            // by an answer, or because nobody is there
	var asked atomic.Pointer[string] // who is asked: one that does not lead sends to another one
	asked.Store(&request.URL.Host)
	var connected atomic.Bool
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(turn):
			}
			if host := *asked.Load(); !connected.Load() || !accepts(ctx, host, turn) {
				if ended.CompareAndSwap(false, true) {
					cancel(fmt.Errorf("%s %w", host, errGone))
				}
				return
			}
		}
	}()
	answer, err := client.Do(request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(host string) { connected.Store(false); asked.Store(&host) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})))
	if err == nil && !ended.CompareAndSwap(false, true) { // given up a moment ago
		err = errors.Join(context.Cause(ctx), answer.Body.Close())
	}
	if err != nil {
		if why := context.Cause(ctx); errors.Is(why, errGone) {
			err = why
		}
		cancel(nil)
		return nil, err
	}
	answer.Body = &cancelledBody{answer.Body, cancel}
	return answer, nil
}

// accepts reports whether anything but silence is at an address; also when that cannot be found out here.
func accepts(ctx context.Context, address string, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		slow, ok := errors.AsType[net.Error](err)
		return !(ok && slow.Timeout()) && !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH)
	}
	c.Close()
	return true
}

// cancelledBody ends the context of its request when it is closed.
type cancelledBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *cancelledBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// octets is a body that is sent as it is, not as JSON.
type octets []byte

// unavailable are the answers after which asking again may help: the server leads no more, or does not know what became
// of the request.
func unavailable(status int) bool {
	return status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// named refuses a path with a name in it that is empty, or a step to another folder: it would be one of something else. What comes behind the
// application of a proxied path is the application's.
func named(path string) error {
	path, _, _ = strings.Cut(path, "?")
	names := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if names[0] == "proxy" {
		names = names[:min(2, len(names))]
	}
	for _, name := range names {
		if name == "" || name == "." || name == ".." {
			return &Error{Status: http.StatusBadRequest, Title: http.StatusText(http.StatusBadRequest), Message: fmt.Sprintf("%q is no id and no name", name)}
		}
	}
	return nil
}

// each makes a request until take is content with a good answer.
func (r *rest) each(ctx context.Context, method, path string, body any, header http.Header, take func(*http.Response) error) error {
	var data []byte
	kind := "application/json"
	if raw, ok := body.(octets); ok {
		data, kind = raw, "application/octet-stream"
	} else if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	if err := named(path); err != nil {
		return err
	}
	if len(r.addresses) == 0 {
		return fmt.Errorf("%w: none is configured: set HADOOP_CONF_DIR to a directory whose yarn-site.xml has yarn.resourcemanager.webapp.address, or HOPS_RM", ErrUnreachable)
	}
	client, behind := r.http, strings.HasPrefix(path, "/proxy/")
	if behind {
		client = r.proxied
	}
	began := time.Now()
	pause := 20 * time.Millisecond
	told := false
	for turn := firstTurn; ; turn = min(2*turn, patience) {
		var problem error
		refused := 0
		for i := range r.addresses {
			n := (int(r.active.Load()) + i) % len(r.addresses)
			request, err := http.NewRequestWithContext(ctx, method, r.target(r.addresses[n], path), bytes.NewReader(data))
			if err != nil {
				return err
			}
			for k, v := range header {
				request.Header[k] = v
			}
			if data != nil {
				request.Header.Set("Content-Type", kind)
			}
			answer, err := r.ask(client, request, turn)
			if err == nil {
				r.reached.Store(true)
			} else if errors.Is(err, syscall.ECONNREFUSED) {
				refused++
			}
			if err == nil && answer.StatusCode >= 300 {
				e := readError(answer)
				if !unavailable(e.Status) || behind {
					return e
				}
				problem = e
				continue
			}
			if err == nil {
				err = take(answer)
			}
			if _, final := errors.AsType[*Error](err); err == nil || final {
				r.active.Store(int32(n))
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			problem = err
		}
		limit := patience
		if refused == len(r.addresses) && !r.reached.Load() {
			limit = refusedPatience
		}
		if time.Since(began) > limit {
			return fmt.Errorf("%w: %w", ErrUnreachable, problem)
		}
		if !told && r.waiting != nil && time.Since(began) > waitingAfter {
			told = true
			r.waiting(fmt.Errorf("%w: %w", ErrUnreachable, problem))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// readError understands RFC 9457 problems, YARN's RemoteException, the controller's errors, and plain text.
func readError(answer *http.Response) *Error {
	defer answer.Body.Close()
	e := &Error{Status: answer.StatusCode, Title: http.StatusText(answer.StatusCode)}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	var document struct {
		Title, Detail   string
		RemoteException struct{ Message string }
		Error           json.RawMessage
	}
	if json.Unmarshal(text, &document) != nil {
		e.Message = strings.TrimSpace(string(text))
		return e
	}
	var inner struct{ Message string }
	_ = json.Unmarshal(document.Error, &inner)
	for _, m := range []string{document.Detail, document.RemoteException.Message, inner.Message, document.Title} {
		if m != "" {
			e.Message = m
			break
		}
	}
	return e
}
