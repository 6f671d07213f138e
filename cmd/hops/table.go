package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// columns prints rows for people: no borders, two blanks between columns.
type columns struct{ w *tabwriter.Writer }

func newTable(w io.Writer, header ...string) *columns {
	c := &columns{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(header) > 0 {
		c.row(header...)
	}
	return c
}

func (c *columns) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(strings.ReplaceAll(cell, "\t", " "), "\n", " ")
	}
	fmt.Fprintln(c.w, strings.Join(cells, "\t"))
}

func (c *columns) flush() error { return c.w.Flush() }
