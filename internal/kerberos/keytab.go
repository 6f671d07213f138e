package kerberos

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// maxKeytab is the size of the largest keytab that is read, in bytes: some ten thousand keys.
const maxKeytab = 1 << 20

// keytabEntry is one key of a principal.
type keytabEntry struct {
	principal string
	version   uint32 // kvno
	enctype   int32
	value     []byte
}

// loadKeytab reads a file of keys, which not everybody may read.
func loadKeytab(path string) ([]keytabEntry, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("keytab: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("keytab %s has mode %04o and everybody could use it: chmod 400 it", path, mode)
	}
	if info.Size() > maxKeytab {
		return nil, fmt.Errorf("keytab %s has %d bytes, %d are allowed", path, info.Size(), maxKeytab)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("keytab: %w", err)
	}
	entries, err := parseKeytab(b)
	if err != nil {
		return nil, fmt.Errorf("keytab %s: %w", path, err)
	}
	return entries, nil
}

var errKeytab = errors.New("it is no keytab, or ends in the middle (kadmin's ktadd makes one)")

// parseKeytab reads MIT's format, version 5.2 (all numbers big-endian).
func parseKeytab(b []byte) ([]keytabEntry, error) {
	if len(b) < 2 || b[0] != 5 || b[1] != 2 {
		return nil, errKeytab
	}
	var entries []keytabEntry
	for b = b[2:]; len(b) > 0; {
		r := reader{rest: b}
		size := int64(int32(r.number(4)))
		if size < 0 { // a hole where a key was removed
			size = -size
			if r.take(int(min(size, int64(len(b)+1)))); r.short {
				return nil, errKeytab
			}
			b = r.rest
			continue
		}
		record := reader{rest: r.take(int(min(size, int64(len(b)+1))))}
		if r.short || size == 0 {
			return nil, errKeytab
		}
		b = r.rest
		e := record.entry()
		if record.short {
			return nil, errKeytab
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (r *reader) entry() keytabEntry {
	parts := int(r.number(2))
	realm := string(r.text())
	var names []string
	for range min(parts, maxComponents+1) {
		names = append(names, string(r.text()))
	}
	if parts > maxComponents {
		r.short = true
	}
	r.number(4) // type of the name
	r.number(4) // time
	e := keytabEntry{principal: strings.Join(names, "/") + "@" + realm, version: r.number(1), enctype: int32(int16(r.number(2)))}
	e.value = slices.Clone(r.text())
	if len(r.rest) >= 4 {
		if wide := r.number(4); wide != 0 {
			e.version = wide
		}
	}
	return e
}

// reader takes fields from bytes; short is set once there were too few.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.short, r.rest = true, nil
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *reader) number(size int) uint32 {
	var wide [4]byte
	copy(wide[4-size:], r.take(size))
	return binary.BigEndian.Uint32(wide[:])
}

// text is a string with two bytes of length in front.
func (r *reader) text() []byte { return r.take(int(r.number(2))) }

// principals lists those that entries have keys of.
func principalsOf(entries []keytabEntry) []string {
	var names []string
	for _, e := range entries {
		names = append(names, e.principal)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
