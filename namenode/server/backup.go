package server

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
)

// Backup is what `hops cluster backup` needs of the namenode that leads, besides the files of its machine.
type Backup struct {
	raftstore.Backup
	// Authority is the cluster's, sealed with Seal.
	Authority []byte `json:"authority"`
}

// Seal is what opens the authority in the register and in backups.
func Seal(secret security.Secret) []byte { return secret.MAC("seal of the authority") }

// backup writes a snapshot of the namespace. Only who leads does: it has everything that was acknowledged.
func (s *Server) backup(context.Context, *http.Request) (any, error) {
	if _, err := s.leading(); err != nil {
		return nil, err
	}
	sealed, err := s.roster.Backup()
	if err != nil {
		return nil, err
	}
	b, err := s.wholeBackup()
	if err != nil {
		return nil, err
	}
	return Backup{b, sealed}, nil
}

// wholeBackup refuses a snapshot without bodies of small files that it should have: those that no namenode could give that was asked.
func (s *Server) wholeBackup() (raftstore.Backup, error) {
	b, err := s.group.Backup()
	if n, _ := s.ns.Bodies(); err != nil || n == 0 {
		return b, err
	}
	return b, raftstore.InspectSnapshot(s.group.Path(b), func(raftstore.SnapshotHead) error { return nil }, func(r io.Reader) error {
		census, err := namespace.InspectCopy(r)
		if err == nil && census.BodiesMissing > 0 {
			err = fmt.Errorf("no backup: it would lack the bytes of %d small files, which are missing or damaged on this namenode, and no other one that answers has them: "+
				"start the others and try again, or look for the files (`hops fsck / -list-corruptfileblocks`) and delete them", census.BodiesMissing)
		}
		return err
	})
}
