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
	Parent string     // path of the directory .snapshot
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
