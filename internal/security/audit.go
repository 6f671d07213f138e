package security

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gohops/hops/internal/logfile"
	"github.com/gohops/hops/metadata"
)

// Decision is what an audit log keeps of a request: who asked for what, and whether they were let.
type Decision struct {
	Allowed bool
	Caller  metadata.Caller
	// Port is the protocol the request came by, such as rpc, webhdfs, rest, grpc or transfer.
	Port string
	// Command is the operation; Source and Target are what it was about, empty where there is none.
	Command, Source, Target string
	// Changed is what a change was of, after it.
	Changed metadata.Changed
	// Reason is why a request was refused.
	Reason string
	// Read: the request changes nothing.
	Read bool
}

// AuditConfig describes an audit log. Path is required.
type AuditConfig struct {
	Path string
	// Reads are logged too when they are allowed; refusals and changes always are.
	Reads bool
	// Size is where a file ends and the next one begins, in bytes; Keep is how many ended ones stay. Defaults 64 MiB, 10.
	Size int64
	Keep int
	// Logger is told when the log cannot be written.
	Logger *slog.Logger
}

// auditFlush is how long a decision may wait for others, so that they go to the disk together.
const auditFlush = time.Second

// maxAudited bounds what a line keeps of a name that came from outside, in bytes.
const maxAudited = 4096

// Audit writes decisions to a file, a line each, with the keys of HDFS's audit log (FSNamesystem.audit). It is safe for
// concurrent use. A nil Audit keeps nothing.
type Audit struct {
	config AuditConfig
	file   *logfile.File
	clock  stamp // guarded by the file
}

// OpenAudit opens a log for appending.
func OpenAudit(c AuditConfig) (*Audit, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	file, err := logfile.Open(logfile.Config{
		Path: c.Path, Size: c.Size, Keep: c.Keep, Linger: auditFlush,
		Lost: func(n int) string {
			return fmt.Sprintf("%s WARN audit: %d decisions were not written: the log could not keep up\n", time.Now().Format(auditTime), n)
		},
		Failed: func(err error) {
			c.Logger.Error("the audit log cannot be written; what it misses is lost", "err", err)
		},
		Again: func() { c.Logger.Info("the audit log is written again", "file", c.Path) },
	})
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return &Audit{config: c, file: file}, nil
}

// Record keeps a decision. It does not wait for the disk.
func (a *Audit) Record(d Decision) {
	if a == nil || d.Allowed && d.Read && !a.config.Reads {
		return
	}
	a.file.Append(func(b []byte) []byte { return appendDecision(a.clock.append(b, time.Now()), &d) })
}

// Run writes until ctx is done, and then what is left.
func (a *Audit) Run(ctx context.Context) error { return a.file.Run(ctx) }

const auditTime = "2006-01-02 15:04:05,000"

// stamp formats times as auditTime says, and all but the milliseconds once a second.
type stamp struct {
	second int64
	text   []byte // with no milliseconds; nil: none was formatted
}

func (s *stamp) append(b []byte, t time.Time) []byte {
	if second := t.Unix(); s.text == nil || second != s.second {
		s.second, s.text = second, t.AppendFormat(s.text[:0], auditTime[:len(auditTime)-len("000")])
	}
	ms := t.Nanosecond() / 1e6
	return append(append(b, s.text...), byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
}

// appendDecision makes a line as HDFS writes it, which has its time already, by which tools find the fields:
//
//	allowed=true	ugi=ann (auth:SIMPLE)	ip=/127.0.0.1	cmd=rename	src=/a	dst=/b	perm=ann:staff:rwxr-xr-x	proto=rpc
func appendDecision(b []byte, d *Decision) []byte {
	b = append(b, " INFO FSNamesystem.audit: allowed="...)
	b = strconv.AppendBool(b, d.Allowed)
	b = append(b, "\tugi="...)
	b = appendAudited(b, d.Caller.User)
	if d.Caller.RealUser != "" {
		b = append(b, " (auth:PROXY) via "...)
		b = appendAudited(b, d.Caller.RealUser)
	}
	b = append(b, " (auth:SIMPLE)\tip=/"...)
	b = appendAudited(b, d.Caller.Host)
	b = append(b, "\tcmd="...)
	b = appendAudited(b, d.Command)
	b = append(b, "\tsrc="...)
	b = appendAudited(b, d.Source)
	b = append(b, "\tdst="...)
	b = appendAudited(b, d.Target)
	b = append(b, "\tperm="...)
	if d.Changed.Owner == "" {
		b = append(b, "null"...)
	} else {
		b = append(appendAudited(b, d.Changed.Owner), ':')
		b = append(appendAudited(b, d.Changed.Group), ':')
		b = append(b, d.Changed.Mode.String()...)
	}
	b = append(b, "\tproto="...)
	b = append(b, d.Port...)
	if d.Reason != "" {
		b = append(b, "\treason="...)
		b = appendAudited(b, d.Reason)
	}
	return append(b, '\n')
}

// appendAudited writes a word that came from outside so that it stays in its field: control characters, which would begin
// a field or a line of their own, are escaped as in Go.
func appendAudited(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	if len(s) > maxAudited {
		s = s[:maxAudited]
	}
	plain := true
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] >= 0x7f || s[i] == '\\' {
			plain = false
			break
		}
	}
	if plain {
		return append(b, s...)
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\\':
			b = append(b, '\\', '\\')
		case r == utf8.RuneError && n == 1:
			b = fmt.Appendf(b, "\\x%02x", s[i])
		case strconv.IsPrint(r):
			b = append(b, s[i:i+n]...)
		default:
			q := strconv.QuoteRune(r)
			b = append(b, q[1:len(q)-1]...)
		}
		i += n
	}
	return b
}

// PathList is how decisions name several paths (Java's Arrays.toString).
func PathList(paths []string) string { return "[" + strings.Join(paths, ", ") + "]" }

// RenameCommand is how they name a rename with options (FSNamesystem.renameTo).
func RenameCommand(overwrite, toTrash bool) string {
	switch {
	case overwrite && toTrash:
		return "rename (options=[OVERWRITE, TO_TRASH])"
	case overwrite:
		return "rename (options=[OVERWRITE])"
	case toTrash:
		return "rename (options=[TO_TRASH])"
	}
	return "rename (options=[NONE])"
}

// SnapshotPath is how decisions name a snapshot of a directory; without a name they are about what is there now.
func SnapshotPath(dir, name string) string {
	if name == "" {
		return dir
	}
	return strings.TrimSuffix(dir, "/") + "/.snapshot/" + strings.TrimPrefix(name, ".snapshot/")
}

// Record keeps a decision in the door's audit log, if it has one.
func (d *Door) Record(e Decision) { d.audit.Load().Record(e) }

// Audits reports whether the door's audit log keeps requests that are allowed, or those among them that read.
func (d *Door) Audits(reads bool) bool {
	a := d.audit.Load()
	return a != nil && (!reads || a.config.Reads)
}

// SetAudit gives the door an audit log.
func (d *Door) SetAudit(a *Audit) { d.audit.Store(a) }

// Refused reports whether an error is a decision against the caller, not one about what they asked for.
func Refused(err error) bool {
	return errors.Is(err, metadata.ErrPermission) || errors.Is(err, metadata.ErrUnauthorized)
}
