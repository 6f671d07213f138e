package webhdfs

import (
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// changeSnapshots makes an operation without an answer; names are the parameters with the names of snapshots.
func changeSnapshots(what namenode.SnapshotVerb, names ...string) func(*request) (response, error) {
	return func(q *request) (response, error) {
		change := namenode.SnapshotChange{Path: q.path, What: what}
		for i, name := range names {
			v, err := q.required(name)
			if err != nil {
				return response{}, err
			}
			*[]*string{&change.Name, &change.NewName}[i] = v
		}
		_, err := wait(q, func(done func(string, error)) { q.service.ChangeSnapshots(q.caller, change, done) })
		return nothing(err)
	}
}

func (q *request) createSnapshot() (response, error) {
	change := namenode.SnapshotChange{Path: q.path, What: namenode.SnapshotCreate, Name: q.params["snapshotname"]}
	path, err := wait(q, func(done func(string, error)) { q.service.ChangeSnapshots(q.caller, change, done) })
	return body(struct{ Path string }{path}), err
}

type snapshottableDir struct {
	DirStatus      fileStatus `json:"dirStatus"`
	ParentFullPath string     `json:"parentFullPath"`
	SnapshotNumber int        `json:"snapshotNumber"`
	SnapshotQuota  int        `json:"snapshotQuota"`
}

func (q *request) snapshottable() (response, error) {
	dirs, err := wait(q, func(done func([]metadata.SnapshottableDir, error)) { q.service.Snapshottable(q.caller, done) })
	list := []snapshottableDir{}
	for _, d := range dirs {
		list = append(list, snapshottableDir{statusOf(&d.Status), d.Parent, d.Snapshots, d.Limit})
	}
	return body(struct{ SnapshottableDirectoryList []snapshottableDir }{list}), err
}

type snapshotStatus struct {
	DeletionStatus string     `json:"deletionStatus"`
	DirStatus      fileStatus `json:"dirStatus"`
	FullPath       string     `json:"fullPath"`
	SnapshotID     uint32     `json:"snapshotID"`
}

func (q *request) snapshots() (response, error) {
	all, err := wait(q, func(done func([]metadata.Snapshot, error)) { q.service.Snapshots(q.caller, q.path, nil, done) })
	list := []snapshotStatus{}
	for _, s := range all {
		list = append(list, snapshotStatus{"ACTIVE", statusOf(&s.Status), s.Parent + "/" + s.Status.Name, s.ID})
	}
	return body(struct{ SnapshotList []snapshotStatus }{list}), err
}

type diffEntry struct {
	SourcePath string  `json:"sourcePath"`
	TargetPath *string `json:"targetPath,omitempty"`
	Type       string  `json:"type"`
}

type diffReport struct {
	DiffList     []diffEntry `json:"diffList"`
	FromSnapshot string      `json:"fromSnapshot"`
	SnapshotRoot string      `json:"snapshotRoot"`
	ToSnapshot   string      `json:"toSnapshot"`
}

func (q *request) snapshotDiff() (response, error) {
	name := func(param string) string { return strings.TrimPrefix(q.params[param], ".snapshot/") }
	r := diffReport{DiffList: []diffEntry{}, FromSnapshot: name("oldsnapshotname"), SnapshotRoot: q.path, ToSnapshot: name("snapshotname")}
	entries, err := wait(q, func(done func([]metadata.DiffEntry, error)) {
		q.service.SnapshotDiff(q.caller, q.path, r.FromSnapshot, r.ToSnapshot, nil, done)
	})
	for _, e := range entries {
		one := diffEntry{SourcePath: e.Path, Type: e.Type.Word()}
		if e.Type == metadata.DiffRename {
			one.TargetPath = &e.Target
		}
		r.DiffList = append(r.DiffList, one)
	}
	return body(struct{ SnapshotDiffReport diffReport }{r}), err
}

// snapshotDiffPages refuses to list differences by pages, of what has any.
func (q *request) snapshotDiffPages() (response, error) {
	_, err := wait(q, func(done func([]metadata.DiffEntry, error)) {
		q.service.SnapshotDiff(q.caller, q.path, "", "", nil, done)
	})
	if err != nil {
		return response{}, err
	}
	return unsupported("differences of snapshots by pages are")(q)
}
