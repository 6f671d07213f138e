package main

import (
	"fmt"
	"html"
	"strings"

	"github.com/gohops/hops/cmd/bench"
)

var colours = map[string]string{
	labelHops: "#2563eb", labelUnsynced: "#93c5fd", labelHDFS: "#9ca3af", labelSynced: "#d4a373", labelTLS: "#16a34a", labelEmpty: "#a78bfa", labelOurClient: "#d4a373", labelNear: "#93c5fd",
}

// plot draws a comparison as SVG: server CPU an operation on the left, rate on the right, each row scaled to its longest
// bar, because rows differ by orders of magnitude. Lines show the range over the rounds.
func plot(t *table) string {
	const (
		names, bar, gap, width = 130, 13, 14, 330
		top                    = 64
	)
	height := top
	for _, w := range t.Rows {
		height += len(sidesOf(t, w))*bar + gap
	}
	total := names + 2*(width+90) + 10
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", total, height, total, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", total, height)
	fmt.Fprintf(&b, `<text x="10" y="18" font-size="13" font-weight="bold">%s</text>`+"\n", html.EscapeString(t.Title))
	x := 10
	for _, s := range t.Sides {
		fmt.Fprintf(&b, `<rect x="%d" y="28" width="11" height="11" fill="%s"/><text x="%d" y="38">%s</text>`+"\n", x, colours[s], x+15, html.EscapeString(s))
		x += 30 + 7*len(s)
	}
	left, right := names, names+width+90
	fmt.Fprintf(&b, `<text x="%d" y="56" font-weight="bold">server CPU, us (shorter is better)</text><text x="%d" y="56" font-weight="bold">per second (longer is better)</text>`+"\n", left, right)
	y := top
	for _, w := range t.Rows {
		sides := sidesOf(t, w)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", names-8, y+len(sides)*bar/2+4, html.EscapeString(w.Name))
		for column, value := range []func(bench.Result) float64{serverCPU, rate} {
			longest := 0.0
			for _, s := range sides {
				longest = max(longest, w.of(s, value).high)
			}
			if longest == 0 {
				continue
			}
			at := []int{left, right}[column]
			for i, s := range sides {
				v := w.of(s, value)
				scale := func(f float64) float64 { return f / longest * width }
				line := y + i*bar
				fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, at, line, scale(v.median), bar-2, colours[s])
				fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#111827"/>`, float64(at)+scale(v.low), float64(line)+float64(bar-2)/2, float64(at)+scale(v.high))
				fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(at)+scale(v.high)+4, line+bar-4, number(v.median))
			}
		}
		y += len(sides)*bar + gap
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// bar is one value with its range; bars of one line share a scale.
type bar struct {
	side string
	spread
}

// bars draws lines of bars, each line scaled to its longest one.
func bars(title string, names []string, lines [][]bar) string {
	const left, height, gap, width, top = 300, 15, 14, 360, 52
	const right = 300
	total := top
	for _, line := range lines {
		total += len(line)*height + gap
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", left+width+right, total, left+width+right, total)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", left+width+right, total)
	fmt.Fprintf(&b, `<text x="10" y="18" font-size="13" font-weight="bold">%s</text>`+"\n", html.EscapeString(title))
	fmt.Fprintf(&b, `<text x="10" y="36">Shorter is better unless per second; each line has its own scale.</text>`+"\n")
	y := top
	for i, line := range lines {
		longest := 0.0
		for _, v := range line {
			longest = max(longest, v.high)
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, y+len(line)*height/2+4, html.EscapeString(names[i]))
		for _, v := range line {
			scale := func(x float64) float64 { return x / max(longest, 1e-9) * width }
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y, scale(v.median), height-2, colours[strings.SplitN(v.side, ",", 2)[0]])
			fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#111827"/>`, left+scale(v.low), float64(y)+float64(height-2)/2, left+scale(v.high))
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s  %s</text>`+"\n", left+scale(v.high)+4, y+height-4, number(v.median), html.EscapeString(v.side))
			y += height
		}
		y += gap
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func plotFailovers(all []failed) string {
	var line []bar
	for _, f := range all {
		var seconds []float64
		for _, run := range f.Runs {
			seconds = append(seconds, run.Seconds)
		}
		line = append(line, bar{f.Side + ", " + f.What, spreadOf(seconds)})
	}
	return bars("Failover under load", []string{"seconds to the first success"}, [][]bar{line})
}

func plotLarge(all []large) string {
	var names []string
	var lines [][]bar
	for _, f := range largeFigures {
		var line []bar
		for _, l := range all {
			s, _ := f.of(l)
			line = append(line, bar{fmt.Sprintf("%s, %s files", l.Side, millions(l.Files)), s})
		}
		names, lines = append(names, f.name), append(lines, line)
	}
	return bars("A large namespace", names, lines)
}

// sidesOf are the sides that a row has results of, in the table's order.
func sidesOf(t *table, w *row) []string {
	var out []string
	for _, s := range t.Sides {
		if len(w.Rounds[s]) > 0 {
			out = append(out, s)
		}
	}
	return out
}
