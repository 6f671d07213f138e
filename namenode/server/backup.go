package server

import (
	"context"
	"net/http"

	"github.com/gohops/hops/internal/security"
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
	b, err := s.group.Backup()
	return Backup{b, sealed}, err
}
