// Package sasl is the Simple Authentication and Security Layer (RFC 4422) as Hadoop uses it: what a mechanism is, and
// DIGEST-MD5 (RFC 2831), whose passwords are those of tokens.
//
// A server's side of an exchange is a Mechanism. hrpc's server drives those that it offers, and data transfer its own; the
// mechanisms know nothing of either. DESIGN.md has the exchanges.
package sasl
