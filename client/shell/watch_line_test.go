package shell

import (
	"strings"
	"testing"
	"unicode"

	"github.com/gohops/hops/metadata"
)

// What others name things reaches no terminal as a command.
func TestEventLinesHaveNoControlCharacters(t *testing.T) {
	const evil = "a\x1b]0;gone\x07\u009b2J\n"
	for _, e := range []metadata.Event{
		{Kind: metadata.EventCreate, Path: "/" + evil},
		{Kind: metadata.EventRename, Path: "/x", Target: "/" + evil},
		{Kind: metadata.EventMetadata, Path: "/x", Update: metadata.UpdateXAttrs, XAttrs: []metadata.XAttr{{Name: evil, Value: []byte(evil)}}},
		{Kind: metadata.EventMetadata, Path: "/x", Update: metadata.UpdateXAttrs, Removed: true, XAttrs: []metadata.XAttr{{Name: evil}}},
		{Kind: metadata.EventMetadata, Path: "/x", Update: metadata.UpdateACL, ACL: []metadata.ACLEntry{{Type: metadata.ACLUser, Name: evil}}},
	} {
		if line := eventLine(&e); strings.ContainsFunc(line, unicode.IsControl) {
			t.Errorf("%q", line)
		}
	}
}
