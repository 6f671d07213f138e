package server

import (
	"context"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

var errNoSmallFiles = metadata.Errorf(metadata.ErrUnsupported, "small files are not kept by the namenodes here: create the file and write it to datanodes")

// StoreFile implements namenode.SmallFiles.
func (s *Server) StoreFile(_ metadata.Caller, _ namenode.CreateRequest, _ []byte, done func(*metadata.FileStatus, error)) {
	done(nil, errNoSmallFiles)
}

// FileWithData implements namenode.SmallFiles.
func (s *Server) FileWithData(c metadata.Caller, r namenode.FileWithDataRequest, done func(*namenode.FileWithData, error)) {
	s.Locate(c, namenode.LocateRequest{Path: r.Path, Length: 1 << 62, Unnoticed: r.Unnoticed, Admit: r.Admit}, func(f *namenode.LocatedFile, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(&namenode.FileWithData{LocatedFile: *f}, nil)
	})
}

// Body implements namenode.SmallFiles.
func (s *Server) Body(_ context.Context, id metadata.BlockID, generation metadata.Generation) ([]byte, error) {
	return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "Replica not found for blk_%d_%d", id, generation)
}

// SetSmallFiles implements namenode.SmallFiles.
func (s *Server) SetSmallFiles(_ metadata.Caller, _ string, _ namenode.SmallFilePolicy, done func(error)) {
	done(errNoSmallFiles)
}

// SmallFilesAt implements namenode.SmallFiles.
func (s *Server) SmallFilesAt(_ metadata.Caller, _ string, done func(namenode.SmallFilePolicy, bool, error)) {
	done(namenode.SmallFilesOff, false, nil)
}
