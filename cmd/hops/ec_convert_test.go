package main

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// What is said of a file that cannot be converted says once what was done to which file, whoever had the reason.
func TestWhatCannotBeConvertedIsNamedOnce(t *testing.T) {
	for want, err := range map[string]error{
		"convert: /f: open /f: unexpected EOF\n": fmt.Errorf("convert /f: open /f: %w", io.ErrUnexpectedEOF),
		"convert: /f: i/o error\n":               &dfs.Error{Op: "convert", Path: "/f", Kind: metadata.ErrIO},
		"convert: /f: it was changed\n":          &dfs.Error{Op: "convert", Path: "/f", Kind: metadata.ErrIO, Message: "it was changed"},
	} {
		var said bytes.Buffer
		c := &conversion{t: &hadoopTool{ctx: t.Context(), errOut: &said}}
		if err := c.refused("/f", err); err != nil || said.String() != want || c.failed != 1 {
			t.Errorf("%v; %d; it says %q, want %q", err, c.failed, &said, want)
		}
	}
}
