package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// methods is the table of ClientProtocol, in the order of the reference. Every method says the right it needs: ByPath
// ones hand the Caller to the service, which checks it against the paths named.
func (p *protocol) methods() []hrpc.Method {
	const anyone, byPath, superuser = security.Anyone, security.ByPath, security.Superuser
	return []hrpc.Method{
		on("getServerDefaults", anyone, p.getServerDefaults),
		together(passing(on("getFileInfo", byPath, p.getFileInfo)), p.infosNow),
		passing(large(on("getListing", byPath, p.getListing))),
		passing(large(on("getBlockLocations", byPath, p.getBlockLocations))),
		passing(on("create", byPath, p.create)),
		on("addBlock", byPath, p.addBlock),
		passing(on("complete", byPath, p.complete)),
		on("append", byPath, p.append),
		on("updateBlockForPipeline", byPath, p.updateBlockForPipeline),
		on("updatePipeline", byPath, p.updatePipeline),
		on("abandonBlock", byPath, p.abandonBlock),
		on("getAdditionalDatanode", byPath, p.getAdditionalDatanode),
		on("renewLease", byPath, p.renewLease),
		on("fsync", byPath, p.fsync),
		passing(on("rename", byPath, p.rename)),
		passing(on("rename2", byPath, p.rename2)),
		passing(on("delete", byPath, p.delete)),
		passing(on("mkdirs", byPath, p.mkdirs)),
		on("setReplication", byPath, p.setReplication),
		on("setPermission", byPath, p.setPermission),
		on("setOwner", byPath, p.setOwner),
		on("setTimes", byPath, p.setTimes),
		on("getContentSummary", byPath, p.getContentSummary),
		on("getFsStats", anyone, p.getFsStats),
		on("checkAccess", byPath, p.checkAccess),
		on("setSafeMode", anyone, p.setSafeMode), // asking is for anyone, changing checks for the superuser itself

		on("recoverLease", byPath, p.recoverLease),
		on("isFileClosed", byPath, p.isFileClosed),
		on("getFileLinkInfo", byPath, p.getFileLinkInfo),
		large(on("getLocatedFileInfo", byPath, p.getLocatedFileInfo)),
		on("getQuotaUsage", byPath, p.getQuotaUsage),
		on("getPreferredBlockSize", byPath, p.getPreferredBlockSize),
		on("reportBadBlocks", byPath, p.reportBadBlocks),
		large(on("getDatanodeReport", anyone, p.getDatanodeReport)), // the superuser's in HDFS, which clients do not rely on
		large(on("getDatanodeStorageReport", superuser, p.getDatanodeStorageReport)),
		on("getFsReplicatedBlockStats", anyone, p.getFsReplicatedBlockStats),
		on("getFsECBlockGroupStats", anyone, p.getFsECBlockGroupStats),
		on("getStoragePolicies", anyone, p.getStoragePolicies),
		on("getStoragePolicy", byPath, p.getStoragePolicy),
		on("setStoragePolicy", byPath, p.setStoragePolicy),
		on("unsetStoragePolicy", byPath, p.unsetStoragePolicy),
		on("satisfyStoragePolicy", byPath, p.satisfyStoragePolicy),
		on("setErasureCodingPolicy", byPath, p.setErasureCodingPolicy),
		on("unsetErasureCodingPolicy", byPath, p.unsetErasureCodingPolicy),
		on("getErasureCodingPolicy", byPath, p.getErasureCodingPolicy),
		on("getErasureCodingPolicies", anyone, p.getErasureCodingPolicies),
		on("getErasureCodingCodecs", anyone, p.getErasureCodingCodecs),
		on("enableErasureCodingPolicy", superuser, p.enableErasureCodingPolicy),
		on("disableErasureCodingPolicy", superuser, p.disableErasureCodingPolicy),
		on("addErasureCodingPolicies", superuser, p.addErasureCodingPolicies),
		on("removeErasureCodingPolicy", superuser, p.removeErasureCodingPolicy),
		on("getECTopologyResultForPolicies", superuser, p.getECTopologyResultForPolicies),
		on("getAclStatus", byPath, p.getAclStatus),
		on("getXAttrs", byPath, p.getXAttrs),
		on("listXAttrs", byPath, p.listXAttrs),
		on("setXAttr", byPath, p.setXAttr),
		on("removeXAttr", byPath, p.removeXAttr),
		on("modifyAclEntries", byPath, p.modifyAclEntries),
		on("removeAclEntries", byPath, p.removeAclEntries),
		on("removeDefaultAcl", byPath, p.removeDefaultAcl),
		on("removeAcl", byPath, p.removeAcl),
		on("setAcl", byPath, p.setAcl),
		on("truncate", byPath, p.truncate),
		on("concat", byPath, p.concat),
		named(on("setQuota", superuser, p.setQuota), func(r *pb.SetQuotaRequestProto) string {
			return metadata.QuotaOperation(int64(r.GetNamespaceQuota()), int64(r.GetStoragespaceQuota()))
		}),
		on("createSnapshot", byPath, p.createSnapshot),
		on("deleteSnapshot", byPath, p.deleteSnapshot),
		on("renameSnapshot", byPath, p.renameSnapshot),
		on("allowSnapshot", superuser, p.allowSnapshot),
		on("disallowSnapshot", superuser, p.disallowSnapshot),
		on("getSnapshottableDirListing", anyone, p.getSnapshottableDirListing),
		large(on("getSnapshotListing", byPath, p.getSnapshotListing)),
		large(on("getSnapshotDiffReport", byPath, p.getSnapshotDiffReport)),
		on("getSnapshotDiffReportListing", byPath, p.getSnapshotDiffReportListing),
		on("createSymlink", byPath, p.createSymlink),
		on("getLinkTarget", byPath, p.getLinkTarget),
		on("getEZForPath", byPath, p.getEZForPath),
		on("getEnclosingRoot", byPath, p.getEnclosingRoot),
		on("getSlowDatanodeReport", anyone, p.getSlowDatanodeReport),
		on("getHAServiceState", anyone, p.getHAServiceState),
		on("msync", anyone, p.msync),
		on("getDataEncryptionKey", anyone, p.getDataEncryptionKey),
		on("getDelegationToken", anyone, p.getDelegationToken),
		on("renewDelegationToken", anyone, p.renewDelegationToken),
		on("cancelDelegationToken", anyone, p.cancelDelegationToken),
		on("addCachePool", superuser, p.addCachePool),
		on("modifyCachePool", superuser, p.modifyCachePool),
		on("removeCachePool", superuser, p.removeCachePool),
		large(on("listCachePools", anyone, p.listCachePools)), // of those that the caller may not read, the names
		on("addCacheDirective", byPath, p.addCacheDirective),  // by the rights of the pool, as the next two
		on("modifyCacheDirective", byPath, p.modifyCacheDirective),
		on("removeCacheDirective", byPath, p.removeCacheDirective),
		large(on("listCacheDirectives", anyone, p.listCacheDirectives)), // those of pools that the caller may read
		large(on("listOpenFiles", superuser, p.listOpenFiles)),
		large(on("listCorruptFileBlocks", superuser, p.listCorruptFileBlocks)),

		// Without encryption at rest these are complete answers.
		answer[pb.ListEncryptionZonesRequestProto]("listEncryptionZones", &pb.ListEncryptionZonesResponseProto{HasMore: no}),
		answer[pb.ListReencryptionStatusRequestProto]("listReencryptionStatus", &pb.ListReencryptionStatusResponseProto{HasMore: no}),
		answer[pb.UpgradeStatusRequestProto]("upgradeStatus", &pb.UpgradeStatusResponseProto{UpgradeFinalized: yes}),

		unsupported("getBatchedListing", byPath, "listing several directories at once is"),
		unsupported("createEncryptionZone", superuser, "encryption is"),
		unsupported("reencryptEncryptionZone", superuser, "encryption is"),
		on("saveNamespace", superuser, p.saveNamespace),
		called("rollEditLog", unsupported("rollEdits", superuser, "there are no edit logs to roll; that call is")),
		unsupported("restoreFailedStorage", superuser, "storage directories of a namenode are not redundant; that call is"),
		on("refreshNodes", superuser, p.refreshNodes),
		unsupported("finalizeUpgrade", superuser, "upgrades by this call are"),
		called("queryRollingUpgrade", on("rollingUpgrade", superuser, p.rollingUpgrade)),
		on("metaSave", superuser, p.metaSave),
		on("setBalancerBandwidth", superuser, p.setBalancerBandwidth),
		on("getCurrentEditLogTxid", superuser, p.getCurrentEditLogTxid),
		large(on("getEditsFromTxid", superuser, p.getEditsFromTxid)),
	}
}

// answer makes a method with a constant answer.
func answer[R any, P interface {
	*R
	hrpc.Message
}](name string, m hrpc.Message) hrpc.Method {
	return on(name, security.Anyone, func(c *hrpc.Call, _ P) { c.Reply(m) })
}

// haMethods is HAServiceProtocol: who leads is Raft's to decide.
func (p *protocol) haMethods() []hrpc.Method {
	return []hrpc.Method{
		on("getServiceStatus", security.Anyone, p.getServiceStatus),
		on("monitorHealth", security.Anyone, p.monitorHealth),
		on("transitionToActive", security.Superuser, p.transitionToActive),
		on("transitionToStandby", security.Superuser, p.transitionToStandby),
		unsupported("transitionToObserver", security.Superuser, "observers, which serve reads and do not lead, are"),
	}
}

func (p *protocol) userMappingMethods() []hrpc.Method {
	return []hrpc.Method{on("getGroupsForUser", security.Anyone, p.getGroupsForUser)}
}
