package namespace

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// diffScan is how many records of changes are looked at for a page at most, diffStep after how many it is asked whether the
// page is full.
const (
	diffScan = 4096
	diffStep = 64
)

// SnapshotDiffPage lists a part of what SnapshotDiff lists: the first one with an empty after, else the one that begins where the one
// before ended (DiffPage.Next). It has about limit records, and may have none although more follow. What it costs does not
// depend on how much changed.
//
// Errors: those of SnapshotDiff, however much changed; ErrInvalidArgument for an after that is no end of a page.
func (ns *Namespace) SnapshotDiffPage(c metadata.Caller, path, from, to, after string, limit int) (*metadata.DiffPage, error) {
	return ns.snapshotDiffPage(c, path, from, to, after, limit, diffScan)
}

func (ns *Namespace) snapshotDiffPage(c metadata.Caller, path, from, to, after string, limit, scan int) (*metadata.DiffPage, error) {
	last, told, ok := parseDiffCursor(after)
	if !ok {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%s is no place in a list of differences", printable(after))
	}
	d, backwards, err := ns.beginDiff(c, path, from, to)
	if err != nil {
		return nil, err
	}
	page := &metadata.DiffPage{Backwards: backwards}
	if d == nil {
		return page, nil
	}
	keys, more, err := d.keysAfter(last, scan)
	if err != nil {
		return nil, err
	}
	var before metadata.INodeID // whose modification is on a page before
	if told {
		before, _, _ = splitEntry([]byte(last[1:]))
	}
	for found := 0; len(keys) > 0 && found < limit; {
		turn := keys[:min(len(keys), diffStep, limit)]
		keys, last = keys[len(turn):], turn[len(turn)-1]
		if err := d.compare(turn); err != nil {
			return nil, err
		}
		found = len(d.modified)
		for _, one := range d.dirs {
			found += len(one.created) + len(one.deleted)
		}
	}
	told = false
	if last != "" && last[0] == classSnapshotEntry {
		id, _, _ := splitEntry([]byte(last[1:]))
		_, here := d.dirs[id]
		told = here || id == before
	}
	if err := d.fill(page, before); err != nil {
		return nil, err
	}
	if more || len(keys) > 0 {
		page.Next = diffCursor(last, told)
	}
	return page, nil
}

// keysAfter lists the first most keys behind one of what was kept for the snapshots from the earlier up to the later state, in
// their order, and whether there are more.
func (d *differ) keysAfter(after string, most int) (keys []string, more bool, err error) {
	for s := d.earlier; s != present; {
		err := d.ns.read(func() error {
			prefix := keptKey(string(classSnapshotIndex), s)
			from := prefix
			if after != "" {
				from += after + "\x00"
			}
			err := d.ns.scanKept(prefix, from, func(key, _ []byte) bool {
				k := string(key[len(prefix):])
				i, found := slices.BinarySearch(keys, k)
				switch {
				case found:
					return true
				case i == most:
					more = true
					return false
				case len(keys) == most:
					keys, more = keys[:most-1], true
				}
				keys = slices.Insert(keys, i, k)
				return true
			})
			s = d.nextSnapshot(s)
			return err
		})
		if err != nil {
			return nil, false, err
		}
	}
	return keys, more, nil
}

// fill puts what was found into a page. A directory is listed as modified once: with its own record, if that differs, or else with
// the first of its entries, which may be on a page before.
func (d *differ) fill(page *metadata.DiffPage, before metadata.INodeID) error {
	for _, id := range slices.Sorted(maps.Keys(d.modified)) {
		m := d.modified[id]
		tell := m.own
		if !tell && id != before {
			err := d.ns.read(func() error {
				_, differs, err := d.looksOtherwise(id)
				tell = !differs
				return err
			})
			if err != nil {
				return err
			}
		}
		if tell {
			page.Modified = append(page.Modified, metadata.DiffRecord{Dir: id, INode: id, Path: m.path, IsDir: m.dir})
		}
		one := d.dirs[id]
		if one == nil {
			continue
		}
		one.sort()
		for _, e := range one.created {
			page.Created = append(page.Created, metadata.DiffRecord{Dir: id, INode: e.id, Path: entryPath(m.path, e.name)})
		}
		for _, e := range one.deleted {
			r := metadata.DiffRecord{Dir: id, INode: e.id, Path: entryPath(m.path, e.name)}
			r.Target = one.renamed[e.id][1]
			page.Deleted = append(page.Deleted, r)
		}
	}
	return nil
}

// diffCursor writes down where a page ended: behind a key, whose directory was listed as modified or not.
func diffCursor(key string, told bool) string {
	flag := "-"
	if told {
		flag = "+"
	}
	return flag + base64.RawURLEncoding.EncodeToString([]byte(key))
}

// parseDiffCursor is the inverse of diffCursor; of an empty one the key is empty.
func parseDiffCursor(s string) (key string, told, ok bool) {
	if s == "" {
		return "", false, true
	}
	rest, told := strings.CutPrefix(s, "+")
	if !told {
		if rest, ok = strings.CutPrefix(s, "-"); !ok {
			return "", false, false
		}
	}
	raw, err := base64.RawURLEncoding.DecodeString(rest)
	if err != nil || len(raw) < 9 || raw[0] != classSnapshotINode && raw[0] != classSnapshotEntry {
		return "", false, false
	}
	return string(raw), told, true
}
