package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// store makes a closed file of the bytes that come with the command, as create, addBlock and complete do one after the other: a small file, or an empty
// one. It is replicated, whatever its directory says of erasure coding, and counts for quotas as such a file does on datanodes. Status is the new file.
//
// Errors: those of create; ErrSpaceQuota, ErrTypeQuota; ErrUnsupported below a directory where no small files may be stored, and for more bytes than a block of the
// file may have; ErrInvalidArgument for a body that is not what the command says, or not new.
func (ns *Namespace) store(t *txn, op *logpb.Store) {
	p := newPlace()
	defer p.release()
	made, body := op.Create, blockOf(op.Body)
	made.Erasure = 1
	err := ns.checkCreate(t, p, made)
	if err == nil && len(op.Data) > 0 {
		if !p.nodes[min(p.existing(), len(p.nodes)-2)].mayStore(op.ByDefault) {
			err = metadata.Errorf(metadata.ErrUnsupported, "No small files may be stored below a directory of %s: write it to datanodes", p)
		} else if int64(len(op.Data)) > made.BlockSize {
			err = metadata.Errorf(metadata.ErrUnsupported, "A small file of %d bytes is larger than its block size of %d: write it to datanodes", len(op.Data), made.BlockSize)
		} else {
			err = ns.checkBody(body, op.Crc, op.Data)
		}
	}
	if err != nil {
		t.fail(err)
		return
	}
	n, replaced := ns.makeFile(t, p, made, int64(len(op.Data))*int64(made.Replication))
	if n == nil {
		return
	}
	if len(op.Data) > 0 {
		ns.giveBody(n, body, op.Crc, op.Data)
		ns.recharge(n, usage{})
	}
	told := len(ns.events)
	ns.tellCreate(n, made.Overwrite, replaced)
	ns.tellClose(n)
	ns.continued(told)
	t.changed(n)
	t.result.Status = new(n.status())
}

// mayStore reports whether small files may be stored in a directory; byDefault: where no directory says anything.
func (n *inode) mayStore(byDefault bool) bool {
	said := n.smallFiles()
	return said == smallFilesOn || said == 0 && byDefault
}

// keepFile makes a small file of a closed one, whose bytes come with the command: they were read from its blocks. Everything but the blocks stays: nobody
// changed the bytes. A snapshot goes on to have the blocks, and the bytes are there twice then, and count so for quotas. In place, as the namenodes do it by themselves, a file of which a
// snapshot has a block is left alone, also one whose snapshot was taken after they looked; and the body has the id of the only block: a client of Hadoop's that has opened the file
// asks for its places anew when the datanodes have it no more, and gives up if it is of other blocks then.
//
// Errors: ErrNotExist, also for a directory; ErrPermission without WRITE; ErrBeingCreated for an open file; ErrIO when its blocks are not those that were
// read, or of another length; ErrUnsupported for one with an erasure coding policy, for one that has bodies already, for one without bytes, below a directory where no small
// files may be stored, and in place for one of which a snapshot has a block; ErrSpaceQuota; ErrInvalidArgument for a body that is not what the command says, or not new.
func (ns *Namespace) keepFile(t *txn, op *logpb.KeepFile) {
	p := newPlace()
	defer p.release()
	err := ns.resolveTarget(p, t, op.Target, toUse)
	if err == nil {
		err = ns.check(p, &t.caller, checks{last: metadata.Write})
	}
	var n *inode
	if err == nil {
		n, err = fileAt(p)
	}
	body := blockOf(op.Body)
	switch {
	case err != nil:
	case n.file.open != nil:
		err = metadata.Errorf(metadata.ErrBeingCreated, "%s is being written: it can become a small file when it is closed", p)
	case n.file.coded() || n.hasBodies() || n.file.length == 0:
		err = metadata.Errorf(metadata.ErrUnsupported, "%s cannot become a small file: it is one, or has an erasure coding policy, or no bytes", p)
	case n.file.length > n.file.blockSize:
		err = metadata.Errorf(metadata.ErrUnsupported, "%s of %d bytes cannot become a small file: its block size is %d", p, n.file.length, n.file.blockSize)
	case !n.parent.mayStore(op.ByDefault):
		err = metadata.Errorf(metadata.ErrUnsupported, "No small files may be stored below a directory of %s", p)
	case BlocksSum(n.file.blocks) != op.Blocks || n.file.length != int64(len(op.Data)):
		err = metadata.Errorf(metadata.ErrIO, "%s was changed while it was read", p)
	default:
		err = ns.checkBody(body, op.Crc, op.Data)
	}
	if err == nil {
		more := int64(0)
		for i, b := range n.file.blocks {
			if ns.snapshotHas(n, i) { // which goes on to have it
				more += n.file.blockSpace(b)
			}
		}
		if op.InPlace && more > 0 {
			err = metadata.Errorf(metadata.ErrUnsupported, "%s does not become a small file by itself: a snapshot has its blocks, and would go on to have them", p)
		} else {
			err = ns.checkQuota(n.parent, nil, usage{}, usage{space: more})
		}
	}
	if err != nil {
		t.fail(err)
		return
	}
	if op.InPlace && len(n.file.blocks) == 1 {
		body = n.file.blocks[0]
	}
	before := ns.metered(n)
	ns.touch(n)
	for len(n.file.blocks) > 0 {
		ns.removeLast(n)
	}
	ns.giveBody(n, body, op.Crc, op.Data)
	ns.recharge(n, before)
	t.result.OK = true
}

// Keepable is the block of a file that keepFile would make a small one, for the namenode itself: a closed, replicated file of one block and so many bytes, where small files may be
// stored, and that no snapshot has: its bytes would be twice there then, and count so for quotas. False: there is none, or it is otherwise by now. What becomes so behind this look
// keepFile finds.
func (ns *Namespace) Keepable(id metadata.INodeID, length int64, byDefault bool) (b metadata.Block, ok bool) {
	err := ns.read(func() error {
		ok = false
		n, err := ns.byID(id)
		if err != nil || n == nil || n.file == nil || !n.attached() {
			return err
		}
		f := n.file
		if f.open != nil || f.coded() || n.hasBodies() || len(f.blocks) != 1 || f.length != length || length < 1 || length > f.blockSize || !n.parent.mayStore(byDefault) || ns.inSnapshot(n) {
			return nil
		}
		if _, coded := n.parent.coding(); coded { // somebody wants this one replicated; a small file becomes coded there when it grows
			return nil
		}
		b, ok = f.blocks[0], true
		return nil
	})
	return b, ok && err == nil
}

// Codable is a small file that is to be coded before anything is appended to it, for the namenode itself, and the policy: a closed one that is a body and nothing else, in a directory with
// that policy. False: there is none, or it is otherwise by now.
func (ns *Namespace) Codable(id metadata.INodeID) (info *FileInfo, policy metadata.ErasurePolicy, ok bool) {
	err := ns.read(func() error {
		ok = false
		n, err := ns.byID(id)
		if err != nil || n == nil || n.file == nil || !n.attached() || n.file.open != nil || !n.file.small || len(n.file.blocks) != 1 {
			return err
		}
		if policy, ok = n.parent.coding(); ok {
			info = n.info()
		}
		return nil
	})
	return info, policy, ok && err == nil
}

// CodingAt is the policy of files that are made at a path, as it leads now and if none is named. False: they are replicated, or it leads nowhere.
func (ns *Namespace) CodingAt(c metadata.Caller, path string) (policy metadata.ErasurePolicy, coded bool) {
	err := ns.find(c, path, func(p *place, _ *caller) error {
		if len(p.nodes) > 1 {
			policy, coded = metadata.ErasurePolicyOf(p.codingFor(&logpb.Create{}))
		}
		return nil
	})
	return policy, coded && err == nil
}

// coding is the policy of files that are made in a directory. False: they are replicated.
func (n *inode) coding() (metadata.ErasurePolicy, bool) {
	return metadata.ErasurePolicyOf(n.policies().coding(n))
}
