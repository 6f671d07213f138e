package metadata

import (
	"encoding/json"
	"strconv"
)

// Position is a place in the feed of changes: that of an event, or between two. Later events have greater ones, and all members give an event
// the same. It is the event's entry of the log, and its number in there.
type Position uint64

// eventBits are the bits of a position that number the events of an entry.
const eventBits = 20

// MaxEvents is how many events an entry of the log has at most.
const MaxEvents = 1<<eventBits - 1

// PositionOf is the position of an event of an entry of the log; those of an entry count from 0.
func PositionOf(entry uint64, event int) Position {
	return Position(entry<<eventBits | uint64(event))
}

// EndOf is the position behind all events of an entry, in front of the next one's.
func EndOf(entry uint64) Position { return PositionOf(entry, MaxEvents) }

// Entry is the entry of the log.
func (p Position) Entry() uint64 { return uint64(p) >> eventBits }

// Event is the number of the event in its entry.
func (p Position) Event() int { return int(p & MaxEvents) }

// String is the decimal number.
func (p Position) String() string { return strconv.FormatUint(uint64(p), 10) }

// ParsePosition reads what String writes.
func ParsePosition(s string) (Position, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, Errorf(ErrInvalidArgument, "position %.40q is not a whole number that an event had", s)
	}
	return Position(n), nil
}

// EventKind is what an event tells. The values are those of Hadoop's EventType.
type EventKind uint8

// The kinds of events.
const (
	// EventCreate: a file was made, and opened to be written, or a directory was made.
	EventCreate EventKind = iota
	// EventClose: a file that was open is closed.
	EventClose
	// EventAppend: a file was opened for more.
	EventAppend
	EventRename
	// EventMetadata: attributes were changed; Event.Update says which.
	EventMetadata
	// EventUnlink: a file or directory is gone, with all below it.
	EventUnlink
	// EventTruncate: a file became shorter, or begins to. Where a block is cut, EventClose follows when it is.
	EventTruncate
)

var eventKinds = [...]string{"CREATE", "CLOSE", "APPEND", "RENAME", "METADATA", "UNLINK", "TRUNCATE"}

// String is Hadoop's name.
func (k EventKind) String() string {
	if int(k) < len(eventKinds) {
		return eventKinds[k]
	}
	return "EventKind(" + strconv.Itoa(int(k)) + ")"
}

// EventUpdate is what attributes an EventMetadata is about. The values are those of Hadoop's MetadataUpdateType.
type EventUpdate uint8

// The attributes.
const (
	UpdateTimes EventUpdate = iota
	UpdateReplication
	UpdateOwner
	UpdatePermission
	UpdateACL
	UpdateXAttrs
)

var eventUpdates = [...]string{"TIMES", "REPLICATION", "OWNER", "PERMS", "ACLS", "XATTRS"}

// String is Hadoop's name.
func (u EventUpdate) String() string {
	if int(u) < len(eventUpdates) {
		return eventUpdates[u]
	}
	return "EventUpdate(" + strconv.Itoa(int(u)) + ")"
}

// Event is one change of the namespace. Fields that a kind does not mention are zero.
type Event struct {
	Position Position
	Kind     EventKind
	// Continued: the event belongs to the same operation as the one before.
	Continued bool
	// Time is when it happened, by the wall clock of the namenode that led.
	Time Time
	// INode is what the event is about, Path where it was then, and Parent the directory that it was in; 0 for the root.
	INode, Parent INodeID
	Path          string
	// Target is the new path of EventRename, TargetParent the directory there.
	Target       string
	TargetParent INodeID

	// Dir: EventCreate made a directory.
	Dir bool
	// Overwrite: something at the path of EventCreate, or at the target of EventRename, was replaced, or, of EventCreate, might have been. Replaced is
	// what it was, 0 if there was nothing; no event of its own tells that it is gone.
	Overwrite bool
	Replaced  INodeID
	// NewBlock: EventAppend goes on in a new block.
	NewBlock bool
	// Owner and Group are those of what EventCreate made, or what UpdateOwner changed them to; empty: as before.
	Owner, Group string
	// Mode is that of EventCreate, UpdatePermission and UpdateACL.
	Mode Mode
	// Replication is that of a file of EventCreate, and of UpdateReplication. BlockSize is that of a file of EventCreate, in bytes.
	Replication uint16
	BlockSize   int64
	// Length is how many bytes the file has after EventClose, and is to have after EventTruncate.
	Length int64

	// Update is what EventMetadata changed.
	Update EventUpdate
	// MTime and ATime are what UpdateTimes set; negative: as before.
	MTime, ATime Time
	// ACL is the list of UpdateACL and of EventCreate, with the entries that the mode holds where there are others; empty: there is none but the mode.
	ACL []ACLEntry
	// XAttrs are what UpdateXAttrs set, or, if Removed is set, removed.
	XAttrs  []XAttr
	Removed bool
}

// EventPage is a stretch of the feed.
type EventPage struct {
	// From is where the page begins: where it was asked for, or later if what lies between is Missing: it is not kept any more, or never was on
	// this member.
	From    Position `json:"from"`
	Missing bool     `json:"missing"`
	Events  []Event  `json:"events"`
	// Next is where to go on: no event up to there was left out.
	Next Position `json:"next"`
}

// MarshalText makes positions strings in JSON: they are greater than what every program takes for a number there.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is its inverse.
func (p *Position) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePosition(string(text))
	return err
}

// MarshalJSON is the form of an event on REST and in the output of commands (docs/reference/rest.md). Fields that mean nothing for its kind are left
// out; times are milliseconds since 1970.
func (e Event) MarshalJSON() ([]byte, error) {
	m := map[string]any{"position": e.Position, "type": e.Kind.String(), "time": e.Time, "inode": e.INode, "path": e.Path}
	attributes := make([]map[string]any, 0, len(e.XAttrs))
	for _, x := range e.XAttrs {
		a := map[string]any{"name": x.FullName()}
		if !e.Removed {
			a["value"] = append([]byte{}, x.Value...)
		}
		attributes = append(attributes, a)
	}
	acl := make([]string, 0, len(e.ACL))
	for _, a := range e.ACL {
		acl = append(acl, a.String())
	}
	permission := strconv.FormatUint(uint64(e.Mode), 8)
	switch e.Kind {
	case EventCreate:
		m["directory"], m["owner"], m["group"], m["permission"] = e.Dir, e.Owner, e.Group, permission
		if !e.Dir {
			m["overwrite"], m["replication"], m["blockSize"] = e.Overwrite, e.Replication, e.BlockSize
		}
		if len(acl) > 0 {
			m["acl"] = acl
		}
	case EventClose, EventTruncate:
		m["length"] = e.Length
	case EventAppend:
		m["newBlock"] = e.NewBlock
	case EventRename:
		m["target"], m["overwrite"] = e.Target, e.Overwrite
	case EventMetadata:
		m["update"] = e.Update.String()
		switch e.Update {
		case UpdateTimes:
			if e.MTime >= 0 {
				m["modificationTime"] = e.MTime
			}
			if e.ATime >= 0 {
				m["accessTime"] = e.ATime
			}
		case UpdateReplication:
			m["replication"] = e.Replication
		case UpdateOwner:
			if e.Owner != "" {
				m["owner"] = e.Owner
			}
			if e.Group != "" {
				m["group"] = e.Group
			}
		case UpdatePermission:
			m["permission"] = permission
		case UpdateACL:
			m["permission"], m["acl"] = permission, acl
		case UpdateXAttrs:
			m["xattrs"], m["removed"] = attributes, e.Removed
		}
	}
	return json.Marshal(m)
}
