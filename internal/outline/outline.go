// Package outline says in a line what a command of a replicated log is, for people who look at the log.
package outline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Command is one for people. What may be a secret is not in it: bytes, what is marked debug_redact, and of messages within the operation all but
// who or what they are about.
type Command struct {
	Operation string `json:"operation"`
	// Caller is for whom it was proposed; empty: for the server itself.
	Caller string  `json:"caller,omitempty"`
	Fields []Field `json:"fields,omitempty"`
}

// Field is one of an operation, in the order of their numbers. Name and value have no line breaks.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// String is a line.
func (c Command) String() string {
	var b strings.Builder
	b.WriteString(c.Operation)
	for _, f := range c.Fields {
		b.WriteString(" " + f.Name + "=" + f.Value)
	}
	if c.Caller != "" {
		b.WriteString(" by " + c.Caller)
	}
	return b.String()
}

// Writer knows the short forms of messages by their full names.
type Writer map[protoreflect.FullName]func(protoreflect.Message) string

// Of describes the operation that is set in a oneof of a command. ok: one is.
func (w Writer) Of(command proto.Message, oneof protoreflect.Name) (c Command, ok bool) {
	m := command.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName(oneof))
	if field == nil {
		return c, false
	}
	c.Operation = string(field.Name())
	op := m.Get(field).Message()
	for _, f := range fields(op) {
		c.Fields = append(c.Fields, Field{string(f.Name()), w.value(f, op.Get(f), false)})
	}
	return c, true
}

// Record describes a message with all that is in it, but for bytes and what is marked debug_redact.
func (w Writer) Record(m proto.Message) string { return w.message(m.ProtoReflect(), true) }

// Class counts records of one kind.
type Class struct {
	// Key is the first byte of the keys, empty where there are none.
	Key     string `json:"key,omitempty"`
	Name    string `json:"name"`
	Records uint64 `json:"records"`
	Bytes   uint64 `json:"bytes"`
}

// fields are those that are set.
func fields(m protoreflect.Message) (out []protoreflect.FieldDescriptor) {
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		out = append(out, f)
		return true
	})
	slices.SortFunc(out, func(a, b protoreflect.FieldDescriptor) int { return int(a.Number() - b.Number()) })
	return out
}

// maxList and maxText limit what is shown of a list, and of a text in bytes.
const (
	maxList = 8
	maxText = 256
)

func (w Writer) value(f protoreflect.FieldDescriptor, v protoreflect.Value, all bool) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("{%d}", v.Map().Len())
	case f.IsList():
		list := v.List()
		var shown []string
		for i := range min(list.Len(), maxList) {
			shown = append(shown, w.single(f, list.Get(i), all))
		}
		if more := list.Len() - maxList; more > 0 {
			shown = append(shown, fmt.Sprintf("and %d more", more))
		}
		return "[" + strings.Join(shown, " ") + "]"
	}
	return w.single(f, v, all)
}

func (w Writer) single(f protoreflect.FieldDescriptor, v protoreflect.Value, all bool) string {
	if options, ok := f.Options().(*descriptorpb.FieldOptions); ok && options.GetDebugRedact() {
		return "(hidden)"
	}
	switch f.Kind() {
	case protoreflect.BytesKind:
		return fmt.Sprintf("(%d bytes)", len(v.Bytes()))
	case protoreflect.StringKind:
		return Text(v.String())
	case protoreflect.EnumKind:
		if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
			return string(e.Name())
		}
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return w.message(v.Message(), all)
	case protoreflect.Uint32Kind:
		if f.Name() == "mode" || f.Name() == "unmasked" {
			return fmt.Sprintf("%04o", v.Uint())
		}
	}
	return v.String()
}

// about are the fields that say who or what a message within an operation is about.
var about = []protoreflect.Name{"id", "name", "user", "queue", "node", "container", "application", "number", "state", "ask", "type", "rights", "default", "version", "remove"}

func (w Writer) message(m protoreflect.Message, all bool) string {
	if short := w[m.Descriptor().FullName()]; short != nil {
		return short(m)
	}
	var shown []string
	for _, f := range fields(m) {
		nested := f.Message()
		if all {
			shown = append(shown, string(f.Name())+"="+w.value(f, m.Get(f), true))
		} else if slices.Contains(about, f.Name()) && !f.IsList() && !f.IsMap() && (nested == nil || w[nested.FullName()] != nil) {
			shown = append(shown, string(f.Name())+"="+w.single(f, m.Get(f), false))
		}
	}
	return "{" + strings.Join(shown, " ") + "}"
}

// Text is a string as it is, or quoted where it has blanks or what is not to be printed, and cut where it is long.
func Text(s string) string {
	cut := ""
	if len(s) > maxText {
		end := maxText
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		s, cut = s[:end], "..."
	}
	if quoted := strconv.Quote(s); s == "" || strings.Contains(s, " ") || quoted != `"`+s+`"` {
		return quoted + cut
	}
	return s + cut
}
