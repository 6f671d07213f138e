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
	q.made = path
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
		list = append(list, snapshotStatus{"ACTIVE", statusOf(&s.Status), strings.TrimSuffix(s.Parent, "/") + "/.snapshot/" + s.Status.Name, s.ID})
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

type diffRecord struct {
	DirID       metadata.INodeID `json:"dirId"`
	FileID      metadata.INodeID `json:"fileId"`
	IsReference bool             `json:"isReference"`
	SourcePath  string           `json:"sourcePath"`
	TargetPath  *string          `json:"targetPath,omitempty"`
}

type diffPage struct {
	CreateList    []diffRecord `json:"createList"`
	DeleteList    []diffRecord `json:"deleteList"`
	IsFromEarlier bool         `json:"isFromEarlier"`
	LastIndex     int          `json:"lastIndex"`
	LastPath      string       `json:"lastPath"`
	ModifyList    []diffRecord `json:"modifyList"`
}

// snapshotDiffPages lists a part of the differences. Which one HDFS tells by a path and an index; here the path alone does, which
// is none.
func (q *request) snapshotDiffPages() (response, error) {
	name := func(param string) string { return strings.TrimPrefix(q.params[param], ".snapshot/") }
	page, err := wait(q, func(done func(*metadata.DiffPage, error)) {
		q.service.SnapshotDiffPage(q.caller, q.path, name("oldsnapshotname"), name("snapshotname"), q.params["snapshotdiffstartpath"], done)
	})
	if err != nil {
		return response{}, err
	}
	records := func(all []metadata.DiffRecord) []diffRecord {
		out := []diffRecord{}
		for i := range all {
			one := &all[i]
			r := diffRecord{DirID: one.Dir, FileID: one.INode, IsReference: one.Reference(), SourcePath: one.Path}
			if one.Target != "" {
				r.TargetPath = &one.Target
			}
			out = append(out, r)
		}
		return out
	}
	list := diffPage{records(page.Created), records(page.Deleted), !page.Backwards, -1, page.Next, records(page.Modified)}
	if page.Next != "" {
		list.LastIndex = 0
	}
	return body(struct{ SnapshotDiffReportListing diffPage }{list}), nil
}
