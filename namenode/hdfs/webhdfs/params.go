package webhdfs

import (
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
)

// params are a request's parameters: names in any case, the first value of each counts, unknown ones do not.
type params map[string]string

func paramsOf(query url.Values) params {
	p := make(params, len(query))
	for _, given := range slices.Sorted(maps.Keys(query)) { // of two spellings of a name always the same one counts, and it is that which counts on datanodes
		name, values := strings.ToLower(given), query[given]
		if _, ok := p[name]; !ok && len(values) > 0 {
			p[name] = values[0]
		}
	}
	return p
}

// integer reads a whole number of the given size in bits; absent or empty is fallback.
func (p params) integer(name string, fallback int64, bits int, least int64) (int64, error) {
	v := p[name]
	if v == "" || v == "null" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(v, 10, bits)
	if err != nil {
		kind := map[int]string{16: "short ", 32: "", 64: "long "}[bits]
		return 0, invalid(name, "Failed to parse %q as a radix-10 %sinteger.", v, kind)
	}
	if n < least {
		return 0, invalid(name, "Invalid parameter range: %s = %d < %d", name, n, least)
	}
	return n, nil
}

func (p params) boolean(name string, fallback bool) (bool, error) {
	switch v := p[name]; strings.ToLower(v) {
	case "", "null":
		return fallback, nil
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, invalid(name, "Failed to parse %q to Boolean.", v)
	}
}

func (p params) permission(name string, fallback metadata.Mode) (metadata.Mode, error) {
	v := p[name]
	if v == "" || v == "null" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(v, 8, 16)
	switch {
	case err != nil:
		return 0, invalid(name, "Failed to parse %q as a radix-8 short integer.", v)
	case n < 0:
		return 0, invalid(name, "Invalid parameter range: %s = %o < 0", name, n)
	case n > 0o1777:
		return 0, invalid(name, "Invalid parameter range: %s = %o > 1777", name, n)
	}
	return metadata.Mode(n), nil
}

// path reads an absolute path that is required.
func (p params) path(name, op string) (string, error) {
	v := p[name]
	if v == "" {
		return "", &parameterError{"Required param " + name + " for op: " + op + " is null or empty"}
	}
	if !strings.HasPrefix(v, "/") {
		return "", invalid(name, "Invalid parameter value: %s = %q is not an absolute path.", name, v)
	}
	return v, nil
}

// access reads a subset of rwx, - for what is not asked.
func (p params) access(name string) (metadata.Access, error) {
	v := p[name]
	if v == "" {
		return 0, &parameterError{"Required param " + name + " for op: CHECKACCESS is null or empty"}
	}
	var a metadata.Access
	if len(v) == 3 {
		for i, want := range []struct {
			c   byte
			bit metadata.Access
		}{{'r', metadata.Read}, {'w', metadata.Write}, {'x', metadata.Execute}} {
			switch v[i] {
			case want.c:
				a |= want.bit
			case '-':
			default:
				return 0, invalidAccess(name, v)
			}
		}
		return a, nil
	}
	return 0, invalidAccess(name, v)
}

func invalidAccess(name, v string) error {
	return invalid(name, "Invalid value: %q does not belong to the domain [r-][w-][x-]", v)
}

// checked are the parameters of the data operations, which the namenode only passes on: a wrong one is refused here.
func (p params) checkData(op string) error {
	type check func() error
	number := func(name string, bits int, least int64) check {
		return func() error { _, err := p.integer(name, 0, bits, least); return err }
	}
	boolean := func(name string) check { return func() error { _, err := p.boolean(name, false); return err } }
	permission := func(name string) check { return func() error { _, err := p.permission(name, 0); return err } }
	checks := []check{number("buffersize", 32, 1), boolean("noredirect")}
	switch op {
	case "OPEN":
		checks = append(checks, number("offset", 64, 0), number("length", 64, 0))
	case "CREATE":
		checks = append(checks, boolean("overwrite"), boolean("createparent"), number("blocksize", 64, 1),
			number("replication", 16, 1), permission("permission"), permission("unmaskedpermission"), p.createFlag)
	}
	for _, c := range checks {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

// createFlags are the constants of org.apache.hadoop.fs.CreateFlag.
var createFlags = []string{"CREATE", "OVERWRITE", "APPEND", "SYNC_BLOCK", "LAZY_PERSIST", "NEW_BLOCK", "NO_LOCAL_WRITE", "SHOULD_REPLICATE", "IGNORE_CLIENT_LOCALITY", "NO_LOCAL_RACK"}

func (p params) createFlag() error {
	v := p["createflag"]
	if v == "" {
		return nil
	}
	for flag := range strings.SplitSeq(strings.ToUpper(v), ",") {
		if !slices.Contains(createFlags, strings.TrimSpace(flag)) {
			return invalid("createflag", "No enum constant org.apache.hadoop.fs.CreateFlag.%s", flag)
		}
	}
	return nil
}

// maxLength is the length of "to the end".
const maxLength = math.MaxInt64
