package rest

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
)

// PrefixHeader is the path under which users reach the master. A request that is passed on also names, in
// security.UserHeader, who the resource manager found the caller to be, and is signed with a key that follows from the
// token of the master's container: by that the master knows where it comes from, and whoever else listens there by now
// learns nothing.
const PrefixHeader = "X-Forwarded-Prefix"

// proxy passes a request on to the master of an application, bodies and answers as streams.
func (q *request) proxy() {
	if q.app == nil {
		q.text(http.StatusNotFound, fmt.Sprintf("There is no application %v.\n", q.id))
		return
	}
	t := q.app.Attempt()
	if q.app.State.Final() || t == nil {
		q.text(http.StatusNotFound, fmt.Sprintf("%v has ended (%s, %s): nobody answers for it any more. %s\n", q.id, q.app.State, q.app.Final, q.shown(q.app, q.app.Diagnostics)))
		return
	}
	c := q.view.Master(q.app)
	if (t.Epoch == 0 || t.HTTP == "") && q.r.Method == http.MethodGet && strings.HasPrefix(q.r.Header.Get("Accept"), "text/html") { // a browser, as in YARN
		http.Redirect(q.w, q.r, ownScheme(q.r)+q.r.Host+"/cluster/app/"+q.id.String(), http.StatusFound)
		return
	}
	if t.Epoch == 0 || c == nil || !c.Live() {
		text := fmt.Sprintf("The master of %v has not registered yet: attempt %d is %s.", q.id, t.Number, t.State)
		for _, w := range q.Cluster.Waiting(q.id) {
			text += " It waits: " + w.Reason.Text + "."
		}
		q.w.Header().Set("Retry-After", "1")
		q.text(http.StatusServiceUnavailable, text+"\n")
		return
	}
	if t.HTTP == "" {
		q.text(http.StatusNotFound, fmt.Sprintf("The master of %v serves no HTTP.\n", q.id))
		return
	}
	q.forward(t, c)
}

// transport does not follow environment variables, and gives a master's host little time to connect and a request as
// much as it wants.
var transport = &http.Transport{
	Proxy:               nil,
	DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	MaxIdleConnsPerHost: 32,
	IdleConnTimeout:     30 * time.Second,
	DisableCompression:  true,
}

// withoutClaims drops from a query who it is from: this process has checked that and says so in a header. Behind the
// address of a master may be anything, a namenode too, and that would believe this process every name.
func withoutClaims(query string) string {
	var rest []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err != nil || pair == "" || security.IsClaim(plain) {
			continue
		}
		rest = append(rest, pair)
	}
	return strings.Join(rest, "&")
}

// sandbox makes a foreign page of whatever an application shows, of an origin of its own that is nobody else's: it may run
// scripts, send forms and open windows, and its requests are those of a stranger. Without it a page of one application
// could do in the name of its reader whatever this server lets that user do.
//
// What such a page loads or sends by itself, from /proxy too, comes with "Origin: null" or "Sec-Fetch-Site: cross-site" and
// is refused (security.GuardHTTP): a browser does not say whose page it was. So a page here brings its scripts and styles
// in itself; programs, and clients other than browsers, are not concerned.
const sandbox = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"

// quarantine takes from a master's answer what would concern more than this answer: its cookies and policies would be
// those of this server, and of every other application behind it.
func quarantine(answer *http.Response) error {
	h := answer.Header
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			h.Del(name)
		}
	}
	for _, name := range []string{"Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security", "Service-Worker-Allowed", "Alt-Svc", "Reporting-Endpoints", "Report-To", "Nel", "Refresh"} {
		h.Del(name)
	}
	h.Add("Content-Security-Policy", sandbox) // the strictest of several counts
	return nil
}

func (q *request) forward(t *rm.Attempt, c *rm.Container) {
	prefix := "/proxy/" + q.id.String()
	master, through := &url.URL{Scheme: "http", Host: t.HTTP}, transport
	if len(t.Certificate) > 0 {
		master.Scheme, through = "https", security.PinnedTransport(authority.Fingerprint(t.Certificate))
	}
	p := &httputil.ReverseProxy{
		Transport:      through,
		FlushInterval:  -1, // events reach the user when they happen
		ModifyResponse: quarantine,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(master)
			r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, prefix)
			r.Out.URL.RawPath = strings.TrimPrefix(r.In.URL.RawPath, prefix)
			r.Out.URL.RawQuery = withoutClaims(r.In.URL.RawQuery)
			r.Out.Host = t.HTTP
			for name := range r.Out.Header {
				if strings.HasPrefix(name, "X-Hops-") || strings.HasPrefix(name, "X-Forwarded-") {
					r.Out.Header.Del(name)
				}
			}
			r.Out.Header.Del("Origin")
			r.Out.Header.Set(security.UserHeader, q.caller.User)
			r.Out.Header.Set(PrefixHeader, prefix)
			q.Cluster.ProxyKey(c).Sign(r.Out, security.Signature{Container: c.ID.String(), Number: q.numbers.Next(), Body: security.UnsignedBody})
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			// Also when this server is ending: no answer would be an empty 200, which reads as success.
			q.w.Header().Set("Retry-After", "1")
			q.text(http.StatusServiceUnavailable, fmt.Sprintf("The master of %v at %s does not answer: %v\n", q.id, t.HTTP, err))
		},
		ErrorLog: nil,
	}
	p.ServeHTTP(q.w, q.r)
}
