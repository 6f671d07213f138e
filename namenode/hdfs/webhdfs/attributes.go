package webhdfs

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// The operations on extended attributes, access control lists and quotas, and truncate and concat.

func (q *request) required(name string) (string, error) {
	v := q.params[name]
	if v == "" || v == "null" {
		return "", &parameterError{"Required param " + name + " for op: " + q.op + " is null or empty"}
	}
	return v, nil
}

// xattrName takes the prefix of a namespace off an attribute's name (XAttrHelper.buildXAttr).
func xattrName(name string) (metadata.XAttr, error) {
	prefix, rest, ok := strings.Cut(name, ".")
	for ns := metadata.XAttrUser; ok && ns <= metadata.XAttrRaw; ns++ {
		if strings.EqualFold(prefix, ns.String()) {
			if rest == "" {
				return metadata.XAttr{}, metadata.Errorf(metadata.ErrInvalidArgument, "XAttr name cannot be empty.")
			}
			return metadata.XAttr{Namespace: ns, Name: rest}, nil
		}
	}
	return metadata.XAttr{}, metadata.Errorf(metadata.ErrInvalidArgument,
		"An XAttr name must be prefixed with user/trusted/security/system/raw, followed by a '.'")
}

// decodeValue reads an attribute's value: "text", 0xhex, 0sbase64, or plain text (XAttrCodec.decodeValue).
func decodeValue(v string) ([]byte, error) {
	var out []byte
	var err error
	switch {
	case len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"':
		return []byte(v[1 : len(v)-1]), nil
	case len(v) >= 2 && strings.EqualFold(v[:2], "0x"):
		out, err = hex.DecodeString(v[2:])
	case len(v) >= 2 && strings.EqualFold(v[:2], "0s"):
		out, err = base64.StdEncoding.DecodeString(v[2:])
	default:
		return []byte(v), nil
	}
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrIO, "Failed to decode the value of an attribute: %v", err)
	}
	return out, nil
}

func encodeValue(v []byte, encoding string) string {
	switch encoding {
	case "HEX":
		return "0x" + hex.EncodeToString(v)
	case "BASE64":
		return "0s" + base64.StdEncoding.EncodeToString(v)
	}
	return `"` + strings.ToValidUTF8(string(v), "\ufffd") + `"`
}

// xattrFlags reads whether an attribute may be made, and an existing one replaced.
func xattrFlags(flags string) (create, replace bool, err error) {
	for flag := range strings.SplitSeq(flags, ",") {
		switch strings.ToUpper(strings.TrimSpace(flag)) {
		case "CREATE":
			create = true
		case "REPLACE":
			replace = true
		default:
			return false, false, invalid("flag", "No enum constant org.apache.hadoop.fs.XAttrSetFlag.%s", flag)
		}
	}
	return create, replace, nil
}

func (q *request) setXAttr() (response, error) {
	name, err := q.required("xattr.name")
	if err != nil {
		return response{}, err
	}
	flags, err := q.required("flag")
	if err != nil {
		return response{}, err
	}
	r := namenode.SetXAttrRequest{Path: q.path}
	if r.Create, r.Replace, err = xattrFlags(flags); err != nil {
		return response{}, err
	}
	if r.Attribute, err = xattrName(name); err != nil {
		return response{}, err
	}
	if r.Attribute.Value, err = decodeValue(q.params["xattr.value"]); err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.SetXAttr(q.caller, r, done) }))
}

func (q *request) removeXAttr() (response, error) {
	name, err := q.required("xattr.name")
	if err != nil {
		return response{}, err
	}
	a, err := xattrName(name)
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.RemoveXAttr(q.caller, namenode.Retry{}, q.path, a, done) }))
}

func (q *request) xattrs() (response, error) {
	query, err := url.ParseQuery(q.http.URL.RawQuery)
	if err != nil {
		return response{}, &parameterError{err.Error()}
	}
	var names []metadata.XAttr
	for key, values := range query {
		if !strings.EqualFold(key, "xattr.name") {
			continue
		}
		for _, v := range values {
			if v == "" {
				continue
			}
			a, err := xattrName(v)
			if err != nil {
				return response{}, err
			}
			names = append(names, a)
		}
	}
	encoding, err := q.required("encoding")
	if err != nil {
		return response{}, err
	}
	switch encoding = strings.ToUpper(encoding); encoding {
	case "TEXT", "HEX", "BASE64":
	default:
		return response{}, invalid("encoding", "No enum constant org.apache.hadoop.fs.XAttrCodec.%s", encoding)
	}
	all, err := wait(q, func(done func([]metadata.XAttr, error)) { q.service.XAttrs(q.caller, q.path, names, done) })
	if err != nil {
		return response{}, err
	}
	type xattr struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	out := make([]xattr, len(all))
	for i, a := range all {
		out[i] = xattr{a.FullName(), encodeValue(a.Value, encoding)}
	}
	return body(struct{ XAttrs []xattr }{out}), nil
}

// xattrNames answers a list inside of a string, as HDFS does.
func (q *request) xattrNames() (response, error) {
	all, err := wait(q, func(done func([]metadata.XAttr, error)) { q.service.ListXAttrs(q.caller, q.path, done) })
	if err != nil {
		return response{}, err
	}
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.FullName()
	}
	list, err := json.Marshal(names)
	return body(struct{ XAttrNames string }{string(list)}), err
}

const aclDomain = `^(default:)?(user|group|mask|other):[[A-Za-z_][A-Za-z0-9._-]]*:([rwx-]{3})?(,(default:)?(user|group|mask|other):[[A-Za-z_][A-Za-z0-9._-]]*:([rwx-]{3})?)*$`

// aclForm is aclDomain in Go's syntax.
var aclForm = regexp.MustCompile(`^(default:)?(user|group|mask|other):[A-Za-z0-9._-]*:([rwx-]{3})?(,(default:)?(user|group|mask|other):[A-Za-z0-9._-]*:([rwx-]{3})?)*$`)

// aclSpec reads the parameter aclspec. The rights may be absent only when entries are removed.
func (q *request) aclSpec(rights bool) ([]metadata.ACLEntry, error) {
	spec, err := q.required("aclspec")
	if err != nil {
		return nil, err
	}
	if !aclForm.MatchString(spec) {
		return nil, invalid("aclspec", "Invalid value: %q does not belong to the domain %s", spec, aclDomain)
	}
	var entries []metadata.ACLEntry
	for one := range strings.SplitSeq(spec, ",") {
		var e metadata.ACLEntry
		rest, isDefault := strings.CutPrefix(one, "default:")
		e.Default = isDefault
		parts := strings.Split(rest, ":")
		for e.Type = metadata.ACLUser; e.Type.String() != parts[0]; e.Type++ { // the form has one of the four
		}
		e.Name = parts[1]
		if rights && parts[2] == "" {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Invalid <aclSpec> : %s", one)
		}
		if parts[2] != "" {
			var ok bool
			if e.Rights, ok = parseRights(parts[2]); !ok {
				return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Invalid permission in <aclSpec> : %s", one)
			}
		}
		if !rights {
			e.Rights = 0
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func parseRights(s string) (metadata.Access, bool) {
	for a := metadata.Access(0); a <= 7; a++ {
		if a.Symbol() == s {
			return a, true
		}
	}
	return 0, false
}

func setACL(change namenode.ACLChange) func(*request) (response, error) {
	return func(q *request) (response, error) {
		var entries []metadata.ACLEntry
		if change != namenode.ACLRemove && change != namenode.ACLRemoveDefault {
			var err error
			if entries, err = q.aclSpec(change != namenode.ACLRemoveEntries); err != nil {
				return response{}, err
			}
		}
		return nothing(finish(q, func(done func(error)) { q.service.SetACL(q.caller, q.path, change, entries, done) }))
	}
}

func (q *request) aclStatus() (response, error) {
	a, err := wait(q, func(done func(*metadata.ACL, error)) { q.service.ACL(q.caller, q.path, done) })
	if err != nil {
		return response{}, err
	}
	entries := make([]string, len(a.Entries))
	for i, e := range a.Entries {
		entries[i] = e.String()
	}
	return body(struct{ AclStatus aclStatus }{aclStatus{
		Entries: entries, Group: a.Group, Owner: a.Owner, Permission: octal(a.Mode), StickyBit: a.Mode&metadata.Sticky != 0,
	}}), nil
}

func (q *request) setQuota() (response, error) {
	names, err := q.params.integer("namespacequota", metadata.QuotaKeep, 64, metadata.QuotaUnset)
	if err != nil {
		return response{}, err
	}
	space, err := q.params.integer("storagespacequota", metadata.QuotaKeep, 64, metadata.QuotaUnset)
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.SetQuota(q.caller, q.path, names, space, done) }))
}

func (q *request) setTypeQuota() (response, error) {
	name, err := q.required("storagetype")
	if err != nil {
		return response{}, err
	}
	kind := namenode.ParseStorageType(strings.ToUpper(name))
	if !strings.EqualFold(kind.String(), name) {
		return response{}, metadata.Errorf(metadata.ErrInvalidArgument, "No enum constant org.apache.hadoop.fs.StorageType.%s", strings.ToUpper(name))
	}
	space, err := q.params.integer("storagespacequota", metadata.QuotaKeep, 64, metadata.QuotaUnset)
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.SetTypeQuota(q.caller, q.path, uint32(kind), space, done) }))
}

func (q *request) quotaUsage() (response, error) {
	u, err := wait(q, func(done func(*metadata.QuotaUsage, error)) { q.service.QuotaUsage(q.caller, q.path, done) })
	if err != nil {
		return response{}, err
	}
	return body(struct{ QuotaUsage quotaUsage }{quotaUsage{
		FileAndDirectoryCount: u.Names, Quota: u.NameQuota, SpaceConsumed: u.Space, SpaceQuota: u.SpaceQuota, TypeQuota: typeQuotasOf(u.Types),
	}}), nil
}

// truncateClient is the lease holder that a truncation is refused in the name of.
const truncateClient = "webhdfs"

func (q *request) truncate() (response, error) {
	if _, err := q.required("newlength"); err != nil {
		return response{}, err
	}
	length, err := q.params.integer("newlength", 0, 64, 0)
	if err != nil {
		return response{}, err
	}
	return boolean(wait(q, func(done func(bool, error)) {
		q.service.Truncate(q.caller, namenode.Retry{}, q.path, length, truncateClient, done)
	}))
}

func (q *request) concat() (response, error) {
	list, err := q.required("sources")
	if err != nil {
		return response{}, err
	}
	sources := strings.Split(list, ",")
	for _, s := range sources {
		if !strings.HasPrefix(s, "/") {
			return response{}, invalid("sources", "Invalid parameter value: %s = %q is not an absolute path.", "sources", s)
		}
	}
	return nothing(finish(q, func(done func(error)) { q.service.Concat(q.caller, namenode.Retry{}, q.path, sources, done) }))
}

func (q *request) noSymlinks() (response, error) {
	if _, err := q.required("destination"); err != nil {
		return response{}, err
	}
	return response{}, metadata.Errorf(metadata.ErrUnsupported, "Symlinks not supported")
}
