package runs

import "bytes"

// merger walks over several runs at once, in the order of keys. Of a key that several have, the newest run's record is
// the one that counts.
type merger struct {
	heap []*cursor
	last []byte
	some bool
}

// newMerger starts at the first key that is not below from. The last run is the newest.
func newMerger(runs []*run, from []byte) (*merger, error) {
	m := &merger{}
	for i, r := range runs {
		c := newCursor(r, i)
		ok, err := c.seek(from)
		if err != nil {
			c.close()
			m.close()
			return nil, err
		}
		if !ok {
			c.close()
			continue
		}
		m.heap = append(m.heap, c)
	}
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	return m, nil
}

func (m *merger) close() {
	for _, c := range m.heap {
		c.close()
	}
	m.heap = nil
}

func less(a, b *cursor) bool {
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c < 0
	}
	return a.rank > b.rank
}

func (m *merger) down(i int) {
	h := m.heap
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && less(h[child+1], h[child]) {
			child++
		}
		if !less(h[child], h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// each calls fn for the newest record of every key, deletions included, until it returns false.
func (m *merger) each(fn func(key, value []byte, deleted bool) bool) error {
	for len(m.heap) > 0 {
		c := m.heap[0]
		if !m.some || !bytes.Equal(c.key, m.last) {
			m.some = true
			if len(m.heap) > 1 {
				m.last = append(m.last[:0], c.key...)
			} else {
				m.last = m.last[:0] // one run has no key twice, and no key is empty
			}
			if !fn(c.key, c.value, c.deleted) {
				return nil
			}
		}
		ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok {
			c.close()
			end := len(m.heap) - 1
			m.heap[0] = m.heap[end]
			m.heap = m.heap[:end]
		}
		m.down(0)
	}
	return nil
}
