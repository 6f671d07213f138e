package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gohops/hops/internal/yaml"
)

// Servers is servers.yaml: what a machine that joined knows of the others. Its servers replace the file when the cluster tells them of a
// change.
type Servers struct {
	Namenodes        []NamenodeMember `yaml:"namenodes"`
	ResourceManagers []ManagerMember  `yaml:"resourcemanagers"`
	// Removed are the machines that were removed from the cluster, each with the newest generation of it that is void.
	Removed map[string]uint64 `yaml:"removed,omitempty" json:"-"`
	// Revoked are the certificates of users that were revoked, by their ids.
	Revoked []string `yaml:"revoked,omitempty" json:"-"`
}

// Equal reports whether both have the same servers.
func (s Servers) Equal(o Servers) bool {
	return slices.Equal(s.Namenodes, o.Namenodes) && slices.Equal(s.ResourceManagers, o.ResourceManagers)
}

// maxServers is the size of the largest servers.yaml that is read, in bytes.
const maxServers = 4 << 20

// LoadServers reads servers.yaml. fs.ErrNotExist: there is none.
func LoadServers(path string) (*Servers, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("list of servers: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxServers+1))
	if err != nil {
		return nil, fmt.Errorf("list of servers: %w", err)
	}
	if len(text) > maxServers {
		return nil, fmt.Errorf("list of servers: %s has more than %d bytes", path, maxServers)
	}
	s := &Servers{}
	if err := yaml.UnmarshalStrict(path, text, s); err != nil {
		return nil, err
	}
	return s, nil
}

// Write replaces servers.yaml, wholly or not at all, unless it has that content.
func (s *Servers) Write(path string) error {
	text, err := yaml.Marshal(s)
	if err != nil {
		return err
	}
	text = append([]byte("# Written by the servers of this machine: what the cluster tells them. Changes are lost.\n"), text...)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(text) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// withServers gives a file that lists no servers those of servers.yaml.
func (f *File) withServers() error {
	if f.Followed = len(f.Namenodes)+len(f.ResourceManagers) == 0; !f.Followed || f.Cluster.Servers == "" {
		return nil
	}
	s, err := LoadServers(f.Cluster.Servers)
	if errors.Is(err, fs.ErrNotExist) {
		if f.Namenode == nil && f.Datanode == nil && f.ResourceManager == nil && f.NodeManager == nil {
			return nil
		}
		return fmt.Errorf("no namenodes are listed here, and %w: copy that file from another machine of the cluster, or let this one join", err)
	}
	if err != nil {
		return err
	}
	f.Namenodes, f.ResourceManagers, f.Removed, f.Revoked = s.Namenodes, s.ResourceManagers, s.Removed, s.Revoked
	return nil
}
