package job

import (
	"fmt"
	"strconv"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// ParseSize reads N or MIN..MAX, how many instances a job is to have; min is 0 for N.
func ParseSize(text string) (least, most int, err error) {
	bad := fmt.Errorf("size %.100q: want how many instances, as 4, or MIN..MAX", text)
	min, max, elastic := strings.Cut(text, "..")
	if !elastic {
		min, max = "1", text
	}
	if least, err = strconv.Atoi(min); err != nil || least < 1 {
		return 0, 0, bad
	}
	if most, err = strconv.Atoi(max); err != nil || most < least {
		return 0, 0, bad
	}
	if !elastic {
		least = 0
	}
	return least, most, nil
}

// SizeOf is how many instances a command has: as it was resized, or as its document says.
func (s *Spec) SizeOf(a *rm.Application) rm.Size {
	if a.Size != (rm.Size{}) {
		return a.Size
	}
	return rm.Size{Max: s.Instances, Min: s.Gang.Size(s.Instances)}
}

// Resize is the size that a job gets which has another one. With a least of 0 that of a gang stays, as far as it can.
//
// The error is of kind metadata.ErrInvalidArgument and says what to do.
func (s *Spec) Resize(now rm.Size, least, most int) (rm.Size, error) {
	switch {
	case s.Kind != rm.KindCommand:
		return now, bad("a job of kind %s is not resized: its master decides how many containers it has, so tell the master", s.Kind)
	case s.Array != nil:
		return now, bad("an array is not resized: it has the members that it was submitted with; end some of them, or submit another array")
	case s.Gang.All && s.Instances > 1 || s.Gang.Min > 0 && s.Gang.Min == s.Instances && s.Gang.Min > 1:
		return now, bad("the gang of %d is not resized: all of its members start together; submit the job with gang: MIN..MAX if it can run with fewer", s.Instances)
	case most < 1 || most > MaxInstances:
		return now, bad("%d instances: want 1 to %d", most, MaxInstances)
	case least < 0 || least > most:
		return now, bad("at least %d of %d instances: the least is between 1 and the most", least, most)
	case now.Min == 0 && least > 1:
		return now, bad("at least %d instances at once: the instances of this job start each on its own; a job with a least is submitted with gang: MIN..MAX", least)
	case least > MaxGang:
		return now, bad("at least %d instances at once: at most %d", least, MaxGang)
	case now.Min == 0:
		least = 0
	case least == 0:
		least = min(now.Min, most)
	}
	return rm.Size{Max: most, Min: least}, nil
}

// Range are numbers of instances.
type Range struct{ From, To int }

// MaxRanges bounds the text that ParseRanges reads.
const MaxRanges = 1_000

// ParseRanges reads numbers and ranges of them with commas between: 7, 3-9, 1,4-6.
func ParseRanges(text string) ([]Range, error) {
	var out []Range
	for part := range strings.SplitSeq(text, ",") {
		from, to, several := strings.Cut(part, "-")
		if !several {
			to = from
		}
		r := Range{number(from), number(to)}
		if r.From < 0 || r.To < r.From || len(out) == MaxRanges {
			return nil, bad("members %.100q: want numbers and ranges, as 7 or 1,3-9; at most %d", text, MaxRanges)
		}
		out = append(out, r)
	}
	return out, nil
}

// number reads one; -1: it is none.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxIndex || strconv.Itoa(n) != text {
		return -1
	}
	return n
}

// ParseMembers splits what names members of a job, ID[7], ID[1,3-9] or ID_7; members is empty where it names a job.
func ParseMembers(text string) (id, members string) {
	if head, rest, ok := strings.Cut(text, "["); ok && strings.HasSuffix(rest, "]") {
		return head, strings.TrimSuffix(rest, "]")
	}
	if strings.Count(text, "_") == 3 { // application_1_0001_7
		at := strings.LastIndexByte(text, '_')
		return text[:at], text[at+1:]
	}
	return text, ""
}

// In are the numbers among some that ranges name, each once and in their order. A number that is not there, or a range without any, is an error
// of kind metadata.ErrInvalidArgument.
func In(ranges []Range, numbers []int) ([]int, error) {
	wanted := map[int]bool{}
	for _, r := range ranges {
		found := false
		for _, n := range numbers {
			if n >= r.From && n <= r.To {
				wanted[n], found = true, true
			}
		}
		if !found && len(numbers) == 0 {
			return nil, bad("no member has begun")
		} else if !found {
			return nil, bad("there is no member %s: they have %d numbers from %d to %d", r, len(numbers), numbers[0], numbers[len(numbers)-1])
		}
	}
	var out []int
	for _, n := range numbers {
		if wanted[n] {
			out = append(out, n)
		}
	}
	return out, nil
}

// String writes what ParseRanges reads.
func (r Range) String() string {
	if r.From == r.To {
		return strconv.Itoa(r.From)
	}
	return fmt.Sprintf("%d-%d", r.From, r.To)
}
