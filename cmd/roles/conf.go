package roles

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/security"
)

// rootsFile has the certificates of the cluster's authorities, beside the site files.
const rootsFile = "ca.pem"

// WriteConf writes the files by which Hadoop's clients, and hops itself, find the cluster; of one that is reached from other
// machines the certificates of its authorities, too.
func WriteConf(dir string, f *config.File, roots []*x509.Certificate) error {
	core := [][2]string{{"fs.defaultFS", FSURI(f)}}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	secure := len(roots) > 0 && beyond(f)
	if secure {
		core = append(core, [2]string{"hops.cluster.roots", filepath.Join(dir, rootsFile)})
		if identity, err := filepath.Abs(f.Cluster.Identity); err == nil && f.Cluster.Identity != "" {
			core = append(core, [2]string{"hops.cluster.identity", identity})
		}
	}
	var hdfs [][2]string
	for _, p := range f.HadoopProperties().Pairs() {
		if strings.HasPrefix(p[0], "hadoop.") { // read before hdfs-site.xml is
			core = append(core, p)
		} else {
			hdfs = append(hdfs, p)
		}
	}
	hdfs = slices.DeleteFunc(hdfs, func(p [2]string) bool { return p[0] == config.SocketProperty })
	if path := f.SocketPath(f.Datanode); path != "" {
		hdfs = append(hdfs, [2]string{config.SocketProperty, path})
	}
	if len(f.Namenodes) > 1 {
		name := f.Cluster.Name
		hdfs = append(hdfs,
			[2]string{"dfs.nameservices", name},
			[2]string{"dfs.ha.namenodes." + name, strings.Join(namenodes(f, func(n config.NamenodeMember) string { return n.ID }), ",")},
			[2]string{"dfs.client.failover.proxy.provider." + name, "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"},
			[2]string{"dfs.ha.fencing.methods", "shell(/bin/true)"}, // haadmin wants some; the namenodes fence each other
		)
		for _, n := range f.Namenodes {
			hdfs = append(hdfs, [2]string{"dfs.namenode.rpc-address." + name + "." + n.ID, n.IPC}, [2]string{"dfs.namenode.http-address." + name + "." + n.ID, n.HTTP})
			if secure { // the port takes both
				hdfs = append(hdfs, [2]string{"dfs.namenode.https-address." + name + "." + n.ID, n.HTTP})
			}
		}
	} else if len(f.Namenodes) == 1 {
		hdfs = append(hdfs, [2]string{"dfs.namenode.rpc-address", f.Namenodes[0].IPC}, [2]string{"dfs.namenode.http-address", f.Namenodes[0].HTTP})
		if secure {
			hdfs = append(hdfs, [2]string{"dfs.namenode.https-address", f.Namenodes[0].HTTP})
		}
	}
	yarn := yarnSite(f, secure)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if secure {
		if err := writeFile(filepath.Join(dir, rootsFile), authority.MarshalRoots(roots)); err != nil {
			return err
		}
	}
	for _, site := range []struct {
		name  string
		pairs [][2]string
	}{{"yarn-site.xml", yarn}, {"hdfs-site.xml", hdfs}, {"core-site.xml", core}} { // the last names the cluster: who sees it finds the others
		if err := writeFile(filepath.Join(dir, site.name), siteXML(site.pairs)); err != nil {
			return err
		}
	}
	return nil
}

// yarnSite is by which Hadoop's and Spark's clients find the resource managers.
func yarnSite(f *config.File, secure bool) (out [][2]string) {
	several := len(f.ResourceManagers) > 1
	if several {
		out = append(out,
			[2]string{"yarn.resourcemanager.ha.enabled", "true"},
			[2]string{"yarn.resourcemanager.cluster-id", f.Cluster.Name},
			[2]string{"yarn.resourcemanager.ha.rm-ids", strings.Join(managers(f, func(m config.ManagerMember) string { return m.ID }), ",")},
		)
	}
	if slices.ContainsFunc(f.ResourceManagers, func(m config.ManagerMember) bool { return m.IPC != "" }) {
		// Clients ask for what is declared; masters know only what their configuration names, and would drop GPUs from their requests.
		out = append(out, [2]string{"yarn.client.load.resource-types.from-server", "true"}, [2]string{"yarn.resource-types", "yarn.io/gpu"})
	}
	for _, m := range f.ResourceManagers {
		of := func(name string) string {
			if several {
				name += "." + m.ID
			}
			return "yarn.resourcemanager." + name
		}
		if host, _, err := net.SplitHostPort(m.HTTP); err == nil {
			out = append(out, [2]string{of("hostname"), host})
		}
		out = append(out, [2]string{of("webapp.address"), m.HTTP})
		if m.IPC != "" { // each port speaks all protocols
			for _, name := range []string{"address", "scheduler.address", "admin.address"} {
				out = append(out, [2]string{of(name), m.IPC})
			}
		}
		if secure { // the port takes both
			out = append(out, [2]string{of("webapp.https.address"), m.HTTP})
		}
	}
	return out
}

// beyond reports whether some namenode or resource manager is reached from other machines.
func beyond(f *config.File) bool {
	addresses := append(ipc(f), managers(f, func(m config.ManagerMember) string { return m.HTTP })...)
	return slices.ContainsFunc(addresses, func(a string) bool {
		host, _, err := net.SplitHostPort(a)
		return err == nil && !security.Loopback(host)
	})
}

func siteXML(pairs [][2]string) []byte {
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	var b strings.Builder
	b.WriteString("<?xml version=\"1.0\"?>\n<configuration>\n")
	for _, p := range pairs {
		fmt.Fprintf(&b, "  <property><name>%s</name><value>%s</value></property>\n", escape.Replace(p[0]), escape.Replace(p[1]))
	}
	b.WriteString("</configuration>\n")
	return []byte(b.String())
}

// writeFile replaces a file at once, so that a reader never sees half of it, unless it has that content: a server starts
// on a full disk, too.
func writeFile(name string, data []byte) error {
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, data) {
		return nil
	}
	temporary := fmt.Sprintf("%s.%d.tmp", name, os.Getpid())
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, name)
}
