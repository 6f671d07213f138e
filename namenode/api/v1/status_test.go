package namenodepb

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/metadata"
)

func TestKindsAndCodesRoundTrip(t *testing.T) {
	for _, row := range statusTable {
		err := fmt.Errorf("heartbeat: %w", metadata.Errorf(row.kind, "dn1: no"))
		s := Status(err)
		if got := status.Code(s); got != row.code {
			t.Errorf("%v: code %v, want %v", row.kind, got, row.code)
		}
		back := FromStatus(s)
		if !errors.Is(back, row.kind) || back.Error() != "heartbeat: dn1: no" {
			t.Errorf("%v: came back as %v of kind %v", row.kind, back, metadata.KindOf(back))
		}
	}
}

func TestOtherErrorsPass(t *testing.T) {
	if Status(nil) != nil || FromStatus(nil) != nil {
		t.Error("nil is not nil")
	}
	if got := status.Code(Status(context.Canceled)); got != codes.Canceled {
		t.Errorf("got %v", got)
	}
	foreign := status.Error(codes.Unavailable, "connection refused")
	if FromStatus(foreign) != foreign || Status(foreign) != foreign {
		t.Error("a foreign status was changed")
	}
	if got := FromStatus(Status(errors.New("odd"))); !errors.Is(got, metadata.ErrIO) || got.Error() != "odd" {
		t.Errorf("got %v", got)
	}
}
