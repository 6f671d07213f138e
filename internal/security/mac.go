package security

// MAC is a keyed hash of parts for a purpose of the caller's: who does not know the secret can neither make nor guess
// it. Different purposes, and different splits into parts, give unrelated results.
func (s Secret) MAC(purpose string, parts ...[]byte) []byte { return s.proof("mac "+purpose, parts...) }
