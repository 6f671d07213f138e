package shell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// What -p carries over from a file to its copy.

// keepable are the letters of -cp -p: times, owner, permission, access control list, extended attributes.
const keepable = "topax"

// keeps are the letters of the option -p; without letters the first three.
func (s *Shell) keeps() (string, error) {
	letters, ok := s.options["p"]
	if !ok {
		return "", nil
	}
	if letters == "" {
		return keepable[:3], nil
	}
	for _, letter := range letters {
		if !strings.ContainsRune(keepable, letter) {
			return "", fatalError{fmt.Sprintf("java.util.NoSuchElementException: No attribute for %c", letter)}
		}
	}
	return letters, nil
}

// preserveCopy carries over to a copy what -p asks for. Access control lists and extended attributes go from cluster to
// cluster only.
func (s *Shell) preserveCopy(ctx context.Context, from *place, src item, to *place, target string) error {
	letters, err := s.keeps()
	if err != nil || letters == "" {
		return err
	}
	keep := func(letter string) bool { return strings.Contains(letters, letter) }
	if keep("t") {
		if err := to.fs.SetTimes(ctx, target, src.status.MTime, src.status.ATime); err != nil {
			return err
		}
	}
	if keep("o") {
		if err := to.fs.SetOwner(ctx, target, src.status.Owner, src.status.Group); err != nil {
			return err
		}
	}
	if keep("p") || keep("a") {
		if err := to.fs.SetPermission(ctx, target, src.status.Mode); err != nil {
			return err
		}
	}
	clusters := from.client != nil && to.client != nil
	if keep("a") && src.status.ACL && clusters {
		acl, err := from.client.ACL(ctx, src.path)
		if err != nil {
			return err
		}
		access, defaults := logicalACL(acl)
		if err := to.client.SetACL(ctx, target, append(access, defaults...)); err != nil {
			return err
		}
	}
	if !keep("x") || !clusters {
		return nil
	}
	all, err := from.client.XAttrs(ctx, src.path)
	if err != nil {
		return err
	}
	for _, a := range all {
		if err := to.client.SetXAttr(ctx, target, a, dfs.XAttrCreate|dfs.XAttrReplace); err != nil {
			return err
		}
	}
	return nil
}

// preserve carries times, owner and mode of a local file over when the option -p is set.
func (s *Shell) preserve(ctx context.Context, to *place, p string, info fs.FileInfo) error {
	if !s.option("p") {
		return nil
	}
	t := metadata.TimeOf(info.ModTime())
	if err := to.fs.SetTimes(ctx, p, t, t); err != nil {
		return err
	}
	if owner, group := localOwner(info); owner != "" {
		if err := to.fs.SetOwner(ctx, p, owner, group); err != nil {
			return err
		}
	}
	return to.fs.SetPermission(ctx, p, metadata.Mode(info.Mode().Perm()))
}

// preserveLocal carries times, owner and mode over to a local copy when the option -p is set.
func (s *Shell) preserveLocal(it item, target string) error {
	if !s.option("p") {
		return nil
	}
	if err := os.Chtimes(target, it.status.ATime.Time(), it.status.MTime.Time()); err != nil {
		return err
	}
	if err := chown(target, it.status.Owner, it.status.Group); err != nil {
		return err
	}
	return os.Chmod(target, it.status.FSMode().Perm())
}

// chown gives a local file to the owner and the group of these names. Its errors are those of the command chown, which
// Hadoop runs for this.
func chown(target, owner, group string) error {
	u, err := user.Lookup(owner)
	if err != nil {
		return fmt.Errorf("chown: invalid user: '%s:%s'", owner, group)
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return fmt.Errorf("chown: invalid group: '%s:%s'", owner, group)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return err
	}
	if err := os.Chown(target, uid, gid); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("chown: changing ownership of '%s': Operation not permitted", target)
		}
		return err
	}
	return nil
}

// localOwner names the owner and the group of a local file; empty: this machine has no names for them.
func localOwner(info fs.FileInfo) (owner, group string) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", ""
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(stat.Uid), 10))
	g, gerr := user.LookupGroupId(strconv.FormatUint(uint64(stat.Gid), 10))
	if err != nil || gerr != nil {
		return "", ""
	}
	return u.Username, g.Name
}

// refused makes an error of usage of a value that the client itself refuses, as Hadoop's client does by an exception.
func refused(err error) error {
	if e, ok := errors.AsType[*dfs.Error](err); ok && e.Kind == metadata.ErrInvalidArgument && strings.HasPrefix(e.Message, "Invalid values: ") {
		return usageError{e.Message}
	}
	return err
}
