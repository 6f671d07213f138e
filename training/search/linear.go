package search

import "math"

// Dense linear algebra on rows, as much as the models need. Matrices are symmetric or lower triangular and small (at most some
// hundreds of rows).

type matrix [][]float64

func newMatrix(rows, cols int) matrix {
	m := make(matrix, rows)
	cells := make([]float64, rows*cols)
	for i := range m {
		m[i] = cells[i*cols : (i+1)*cols : (i+1)*cols]
	}
	return m
}

// dot is Σ a[i]·b[i] over the length of a, in four sums, which a processor works on side by side.
func dot(a, b []float64) float64 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float64
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + (s2 + s3)
}

// cholesky replaces the lower triangle of a by L with L·Lᵀ = a; false if a is not positive definite.
func cholesky(a matrix) bool {
	for i := range a {
		for j := range i {
			a[i][j] = (a[i][j] - dot(a[i][:j], a[j])) / a[j][j]
		}
		d := a[i][i] - dot(a[i][:i], a[i])
		if !(d > 0) || math.IsInf(d, 1) {
			return false
		}
		a[i][i] = math.Sqrt(d)
	}
	return true
}

// forward solves L·x = b in place.
func forward(l matrix, b []float64) {
	for i := range b {
		b[i] = (b[i] - dot(b[:i], l[i])) / l[i][i]
	}
}

// backward solves Lᵀ·x = b in place.
func backward(l matrix, b []float64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] /= l[i][i]
		for j, v := range l[i][:i] {
			b[j] -= v * b[i]
		}
	}
}

// inverse writes the lower triangle of (L·Lᵀ)⁻¹ to out. work has the shape of l.
func inverse(l, work, out matrix) {
	n := len(l)
	for c := range n { // row c of work: column c of L⁻¹, from c on
		w := work[c]
		w[c] = 1 / l[c][c]
		for i := c + 1; i < n; i++ {
			w[i] = -dot(w[c:i], l[i][c:]) / l[i][i]
		}
	}
	for i := range n {
		for j := range i + 1 {
			out[i][j] = dot(work[i][i:n], work[j][i:])
		}
	}
}

// eigen decomposes a symmetric matrix by Jacobi's rotations (Golub and Van Loan, section 8.5): a = V·diag(values)·Vᵀ, vectors in
// the columns of V. a is used up.
func eigen(a matrix) (values []float64, v matrix) {
	n := len(a)
	v = newMatrix(n, n)
	for i := range v {
		v[i][i] = 1
	}
	total := 0.0
	for i := range a {
		total += dot(a[i], a[i])
	}
	for range 60 { // sweeps; some six are usual
		off := 0.0
		for i := range a {
			for _, x := range a[i][:i] {
				off += x * x
			}
		}
		if off <= 1e-28*total {
			break
		}
		for p := range n - 1 {
			for q := p + 1; q < n; q++ {
				rotate(a, v, p, q)
			}
		}
	}
	values = make([]float64, n)
	for i := range values {
		values[i] = a[i][i]
	}
	return values, v
}

// rotate makes a[p][q] zero.
func rotate(a, v matrix, p, q int) {
	if a[p][q] == 0 {
		return
	}
	tau := (a[q][q] - a[p][p]) / (2 * a[p][q])
	t := 1 / (math.Abs(tau) + math.Hypot(1, tau))
	if tau < 0 {
		t = -t
	}
	c := 1 / math.Hypot(1, t)
	s := t * c
	for k := range a {
		x, y := a[k][p], a[k][q]
		a[k][p], a[k][q] = c*x-s*y, s*x+c*y
	}
	for k := range a {
		x, y := a[p][k], a[q][k]
		a[p][k], a[q][k] = c*x-s*y, s*x+c*y
	}
	for k := range v {
		x, y := v[k][p], v[k][q]
		v[k][p], v[k][q] = c*x-s*y, s*x+c*y
	}
}
