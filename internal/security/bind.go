package security

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
)

// CheckBind refuses to listen where strangers could connect, unless they can be told from others: everything but loopback
// needs TLS.
func (d *Door) CheckBind(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q: %w", addr, err)
	}
	if !loopback(host) && d.config.Member == nil {
		return fmt.Errorf("refusing to listen on %s: an address other than loopback needs this machine's certificate, which it has once `hops cluster init` or `hops join` has run; use 127.0.0.1", addr)
	}
	return nil
}

// Loopback reports whether host is a name or address by which this machine alone reaches itself.
func Loopback(host string) bool { return loopback(host) }

func loopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// hosts are the names that a web server is called by: more, those that the certificate and the configuration have, and this
// machine's own.
func (d *Door) hosts(more func(string) bool) func(string) bool {
	names := map[string]bool{}
	for _, n := range d.config.Hosts {
		names[strings.ToLower(n)] = true
	}
	if host, err := os.Hostname(); err == nil {
		names[strings.ToLower(host)] = true
	}
	return func(host string) bool {
		host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "."))
		if names[host] || more != nil && more(host) {
			return true
		}
		// The certificate is renewed while the server runs.
		return d.config.Member != nil && slices.Contains(d.config.Member.Addresses(), host)
	}
}

// secureHTTP answers who comes in plain from elsewhere, or with a certificate that is not good, with what to do.
func (d *Door) secureHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, _ := d.peerOfRequest(r)
		if p != nil && p.secure && r.TLS == nil {
			r.TLS = p.tls // what a server of TLS tells its handlers
		}
		if p == nil || p.Refused() == nil {
			next.ServeHTTP(w, r)
			return
		}
		kind, detail := "https-required", fmt.Sprintf("plain HTTP is for this machine and trusted networks: use https://%s%s, with the certificate of the cluster's authority (curl --cacert)",
			r.Host, r.URL.EscapedPath())
		if d.config.Pinned != nil {
			detail = p.err.Error()
		}
		if _, shown, _ := bearerOf(r); shown && !p.secure {
			d.refuseToken(w, r, d.safe(r))
			return
		}
		if p.secure {
			kind, detail = "certificate", p.Refused().Error()
		}
		w.Header().Set("Connection", "close")
		writeProblem(w, http.StatusForbidden, kind, detail)
	})
}

// Scheme is that of a link to a server at a host, for who made the request: https, but http for who came in plain and may do so
// there, too.
func Scheme(r *http.Request, host string) string {
	p, _ := r.Context().Value(peerKey{}).(*Peer)
	if r.TLS == nil && (loopback(host) || p == nil || p.from == trusted || addrOf(p.ConnAddrs.Local).String() == host) {
		return "http"
	}
	return "https"
}

// PageOf is the URL of the page of a server at an address, host:port: of TLS, unless the address is this machine's alone.
func PageOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil && loopback(host) {
		return "http://" + address + "/"
	}
	return "https://" + address + "/"
}

// writeProblem answers with a problem (RFC 9457).
func writeProblem(w http.ResponseWriter, code int, kind, detail string) {
	text, err := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"urn:hops:" + kind, http.StatusText(code), code, detail})
	if err != nil { // only strings come in
		http.Error(w, detail, code)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}

// GuardHTTP keeps web pages away from a local server: the Host header must be a loopback name or one that allowedHosts
// accepts (DNS rebinding), and an Origin, if there is one, likewise (cross-site requests). Requests without an Origin that
// a browser says a page of another site made (images, scripts, forms) are refused too; following a link is not one of
// these. allowedHosts may be nil.
func GuardHTTP(next http.Handler, allowedHosts func(host string) bool) http.Handler {
	allowed := func(r *http.Request, hostport string) bool {
		host, _, err := net.SplitHostPort(hostport)
		if err != nil {
			host = hostport
		}
		return Loopback(host) || allowedHosts != nil && allowedHosts(host) || arrivedAt(r, host)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowed(r, r.Host) {
			writeProblem(w, http.StatusForbidden, "host", fmt.Sprintf("host %q is not served here", r.Host))
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			u, err := url.Parse(origin)
			if err != nil || !allowed(r, u.Host) {
				writeProblem(w, http.StatusForbidden, "origin", fmt.Sprintf("requests of origin %q are not served here", origin))
				return
			}
		}
		if crossSite(r) {
			writeProblem(w, http.StatusForbidden, "origin", "requests of pages of other sites are not served here")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// arrivedAt reports whether host is the IP address at which a request came: no page can have a name that is one.
func arrivedAt(r *http.Request, host string) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	at := addrOf(local)
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && at.IsValid() && ip.Unmap() == at
}

// crossSite reports whether a browser says that a page of another site made the request (Fetch Metadata, W3C), other than
// by sending its user here to read.
func crossSite(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Site") != "cross-site" {
		return false
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	return !reads || r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}
