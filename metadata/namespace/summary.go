package namespace

import "github.com/gohops/hops/metadata"

// entriesPerTurn is how many entries of a directory a summary counts before waiting commands get a turn; historiesPerTurn, while there are snapshots.
const entriesPerTurn = 4096

// ContentSummary counts the tree below path, and path itself. A large tree is counted in turns: what changes meanwhile
// may or may not be in the numbers, as in HDFS.
//
// Errors: ErrNotExist; ErrPermission for a directory in the tree without READ and EXECUTE.
func (ns *Namespace) ContentSummary(c metadata.Caller, path string) (*metadata.ContentSummary, error) {
	var sum metadata.ContentSummary
	var stack []metadata.INodeID
	var ghost *inode
	err := ns.find(c, path, func(p *place, _ *caller) error {
		n := p.last()
		if n == nil || n.isGhost() && n.snapshot() == 0 {
			return metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
		}
		sum, stack, ghost = metadata.ContentSummary{}, nil, nil
		sum.Quota, sum.SpaceQuota = n.limits()
		if q := n.quota(); q != nil {
			sum.Types = q.types.list()
		}
		sum.Erasure = n.policies().coding(n)
		if n.isGhost() {
			ghost = n
			return nil
		}
		if n.isDir() {
			stack = append(stack, n.id)
			return nil
		}
		count(&sum, n)
		return ns.countKept(&sum, n, n.parent)
	})
	if err != nil {
		return nil, err
	}
	who := callerOf(c)
	if ghost != nil {
		return &sum, ns.summarizeGhost(&who, ghost, &sum)
	}
	lost := map[metadata.INodeID]bool{}
	var pages page
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		sum.Directories++
		for after, more := "", true; more; {
			err := ns.read(func() error {
				last, again, err := ns.summarize(&who, id, after, &pages, &sum, &stack)
				if err == nil {
					after, more = last, again
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		if err := ns.summarizeLost(id, lost, &sum); err != nil {
			return nil, err
		}
	}
	return &sum, nil
}

func count(sum *metadata.ContentSummary, n *inode) {
	sum.Files++
	sum.Length += n.file.length
	sum.SpaceConsumed += n.file.space()
}

// summarize counts the files of a directory whose names come after a name, up to entriesPerTurn entries, and pushes its
// directories. It returns the last name seen and whether there may be more.
func (ns *Namespace) summarize(c *caller, id metadata.INodeID, after string, pages *page, sum *metadata.ContentSummary,
	stack *[]metadata.INodeID,
) (string, bool, error) {
	n, err := ns.byID(id)
	if err != nil {
		return after, true, err
	}
	if n == nil || !n.isDir() || !n.attached() {
		return after, false, nil
	}
	if !c.may(n, metadata.Read|metadata.Execute) {
		return after, false, denied(c, n, n.path(), metadata.Read|metadata.Execute)
	}
	return ns.turn(n, after, pages, func(child *inode) error {
		if child.isDir() {
			*stack = append(*stack, child.id)
			return nil
		}
		count(sum, child)
		return ns.countKept(sum, child, n)
	})
}
