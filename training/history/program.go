package history

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of what is read of a code artifact, which others have written.
const (
	maxProgramFiles = 10_000
	maxProgramBytes = 256 << 20
	maxDiffBytes    = 1 << 20 // of a file that is compared line by line
	maxDiffLines    = 20_000
)

// Program is the content of a code artifact, by name.
type Program struct{ Files map[string][]byte }

// ReadProgram unpacks a code artifact.
func ReadProgram(data []byte) (*Program, error) {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("the code artifact is no zip: %w", err)
	}
	if len(z.File) > maxProgramFiles {
		return nil, fmt.Errorf("the code artifact has %d files, at most %d are read", len(z.File), maxProgramFiles)
	}
	p := &Program{Files: map[string][]byte{}}
	left := int64(maxProgramBytes)
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, "/") || f.Name == "manifest.json" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("%s of the code artifact: %w", f.Name, err)
		}
		text, err := io.ReadAll(io.LimitReader(r, left+1))
		r.Close()
		if err != nil {
			return nil, fmt.Errorf("%s of the code artifact: %w", f.Name, err)
		}
		if left -= int64(len(text)); left < 0 {
			return nil, fmt.Errorf("the code artifact has more than %d bytes", int64(maxProgramBytes))
		}
		p.Files[f.Name] = text
	}
	return p, nil
}

// FileDiff is a file of a program that is not the same. Change is added, removed or changed.
type FileDiff struct {
	Name   string `json:"name"`
	Change string `json:"change"`
	// Unified is the difference of text, as `diff -u` writes it; empty of other files and of very long ones.
	Unified string `json:"unified,omitempty"`
}

// DiffPrograms lists the files that differ; nil is a program without files.
func DiffPrograms(a, b *Program) []FileDiff {
	if a == nil {
		a = &Program{}
	}
	if b == nil {
		b = &Program{}
	}
	out := []FileDiff{}
	for _, name := range sortedKeys(a.Files, b.Files) {
		before, had := a.Files[name]
		after, has := b.Files[name]
		d := FileDiff{Name: name, Change: "changed"}
		switch {
		case had && has && bytes.Equal(before, after):
			continue
		case !had:
			d.Change = "added"
		case !has:
			d.Change = "removed"
		}
		if isText(before) && isText(after) {
			d.Unified = Unified("a/"+name, "b/"+name, string(before), string(after))
		}
		out = append(out, d)
	}
	return out
}

func isText(b []byte) bool {
	return len(b) <= maxDiffBytes && utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 && bytes.Count(b, []byte{'\n'}) <= maxDiffLines
}

// around is how many equal lines stand around a change.
const around = 3

// Unified is the difference of two texts with three lines of context, "" if they are equal. It is a shortest one (Myers,
// "An O(ND) Difference Algorithm", 1986) unless the texts differ in more than 2,000 lines: then what is between their
// common beginning and end is replaced as a whole.
func Unified(nameA, nameB, a, b string) string {
	if a == b {
		return ""
	}
	before, after := lines(a), lines(b)
	script := edits(before, after)
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", nameA, nameB)
	for i := 0; i < len(script); {
		if script[i].op == ' ' {
			i++
			continue
		}
		begin := max(i-around, 0)
		end, quiet := i, 0
		for j := i; j < len(script) && quiet <= 2*around; j++ {
			if script[j].op == ' ' {
				quiet++
			} else {
				quiet, end = 0, j+1
			}
		}
		end = min(end+around, len(script))
		hunk(&out, script[begin:end])
		i = end
	}
	return out.String()
}

type edit struct {
	op   byte // ' ', '-', '+'
	text string
	a, b int // lines before it
}

func hunk(out *strings.Builder, script []edit) {
	var minus, plus int
	for _, e := range script {
		if e.op != '+' {
			minus++
		}
		if e.op != '-' {
			plus++
		}
	}
	span := func(before, n int) string {
		if n > 0 {
			before++
		}
		if n == 1 {
			return fmt.Sprint(before)
		}
		return fmt.Sprintf("%d,%d", before, n)
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(script[0].a, minus), span(script[0].b, plus))
	for _, e := range script {
		out.WriteByte(e.op)
		out.WriteString(e.text)
		if !strings.HasSuffix(e.text, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

func lines(s string) []string {
	l := strings.SplitAfter(s, "\n")
	if l[len(l)-1] == "" {
		l = l[:len(l)-1]
	}
	return l
}

// maxEdits bounds the work of edits, which grows with its square.
const maxEdits = 2000

// edits is the script that makes b of a.
func edits(a, b []string) []edit {
	var head, tail int
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	middle := shortest(a[head:len(a)-tail], b[head:len(b)-tail])
	var out []edit
	x, y := 0, 0
	add := func(op byte) {
		e := edit{op: op, a: x, b: y}
		if op == '+' {
			e.text = b[y]
		} else {
			e.text = a[x]
		}
		if op != '+' {
			x++
		}
		if op != '-' {
			y++
		}
		out = append(out, e)
	}
	for range head {
		add(' ')
	}
	for _, op := range middle {
		add(op)
	}
	for range tail {
		add(' ')
	}
	return out
}

// shortest is Myers's greedy algorithm; it remembers each round's furthest points and walks back through them.
func shortest(a, b []string) []byte {
	n, m := len(a), len(b)
	replaced := func() []byte {
		return append(bytes.Repeat([]byte{'-'}, n), bytes.Repeat([]byte{'+'}, m)...)
	}
	if n == 0 || m == 0 {
		return replaced()
	}
	limit := min(n+m, maxEdits)
	v := make([]int, 2*limit+2) // furthest x on diagonal k, at k+limit
	var rounds [][]int
	for d := 0; d <= limit; d++ {
		rounds = append(rounds, append([]int(nil), v[limit-d:limit+d+1]...))
		for k := -d; k <= d; k += 2 {
			var x int
			if k == -d || k != d && v[limit+k-1] < v[limit+k+1] {
				x = v[limit+k+1]
			} else {
				x = v[limit+k-1] + 1
			}
			for x < n && x-k < m && a[x] == b[x-k] {
				x++
			}
			v[limit+k] = x
			if x >= n && x-k >= m {
				return walkBack(rounds, n, m)
			}
		}
	}
	return replaced()
}

func walkBack(rounds [][]int, x, y int) []byte {
	var script []byte
	for d := len(rounds) - 1; d > 0; d-- {
		at := func(k int) int { return rounds[d][k+d] } // of the round before
		k := x - y
		from := k - 1
		if k == -d || k != d && at(k-1) < at(k+1) {
			from = k + 1
		}
		px := at(from)
		py := px - from
		begin := px // where the run of equal lines begins that ends the round
		op := byte('+')
		if from == k-1 {
			begin, op = px+1, '-'
		}
		for ; x > begin; x-- {
			script = append(script, ' ')
		}
		script = append(script, op)
		x, y = px, py
	}
	for ; x > 0; x-- {
		script = append(script, ' ')
	}
	slices.Reverse(script)
	return script
}
