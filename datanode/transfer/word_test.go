package transfer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Who asks for no byte of a block hears nothing while the disk does not answer, and may be a writer; who asks for more needs the right to read.
func TestNoByteIsAskedForToHearWhetherTheDiskAnswers(t *testing.T) {
	var silent atomic.Bool
	d := startOne(t, func(c *Config) {
		c.Answers = func(_ context.Context, id metadata.BlockID) bool { return id != 7 || !silent.Load() }
	})
	b := block(7, 1001, 4)
	mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, d).writeAll(0, []byte("data"), "S")
	ask := func(mode security.BlockMode, n uint64) (*hadooppb.BlockOpResponseProto, error) {
		t.Helper()
		c := dial(t, d)
		defer c.Close()
		check(t, dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{
			Header: &hadooppb.ClientOperationHeaderProto{
				BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: tokenFor(grant(7, mode))}, ClientName: new("c"),
			},
			Offset: new(uint64(0)), Len: &n,
		}))
		return dtp.ReadResponse(c.r)
	}
	want := func(mode security.BlockMode, n uint64, want hadooppb.Status) {
		t.Helper()
		if m, err := ask(mode, n); err != nil || m.GetStatus() != want {
			t.Errorf("%v, %v, want %v", m, err, want)
		}
	}
	for _, mode := range []security.BlockMode{security.ReadBlock, security.WriteBlock} {
		want(mode, 0, hadooppb.Status_SUCCESS)
	}
	want(security.WriteBlock, 1, hadooppb.Status_ERROR_ACCESS_TOKEN)
	want(security.CopyBlock, 0, hadooppb.Status_ERROR_ACCESS_TOKEN)
	silent.Store(true)
	for _, mode := range []security.BlockMode{security.ReadBlock, security.WriteBlock} {
		if m, err := ask(mode, 0); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("answer %v, %v", m, err)
		}
	}
	want(security.CopyBlock, 0, hadooppb.Status_ERROR_ACCESS_TOKEN) // which tells nothing of the disk
	want(security.ReadBlock, 4, hadooppb.Status_SUCCESS)
}
