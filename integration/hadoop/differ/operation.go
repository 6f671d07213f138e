package differ

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Operation is one call with its arguments, in a form that prints and parses.
type Operation struct {
	Kind string
	// User acts; empty is the superuser.
	User string
	Args map[string]string
}

// String is one line of a script: alice mkdirs mode=0755 src="/a b".
func (o Operation) String() string {
	var b strings.Builder
	if o.User != "" {
		b.WriteString(o.User + " ")
	}
	b.WriteString(o.Kind)
	for _, name := range slices.Sorted(maps.Keys(o.Args)) {
		value := o.Args[name]
		if value == "" || strings.ContainsAny(value, " \"\\\t\n=") || !strconv.CanBackquote(value) {
			value = strconv.Quote(value)
		}
		if len(value) > 300 {
			value = fmt.Sprintf("%s...(%d bytes)", value[:40], len(value))
		}
		fmt.Fprintf(&b, " %s=%s", name, value)
	}
	return b.String()
}

func (o Operation) text(name string) string { return o.Args[name] }

func (o Operation) flag(name string) bool { return o.Args[name] == "true" }

// number reads an argument in Go's notation of integers, octal with a leading zero; what is missing is zero.
func (o Operation) number(name string) int64 {
	n, _ := strconv.ParseInt(o.Args[name], 0, 64)
	return n
}

// list reads an argument of several paths.
func (o Operation) list(name string) []string {
	if o.Args[name] == "" {
		return nil
	}
	return strings.Split(o.Args[name], ",")
}

// op makes an operation from names and values.
func op(kind string, args ...any) Operation {
	o := Operation{Kind: kind, Args: map[string]string{}}
	for i := 0; i+1 < len(args); i += 2 {
		name := args[i].(string)
		switch v := args[i+1].(type) {
		case string:
			o.Args[name] = v
		case bool:
			o.Args[name] = strconv.FormatBool(v)
		case int:
			o.Args[name] = strconv.Itoa(v)
		case mode:
			o.Args[name] = fmt.Sprintf("0%o", int(v))
		default:
			panic(fmt.Sprintf("argument %s of type %T", name, v))
		}
	}
	return o
}

// mode is printed in octal.
type mode int
