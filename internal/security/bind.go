package security

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// CheckBind refuses to listen where strangers could connect: everything but loopback needs TLS and authentication.
func CheckBind(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q: %w", addr, err)
	}
	if !Loopback(host) {
		return fmt.Errorf("refusing to listen on %s: an address other than loopback needs TLS and authentication, which are not there yet; use 127.0.0.1", addr)
	}
	return nil
}

// Loopback reports whether host is a name or address of this machine alone.
func Loopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// GuardHTTP keeps web pages away from a local server: the Host header must be a loopback name or one that allowedHosts
// accepts (DNS rebinding), and an Origin, if there is one, likewise (cross-site requests). Requests without an Origin that
// a browser says a page of another site made (images, scripts, forms) are refused too; following a link is not one of
// these. allowedHosts may be nil.
func GuardHTTP(next http.Handler, allowedHosts func(host string) bool) http.Handler {
	allowed := func(hostport string) bool {
		host, _, err := net.SplitHostPort(hostport)
		if err != nil {
			host = hostport
		}
		return Loopback(host) || allowedHosts != nil && allowedHosts(host)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowed(r.Host) {
			http.Error(w, fmt.Sprintf("host %q is not served here", r.Host), http.StatusForbidden)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			u, err := url.Parse(origin)
			if err != nil || !allowed(u.Host) {
				http.Error(w, fmt.Sprintf("requests of origin %q are not served here", origin), http.StatusForbidden)
				return
			}
		}
		if crossSite(r) {
			http.Error(w, "requests of pages of other sites are not served here", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
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
