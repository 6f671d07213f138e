package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// audited are the methods that the audit log keeps when they are allowed, with the names that HDFS's audit log has for
// them. What serves a file that is open (addBlock, renewLease, ...) is not kept, as there.
var audited = map[string]struct {
	command string
	read    bool
}{
	"getFileInfo":                    {"getfileinfo", true},
	"getFileInfos":                   {"getfileinfo", true},
	"getFileLinkInfo":                {"getfileinfo", true},
	"getLocatedFileInfo":             {"open", true},
	"getListing":                     {"listStatus", true},
	"getBlockLocations":              {"open", true},
	"getContentSummary":              {"contentSummary", true},
	"getQuotaUsage":                  {"quotaUsage", true},
	"checkAccess":                    {"checkAccess", true},
	"isFileClosed":                   {"isFileClosed", true},
	"getAclStatus":                   {"getAclStatus", true},
	"getXAttrs":                      {"getXAttrs", true},
	"listXAttrs":                     {"listXAttrs", true},
	"getStoragePolicy":               {"getStoragePolicy", true},
	"listOpenFiles":                  {"listOpenFiles", true},
	"listCorruptFileBlocks":          {"listCorruptFileBlocks", true},
	"create":                         {"create", false},
	"createWithData":                 {"create", false},
	"openWithData":                   {"open", true},
	"openManyWithData":               {"open", true},
	"keepFile":                       {"keepFile", false},
	"publish":                        {"publish", false},
	"setSmallFiles":                  {"setSmallFiles", false},
	"getSmallFiles":                  {"getSmallFiles", true},
	"append":                         {"append", false},
	"recoverLease":                   {"recoverLease", false},
	"rename":                         {"rename", false},
	"rename2":                        {"rename", false},
	"delete":                         {"delete", false},
	"mkdirs":                         {"mkdirs", false},
	"setReplication":                 {"setReplication", false},
	"setPermission":                  {"setPermission", false},
	"setOwner":                       {"setOwner", false},
	"setTimes":                       {"setTimes", false},
	"setSafeMode":                    {"setSafeMode", false},
	"setStoragePolicy":               {"setStoragePolicy", false},
	"unsetStoragePolicy":             {"unsetStoragePolicy", false},
	"satisfyStoragePolicy":           {"satisfyStoragePolicy", false},
	"setXAttr":                       {"setXAttr", false},
	"removeXAttr":                    {"removeXAttr", false},
	"modifyAclEntries":               {"modifyAclEntries", false},
	"removeAclEntries":               {"removeAclEntries", false},
	"removeDefaultAcl":               {"removeDefaultAcl", false},
	"removeAcl":                      {"removeAcl", false},
	"setAcl":                         {"setAcl", false},
	"truncate":                       {"truncate", false},
	"concat":                         {"concat", false},
	"setQuota":                       {"setQuota", false},
	"allowSnapshot":                  {"allowSnapshot", false},
	"disallowSnapshot":               {"disallowSnapshot", false},
	"createSnapshot":                 {"createSnapshot", false},
	"deleteSnapshot":                 {"deleteSnapshot", false},
	"renameSnapshot":                 {"renameSnapshot", false},
	"getSnapshottableDirListing":     {"listSnapshottableDirectory", true},
	"getSnapshotListing":             {"ListSnapshot", true},
	"getSnapshotDiffReport":          {"computeSnapshotDiff", true},
	"getSnapshotDiffReportListing":   {"computeSnapshotDiff", true},
	"setErasureCodingPolicy":         {"setErasureCodingPolicy", false},
	"unsetErasureCodingPolicy":       {"unsetErasureCodingPolicy", false},
	"enableErasureCodingPolicy":      {"enableErasureCodingPolicy", false},
	"disableErasureCodingPolicy":     {"disableErasureCodingPolicy", false},
	"addErasureCodingPolicies":       {"addErasureCodingPolicies", false},
	"removeErasureCodingPolicy":      {"removeErasureCodingPolicy", false},
	"getErasureCodingPolicy":         {"getErasureCodingPolicy", true},
	"getErasureCodingPolicies":       {"getErasureCodingPolicies", true},
	"getErasureCodingCodecs":         {"getErasureCodingCodecs", true},
	"getECTopologyResultForPolicies": {"getECTopologyResultForPolicies", true},
	"getPreferredBlockSize":          {"getPreferredBlockSize", true},
	"getDelegationToken":             {"getDelegationToken", false},
	"renewDelegationToken":           {"renewDelegationToken", false},
	"cancelDelegationToken":          {"cancelDelegationToken", false},
	"rollingUpgrade":                 {"rollingUpgrade", false},
	"rebuildSearch":                  {"rebuildSearch", false},
	"addCachePool":                   {"addCachePool", false},
	"modifyCachePool":                {"modifyCachePool", false},
	"removeCachePool":                {"removeCachePool", false},
	"listCachePools":                 {"listCachePools", true},
	"addCacheDirective":              {"addCacheDirective", false},
	"modifyCacheDirective":           {"modifyCacheDirective", false},
	"removeCacheDirective":           {"removeCacheDirective", false},
	"listCacheDirectives":            {"listCacheDirectives", true},
	"endRewrite":                     {"rewrite", false},
	"reportBadBlocks":                {"reportBadBlocks", false},
	"createSymlink":                  {"createSymlink", false},
	"saveNamespace":                  {"saveNamespace", false},
	"refreshNodes":                   {"refreshNodes", false},
	"metaSave":                       {"metaSave", false},
	"setBalancerBandwidth":           {"setBalancerBandwidth", false},
	"getBlockKeys":                   {"getBlockKeys", false},
	"getBlocks":                      {"getBlocks", true},
	"setDatanodeState":               {"setDatanodeState", false},
	"transferLeadership":             {"transferLeadership", false},
	"transitionToActive":             {"transitionToActive", false},
	"transitionToStandby":            {"transitionToStandby", false},
}

func withAudit(m hrpc.Method) hrpc.Method {
	a := audited[m.Name]
	m.Command, m.Read = a.command, a.read
	switch m.Name {
	case "setQuota":
		m.CommandOf = m.Operation
	case "rename2":
		m.CommandOf = func(r hrpc.Message) string {
			o := r.(*pb.Rename2RequestProto)
			return security.RenameCommand(o.GetOverwriteDest(), o.GetMoveToTrash())
		}
	}
	return m
}
