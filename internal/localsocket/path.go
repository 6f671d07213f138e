// Package localsocket connects processes of one machine by Unix-domain sockets, and hands file descriptors over on them, as
// Hadoop's dfs.domain.socket.path does. A path is believed no more than the address that it stands for: it has to lie where
// nobody else can put something, and who listens there has to be who listens at the TCP address.
package localsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// Port in a path stands for the TCP port of the datanode, as in Hadoop.
	Port = "_PORT"
	// maxPath is the longest path of a socket, in bytes: sun_path has 108 with the zero behind it (unix(7)).
	maxPath = 107
)

// Path is the path of the socket beside a TCP address, host:port, or beside a port.
func Path(template, addr string) string {
	port := addr
	if _, p, err := net.SplitHostPort(addr); err == nil {
		port = p
	}
	return strings.ReplaceAll(template, Port, port)
}

// CheckForm says what is wrong with a path, or with a template of paths, whatever the disk has.
func CheckForm(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%q is no absolute path", path)
	case filepath.Clean(path) != path || path == "/":
		return fmt.Errorf("%q is no path of a file: %s would be", path, filepath.Join(filepath.Clean(path), "dn"+Port))
	case strings.IndexByte(path, 0) >= 0:
		return fmt.Errorf("%q has a zero byte", path)
	}
	if longest := Path(path, "65535"); len(longest) > maxPath {
		return fmt.Errorf("%s has %d bytes, a socket's path has %d at most: choose a shorter one", longest, len(longest), maxPath)
	}
	return nil
}

// CheckPlace says why a socket may not lie in a directory: somebody other than root and this process's user could put
// another one in its place. The rules are those of Hadoop's DomainSocket, but for directories further up in which only the
// owner of a thing can replace it (/tmp, with the sticky bit).
func CheckPlace(dir string) error {
	if err := checkDirectories(dir); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || real == dir {
		return err
	}
	return checkDirectories(real)
}

// checkDirectories looks at every directory, and every link, of a path.
func checkDirectories(dir string) error {
	const remedy = "somebody else could put another socket there: change it, or choose another path"
	at := "/"
	names := strings.Split(strings.Trim(dir, "/"), "/")
	for i := 0; ; i++ {
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("%s: whose it is cannot be told", at)
		}
		last := i == len(names) || dir == "/"
		mode := info.Mode()
		sticky := mode&fs.ModeSticky != 0 && !last
		switch {
		case stat.Uid != 0 && stat.Uid != uint32(os.Geteuid()):
			return fmt.Errorf("%s belongs to user %d, who is neither root nor this process's (%d); %s", at, stat.Uid, os.Geteuid(), remedy)
		case mode&fs.ModeSymlink != 0: // where it leads is looked at too
		case !info.IsDir():
			return fmt.Errorf("%s is no directory", at)
		case mode&0o002 != 0 && !sticky:
			return fmt.Errorf("%s can be written by everybody (mode %04o); %s", at, mode.Perm(), remedy)
		case mode&0o020 != 0 && stat.Gid != 0 && !sticky:
			return fmt.Errorf("%s can be written by group %d (mode %04o); %s", at, stat.Gid, mode.Perm(), remedy)
		}
		if last {
			return nil
		}
		at = filepath.Join(at, names[i])
	}
}

// makePlace makes the directory of a socket if it is missing, and checks it.
func makePlace(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("the directory of the socket cannot be made: %w", err)
	}
	return CheckPlace(dir)
}
