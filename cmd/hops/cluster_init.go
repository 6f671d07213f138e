package main

import (
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/security"
)

// setupFlags are those of init and join.
func setupFlags(roles string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "roles", Value: roles, Usage: "`ROLES` of this machine, with commas: namenode, datanode, resourcemanager, nodemanager"},
		&cli.StringFlag{Name: "address", Usage: "`HOST`: name or address at which the others reach this machine; default: the one that it uses itself"},
		&cli.StringFlag{Name: "machine", Usage: "`NAME` of this machine in the cluster; default: its host name"},
		&cli.StringFlag{Name: "dir", Value: "/etc/hops", Usage: "`DIR` for the configuration and the machine's keys"},
		&cli.StringFlag{Name: "data", Value: "/var/lib/hops", Usage: "`DIR` for what the servers keep"},
		&cli.BoolFlag{Name: "run", Usage: "stay, and run the servers until a signal, as in a container; a machine that is in the cluster already is started again"},
		&cli.StringFlag{Name: "gpus", Value: "auto", Usage: "`WHICH` of the node manager: auto, none, sim:N, or a file that describes simulated ones"},
	}
}

// setup reads setupFlags. towards is another machine, or an address that is far away.
func setup(c *cli.Context, towards string) (*machineSetup, error) {
	may, err := authority.ParseRoles(c.String("roles"))
	if err != nil {
		return nil, fail(exitUsage, "--roles: %w", err)
	}
	m := &machineSetup{roles: may, name: c.String("machine"), address: c.String("address"), gpus: c.String("gpus"), run: c.Bool("run")}
	if m.name == "" {
		m.name = defaultName()
	}
	if m.address == "" {
		if m.address, err = addressTowards(towards); err != nil {
			return nil, fail(exitUsage, "this machine's address is not known (%w): say by --address at which name or address the others reach it", err)
		}
	}
	if ip := net.ParseIP(m.address); ip != nil && ip.IsUnspecified() {
		return nil, fail(exitUsage, "--address: %s is no address that anybody can reach", m.address)
	}
	if err := (&authority.Name{Cluster: "c", Machine: m.name, Generation: 1, Roles: may}).Validate(); err != nil {
		return nil, fail(exitUsage, "--machine: %w", err)
	}
	for name, at := range map[string]*string{"dir": &m.dir, "data": &m.data} {
		if *at, err = filepath.Abs(c.String(name)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func clusterInit(c *cli.Context) (err error) {
	if c.Args().Present() {
		return fail(exitUsage, "cluster init takes no argument: %q", c.Args().First())
	}
	m, err := setup(c, "192.0.2.1:9") // an address of nobody's (RFC 5737)
	if err != nil {
		return err
	}
	if m.cluster = c.String("name"); m.cluster == "" || strings.ContainsAny(m.cluster, "/:@ \t\n") {
		return fail(exitUsage, "--name %q is no name of a cluster, which becomes the host of hdfs:// addresses", m.cluster)
	}
	if !m.has(authority.Namenode) {
		return fail(exitUsage, "the first machine of a cluster has a namenode: add namenode to --roles")
	}
	if m.has(authority.NodeManager) && !m.has(authority.ResourceManager) {
		return fail(exitUsage, "a node manager needs a resource manager: add resourcemanager to --roles, or leave nodemanager out")
	}
	if m.member() {
		return m.again(c.Context)
	}
	if err := m.fresh(); err != nil {
		return err
	}
	founded := false
	defer func() {
		if err != nil && !founded {
			err = m.unfound(err)
		}
	}()
	if err := m.found(); err != nil {
		return err
	}
	if err := m.start(c.Context, c.App.Writer); err != nil {
		return err
	}
	if m.run { // tokens are no matter for a log
		fmt.Fprintf(c.App.Writer, "cluster %s is ready; `hops cluster token` lets other machines in\n", m.cluster)
		founded = true
		return m.stay(c.Context)
	}
	token, err := askToken(c.Context, m.at(devPorts.http), m.dir, []authority.Role{authority.Datanode, authority.NodeManager}, 24*time.Hour, 100)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "\ncluster %s is ready; HADOOP_CONF_DIR=%s finds it.\nOn each other machine, within 24 hours (it is a secret):\n\n%s\n", m.cluster, m.file("conf"), joinLine(token))
	return nil
}

// unfound takes back what found and start have made, after an error, and says what is left.
func (m *machineSetup) unfound(err error) error {
	err = fmt.Errorf("%w; nothing of the cluster is left", err)
	for _, left := range []error{m.undo(), os.RemoveAll(filepath.Join(m.data, "namenode")), os.RemoveAll(filepath.Join(m.data, "resourcemanager"))} {
		if left != nil {
			err = fmt.Errorf("%w, but %w", err, left)
		}
	}
	return &leftError{err}
}

// found makes the files of a cluster's first machine.
func (m *machineSetup) found() error {
	var may []authority.Role
	may = append(may, m.roles...)
	slices.Sort(may)
	m.made = append(m.made, m.file("authority.pem"))
	if err := roles.Found(m.file("identity.pem"), m.name, may, m.certified()); err != nil {
		return err
	}
	if err := m.own("identity.pem"); err != nil {
		return err
	}
	if err := m.own("authority.pem"); err != nil {
		return err
	}
	if _, err := security.CreateSecret(m.file("secret")); err != nil {
		return err
	}
	if err := m.own("secret"); err != nil {
		return err
	}
	servers := config.Servers{Namenodes: []config.NamenodeMember{m.namenode()}}
	if m.has(authority.ResourceManager) {
		servers.ResourceManagers = []config.ManagerMember{m.manager()}
	}
	if err := servers.Write(m.file("servers.yaml")); err != nil {
		return err
	}
	if err := m.own("servers.yaml"); err != nil {
		return err
	}
	return m.configure()
}

// operator is the name under which this program speaks to namenodes: who runs it, or whom name or HADOOP_USER_NAME names. Root, who
// may be anybody on a machine, is the user whom its servers run as, to whom dir belongs, the directory of their configuration.
func operator(name, dir string) (string, error) {
	if name == "" {
		name = os.Getenv("HADOOP_USER_NAME")
	}
	if name != "" {
		return name, nil
	}
	id := os.Geteuid()
	if info, err := os.Stat(dir); err == nil && id == 0 {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			id = int(s.Uid)
		}
	}
	who, err := user.LookupId(strconv.Itoa(id))
	if err != nil {
		return "", err
	}
	return who.Username, nil
}
