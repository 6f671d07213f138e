package metadata

// SnapshottableDir is a directory that snapshots may be taken of.
type SnapshottableDir struct {
	Status    FileStatus // with its name
	Parent    string     // path of the directory above; empty for the root
	Snapshots int
	Limit     int
}

// Snapshot is a snapshot of a directory.
type Snapshot struct {
	Status FileStatus // of the directory as it was, with the snapshot's name
	Parent string     // path of the directory
	ID     uint32
}

// DiffType is what became of a path between two states of a directory.
type DiffType uint8

// The types.
const (
	DiffCreate DiffType = iota
	DiffModify
	DiffDelete
	DiffRename
)

// Label is how HDFS writes the type.
func (t DiffType) Label() string { return [...]string{"+", "M", "-", "R"}[t] }

// Word is how HDFS calls the type.
func (t DiffType) Word() string { return [...]string{"CREATE", "MODIFY", "DELETE", "RENAME"}[t] }

// DiffEntry is a difference between two states of a directory. Paths are relative to it; the directory itself is "".
type DiffEntry struct {
	Type   DiffType
	Path   string
	Target string // of DiffRename
}

// DiffPage is a part of the differences between two states of a directory, from the earlier to the later one. Its lists are in
// no order that means anything but for those of one directory, which are in that of the names.
type DiffPage struct {
	Modified, Created, Deleted []DiffRecord
	// Backwards: the states were asked for in the other order.
	Backwards bool
	// Next is where the next page begins; empty: this is the last one.
	Next string
}

// DiffRecord is a difference in a page. Paths are as in DiffEntry.
type DiffRecord struct {
	Dir, INode INodeID // of a modification both are what was modified
	Path       string
	Target     string // where what is gone from Path was renamed to, below the directory; empty: nowhere
	IsDir      bool   // of a modification
}

// Reference reports what HDFS's clients take for the mark of a directory that was modified, and of what was renamed.
func (r *DiffRecord) Reference() bool { return r.IsDir || r.Target != "" }
