package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/config"
)

// The reason for which a server ends at once is in its log, which is written a little later otherwise, and on standard error, if that takes it.
func TestWhyAServerEndsIsSaid(t *testing.T) {
	t.Parallel()
	_, hangs := io.Pipe()
	for what, patience := range map[string]time.Duration{"standard error takes it": time.Minute, "standard error hangs": 10 * time.Millisecond} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var said strings.Builder
			errOut := io.Writer(&said)
			if what == "standard error hangs" {
				errOut = hangs
			}
			out, end, err := logOutput(config.Log{Dir: dir}, "namenode", errOut, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			tellEnd(errors.New("the disk is gone"), slog.New(slog.NewTextHandler(out, nil)), end, errOut, patience)
			text, err := os.ReadFile(filepath.Join(dir, "namenode.log"))
			if err != nil || !strings.Contains(string(text), "the disk is gone") {
				t.Errorf("the log says %q %v", text, err)
			}
			if errOut == io.Writer(&said) && !strings.Contains(said.String(), "the disk is gone") {
				t.Errorf("standard error says %q", said.String())
			}
		})
	}
}
