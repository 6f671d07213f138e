// Package hostlist reads the files by which Hadoop's operators say which datanodes may serve and which are to leave: dfs.hosts and
// dfs.hosts.exclude, a name a line (HostsFileReader), and the JSON of CombinedHostFileManager (HDFS-9005).
package hostlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/namenode"
)

// Entry says of one datanode, or of all on a host, what is to become of it.
type Entry struct {
	// Host is a name or an address as the datanode registers it, or the name of its machine; Port that of its data transfer, 0: any.
	Host string `json:"host"`
	Port uint32 `json:"port,omitempty"`
	// Admin is Normal, Decommissioned or InMaintenance.
	Admin namenode.AdminState `json:"admin,omitempty"`
	// Until is when the maintenance ends, in milliseconds since 1970; 0: by hand.
	Until int64 `json:"until,omitempty"`
}

// List is what the files say together.
type List struct {
	// Included are those that may serve; with none, every one may.
	Included []Entry `json:"included,omitempty"`
	// Leaving are those that are to leave.
	Leaving []Entry `json:"leaving,omitempty"`
}

// maxEntries bounds what the files may name together.
const maxEntries = 10_000

// Parse reads the texts of dfs.hosts and dfs.hosts.exclude. JSON is recognised by how it begins; the other text counts too.
//
// Errors name the line, or what is wrong with the JSON.
func Parse(include, exclude []byte) (*List, error) {
	l := &List{}
	if err := l.read("dfs.hosts", include, &l.Included); err != nil {
		return nil, err
	}
	if err := l.read("dfs.hosts.exclude", exclude, &l.Leaving); err != nil {
		return nil, err
	}
	for i := range l.Leaving {
		if l.Leaving[i].Admin == namenode.Normal {
			l.Leaving[i].Admin = namenode.Decommissioned
		}
	}
	if n := len(l.Included) + len(l.Leaving); n > maxEntries {
		return nil, fmt.Errorf("dfs.hosts and dfs.hosts.exclude name %d datanodes, %d are allowed", n, maxEntries)
	}
	return l, nil
}

func (l *List) read(name string, text []byte, into *[]Entry) error {
	text = bytes.TrimSpace(text)
	if list, ok := bytes.CutPrefix(text, []byte("[")); ok && bytes.IndexAny(bytes.TrimSpace(list), "{]") == 0 || len(text) > 0 && text[0] == '{' {
		return l.combined(name, text)
	}
	for number, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			e, err := ParseEntry(word)
			if err != nil {
				return fmt.Errorf("%s: line %d: %w", name, number+1, err)
			}
			*into = append(*into, e)
		}
	}
	return nil
}

// combined reads the objects of CombinedHostsFileReader: in an array, or one after the other.
func (l *List) combined(name string, text []byte) error {
	type properties struct {
		HostName string `json:"hostName"`
		Port     uint32 `json:"port"`
		Admin    string `json:"adminState"`
		Until    int64  `json:"maintenanceExpireTimeInMS"`
	}
	var all []properties
	decode := json.NewDecoder(bytes.NewReader(text))
	for decode.More() {
		var list []properties
		if text[0] == '{' {
			list = make([]properties, 1)
			if err := decode.Decode(&list[0]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		} else if err := decode.Decode(&list); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, list...)
	}
	for _, p := range all {
		if p.HostName == "" || p.Port > 65535 {
			return fmt.Errorf("%s: a datanode without hostName, or with port %d", name, p.Port)
		}
		e := Entry{Host: p.HostName, Port: p.Port}
		switch p.Admin {
		case "", "NORMAL":
		case "DECOMMISSIONED":
			e.Admin = namenode.Decommissioned
		case "IN_MAINTENANCE":
			e.Admin = namenode.InMaintenance
			if p.Until > 0 && p.Until < 1<<62 { // Java's Long.MAX_VALUE is for ever
				e.Until = p.Until
			}
		default:
			return fmt.Errorf("%s: adminState %q of %s: want NORMAL, DECOMMISSIONED or IN_MAINTENANCE", name, p.Admin, p.HostName)
		}
		l.Included = append(l.Included, e)
		if e.Admin != namenode.Normal {
			l.Leaving = append(l.Leaving, e)
		}
	}
	return nil
}

// ParseEntry reads HOST or HOST:PORT; IPv6 addresses with a port are in brackets.
func ParseEntry(word string) (Entry, error) {
	if net.ParseIP(word) != nil || !strings.Contains(word, ":") {
		if len(word) > 255 || word == "" {
			return Entry{}, fmt.Errorf("a host name of %d bytes", len(word))
		}
		return Entry{Host: word}, nil
	}
	host, port, err := net.SplitHostPort(word)
	if err != nil {
		return Entry{}, fmt.Errorf("%q is neither HOST nor HOST:PORT", word)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 || host == "" || len(host) > 255 {
		return Entry{}, fmt.Errorf("%q is neither HOST nor HOST:PORT", word)
	}
	return Entry{Host: host, Port: uint32(number)}, nil
}

// Means reports whether the entry is about a datanode.
func (e Entry) Means(n *namenode.Node) bool {
	return (e.Port == 0 || e.Port == n.TransferPort) && (e.Host == n.IP || strings.EqualFold(e.Host, n.Host) || strings.EqualFold(e.Host, n.Machine))
}

func (e Entry) String() string {
	if e.Port == 0 {
		return e.Host
	}
	return net.JoinHostPort(e.Host, strconv.FormatUint(uint64(e.Port), 10))
}

// Admits reports whether a datanode may serve.
func (l *List) Admits(n *namenode.Node) bool {
	return l == nil || len(l.Included) == 0 || slices.ContainsFunc(l.Included, func(e Entry) bool { return e.Means(n) })
}

// Wish is what is to become of a datanode at a time in milliseconds since 1970: Normal, Decommissioned or InMaintenance.
func (l *List) Wish(n *namenode.Node, now int64) namenode.AdminState {
	if l == nil {
		return namenode.Normal
	}
	for _, e := range l.Leaving {
		if e.Means(n) && (e.Until == 0 || now < e.Until) {
			return e.Admin
		}
	}
	return namenode.Normal
}
