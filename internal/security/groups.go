package security

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/internal/yaml"
)

// maxGroupsFile is the size of the largest file of groups, in bytes.
const maxGroupsFile = 16 << 20

// GroupsFile finds the groups of users in a YAML file, a line for each user (name: [group, group]), and those of users who are
// not in it where the operating system has them. A file that has changed is read again; one that is wrong then is logged, and
// the one before goes on to count.
func GroupsFile(path string, logger *slog.Logger) (func(user string) []string, error) {
	f := &groupsFile{path: path, log: logger}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f.groups, nil
}

type groupsFile struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	users map[string][]string
	size  int64
	time  time.Time
}

// read reads the file if it is not the one that was read before.
func (f *groupsFile) read() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return fmt.Errorf("users.groups_file: %w", err)
	}
	if f.users != nil && info.Size() == f.size && info.ModTime().Equal(f.time) {
		return nil
	}
	if info.Size() > maxGroupsFile {
		return fmt.Errorf("users.groups_file: %s has %d bytes, %d are allowed", f.path, info.Size(), maxGroupsFile)
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("users.groups_file: %w", err)
	}
	users := map[string][]string{}
	if err := yaml.UnmarshalStrict(f.path, text, &users); err != nil {
		return fmt.Errorf("users.groups_file: %w", err)
	}
	for user, groups := range users {
		for _, name := range append([]string{user}, groups...) {
			if err := usertoken.CheckName(name); err != nil {
				return fmt.Errorf("users.groups_file: %s: user %q: %w", f.path, user, err)
			}
		}
	}
	f.users, f.size, f.time = users, info.Size(), info.ModTime()
	return nil
}

func (f *groupsFile) groups(user string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.read(); err != nil {
		f.log.Error("the groups of users are those from before", "error", err)
	}
	if groups, ok := f.users[user]; ok {
		return groups
	}
	return systemGroups(user)
}
