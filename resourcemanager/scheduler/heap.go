package scheduler

// positioned is an element that knows where it lies in its heap; -1: nowhere.
type positioned interface {
	at() int
	put(int)
}

// heap keeps the least element first; others can be taken out or moved from wherever they lie.
type heap[T positioned] struct {
	list []T
	less func(a, b T) bool
}

func (h *heap[T]) push(x T) {
	h.list = append(h.list, x)
	x.put(len(h.list) - 1)
	h.up(len(h.list) - 1)
}

func (h *heap[T]) remove(x T) {
	i, last := x.at(), len(h.list)-1
	moved := h.list[last]
	var none T
	h.list[last] = none
	h.list = h.list[:last]
	x.put(-1)
	if i < last {
		h.list[i] = moved
		moved.put(i)
		h.fix(moved)
	}
}

// fix moves an element whose order has changed to where it belongs.
func (h *heap[T]) fix(x T) {
	h.up(x.at())
	h.down(x.at())
}

func (h *heap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(h.list[i], h.list[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *heap[T]) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.list); c++ {
			if h.less(h.list[c], h.list[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

func (h *heap[T]) swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].put(i)
	h.list[j].put(j)
}

// position is embedded by what lies in a heap.
type position struct{ where int }

func (p *position) at() int   { return p.where - 1 }
func (p *position) put(i int) { p.where = i + 1 }
