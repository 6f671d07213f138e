package processes

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Find lists the processes, this one left out, whose environment has a text and whose command line, arguments with blanks
// between them, has another. Processes that have ended and wait for their parent do not count.
func Find(environment, command string) []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(env, []byte(environment)) {
			continue
		}
		if command != "" {
			line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
			if err != nil || !strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), command) {
				continue
			}
		}
		if !Ended(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// Ended reports whether a process has ended, with all that it had open. It may wait for its parent.
func Ended(pid int) bool {
	state, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	i := bytes.LastIndexByte(state, ')')
	return i >= 0 && bytes.HasPrefix(state[i+1:], []byte(" Z"))
}

// Command is the command line of a process, for messages.
func Command(pid int) string {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "ended"
	}
	return strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
}

// Tail is the last lines of a file, for messages.
func Tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
