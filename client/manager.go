package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// Manager is one of the resource managers, whichever leads.
type Manager struct {
	// Address is where it serves HTTP, with the scheme.
	Address string
	rest    *rest
}

// Managers are the resource managers, in the order of the configuration.
func (c *Client) Managers() []*Manager {
	var out []*Manager
	for _, address := range c.rest.addresses {
		own := &rest{
			addresses: []string{address}, user: c.rest.user, scheme: c.rest.scheme, claim: c.rest.claim,
			http: c.rest.http, proxied: c.rest.proxied, nodes: c.rest.nodes,
		}
		out = append(out, &Manager{address, own})
	}
	return out
}

// Call asks it for JSON. What only the leader answers, a follower passes on to it.
//
// Errors: *Error for what it refuses; ErrUnreachable.
func (m *Manager) Call(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
	var answer json.RawMessage
	err := m.rest.call(ctx, method, path, body, http.Header{}, &answer)
	return answer, err
}
