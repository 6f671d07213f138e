package webhdfs

import (
	"net/http"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
)

// operation is one operation, and the right that it needs. Those that change something are for callers with a name too,
// and the service checks what the permissions of paths allow.
type operation struct {
	right security.Right
	serve func(*request) (response, error)
}

const anyone, byPath, superuser = security.Anyone, security.ByPath, security.Superuser

// Routes lists the operations, as what a port does.
func Routes(port string) []security.Route {
	var out []security.Route
	for method, table := range operations {
		for name, op := range table {
			out = append(out, security.Route{Port: port, Name: method + " " + Prefix + "/{path} op=" + name, Right: op.right})
		}
	}
	return out
}

// operations is the table of WebHDFS by HTTP method. What this namenode has no feature for answers
// UnsupportedOperationException; a name that is not here is not an operation.
var operations = map[string]map[string]operation{
	http.MethodGet: {
		"OPEN":                  {byPath, (*request).open},
		"GETFILECHECKSUM":       {byPath, (*request).checksum},
		"GETFILESTATUS":         {byPath, (*request).fileStatus},
		"GETFILELINKSTATUS":     {byPath, (*request).fileStatus},
		"LISTSTATUS":            {byPath, (*request).list},
		"LISTSTATUS_BATCH":      {byPath, (*request).listBatch},
		"GETCONTENTSUMMARY":     {byPath, (*request).summary},
		"GETQUOTAUSAGE":         {byPath, (*request).quotaUsage},
		"GETHOMEDIRECTORY":      {anyone, (*request).home},
		"GETTRASHROOT":          {byPath, (*request).trashRoot},
		"GETTRASHROOTS":         {anyone, (*request).trashRoots},
		"GETSERVERDEFAULTS":     {anyone, (*request).serverDefaults},
		"GETSTATUS":             {anyone, (*request).fsStatus},
		"CHECKACCESS":           {byPath, (*request).checkAccess},
		"GETFILEBLOCKLOCATIONS": {byPath, (*request).blockLocations},
		"GET_BLOCK_LOCATIONS":   {byPath, (*request).locatedBlocks},
		"GETACLSTATUS":          {byPath, (*request).aclStatus},
		"GETXATTRS":             {byPath, (*request).xattrs},
		"LISTXATTRS":            {byPath, (*request).xattrNames},
		"GETSTORAGEPOLICY":      {byPath, (*request).storagePolicy},
		"GETALLSTORAGEPOLICY":   {anyone, (*request).storagePolicies},
		"GETECPOLICY":           {byPath, (*request).ecPolicy},
		"GETECPOLICIES":         {anyone, (*request).ecPolicies},
		"GETECCODECS":           {anyone, (*request).ecCodecs},
		"GETDELEGATIONTOKEN":    {anyone, (*request).delegationToken},
		"GETLINKTARGET":         {byPath, (*request).linkTarget},

		"GETSNAPSHOTDIFF":               {byPath, (*request).snapshotDiff},
		"GETSNAPSHOTDIFFLISTING":        {byPath, (*request).snapshotDiffPages},
		"GETSNAPSHOTLIST":               {byPath, (*request).snapshots},
		"GETSNAPSHOTTABLEDIRECTORYLIST": {byPath, (*request).snapshottable},
	},
	http.MethodPut: {
		"CREATE":         {byPath, (*request).create},
		"MKDIRS":         {byPath, (*request).mkdirs},
		"RENAME":         {byPath, (*request).rename},
		"SETREPLICATION": {byPath, (*request).setReplication},
		"SETOWNER":       {byPath, (*request).setOwner},
		"SETPERMISSION":  {byPath, (*request).setPermission},
		"SETTIMES":       {byPath, (*request).setTimes},

		"MODIFYACLENTRIES": {byPath, setACL(namenode.ACLModify)},
		"REMOVEACLENTRIES": {byPath, setACL(namenode.ACLRemoveEntries)},
		"REMOVEDEFAULTACL": {byPath, setACL(namenode.ACLRemoveDefault)},
		"REMOVEACL":        {byPath, setACL(namenode.ACLRemove)},
		"SETACL":           {byPath, setACL(namenode.ACLSet)},
		"SETXATTR":         {byPath, (*request).setXAttr},
		"REMOVEXATTR":      {byPath, (*request).removeXAttr},
		"SETQUOTA":         {superuser, (*request).setQuota},

		"CREATESYMLINK":         {byPath, (*request).noSymlinks},
		"RENEWDELEGATIONTOKEN":  {anyone, (*request).renewToken},
		"CANCELDELEGATIONTOKEN": {anyone, (*request).cancelToken},
		"ALLOWSNAPSHOT":         {superuser, changeSnapshots(namenode.SnapshotAllow)},
		"DISALLOWSNAPSHOT":      {superuser, changeSnapshots(namenode.SnapshotDisallow)},
		"CREATESNAPSHOT":        {byPath, (*request).createSnapshot},
		"RENAMESNAPSHOT":        {byPath, changeSnapshots(namenode.SnapshotRename, "oldsnapshotname", "snapshotname")},
		"SETSTORAGEPOLICY":      {byPath, (*request).setStoragePolicy},
		"SATISFYSTORAGEPOLICY":  {byPath, (*request).satisfyStoragePolicy},
		"SETECPOLICY":           {byPath, (*request).setECPolicy},
		"ENABLEECPOLICY":        {superuser, (*request).enableECPolicy},
		"DISABLEECPOLICY":       {superuser, (*request).disableECPolicy},
		"SETQUOTABYSTORAGETYPE": {superuser, (*request).setTypeQuota},
	},
	http.MethodPost: {
		"APPEND":   {byPath, (*request).append},
		"CONCAT":   {byPath, (*request).concat},
		"TRUNCATE": {byPath, (*request).truncate},
		"OPENMANY": {byPath, (*request).openMany},
		"PUBLISH":  {byPath, (*request).publish},
		"READMANY": {security.BlockToken, (*request).readMany},

		"UNSETSTORAGEPOLICY": {byPath, (*request).unsetStoragePolicy},
		"UNSETECPOLICY":      {byPath, (*request).unsetECPolicy},
	},
	http.MethodDelete: {
		"DELETE":         {byPath, (*request).delete},
		"DELETESNAPSHOT": {byPath, changeSnapshots(namenode.SnapshotDelete, "snapshotname")},
	},
}

func body(v any) response { return response{body: v} }

func boolean(ok bool, err error) (response, error) {
	return body(map[string]bool{"boolean": ok}), err
}

func nothing(err error) (response, error) { return response{empty: true}, err }

// The operations with data.

func (q *request) open() (response, error) {
	if err := q.params.checkData(q.op); err != nil {
		return response{}, err
	}
	offset, err := q.params.integer("offset", 0, 64, 0)
	if err != nil {
		return response{}, err
	}
	f, err := q.stat(notFound)
	if err != nil {
		return response{}, err
	}
	if offset >= f.Length && f.Length > 0 {
		return response{}, metadata.Errorf(metadata.ErrIO, "Offset=%d out of the range [0, %d); OPEN, path=%s", offset, f.Length, q.path)
	}
	if f.Length > 0 && f.Length <= metadata.MaxBody {
		if answer, ok, err := q.openSmall(offset); ok || err != nil {
			return answer, err
		}
	}
	return q.redirect(f.Length > 0, offset)
}

func notFound(path string) string { return "File " + path + " not found." }

func (q *request) checksum() (response, error) { return q.existingData() }

func (q *request) append() (response, error) { return q.existingData() }

// existingData redirects to where the file's data is.
func (q *request) existingData() (response, error) {
	if err := q.params.checkData(q.op); err != nil {
		return response{}, err
	}
	f, err := q.stat(notFound)
	if err != nil {
		return response{}, err
	}
	return q.redirect(f.Length > 0, max(0, f.Length-1))
}

func (q *request) create() (response, error) {
	if err := q.params.checkData(q.op); err != nil {
		return response{}, err
	}
	return q.redirect(false, 0)
}

// The operations on names.

func (q *request) mkdirs() (response, error) {
	mode, err := q.params.permission("permission", 0o755)
	if err != nil {
		return response{}, err
	}
	r := namenode.MkdirsRequest{Path: q.path, Mode: mode, Parents: true}
	if q.params["unmaskedpermission"] != "" {
		unmasked, err := q.params.permission("unmaskedpermission", mode)
		if err != nil {
			return response{}, err
		}
		r.Unmasked = &unmasked
	}
	err = finish(q, func(done func(error)) { q.service.Mkdirs(q.caller, r, done) })
	return boolean(err == nil, err)
}

// done is the answer of what may do nothing.
func (q *request) done(ok bool, err error) (response, error) {
	q.undone = err == nil && !ok
	return boolean(ok, err)
}

func (q *request) rename() (response, error) {
	destination, err := q.params.path("destination", q.op)
	if err != nil {
		return response{}, err
	}
	overwrite, trash := false, false
	switch option := q.params["renameoptions"]; option {
	case "":
		return q.done(wait(q, func(done func(bool, error)) {
			q.service.Rename(q.caller, namenode.Retry{}, q.path, destination, done)
		}))
	case "NONE":
	case "OVERWRITE":
		overwrite = true
	case "TO_TRASH":
		trash = true
	default:
		return response{}, invalid("renameoptions", "No enum constant org.apache.hadoop.fs.Options.Rename.%s", option)
	}
	return nothing(finish(q, func(done func(error)) {
		q.service.RenameTo(q.caller, namenode.Retry{}, q.path, destination, overwrite, trash, done)
	}))
}

func (q *request) delete() (response, error) {
	recursive, err := q.params.boolean("recursive", false)
	if err != nil {
		return response{}, err
	}
	return q.done(wait(q, func(done func(bool, error)) {
		q.service.Delete(q.caller, namenode.Retry{}, q.path, recursive, done)
	}))
}

func (q *request) setReplication() (response, error) {
	n, err := q.params.integer("replication", int64(q.service.Defaults().Replication), 16, 1)
	if err != nil {
		return response{}, err
	}
	return q.done(wait(q, func(done func(bool, error)) { q.service.SetReplication(q.caller, q.path, int(n), done) }))
}

func (q *request) setOwner() (response, error) {
	owner, group := q.params["owner"], q.params["group"]
	if owner == "" && group == "" {
		return response{}, &parameterError{"Both owner and group are empty."}
	}
	return nothing(finish(q, func(done func(error)) { q.service.SetOwner(q.caller, q.path, owner, group, done) }))
}

func (q *request) setPermission() (response, error) {
	mode, err := q.params.permission("permission", 0o755)
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.SetPermission(q.caller, q.path, mode, done) }))
}

func (q *request) setTimes() (response, error) {
	mtime, err := q.params.integer("modificationtime", -1, 64, -1)
	if err != nil {
		return response{}, err
	}
	atime, err := q.params.integer("accesstime", -1, 64, -1)
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) {
		q.service.SetTimes(q.caller, q.path, metadata.Time(mtime), metadata.Time(atime), done)
	}))
}

func (q *request) fileStatus() (response, error) {
	f, err := q.stat(doesNotExist)
	if err != nil {
		return response{}, err
	}
	return body(struct{ FileStatus fileStatus }{statusOf(f)}), nil
}

func (q *request) page(after string) (*namenode.Listing, error) {
	l, err := wait(q, func(done func(*namenode.Listing, error)) {
		q.service.List(q.caller, namenode.ListRequest{Path: q.path, After: after}, done)
	})
	if err == nil && l == nil {
		err = metadata.Errorf(metadata.ErrNotExist, "File %s does not exist.", q.path)
	}
	return l, err
}

// list writes one page after the other: the directory may be large.
func (q *request) list() (response, error) {
	if err := q.take(q.pageSize()); err != nil {
		return response{}, err
	}
	first, err := q.page("")
	if err != nil {
		return response{}, err
	}
	return response{stream: func(s *stream) error {
		s.text(`{"FileStatuses":{"FileStatus":[`)
		err := q.pages(first, func(entries []metadata.FileStatus) error {
			for i := range entries {
				s.element(statusOf(&entries[i]))
			}
			return s.err
		})
		s.text(`]}}`)
		return err
	}}, nil
}

// pages calls fn with the entries of a directory, page by page from the first on, which is given.
func (q *request) pages(l *namenode.Listing, fn func([]metadata.FileStatus) error) error {
	for {
		if err := fn(l.Entries); err != nil {
			return err
		}
		if l.Remaining == 0 || len(l.Entries) == 0 {
			return nil
		}
		var err error
		if l, err = q.page(l.Entries[len(l.Entries)-1].Name); err != nil {
			return err
		}
	}
}

func (q *request) listBatch() (response, error) {
	if err := q.take(q.pageSize()); err != nil {
		return response{}, err
	}
	l, err := q.page(q.params["startafter"])
	if err != nil {
		return response{}, err
	}
	var d directoryListing
	d.DirectoryListing.PartialListing = statusesOf(l.Entries)
	d.DirectoryListing.RemainingEntries = l.Remaining
	return body(d), nil
}

func (q *request) content() (*metadata.ContentSummary, error) {
	return wait(q, func(done func(*metadata.ContentSummary, error)) { q.service.ContentSummary(q.caller, q.path, done) })
}

func (q *request) summary() (response, error) {
	s, err := q.content()
	if err != nil {
		return response{}, err
	}
	return body(struct{ ContentSummary contentSummary }{summaryOf(s)}), nil
}

func (q *request) home() (response, error) {
	return body(struct{ Path string }{"/user/" + q.caller.User}), nil
}

func (q *request) trashRoot() (response, error) {
	return body(struct{ Path string }{"/user/" + q.caller.User + "/.Trash"}), nil
}

// trashRoots lists the trash of the caller, or with allusers all that is below /user; null: there is none.
func (q *request) trashRoots() (response, error) {
	all, err := q.params.boolean("allusers", false)
	if err != nil {
		return response{}, err
	}
	var out struct{ Paths []trashRoot }
	look := func(user string) error {
		path := "/user/" + user + "/.Trash"
		f, err := wait(q, func(done func(*metadata.FileStatus, error)) { q.service.Stat(q.caller, path, done) })
		if err == nil && f != nil {
			out.Paths = append(out.Paths, trashRootOf(path, f))
		}
		return err
	}
	if !all {
		err := look(q.caller.User)
		return body(out), err
	}
	if err := q.take(q.pageSize()); err != nil {
		return response{}, err
	}
	q.path = "/user"
	first, err := q.page("")
	if metadata.KindOf(err) == metadata.ErrNotExist {
		return body(out), nil
	}
	if err == nil {
		err = q.pages(first, func(users []metadata.FileStatus) error {
			for i := range users {
				if err := look(users[i].Name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return body(out), err
}

func (q *request) serverDefaults() (response, error) {
	return body(struct{ FsServerDefaults serverDefaults }{defaultsOf(q.service.Defaults())}), nil
}

func (q *request) fsStatus() (response, error) {
	s := q.service.Statistics()
	type fsStatus struct {
		Used      int64 `json:"used"`
		Remaining int64 `json:"remaining"`
		Capacity  int64 `json:"capacity"`
	}
	return body(struct{ FsStatus fsStatus }{fsStatus{s.Used, s.Remaining, s.Capacity}}), nil
}

func (q *request) checkAccess() (response, error) {
	access, err := q.params.access("fsaction")
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.CheckAccess(q.caller, q.path, access, done) }))
}

func (q *request) located() (*namenode.LocatedFile, error) {
	offset, err := q.params.integer("offset", 0, 64, 0)
	if err != nil {
		return nil, err
	}
	length, err := q.params.integer("length", maxLength, 64, 0)
	if err != nil {
		return nil, err
	}
	if err := q.take(shortFile); err != nil {
		return nil, err
	}
	r := namenode.LocateRequest{Path: q.path, Offset: offset, Length: length, Admit: func(n int64) error { return q.take(jsonCost * n) }}
	return wait(q, func(done func(*namenode.LocatedFile, error)) {
		q.service.Locate(q.caller, r, done)
	})
}

func (q *request) blockLocations() (response, error) {
	f, err := q.located()
	if err != nil {
		return response{}, err
	}
	var out struct {
		BlockLocations struct{ BlockLocation []blockLocation }
	}
	out.BlockLocations.BlockLocation = make([]blockLocation, len(f.Blocks))
	for i := range f.Blocks {
		out.BlockLocations.BlockLocation[i] = blockLocationOf(&f.Blocks[i])
	}
	return body(out), nil
}

func (q *request) locatedBlocks() (response, error) {
	f, err := q.located()
	if err != nil {
		return response{}, err
	}
	return body(struct{ LocatedBlocks locatedBlocks }{locatedBlocksOf(q.service.BlockPool(), f)}), nil
}

func (q *request) storagePolicy() (response, error) {
	f, err := q.stat(func(path string) string { return "File/Directory does not exist: " + path })
	if err != nil {
		return response{}, err
	}
	return body(struct{ BlockStoragePolicy storagePolicy }{policyOf(namenode.StoragePolicyByID(f.StoragePolicy))}), nil
}

func (q *request) setStoragePolicy() (response, error) {
	name := q.params["storagepolicy"]
	if name == "" {
		return response{}, &parameterError{"Storage policy name is empty."}
	}
	policy, err := hdfs.PolicyByName(name)
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.SetStoragePolicy(q.caller, q.path, policy.ID, done) }))
}

func (q *request) satisfyStoragePolicy() (response, error) {
	return nothing(finish(q, func(done func(error)) { q.service.SatisfyStoragePolicy(q.caller, q.path, done) }))
}

func (q *request) unsetStoragePolicy() (response, error) {
	return nothing(finish(q, func(done func(error)) { q.service.SetStoragePolicy(q.caller, q.path, 0, done) }))
}

func (q *request) storagePolicies() (response, error) {
	var out struct {
		BlockStoragePolicies struct{ BlockStoragePolicy []storagePolicy }
	}
	for i := range namenode.StoragePolicies {
		out.BlockStoragePolicies.BlockStoragePolicy = append(out.BlockStoragePolicies.BlockStoragePolicy, policyOf(&namenode.StoragePolicies[i]))
	}
	return body(out), nil
}

func (q *request) linkTarget() (response, error) {
	if _, err := q.stat(doesNotExist); err != nil {
		return response{}, err
	}
	return response{}, metadata.Errorf(metadata.ErrIO, "Path %s is not a symbolic link", q.path)
}
