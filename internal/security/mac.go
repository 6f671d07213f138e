package security

// MAC is a keyed hash of the parts, one after the other, for a purpose of the caller's: who does not know the secret can
// neither make nor guess it.
func (s Secret) MAC(purpose string, parts ...[]byte) []byte { return s.proof("mac "+purpose, parts...) }
