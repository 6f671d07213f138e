package simulator

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// colours of the lines of a plot, in the order of results; the first two are those of the benchmarks' plots.
var colours = []string{"#2563eb", "#9ca3af", "#d4a373", "#16a34a", "#dc2626", "#7c3aed"}

// Plots are SVG by file name.
func Plots(results []*Result) map[string]string {
	return map[string]string{
		"completion.svg":  plotCompletion(results),
		"utilisation.svg": plotUtilisation(results),
		"waiting.svg":     plotWaiting(results),
	}
}

const (
	plotLeft, plotTop, plotWidth, plotHeight = 60, 60, 640, 300
)

// frame begins a plot: title, legend, axes.
func frame(b *strings.Builder, title string, results []*Result, height int) {
	width := plotLeft + plotWidth + 30
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(b, `<text x="10" y="18" font-size="13" font-weight="bold">%s</text>`+"\n", html.EscapeString(title))
	x := 10
	for i, r := range results {
		fmt.Fprintf(b, `<rect x="%d" y="28" width="11" height="11" fill="%s"/><text x="%d" y="38">%s</text>`+"\n", x, colours[i%len(colours)], x+15, html.EscapeString(r.Name()))
		x += 30 + 7*len(r.Name())
	}
}

// axis draws a horizontal grid for parts of one.
func axis(b *strings.Builder) {
	for k := range 6 {
		y := plotTop + plotHeight - k*plotHeight/5
		fmt.Fprintf(b, `<path d="M%d %dh%d" stroke="#e5e7eb"/><text x="%d" y="%d" text-anchor="end">%d %%</text>`+"\n", plotLeft, y, plotWidth, plotLeft-6, y+4, k*20)
	}
}

// plotCompletion draws how many jobs have ended after how long, the time in powers of ten.
func plotCompletion(results []*Result) string {
	var b strings.Builder
	frame(&b, "Completion times: part of the jobs that have ended so long after their arrival", results, plotTop+plotHeight+40)
	axis(&b)
	least, most := math.Inf(1), 0.0
	for _, r := range results {
		if n := len(r.sorted); n > 0 {
			least, most = min(least, math.Log10(float64(max(second, r.sorted[0])))), max(most, math.Log10(float64(max(10*second, r.sorted[n-1]))))
		}
	}
	if most > least {
		at := func(ms int64) float64 {
			return plotLeft + (math.Log10(float64(max(second, ms)))-least)/(most-least)*plotWidth
		}
		for _, ms := range []int64{second, 10 * second, minute, 10 * minute, hour, 10 * hour, day, 10 * day, 100 * day} {
			if x := at(ms); math.Log10(float64(ms)) >= least && math.Log10(float64(ms)) <= most {
				fmt.Fprintf(&b, `<path d="M%.1f %dv%d" stroke="#e5e7eb"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, plotTop, plotHeight, x, plotTop+plotHeight+16, axisTime(ms))
			}
		}
		for i, r := range results {
			var d strings.Builder
			const steps = 200
			for k := range steps + 1 {
				if len(r.sorted) == 0 {
					break
				}
				ms := r.sorted[min(len(r.sorted)-1, k*len(r.sorted)/steps)]
				part := float64(k) / steps * float64(len(r.sorted)) / float64(max(r.Jobs, 1))
				fmt.Fprintf(&d, "%s%.1f %.1f", command(k), at(ms), plotTop+plotHeight*(1-part))
			}
			fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.6"/>`+"\n", d.String(), colours[i%len(colours)])
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func axisTime(ms int64) string {
	switch {
	case ms < minute:
		return fmt.Sprintf("%d s", ms/second)
	case ms < hour:
		return fmt.Sprintf("%d min", ms/minute)
	case ms < day:
		return fmt.Sprintf("%d h", ms/hour)
	}
	return fmt.Sprintf("%d d", ms/day)
}

func command(k int) string {
	if k == 0 {
		return "M"
	}
	return "L"
}

// plotUtilisation draws the part of the GPUs at work over time, in at most 200 steps.
func plotUtilisation(results []*Result) string {
	var b strings.Builder
	frame(&b, "GPUs at work over time", results, plotTop+plotHeight+40)
	axis(&b)
	longest := 1
	for _, r := range results {
		longest = max(longest, len(r.Hours))
	}
	step := (longest + 199) / 200
	at := func(h int) float64 { return plotLeft + float64(h)/float64(longest)*plotWidth }
	for k := range 6 {
		h := longest * k / 5
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", at(h), plotTop+plotHeight+16, span(int64(h)*hour))
	}
	for i, r := range results {
		var d strings.Builder
		for h := 0; h < len(r.Hours); h += step {
			some := r.Hours[h:min(len(r.Hours), h+step)]
			sum := 0.0
			for _, x := range some {
				sum += x.Busy
			}
			fmt.Fprintf(&d, "%s%.1f %.1f", command(h), at(h), plotTop+plotHeight*(1-sum/float64(len(some))))
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.4"/>`+"\n", d.String(), colours[i%len(colours)])
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// plotWaiting draws bars of mean waiting times by the size of jobs, each size with its own scale; the line ends at the 90th percentile.
func plotWaiting(results []*Result) string {
	const bar, gap = 13, 14
	var names []string
	for _, c := range classes {
		if slices.ContainsFunc(results, func(r *Result) bool { return r.size(c.name) != nil }) {
			names = append(names, c.name)
		}
	}
	var b strings.Builder
	frame(&b, "Waiting by GPUs of a job: mean, and a line to the 90th percentile; each size has its own scale", results, plotTop+len(names)*(len(results)*bar+gap)+10)
	y := plotTop
	for _, name := range names {
		longest := int64(1)
		for _, r := range results {
			if c := r.size(name); c != nil {
				longest = max(longest, c.Waiting.Mean, c.Waiting.P90)
			}
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotLeft+20, y+len(results)*bar/2+4, html.EscapeString(name))
		for i, r := range results {
			c := r.size(name)
			if c == nil {
				y += bar
				continue
			}
			const left, width = plotLeft + 28, plotWidth - 180
			scale := func(ms int64) float64 { return float64(ms) / float64(longest) * width }
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y, scale(c.Waiting.Mean), bar-2, colours[i%len(colours)])
			fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#111827"/>`, left+scale(c.Waiting.Mean), float64(y)+float64(bar-2)/2, left+scale(max(c.Waiting.Mean, c.Waiting.P90)))
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s, p90 %s</text>`+"\n", left+scale(max(c.Waiting.Mean, c.Waiting.P90))+4, y+bar-4, span(c.Waiting.Mean), span(c.Waiting.P90))
			y += bar
		}
		y += gap
	}
	b.WriteString("</svg>\n")
	return b.String()
}
