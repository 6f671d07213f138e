package resourcemanager

import "net"

// maxManagers is how many resource managers a list has.
const maxManagers = 100

// AreManagers reports whether a list that a master was told is one of gRPC addresses (host:port) of resource managers. If it is empty,
// too long, or has something else in it, what was known before is better.
func AreManagers(addresses []string) bool {
	for _, a := range addresses {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return false
		}
	}
	return len(addresses) > 0 && len(addresses) <= maxManagers
}
