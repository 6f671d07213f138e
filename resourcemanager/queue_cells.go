package resourcemanager

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
)

// The bounds of cells: how many a queue is guaranteed, and the GPUs of one.
const (
	maxCells    = 1_000_000
	maxCellGPUs = 1_024
)

// parseCells reads the cells that a queue is guaranteed, "node/8=4": how many whole nodes, and the GPUs that each has at least. No
// cells are 0, 0.
func parseCells(cells map[string]int) (count, gpus int, err error) {
	if len(cells) > 1 {
		return 0, 0, metadata.Errorf(metadata.ErrInvalidArgument, "%d kinds: all cells are of one kind", len(cells))
	}
	for kind, n := range cells {
		digits, ok := strings.CutPrefix(kind, "node/")
		gpus, err = strconv.Atoi(digits)
		if !ok || err != nil || gpus < 1 || gpus > maxCellGPUs {
			return 0, 0, metadata.Errorf(metadata.ErrInvalidArgument, "%.40q is not node/GPUS, as node/8 for whole nodes of 8 GPUs or more", kind)
		}
		if n < 1 || n > maxCells {
			return 0, 0, metadata.Errorf(metadata.ErrInvalidArgument, "%d of %s: not between 1 and %d", n, kind, maxCells)
		}
		count = n
	}
	return count, gpus, nil
}

// ParseCells reads cells as YARN's properties of queues have them, "node/8=4"; empty: none.
//
// Error: metadata.ErrInvalidArgument.
func ParseCells(text string) (map[string]int, error) {
	if text = strings.TrimSpace(text); text == "" {
		return nil, nil
	}
	kind, digits, _ := strings.Cut(text, "=")
	n, err := strconv.Atoi(strings.TrimSpace(digits))
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%.40q is not node/GPUS=COUNT, as node/8=4", text)
	}
	cells := map[string]int{strings.TrimSpace(kind): n}
	_, _, err = parseCells(cells)
	return cells, err
}

// FormatCells is what ParseCells reads.
func FormatCells(cells map[string]int) string {
	var out []string
	for kind, n := range cells {
		out = append(out, fmt.Sprintf("%s=%d", kind, n))
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// fillCells takes over the cells that c says.
func (q *Queue) fillCells(c QueueConfig) error {
	count, gpus, err := parseCells(c.Cells)
	switch {
	case err != nil:
		return fmt.Errorf("queue %s: cells: %w", q.Path, err)
	case count == 0:
		return nil
	case q.Parent == nil:
		return fmt.Errorf("queue %s: cells: it has the whole cluster, and is guaranteed nothing of it", q.Path)
	}
	q.Cells, q.CellGPUs = count, gpus
	switch g, _ := q.Guarantee.Of(GPUName); {
	case g.Unit == UnitAmount && g.Amount < int64(count*gpus):
		return fmt.Errorf("queue %s: cells: %s is %d GPUs, more than the %d that its capacity guarantees", q.Path, FormatCells(c.Cells), count*gpus, g.Amount)
	case g.Unit == UnitPercent && g.Value == 0:
		return fmt.Errorf("queue %s: cells: %s, but its capacity guarantees no GPUs", q.Path, FormatCells(c.Cells))
	}
	return nil
}

// checkCells verifies that all cells of the tree are of one kind, and those of children not more than those of their parent.
func (t *Queues) checkCells() (errs []error) {
	for _, q := range t.All {
		if q.Cells > 0 {
			if t.CellGPUs != 0 && t.CellGPUs != q.CellGPUs {
				errs = append(errs, fmt.Errorf("queue %s: cells: node/%d beside node/%d of another queue: all cells are of one kind", q.Path, q.CellGPUs, t.CellGPUs))
			}
			t.CellGPUs = q.CellGPUs
		}
		sum := 0
		for _, c := range q.Children {
			sum += c.Cells
		}
		if q.Parent != nil && sum > q.Cells {
			errs = append(errs, fmt.Errorf("queue %s: cells: those of its children add up to %d, and it has %d", q.Path, sum, q.Cells))
		}
	}
	return errs
}
