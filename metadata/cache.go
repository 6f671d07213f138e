package metadata

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// What HDFS takes for no limit of a cache pool, and for a directive that never ends: in milliseconds, from some time on.
const (
	CacheUnlimited int64 = math.MaxInt64
	CacheForever   int64 = math.MaxInt64 / 4
)

// CachePool is a pool of what datanodes keep in memory. Who may WRITE in it has directives there, who may READ sees them.
type CachePool struct {
	Name, Owner, Group string
	Mode               Mode
	// Limit is how many bytes its directives may want, in all replicas together.
	Limit int64
	// Replication is that of directives that do not say.
	Replication int
	// MaxTTL is how long a directive may be for, in milliseconds.
	MaxTTL int64
}

// CacheDirective wants a file, or the files in a directory but not what is further below, to be in the memory of datanodes.
type CacheDirective struct {
	// ID is above 0. No two directives ever have the same.
	ID   int64
	Path string
	// Replication is how many datanodes are to have each block in memory.
	Replication int
	Pool        string
	// Expires is when it ends. It is still there afterwards, and wants nothing.
	Expires Time
}

// Expired reports whether a directive has ended.
func (d *CacheDirective) Expired(now Time) bool { return d.Expires > 0 && d.Expires <= now }

// Expiration is when a directive is to end: milliseconds since 1970, or from now on.
type Expiration struct {
	Millis   int64
	Relative bool
}

// String is HDFS's form: the time, or DDD:HH:MM:SS.mmm.
func (e Expiration) String() string {
	if e.Relative {
		return DurationString(e.Millis)
	}
	return time.UnixMilli(e.Millis).Format("2006-01-02T15:04:05-0700")
}

// DurationString is DDD:HH:MM:SS.mmm of milliseconds.
func DurationString(ms int64) string {
	sign := ""
	if ms < 0 {
		sign, ms = "-", -ms
	}
	s := ms / 1000
	return fmt.Sprintf("%s%03d:%02d:%02d:%02d.%03d", sign, s/86400, s/3600%24, s/60%60, s%60, ms%1000)
}

// CachePath is the path of a directive as HDFS keeps it: without slashes that mean nothing. ErrInvalidRequest: there can be none of that name.
func CachePath(path string) (string, error) {
	invalid := Errorf(ErrInvalidRequest, "Invalid path '%s'.", strings.ToValidUTF8(path[:min(len(path), MaxPathLength)], "\ufffd"))
	if !strings.HasPrefix(path, "/") || len(path) > MaxPathLength || strings.ContainsAny(path, ":\x00") || strings.ToValidUTF8(path, "") != path {
		return "", invalid
	}
	var names []string
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "":
		case ".", "..":
			return "", invalid
		default:
			names = append(names, name)
		}
	}
	return "/" + strings.Join(names, "/"), nil
}
