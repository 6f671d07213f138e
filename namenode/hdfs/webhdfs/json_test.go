package webhdfs

import (
	"encoding/hex"
	"testing"

	"github.com/gohops/hops/internal/security"
)

// The text is what Hadoop 3.4's Token.encodeToUrlString gives for the same token.
func TestTokensInTheirURLForm(t *testing.T) {
	id, err := hex.DecodeString("8a01a3185c507b0200000005616c6963650000002542502d313830343238393338332d3132372e302e302e312d313730303030303030303030308c400000010104524541440000")
	if err != nil {
		t.Fatal(err)
	}
	const want = "R4oBoxhcUHsCAAAABWFsaWNlAAAAJUJQLTE4MDQyODkzODMtMTI3LjAuMC4xLTE3MDAwMDAwMDAwMDCMQAAAAQEEUkVBRAAAAwECAxBIREZTX0JMT0NLX1RPS0VOAA"
	if got := tokenOf(security.Token{Identifier: id, Password: []byte{1, 2, 3}}).URLString; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := tokenOf(security.Token{}).URLString; got != "AAAAAA" {
		t.Errorf("an empty token is %s", got)
	}
}
