package resourcemanager

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
)

// Near says where the containers of an ask are wanted because what they read is there: a preference, unless the ask is strict. The zero value says
// nothing, and two can be compared with ==.
type Near struct{ text string } // words behind a letter each, with a zero byte behind them: w wait, p path, h weight and host, r rack

// NearWords are the words of a Near.
type NearWords struct {
	// Paths of files and directories of the filesystem, on whose blocks' nodes the containers are wanted. The resource manager looks these up.
	Paths []string
	// Hosts are wanted first, those with more weight before others.
	Hosts []NearHost
	// Racks are wanted next; the path of a rack, or a part of it from its beginning.
	Racks []string
	// Wait is how long a container waits for room on one of the hosts while there is room elsewhere, and then as long for room in one of the
	// racks. 0: the cluster's; NoWait: not at all.
	Wait time.Duration
}

// NearHost is a host name or the id of a node, and how much of what is read is there: 1 to MaxWeight, 0 meaning 1.
type NearHost struct {
	Host   string
	Weight int
}

// NoWait as NearWords.Wait: a container is granted at once where there is room.
const NoWait time.Duration = -1

// The bounds of a Near.
const (
	MaxNearPaths = 16
	MaxNearPath  = 4096 // bytes of one
	MaxNearHosts = 20_000
	MaxNearRacks = 1_000
	MaxNearWait  = time.Hour
	MaxWeight    = 8
)

// NewNear takes words. Hosts that stand twice have the larger weight; a rack below another one that is named is left out.
//
// Error: metadata.ErrInvalidArgument for too many words, and for one that is none.
func NewNear(w NearWords) (Near, error) {
	bad := func(format string, args ...any) (Near, error) {
		return Near{}, metadata.Errorf(metadata.ErrInvalidArgument, format, args...)
	}
	switch {
	case len(w.Paths) > MaxNearPaths || len(w.Hosts) > MaxNearHosts || len(w.Racks) > MaxNearRacks:
		return bad("near %d paths, %d hosts and %d racks: at most %d, %d and %d", len(w.Paths), len(w.Hosts), len(w.Racks), MaxNearPaths, MaxNearHosts, MaxNearRacks)
	case w.Wait < NoWait || w.Wait > MaxNearWait:
		return bad("near: a wait of %v: it is from 0s to %v", w.Wait, MaxNearWait)
	case len(w.Paths)+len(w.Hosts)+len(w.Racks) == 0 && w.Wait != 0:
		return bad("near: there is a wait, and nothing to wait for: name paths, hosts or racks")
	}
	var b strings.Builder
	word := func(parts ...string) {
		for _, p := range parts {
			b.WriteString(p)
		}
		b.WriteByte(0)
	}
	switch {
	case w.Wait == NoWait:
		word("w")
	case w.Wait > 0:
		word("w", strconv.FormatInt(max(w.Wait.Milliseconds(), 1), 10))
	}
	paths := slices.Clone(w.Paths)
	slices.Sort(paths)
	for _, p := range slices.Compact(paths) {
		if !strings.HasPrefix(p, "/") || len(p) > MaxNearPath || strings.ContainsRune(p, 0) {
			return bad("near: %.100q is no path of the filesystem: it begins with / and has at most %d bytes", p, MaxNearPath)
		}
		word("p", p)
	}
	hosts := slices.Clone(w.Hosts)
	slices.SortFunc(hosts, func(a, b NearHost) int { return cmp.Or(cmp.Compare(a.Host, b.Host), -cmp.Compare(a.Weight, b.Weight)) })
	for i, h := range hosts {
		if h.Weight < 0 || h.Weight > MaxWeight {
			return bad("near: weight %d of host %.100q is not from 1 to %d", h.Weight, h.Host, MaxWeight)
		}
		if h.Host == "" || len(h.Host) > 255 || strings.ContainsFunc(h.Host, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return bad("near: %.100q is no name of a host", h.Host)
		}
		if i == 0 || h.Host != hosts[i-1].Host {
			word("h", strconv.Itoa(max(h.Weight, 1)), h.Host)
		}
	}
	racks := make([]string, 0, len(w.Racks))
	for _, r := range w.Racks {
		rack := strings.TrimRight(r, "/")
		if !strings.HasPrefix(rack, "/") || len(rack) > 255 || strings.Count(rack, "/") > MaxDepth || strings.ContainsRune(rack, 0) {
			return bad("near: %.100q is no path of a rack: it begins with / and has at most %d parts", r, MaxDepth)
		}
		racks = append(racks, rack)
	}
	slices.Sort(racks)
	last := ""
	for _, r := range racks {
		if last != "" && (r == last || strings.HasPrefix(r, last+"/")) {
			continue
		}
		last = r
		word("r", r)
	}
	return Near{b.String()}, nil
}

// IsZero reports whether nothing is said.
func (n Near) IsZero() bool { return n.text == "" }

// Bytes is how long its words are.
func (n Near) Bytes() int { return len(n.text) }

// HasPaths reports whether there are paths, which somebody has to look up.
func (n Near) HasPaths() bool {
	return strings.HasPrefix(n.text, "p") || strings.HasPrefix(n.text, "w") && strings.Contains(n.text, "\x00p")
}

// Wait is that of its words.
func (n Near) Wait() time.Duration {
	word, _, _ := strings.Cut(n.text, "\x00")
	switch ms, err := strconv.ParseInt(strings.TrimPrefix(word, "w"), 10, 64); {
	case word == "w":
		return NoWait
	case err == nil && word[0] == 'w':
		return time.Duration(ms) * time.Millisecond
	}
	return 0
}

// Words are what it says: paths, hosts and racks in their order, and no weight of 0.
func (n Near) Words() (w NearWords) {
	for word := range strings.SplitSeq(n.text, "\x00") {
		if word == "" {
			continue
		}
		switch rest := word[1:]; word[0] {
		case 'w':
			w.Wait = n.Wait()
		case 'p':
			w.Paths = append(w.Paths, rest)
		case 'h':
			w.Hosts = append(w.Hosts, NearHost{rest[1:], int(rest[0] - '0')})
		case 'r':
			w.Racks = append(w.Racks, rest)
		}
	}
	return w
}
