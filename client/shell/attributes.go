package shell

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// The verbs of extended attributes and access control lists.

// parseXAttrName takes the prefix of a namespace off an attribute's name.
func parseXAttrName(name string) (metadata.XAttr, error) {
	prefix, rest, ok := strings.Cut(name, ".")
	for ns := metadata.XAttrUser; ok && ns <= metadata.XAttrRaw; ns++ {
		if strings.EqualFold(prefix, ns.String()) {
			if rest == "" {
				return metadata.XAttr{}, usageError{"XAttr name cannot be empty."}
			}
			return metadata.XAttr{Namespace: ns, Name: rest}, nil
		}
	}
	return metadata.XAttr{}, usageError{"An XAttr name must be prefixed with user/trusted/security/system/raw, followed by a '.'"}
}

// decodeXAttr reads a value: "text", 0xhex, 0sbase64, or plain text.
func decodeXAttr(v string) ([]byte, error) {
	if len(v) >= 2 {
		switch {
		case v[0] == '"' && v[len(v)-1] == '"':
			return []byte(v[1 : len(v)-1]), nil
		case strings.EqualFold(v[:2], "0x"):
			return hex.DecodeString(v[2:])
		case strings.EqualFold(v[:2], "0s"):
			return base64.StdEncoding.DecodeString(v[2:])
		}
	}
	return []byte(v), nil
}

func encodeXAttr(v []byte, encoding string) string {
	switch encoding {
	case "HEX":
		return "0x" + hex.EncodeToString(v)
	case "BASE64":
		return "0s" + base64.StdEncoding.EncodeToString(v)
	}
	return `"` + strings.ToValidUTF8(string(v), "\ufffd") + `"`
}

// onePath checks that one path is left of the arguments.
func onePath(args []string, missing string) error {
	switch {
	case len(args) == 0:
		return usageError{missing}
	case len(args) > 1:
		return usageError{"Too many arguments"}
	}
	return nil
}

func runGetfattr(ctx context.Context, s *Shell, args []string) error {
	encoding := strings.ToUpper(s.options["e"])
	if s.option("e") && !slices.Contains([]string{"TEXT", "HEX", "BASE64"}, encoding) {
		return usageError{"Invalid/unsupported encoding option specified: " + s.options["e"]}
	}
	if !s.option("n") && !s.option("d") {
		return usageError{"Must specify '-n name' or '-d' option."}
	}
	if err := onePath(args, "<path> is missing."); err != nil {
		return err
	}
	return s.walk(ctx, args, func(it item) error {
		s.printf("# file: %s\n", it.shown)
		var names []metadata.XAttr
		if !s.option("d") {
			name, err := parseXAttrName(s.options["n"])
			if err != nil {
				return err
			}
			names = append(names, name)
		}
		all, err := s.client.XAttrs(ctx, it.path, names...)
		if err != nil {
			return err
		}
		for _, a := range all {
			if len(a.Value) == 0 {
				s.printf("%s\n", a.FullName())
				continue
			}
			s.printf("%s=%s\n", a.FullName(), encodeXAttr(a.Value, encoding))
		}
		return nil
	})
}

func runSetfattr(ctx context.Context, s *Shell, args []string) error {
	switch {
	case s.option("n") && s.option("x"):
		return usageError{"Can not specify both '-n name' and '-x name' option."}
	case !s.option("n") && !s.option("x"):
		return usageError{"Must specify '-n name' or '-x name' option."}
	}
	if err := onePath(args, "<path> is missing."); err != nil {
		return err
	}
	value, err := decodeXAttr(s.options["v"])
	if err != nil {
		return err
	}
	return s.each(ctx, args, func(it item) error {
		name, remove := s.options["x"]
		if !remove {
			name = s.options["n"]
		}
		a, err := parseXAttrName(name)
		if err != nil {
			return err
		}
		if remove {
			return s.client.RemoveXAttr(ctx, it.path, a)
		}
		a.Value = value
		return s.client.SetXAttr(ctx, it.path, a, dfs.XAttrCreate|dfs.XAttrReplace)
	})
}

func runGetfacl(ctx context.Context, s *Shell, args []string) error {
	if err := onePath(args, "<path> is missing"); err != nil {
		return err
	}
	return s.walk(ctx, args, func(it item) error {
		acl, err := s.client.ACL(ctx, it.path)
		if err != nil {
			return err
		}
		s.printf("# file: %s\n# owner: %s\n# group: %s\n", it.shown, acl.Owner, acl.Group)
		if acl.Mode&metadata.Sticky != 0 {
			flag := "T"
			if acl.Mode&1 != 0 {
				flag = "t"
			}
			s.printf("# flags: --%s\n", flag)
		}
		access, defaults := logicalACL(acl)
		s.printACL(access)
		s.printACL(defaults)
		s.printf("\n")
		return nil
	})
}

// logicalACL is a list with the entries that the mode holds.
func logicalACL(acl metadata.ACL) (access, defaults []metadata.ACLEntry) {
	digit := func(shift int) metadata.Access { return metadata.Access(acl.Mode>>shift) & 7 }
	var named []metadata.ACLEntry
	for _, e := range acl.Entries {
		if e.Default {
			defaults = append(defaults, e)
		} else {
			named = append(named, e)
		}
	}
	access = append(access, metadata.ACLEntry{Type: metadata.ACLUser, Rights: digit(6)})
	if len(named) > 0 {
		access = append(access, named...)
		access = append(access, metadata.ACLEntry{Type: metadata.ACLMask, Rights: digit(3)})
	} else {
		access = append(access, metadata.ACLEntry{Type: metadata.ACLGroup, Rights: digit(3)})
	}
	return append(access, metadata.ACLEntry{Type: metadata.ACLOther, Rights: digit(0)}), defaults
}

// printACL prints the entries of one scope, with what the mask leaves of those that it limits.
func (s *Shell) printACL(entries []metadata.ACLEntry) {
	mask := metadata.Access(7)
	for _, e := range entries {
		if e.Type == metadata.ACLMask {
			mask = e.Rights
		}
	}
	for _, e := range entries {
		if left := e.Rights & mask; (e.Name != "" || e.Type == metadata.ACLGroup) && left != e.Rights {
			s.printf("%s\t#effective:%s\n", e, left.Symbol())
			continue
		}
		s.printf("%s\n", e)
	}
}

func runSetfacl(ctx context.Context, s *Shell, args []string) error {
	has := func(options ...string) (n int) {
		for _, o := range options {
			if s.option(o) {
				n++
			}
		}
		return n
	}
	switch remove, modify, set := has("b", "k"), has("m", "x"), has("-set"); {
	case remove+modify+set > 1:
		return usageError{"Specified flags contains both remove and modify flags"}
	case modify+set > 0 && len(args) == 0:
		return usageError{"Missing arguments: <acl_spec> <path>"}
	case modify+set > 0 && len(args) == 1:
		return usageError{"Missing either <acl_spec> or <path>"}
	}
	var entries []metadata.ACLEntry
	if has("m", "x", "-set") > 0 {
		var err error
		if entries, err = parseACL(args[0], !s.option("x")); err != nil {
			return err
		}
		args = args[1:]
	}
	if err := onePath(args, "<path> is missing"); err != nil {
		return err
	}
	if has("b", "k", "m", "x", "-set") == 0 {
		return usageError{"Expected one of -b, -k, -m, -x or --set options"}
	}
	return s.walk(ctx, args, func(it item) error {
		entries := entries
		if s.option("R") && !it.isDir() {
			entries = slices.DeleteFunc(slices.Clone(entries), func(e metadata.ACLEntry) bool { return e.Default })
		}
		switch {
		case s.option("b"):
			return s.client.RemoveACL(ctx, it.path)
		case s.option("k"):
			return s.client.RemoveDefaultACL(ctx, it.path)
		case len(entries) == 0:
			return nil
		case s.option("m"):
			return s.client.ModifyACL(ctx, it.path, entries)
		case s.option("x"):
			return s.client.RemoveACLEntries(ctx, it.path, entries)
		}
		return s.client.SetACL(ctx, it.path, entries)
	})
}

// parseACL reads a list of entries (AclEntry.parseAclSpec), with rights or, to remove them, without.
func parseACL(spec string, rights bool) ([]metadata.ACLEntry, error) {
	var out []metadata.ACLEntry
	for one := range strings.SplitSeq(strings.TrimRight(spec, ","), ",") {
		e, err := parseACLEntry(one, rights)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func parseACLEntry(text string, rights bool) (e metadata.ACLEntry, err error) {
	wrong := func(format string) error { return usageError{fmt.Sprintf(format, text)} }
	parts := strings.Split(strings.TrimRight(text, ":"), ":")
	next := func() (string, bool) {
		if len(parts) == 0 {
			return "", false
		}
		p := parts[0]
		parts = parts[1:]
		return p, true
	}
	word, _ := next()
	if word == "default" {
		e.Default = true
		var ok bool
		if word, ok = next(); !ok {
			return e, wrong("Invalid <aclSpec> : %s")
		}
	}
	i := slices.IndexFunc([]metadata.ACLType{metadata.ACLUser, metadata.ACLGroup, metadata.ACLMask, metadata.ACLOther},
		func(t metadata.ACLType) bool { return strings.EqualFold(word, t.String()) })
	if i < 0 {
		return e, wrong("Invalid type of acl in <aclSpec> :%s")
	}
	e.Type = metadata.ACLType(i)
	e.Name, _ = next()
	if rights {
		symbol, ok := next()
		if !ok {
			return e, wrong("Invalid <aclSpec> : %s")
		}
		found := false
		for a := metadata.Access(0); a <= 7 && !found; a++ {
			if found = a.Symbol() == strings.ToLower(symbol); found {
				e.Rights = a
			}
		}
		if !found {
			return e, wrong("Invalid permission in <aclSpec> : %s")
		}
	}
	if len(parts) > 0 {
		return e, wrong("Invalid <aclSpec> : %s")
	}
	return e, nil
}
