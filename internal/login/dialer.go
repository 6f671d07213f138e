package login

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
)

// None as the name of a file says that the servers are not known, and are spoken to in plain.
const None = "none"

// InContainer reports whether this is a program of a container: it has what the container was given, and never a login.
func InContainer() bool { return os.Getenv("HOPS_CONTAINER_ID") != "" }

// Default is the login of this process's user; nil: there is none, or this is a container.
func Default() (*File, error) {
	if InContainer() {
		return nil, nil
	}
	path, err := Path()
	if err != nil {
		return nil, nil //nolint:nilerr // a user without a home
	}
	f, err := Load(path)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	return f, err
}

// Chosen is the login that counts where nobody has named a cluster in another way: that of $HOPS_LOGIN, which has to be there, else
// without HADOOP_CONF_DIR that of this process's user. nil: there is none, or this is a container.
func Chosen() (*File, error) {
	if InContainer() {
		return nil, nil
	}
	if path := os.Getenv(Variable); path != "" {
		f, err := Load(path)
		if errors.Is(err, ErrNone) {
			return nil, fmt.Errorf("%s is %s, and no file is there", Variable, path)
		}
		return f, err
	}
	if os.Getenv("HADOOP_CONF_DIR") != "" {
		return nil, nil
	}
	return Default()
}

// IPC are the namenodes' addresses for Hadoop's protocol.
func (f *File) IPC() []string {
	var out []string
	for _, n := range f.Namenodes {
		out = append(out, n.IPC)
	}
	return out
}

// Dialer connects to the servers of a cluster whose authorities are in the file roots, in PEM; empty: in a container those that it
// was given ($HOPS_AUTHORITY), else those of the login f, if there is one. None: in plain.
func Dialer(roots string, f *File) (*security.Dialer, error) {
	switch roots = cmp.Or(roots, os.Getenv("HOPS_AUTHORITY")); {
	case roots == None:
		return &security.Dialer{Plain: true}, nil
	case roots != "":
		trust, err := authority.TrustFile(roots)
		if err != nil {
			return nil, fmt.Errorf("the certificates of the cluster's authorities (hops.cluster.roots): %w", err)
		}
		return &security.Dialer{Trust: trust}, nil
	case f != nil:
		return &security.Dialer{Trust: f.trust}, nil
	}
	return &security.Dialer{}, nil
}
