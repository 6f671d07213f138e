package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
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
	http      *http.Client
	active    atomic.Int32
}

func newREST(addresses []string, user string) *rest {
	return &rest{addresses: addresses, user: user, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
}

// target is a path with the user's name.
func (r *rest) target(address, path string) string {
	joiner := "?"
	if strings.Contains(path, "?") {
		joiner = "&"
	}
	return address + path + joiner + "user.name=" + url.QueryEscape(r.user)
}

// call makes one request. Refused connections and 503 are tried again, at all addresses, for ten seconds; other answers
// that are not 2xx are an *Error.
func (r *rest) call(ctx context.Context, method, path string, body any, header http.Header, into any) error {
	answer, err := r.open(ctx, method, path, body, header)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if into == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
		return err
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// open is call for an answer that is read as it comes. The caller closes its body.
func (r *rest) open(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	pause := 20 * time.Millisecond
	for {
		var problem error
		for i := range r.addresses {
			n := (int(r.active.Load()) + i) % len(r.addresses)
			request, err := http.NewRequestWithContext(ctx, method, r.target(r.addresses[n], path), bytes.NewReader(data))
			if err != nil {
				return nil, err
			}
			for k, v := range header {
				request.Header[k] = v
			}
			if data != nil {
				request.Header.Set("Content-Type", "application/json")
			}
			answer, err := r.http.Do(request)
			if err != nil {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				problem = err
				continue
			}
			if answer.StatusCode < 300 {
				r.active.Store(int32(n))
				return answer, nil
			}
			e := readError(answer)
			if e.Status != http.StatusServiceUnavailable || strings.HasPrefix(path, "/proxy/") {
				return nil, e
			}
			problem = e
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, problem)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
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
