package authority

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A link is a certificate that one authority issues for the key of the one that follows it ("new with old" of RFC 4210, 4.4). Who
// knows the earlier one alone, such as a login, a container, or a truststore of Java's, takes by it the servers that the later one
// certified. It leads forward only: who knows the later authority takes nothing of the earlier one.

// maxLinks is how many authorities back somebody may be: links are sent with every handshake.
const maxLinks = 3

// Vouch makes the link from this authority to the one that follows it, in DER. It ends with this authority.
func (a *Authority) Vouch(next *x509.Certificate) ([]byte, error) {
	if cluster, err := clusterOf(next); err != nil || cluster != a.cluster {
		return nil, fmt.Errorf("authority %q is not of cluster %s", next.Subject.CommonName, a.cluster)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: next.Subject, URIs: next.URIs, NotBefore: next.NotBefore, NotAfter: a.root.NotAfter,
		SubjectKeyId: next.SubjectKeyId, AuthorityKeyId: a.root.SubjectKeyId, // the names of all authorities are alike
		KeyUsage: next.KeyUsage, BasicConstraintsValid: true, IsCA: true,
	}
	return x509.CreateCertificate(rand.Reader, template, a.root, next.PublicKey, a.key)
}

// AddLink adds the link to the newest authority to those that lead to the one before, without those that have ended or are too many.
func AddLink(links []*x509.Certificate, der []byte, now time.Time) ([]*x509.Certificate, error) {
	link, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(slices.Clone(links), func(l *x509.Certificate) bool { return now.After(l.NotAfter) })
	links = append(links, link)
	return links[max(0, len(links)-maxLinks):], nil
}

// ParseLinks reads links in PEM; there may be none.
func ParseLinks(text []byte) ([]*x509.Certificate, error) {
	if len(text) == 0 {
		return nil, nil
	}
	links, err := parseBundle(text)
	if err == nil && slices.ContainsFunc(links, func(l *x509.Certificate) bool { return l.CheckSignatureFrom(l) == nil }) {
		err = errors.New("an authority's own certificate stands among the links")
	}
	if err != nil {
		return nil, err
	}
	return links, nil
}

// rootWanted is the name of a server (RFC 6066) that a visitor asks for who knows the authority's fingerprint alone, and has to be shown
// its root.
const rootWanted = "authority.invalid"

// chain is what a member shows: its certificate and the links that lead to its authority, nearest first. The root does not stand there, unless
// it is wanted: OpenSSL takes the first issuer that fits, and Java the chain as it is, whose last certificate has to be issued by who it knows.
func (t *Trust) chain(leaf *x509.Certificate, root bool) [][]byte {
	out := [][]byte{leaf.Raw}
	last := leaf
	for range t.Links {
		n := slices.IndexFunc(t.Links, func(l *x509.Certificate) bool { return last.CheckSignatureFrom(l) == nil })
		if n < 0 {
			break
		}
		last = t.Links[n]
		out = append(out, last.Raw)
	}
	for _, r := range t.Roots {
		if root && leaf.CheckSignatureFrom(r) == nil {
			out = append(out, r.Raw)
		}
	}
	return out
}

// through is this trust with the authorities to which links lead that the other end of a connection shows, for that connection.
func (t *Trust) through(shown []*x509.Certificate, now time.Time) *Trust {
	out := *t
	out.Roots = slices.Clone(t.Roots)
	shown = shown[:min(len(shown), maxLinks+2)] // with the other end's own certificate, and the root
	for range shown {
		for _, l := range shown {
			cluster, err := clusterOf(l)
			if err != nil || cluster != t.Cluster || now.Before(l.NotBefore) || now.After(l.NotAfter) || len(l.UnhandledCriticalExtensions) > 0 {
				continue
			}
			if !slices.ContainsFunc(out.Roots, l.Equal) && slices.ContainsFunc(out.Roots, func(r *x509.Certificate) bool { return l.CheckSignatureFrom(r) == nil }) {
				out.Roots = append(out.Roots, l)
			}
		}
	}
	return &out
}
