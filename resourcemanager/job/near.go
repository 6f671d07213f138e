package job

import (
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Near says where containers are wanted because what they read is there, see rm.NearWords.
type Near struct {
	// Paths of files and directories of the filesystem, such as a data set or a checkpoint; the resource manager looks up where their blocks are.
	Paths []string `json:"paths,omitempty"`
	// Hosts are host names, or ids of nodes.
	Hosts []string `json:"hosts,omitempty"`
	// Racks are the paths of racks, or parts of these from their beginning.
	Racks []string `json:"racks,omitempty"`
	// Wait is how long a container waits for one of the hosts while there is room elsewhere, and then as long for one of the racks. Absent: as the
	// cluster is configured; 0: not at all.
	Wait *Duration `json:"wait,omitempty"`
}

// MaxNearHosts bounds the hosts of a preference.
const MaxNearHosts = 1_000

// IsZero reports whether it says nothing.
func (n Near) IsZero() bool { return len(n.Paths)+len(n.Hosts)+len(n.Racks) == 0 && n.Wait == nil }

// Words checks what is said. Errors are of kind metadata.ErrInvalidArgument.
func (n Near) Words() (rm.Near, error) {
	if len(n.Hosts) > MaxNearHosts {
		return rm.Near{}, metadata.Errorf(metadata.ErrInvalidArgument, "near: %d hosts: at most %d", len(n.Hosts), MaxNearHosts)
	}
	w := rm.NearWords{Paths: n.Paths, Racks: n.Racks}
	for _, h := range n.Hosts {
		w.Hosts = append(w.Hosts, rm.NearHost{Host: h})
	}
	if n.Wait != nil {
		if w.Wait = time.Duration(*n.Wait); w.Wait == 0 {
			w.Wait = rm.NoWait
		}
	}
	return rm.NewNear(w)
}
