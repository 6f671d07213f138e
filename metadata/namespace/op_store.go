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
		if said := p.nodes[min(p.existing(), len(p.nodes)-2)].smallFiles(); said == smallFilesOff || said == 0 && !op.ByDefault {
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
	t.result.OK = true
	t.result.Status = new(n.status())
}
