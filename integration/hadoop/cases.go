package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// scenario is a sequence of commands of testdata/fsshell.txt, which describes the format.
type scenario struct {
	name  string
	steps []step
}

// step is one command with what it is expected to do.
type step struct {
	line  string // as written, without user and dollar sign
	user  string // empty: the superuser
	api   bool   // an @ line
	args  []string
	stdin string
	want  outcome // masked
}

// verb is the command's name, without its dash.
func (s step) verb() string {
	for _, a := range s.args {
		if name, ok := strings.CutPrefix(a, "-"); ok && name != "D" && name != "fs" {
			return name
		}
	}
	return s.args[0]
}

// title names a step in reports and in the list of known differences.
func (s step) title() string {
	prefix := "$ "
	switch {
	case s.api:
		prefix = "@ "
	case s.user != "":
		prefix = s.user + "$ "
	}
	return prefix + s.line
}

const noNewline = "<no newline>"

// readScenarios parses a file of cases. The head of the file, up to the first scenario, is returned as it is.
func readScenarios(path string) (head string, scenarios []scenario, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	var current *scenario
	fail := func(n int, format string, args ...any) (string, []scenario, error) {
		return "", nil, fmt.Errorf("%s:%d: %s", path, n+1, fmt.Sprintf(format, args...))
	}
	names := map[string]bool{}
	for n, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			if names[name] {
				return fail(n, "scenario %s stands twice", name)
			}
			names[name] = true
			scenarios = append(scenarios, scenario{name: name})
			current = &scenarios[len(scenarios)-1]
			continue
		}
		if current == nil {
			head += line + "\n"
			continue
		}
		if line == "" {
			continue
		}
		if s, ok, err := parseCommand(line); err != nil {
			return fail(n, "%v", err)
		} else if ok {
			current.steps = append(current.steps, s)
			continue
		}
		if len(current.steps) == 0 {
			return fail(n, "%q stands before the first command", line)
		}
		last := &current.steps[len(current.steps)-1]
		switch {
		case strings.HasPrefix(line, "exit "):
			if last.want.status, err = strconv.Atoi(line[5:]); err != nil {
				return fail(n, "%v", err)
			}
		case strings.HasPrefix(line, "out|"):
			last.want.stdout = addLine(last.want.stdout, line[4:])
		case strings.HasPrefix(line, "err|"):
			last.want.stderr = addLine(last.want.stderr, line[4:])
		default:
			return fail(n, "%q is neither a command nor a result", line)
		}
	}
	return head, scenarios, nil
}

func addLine(text, line string) string {
	line = strings.TrimPrefix(line, " ")
	if last, open := strings.CutSuffix(line, noNewline); open {
		return text + last
	}
	return text + line + "\n"
}

// parseCommand reads `$ ARGS`, `USER$ ARGS` or `@ VERB ARGS`.
func parseCommand(line string) (s step, ok bool, err error) {
	switch {
	case strings.HasPrefix(line, "@ "):
		s.api, s.line = true, line[2:]
	default:
		user, rest, found := strings.Cut(line, "$ ")
		if !found || strings.ContainsAny(user, " |") {
			return s, false, nil
		}
		s.user, s.line = user, rest
	}
	command, stdin, has := strings.Cut(s.line, " <<< ")
	if has {
		s.stdin = strings.ReplaceAll(stdin, `\n`, "\n")
	}
	s.args, err = splitArgs(command)
	if err == nil && len(s.args) == 0 {
		err = fmt.Errorf("%q is no command", line)
	}
	return s, true, err
}

// splitArgs splits at blanks; between double quotes blanks are kept, and "" is an empty argument.
func splitArgs(line string) ([]string, error) {
	var args []string
	var arg strings.Builder
	quoted, any := false, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted, any = !quoted, true
		case r == ' ' && !quoted:
			if any {
				args = append(args, arg.String())
			}
			arg.Reset()
			any = false
		default:
			arg.WriteRune(r)
			any = true
		}
	}
	if quoted {
		return nil, fmt.Errorf("%q has an open quotation mark", line)
	}
	if any {
		args = append(args, arg.String())
	}
	return args, nil
}

// writeScenarios writes a file of cases with the results of its steps.
func writeScenarios(path, head string, scenarios []scenario) error {
	var b strings.Builder
	b.WriteString(head)
	for i, sc := range scenarios {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "### %s\n", sc.name)
		for _, s := range sc.steps {
			b.WriteString(s.title() + "\n")
			fmt.Fprintf(&b, "exit %d\n", s.want.status)
			writeLines(&b, "out|", s.want.stdout)
			writeLines(&b, "err|", s.want.stderr)
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func writeLines(b *strings.Builder, prefix, text string) {
	if text == "" {
		return
	}
	lines := strings.Split(text, "\n")
	for _, l := range lines[:len(lines)-1] {
		fmt.Fprintf(b, "%s %s\n", prefix, l)
	}
	if last := lines[len(lines)-1]; last != "" {
		fmt.Fprintf(b, "%s %s%s\n", prefix, last, noNewline)
	}
}
