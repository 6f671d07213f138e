package security

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
)

// believer takes tickets that are the name of their user.
type believer struct{}

func (believer) Negotiate(token []byte) (string, []byte, error) {
	if user, ok := strings.CutPrefix(string(token), "ticket of "); ok {
		return user, []byte("proof"), nil
	}
	return "", nil, errors.New("Kerberos: it is no Kerberos token, or only a part of one")
}

func TestTickets(t *testing.T) {
	const near, away = "127.0.0.1:4000", "192.0.2.7:4000"
	door := NewDoor(Config{
		Negotiator: believer{},
		Groups:     func(user string) []string { return map[string][]string{"ann": {"staff"}}[user] },
		ProxyUsers: map[string]ProxyRule{"hue": {Users: []string{"ann"}, Hosts: []string{"*"}}},
		Owner:      func(ConnAddrs) (uint32, error) { return 4711, nil },
		Here:       func(remote, _ netip.Addr) bool { return remote.String() == "127.0.0.1" },
	})
	none := NewDoor(Config{Owner: func(ConnAddrs) (uint32, error) { return 4711, nil }})
	ticket := func(of string) []string {
		return []string{"Negotiate " + base64.StdEncoding.EncodeToString([]byte("ticket of "+of))}
	}
	for _, c := range []struct {
		name   string
		door   *Door
		from   string
		header []string
		query  string
		who    string // user, with the real user before it
		refuse string
		answer string // WWW-Authenticate
	}{
		{name: "a ticket", from: away, header: ticket("ann"), who: "ann", answer: "Negotiate cHJvb2Y="},
		{name: "the scheme in small letters", from: away, header: []string{"n" + ticket("ann")[0][1:]}, who: "ann", answer: "Negotiate cHJvb2Y="},
		{name: "a ticket in another user's process", from: near, header: ticket("ann"), who: "ann", answer: "Negotiate cHJvb2Y="},
		{name: "a ticket and its user's name", from: away, header: ticket("ann"), query: "user.name=ann", who: "ann", answer: "Negotiate cHJvb2Y="},
		{name: "a proxy user's ticket", from: away, header: ticket("hue"), query: "doas=ann", who: "hue ann", answer: "Negotiate cHJvb2Y="},
		{name: "the name of the socket's owner", from: near, query: "user.name=4711", who: "4711"},
		{name: "nothing, where no tickets are taken", door: none, from: near, who: DrWho},

		{name: "nothing", from: near, refuse: "the request shows no ticket of Kerberos: kinit", answer: "Negotiate"},
		{name: "nothing, from another machine", from: away, refuse: "the request shows no ticket of Kerberos: kinit", answer: "Negotiate"},
		{name: "dr.who's name", from: near, query: "user.name=dr.who", refuse: "the request shows no ticket of Kerberos: kinit", answer: "Negotiate"},
		{name: "a bare name, from another machine", from: away, query: "user.name=ann", refuse: "may not connect: without TLS only loopback is served", answer: "Negotiate"},
		{name: "somebody else's name", from: away, header: ticket("ann"), query: "user.name=root", refuse: `the ticket is of user ann, and user.name says "root"`},
		{name: "somebody for whom there is no rule", from: away, header: ticket("ann"), query: "doas=root", refuse: "User: ann is not allowed to impersonate root"},
		{name: "garbage", from: near, header: []string{"Negotiate Z2FyYmFnZQ=="}, refuse: "it is no Kerberos token", answer: "Negotiate"},
		{name: "no base64", from: near, header: []string{"Negotiate %%%"}, refuse: "is not in base64, or was cut off", answer: "Negotiate"},
		{name: "an empty token", from: near, header: []string{"Negotiate"}, refuse: "it is no Kerberos token", answer: "Negotiate"},
		{name: "two tickets", from: near, header: []string{ticket("ann")[0], ticket("hue")[0]}, refuse: "Authorization more than once", answer: "Negotiate"},
		{name: "a name that is none", from: near, header: ticket("a\nb"), refuse: "is no name of a user", answer: "Negotiate"},
		{name: "a bad ticket in spite of a good socket", from: near, header: []string{"Negotiate Z2FyYmFnZQ=="}, query: "user.name=4711", refuse: "it is no Kerberos token", answer: "Negotiate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.door
			if d == nil {
				d = door
			}
			var got metadata.Caller
			var err error
			handler := d.negotiates(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, err = d.HTTPCaller(r); err != nil {
					w.WriteHeader(http.StatusUnauthorized)
				}
			}))
			r := httptest.NewRequest("GET", "/webhdfs/v1/?"+c.query, nil)
			addr, _ := tcpAddr(c.from)
			r.RemoteAddr, r.Header["Authorization"] = c.from, c.header
			r = r.WithContext(contextWithLocal(r, addr))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if h := w.Header().Get("WWW-Authenticate"); c.answer != "" && h != c.answer {
				t.Errorf("WWW-Authenticate: %q, want %q", h, c.answer)
			}
			if c.refuse == "" {
				if who := strings.TrimSpace(got.RealUser + " " + got.User); err != nil || w.Code != http.StatusOK || who != c.who {
					t.Errorf("%d %s, it is %q, %v; want %q", w.Code, w.Body, who, err, c.who)
				}
				return
			}
			if err == nil {
				var body struct{ RemoteException struct{ Message string } }
				if e := json.Unmarshal(w.Body.Bytes(), &body); e != nil {
					t.Fatalf("%v: %s", e, w.Body)
				}
				err = errors.New(body.RemoteException.Message)
			}
			if w.Code != http.StatusUnauthorized || !strings.Contains(err.Error(), c.refuse) {
				t.Errorf("%d %v, want 401 with %q", w.Code, err, c.refuse)
			}
		})
	}
}

func contextWithLocal(r *http.Request, addr net.Addr) context.Context {
	return context.WithValue(r.Context(), http.LocalAddrContextKey, addr)
}
