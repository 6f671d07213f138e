package security

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestStrangerIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	s := &Stranger{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	refused := fmt.Errorf("register: %w (EOF)", ErrProof)
	for i, c := range []struct {
		err  error
		said int
	}{
		{refused, 0},
		{errors.New("refused"), 0},
		{refused, 0}, // the peer may be about to end
		{nil, 0},
		{refused, 0},
		{refused, 0},
		{refused, 1},
		{refused, 1},
		{nil, 1},
		{refused, 1},
		{refused, 1},
		{refused, 2},
	} {
		s.Tried("nn1", c.err)
		if n := strings.Count(log.String(), "level=ERROR"); n != c.said {
			t.Fatalf("after call %d it was said %d times, want %d", i, n, c.said)
		}
	}
	if !strings.Contains(log.String(), "peer=nn1") {
		t.Error(log.String())
	}
}
