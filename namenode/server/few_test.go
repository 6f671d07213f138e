package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/namenode/placement"
)

func TestTooFewTargetsAreToldOfNowAndThen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var f few
	now := time.Now()
	c := placement.Choice{Live: 3, Excluded: 1, Reasons: placement.Reasons{NoSpace: 1}}
	for range 5 {
		f.tell(log, now, "/a", 3, c)
	}
	f.tell(log, now.Add(fewEvery), "/b", 3, c)
	text := out.String()
	if strings.Count(text, "\n") != 2 || !strings.Contains(text, "path=/a want=3 chosen=0 live=3 excluded=1") || !strings.Contains(text, "without enough space") ||
		!strings.Contains(text, "path=/b") || !strings.Contains(text, "blocks_before=4") {
		t.Error(text)
	}
}
