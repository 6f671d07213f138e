package shell

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
)

func runChmod(ctx context.Context, s *Shell, args []string) error {
	change, err := parseMode(args[0])
	if err != nil {
		return err
	}
	return s.walk(ctx, args[1:], func(it item) error {
		mode := change(it.status.Mode, it.isDir())
		if mode == it.status.Mode {
			return nil
		}
		if err := s.fs.SetPermission(ctx, it.path, mode); err != nil {
			return fmt.Errorf("changing permissions of '%s': %s", it.shown, text(err))
		}
		return nil
	})
}

var symbolic = regexp.MustCompile(`^([ugoa]*)([+\-=])([rwxXt]+)$`)

// parseMode reads an octal mode or symbolic changes, u+x,g-w.
func parseMode(text string) (func(old metadata.Mode, dir bool) metadata.Mode, error) {
	wrong := usageError{fmt.Sprintf("chmod : mode '%s' does not match the expected pattern.", text)}
	if n, err := strconv.ParseUint(text, 8, 16); err == nil {
		if n > 0o1777 {
			return nil, wrong
		}
		return func(metadata.Mode, bool) metadata.Mode { return metadata.Mode(n) }, nil
	}
	var changes [][]string
	for part := range strings.SplitSeq(text, ",") {
		m := symbolic.FindStringSubmatch(part)
		if m == nil {
			return nil, wrong
		}
		changes = append(changes, m)
	}
	return func(old metadata.Mode, dir bool) metadata.Mode {
		mode := old
		for _, change := range changes {
			who, op, letters := change[1], change[2], change[3]
			if who == "" || strings.Contains(who, "a") {
				who = "ugo"
			}
			var bits metadata.Mode
			for _, letter := range letters {
				switch {
				case letter == 'r':
					bits |= 4
				case letter == 'w':
					bits |= 2
				case letter == 'x', letter == 'X' && (dir || old&0o111 != 0):
					bits |= 1
				}
			}
			for i, w := range "ugo" {
				if !strings.ContainsRune(who, w) {
					continue
				}
				shift := uint(6 - 3*i)
				switch op {
				case "+":
					mode |= bits << shift
				case "-":
					mode &^= bits << shift
				default:
					mode = mode&^(7<<shift) | bits<<shift
				}
			}
			if strings.ContainsRune(letters, 't') {
				if op == "-" {
					mode &^= metadata.Sticky
				} else {
					mode |= metadata.Sticky
				}
			}
		}
		return mode
	}, nil
}

// Names of users and groups, as Hadoop's shell accepts them.
var (
	ownerForm = regexp.MustCompile(`^([-_./@a-zA-Z0-9]+)?(:([-_./@a-zA-Z0-9]+)?)?$`)
	groupForm = regexp.MustCompile(`^[-_./@a-zA-Z0-9]+$`)
)

func runChown(ctx context.Context, s *Shell, args []string) error {
	m := ownerForm.FindStringSubmatch(args[0])
	if m == nil || m[1] == "" && m[3] == "" {
		return usageError{fmt.Sprintf("'%s' does not match expected pattern for [owner][:group].", args[0])}
	}
	return s.chown(ctx, m[1], m[3], args[1:])
}

func runChgrp(ctx context.Context, s *Shell, args []string) error {
	if !groupForm.MatchString(args[0]) {
		return usageError{fmt.Sprintf("'%s' does not match expected pattern for group", args[0])}
	}
	return s.chown(ctx, "", args[0], args[1:])
}

func (s *Shell) chown(ctx context.Context, owner, group string, paths []string) error {
	return s.walk(ctx, paths, func(it item) error {
		if (owner == "" || owner == it.status.Owner) && (group == "" || group == it.status.Group) {
			return nil
		}
		if err := s.fs.SetOwner(ctx, it.path, owner, group); err != nil {
			return fmt.Errorf("changing ownership of '%s': %s", it.shown, text(err))
		}
		return nil
	})
}
