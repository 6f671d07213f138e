package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/security"
)

// machineSetup is a machine that gets into a cluster: where its files are, and what it is to be.
type machineSetup struct {
	dir, data string
	cluster   string // its name
	name      string
	address   string
	roles     []authority.Role
	gpus      string
	settings  map[string]string // under Hadoop's names
	run       bool              // its servers are run by this process, which stays

	here   func(remote, local netip.Addr) bool // for tests: whether both ends of a connection are on this machine
	probe  *http.Client                        // asks the servers, as this machine
	made   []string                            // files that are this one's, in the order in which they were made
	began  []*child
	serve  []authority.Role // those that were seen to
	failed chan error       // a server that began has ended
}

func (m *machineSetup) has(r authority.Role) bool { return slices.Contains(m.roles, r) }

func (m *machineSetup) file(name string) string { return filepath.Join(m.dir, name) }

// at is where this machine listens.
func (m *machineSetup) at(port int) string { return net.JoinHostPort(m.address, strconv.Itoa(port)) }

func (m *machineSetup) namenode() config.NamenodeMember {
	return config.NamenodeMember{ID: m.name, IPC: m.at(devPorts.ipc), HTTP: m.at(devPorts.http), GRPC: m.at(devPorts.grpc), Raft: m.at(devPorts.raft)}
}

// rmRaft is the port of the resource manager's Raft group, which has one of its own.
const rmRaft = 8587

func (m *machineSetup) manager() config.ManagerMember {
	return config.ManagerMember{ID: m.name, IPC: m.at(devPorts.rmIPC), HTTP: m.at(devPorts.rm), GRPC: m.at(devPorts.rmGRPC), Raft: m.at(rmRaft)}
}

// raft is where a role's member of its group is; "": it has no group.
func (m *machineSetup) raft(r authority.Role) string {
	switch r {
	case authority.Namenode:
		return m.namenode().Raft
	case authority.ResourceManager:
		return m.manager().Raft
	}
	return ""
}

// http is where a role answers /readyz.
func (m *machineSetup) http(r authority.Role) string {
	switch r {
	case authority.Namenode:
		return m.at(devPorts.http)
	case authority.ResourceManager:
		return m.at(devPorts.rm)
	case authority.Datanode:
		return m.at(devPorts.datanode[1])
	}
	return m.at(devPorts.nm)
}

// listens are all addresses of the roles.
func (m *machineSetup) listens() []string {
	var out []string
	for _, r := range m.roles {
		switch r {
		case authority.Namenode:
			n := m.namenode()
			out = append(out, n.IPC, n.HTTP, n.GRPC, n.Raft, m.at(devPorts.transfer))
		case authority.ResourceManager:
			r := m.manager()
			out = append(out, r.HTTP, r.GRPC, r.Raft)
		case authority.Datanode:
			for _, port := range devPorts.datanode {
				out = append(out, m.at(port))
			}
		case authority.NodeManager:
			out = append(out, m.at(devPorts.nm), m.at(devPorts.nmIPC), m.at(devPorts.nmShuffle))
		}
	}
	return out
}

// fresh makes sure that nothing of a cluster is here, and that the addresses are free.
func (m *machineSetup) fresh() error {
	if _, err := os.Stat(m.file("hops.yaml")); err == nil {
		return fmt.Errorf("this machine is in a cluster already: %s says which. To take it out for good, stop its servers and remove that file, identity.pem, servers.yaml and secret beside it", m.file("hops.yaml"))
	}
	var files []string
	for _, name := range []string{"identity.pem", "authority.pem", "servers.yaml", "secret", joining} {
		files = append(files, m.file(name))
	}
	for _, file := range files {
		if _, err := os.Lstat(file); err == nil {
			return fmt.Errorf("%s is left of a machine that did not get into its cluster: rm -f %s, and try again", file, strings.Join(files, " "))
		}
	}
	if !security.Loopback(m.address) {
		if _, err := security.Reachable(m.address); err != nil { // before a token is used
			return fmt.Errorf("--address: %w", err)
		}
	}
	for _, r := range []authority.Role{authority.Namenode, authority.ResourceManager} {
		data := filepath.Join(m.data, string(r))
		if entries, err := os.ReadDir(data); m.has(r) && err == nil && len(entries) > 0 {
			return fmt.Errorf("%s has the data of a %s: choose another --data, or remove it if nobody needs it", data, r)
		}
	}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return err
	}
	for _, addr := range m.listens() {
		l, err := net.Listen("tcp", addr)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("%s is taken by another program: end it first", addr)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			return fmt.Errorf("%s is no address of this machine: say which one is, by --address", m.address)
		case err != nil:
			return err
		}
		l.Close()
	}
	return nil
}

// own notes a file that was made, and gives it the owner of its directory: the user that servers run as.
func (m *machineSetup) own(name string) error {
	m.made = append(m.made, m.file(name))
	if uid, gid := m.owner(); os.Geteuid() == 0 {
		return os.Chown(m.file(name), uid, gid)
	}
	return nil
}

// owner of the configuration.
func (m *machineSetup) owner() (uid, gid int) {
	if info, err := os.Stat(m.dir); err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			return int(s.Uid), int(s.Gid)
		}
	}
	return os.Getuid(), os.Getgid()
}

// configure writes hops.yaml and reads it, as servers will. From then on the machine is a member, see member.
func (m *machineSetup) configure() error {
	if err := makeReachable(m.data); err != nil {
		return err
	}
	if err := writeNew(m.file("hops.yaml"), m.text(), 0o644); err != nil {
		return err
	}
	if err := m.own("hops.yaml"); err != nil {
		return err
	}
	_, err := config.Load(m.file("hops.yaml"))
	return err
}

// makeReachable makes a directory with those above it, all of which everybody may search, whatever the umask: containers are below
// it. What is there stays as it is.
func makeReachable(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeReachable(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// writeNew makes a file, wholly or not at all: what it says is believed when it is there. fs.ErrExist: there is one.
func writeNew(path, text string, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Link(f.Name(), path)
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// text is hops.yaml. What stands in quotes is written as in Go, which YAML reads alike.
func (m *machineSetup) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# docs/reference/configuration.md has all keys. The cluster's namenodes and resource managers are in servers.yaml.\n")
	fmt.Fprintf(&b, "cluster:\n  name: %q\n  identity: %q\n  conf: %q\n", m.cluster, m.file("identity.pem"), m.file("conf"))
	if m.has(authority.Namenode) || m.has(authority.ResourceManager) {
		fmt.Fprintf(&b, "  secret_file: %q\n", m.file("secret"))
	}
	at := func(role string) string { return filepath.Join(m.data, role) }
	for _, r := range m.roles {
		switch r {
		case authority.Namenode:
			fmt.Fprintf(&b, "namenode:\n  id: %q\n  data: %q\n", m.name, at("namenode"))
		case authority.ResourceManager:
			fmt.Fprintf(&b, "resourcemanager:\n  id: %q\n  data: %q\n", m.name, at("resourcemanager"))
			b.WriteString("  queues: {root: {acl_submit: [\"*\"], children: {default: {capacity: 100%}}}}   # every user may submit: containers are their users\n")
		case authority.Datanode:
			fmt.Fprintf(&b, "datanode:\n  volumes:\n    - path: %q\n", at("datanode"))
			for i, name := range []string{"transfer", "http", "ipc", "grpc"} {
				fmt.Fprintf(&b, "  %s: %q\n", name, m.at(devPorts.datanode[i]))
			}
		case authority.NodeManager:
			own := machine()
			fmt.Fprintf(&b, "nodemanager:\n  work: %q\n  http: %q\n  ipc: %q\n  shuffle: %q\n  memory: %dMiB\n  vcores: %d\n  gpus: %q\n", at("nodemanager"), m.at(devPorts.nm), m.at(devPorts.nmIPC), m.at(devPorts.nmShuffle), own.memory>>20, own.cores, m.gpus)
			if os.Geteuid() == 0 {
				b.WriteString("  banned_users: [root, hdfs, yarn, mapred, bin]   # the node manager is root: without root here, root's containers would be, too\n")
			}
		}
	}
	for i, name := range sortedKeys(m.settings) {
		if i == 0 {
			b.WriteString("properties:\n")
		}
		fmt.Fprintf(&b, "  %q: %q\n", name, m.settings[name])
	}
	return b.String()
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// systemd reports whether the units of the package can start the roles.
func (m *machineSetup) systemd() bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil || m.run || m.dir != "/etc/hops" || m.data != "/var/lib/hops" {
		return false
	}
	return exec.Command("systemctl", "cat", "hops@namenode.service").Run() == nil
}

// startOrder: who is first needs nobody.
var startOrder = []authority.Role{authority.ResourceManager, authority.Namenode, authority.Datanode, authority.NodeManager}

// start starts the roles, each when those before it serve, and says so.
func (m *machineSetup) start(ctx context.Context, out io.Writer) error {
	m.failed = make(chan error, len(m.roles))
	if err := m.know(); err != nil {
		return err
	}
	units := m.systemd()
	for _, r := range startOrder {
		if !m.has(r) {
			continue
		}
		var how string
		if units {
			how = "hops@" + string(r) + ".service"
			if text, err := exec.CommandContext(ctx, "systemctl", "enable", "--now", how).CombinedOutput(); err != nil {
				return fmt.Errorf("systemctl enable --now %s: %w: %s", how, err, strings.TrimSpace(string(text)))
			}
		} else {
			if err := m.spawn(r); err != nil {
				return err
			}
			how = fmt.Sprintf("process %d", m.began[len(m.began)-1].cmd.Process.Pid)
			if !m.run {
				how += ", log " + m.log(r)
			}
		}
		if !m.alone(r) { // it is of use when the group has taken it
			if err := m.enlist(ctx, r); err != nil {
				return err
			}
		}
		if err := m.await(ctx, r); err != nil {
			return err
		}
		m.serve = append(m.serve, r)
		fmt.Fprintf(out, "%s serves at http://%s (%s)\n", r, m.http(r), how)
	}
	return m.enlisted()
}

// know makes the commands speak as this machine: at an address of it that is not the one that connections come from, its servers count as
// elsewhere, and take TLS alone.
func (m *machineSetup) know() error {
	i, err := authority.LoadIdentity(m.file("identity.pem"))
	if err != nil {
		return err
	}
	member, err := i.Member(time.Now)
	if err != nil {
		return err
	}
	toServers.Transport = (&security.Dialer{Member: member, Here: m.here}).Transport()
	m.probe = &http.Client{Transport: toServers.Transport}
	return nil
}

// alone: the cluster has no other server of a role of which several are a group.
func (m *machineSetup) alone(r authority.Role) bool {
	s, err := config.LoadServers(m.file("servers.yaml"))
	switch r {
	case authority.Namenode:
		return err == nil && len(s.Namenodes) <= 1
	case authority.ResourceManager:
		return err == nil && len(s.ResourceManagers) <= 1
	}
	return true
}

func (m *machineSetup) log(r authority.Role) string {
	return filepath.Join(m.data, "logs", string(r)+".log")
}

// spawn starts a role as a process that outlives this one.
func (m *machineSetup) spawn(r authority.Role) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(executable, "server", "--role", string(r), "-c", m.file("hops.yaml"))
	cmd.Dir, cmd.SysProcAttr = m.data, &syscall.SysProcAttr{Setsid: true}
	said := func() string { return "" }
	if m.run {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	} else {
		if err := os.MkdirAll(filepath.Dir(m.log(r)), 0o755); err != nil {
			return err
		}
		log, err := os.OpenFile(m.log(r), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
		if err != nil {
			return err
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
		said = func() string { return fmt.Sprintf("; the end of %s:\n%s", m.log(r), processes.Tail(m.log(r), 5)) }
	}
	// As the units of the package: the node manager is root, who starts containers as their users; the others are not.
	if uid, gid := m.owner(); m.servesAs(r, uid) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(m.data, uid, gid); err != nil {
			return err
		}
	}
	return m.begin(r, cmd, said)
}

// servesAs reports whether a role does not run as who runs this program, but as the user to whom the configuration belongs.
func (m *machineSetup) servesAs(r authority.Role, owner int) bool {
	return os.Geteuid() == 0 && owner != 0 && r != authority.NodeManager
}

// userOf is the name of a user, or its number where it has none.
func userOf(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// begin starts a server; when it ends, failed hears of it, with what it said at last.
func (m *machineSetup) begin(r authority.Role, cmd *exec.Cmd, said func() string) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &child{role: r, cmd: cmd, ended: make(chan struct{})}
	m.began = append(m.began, p)
	go func() {
		defer close(p.ended)
		err := cmd.Wait()
		if err == nil {
			err = errors.New("by itself")
		}
		m.failed <- fmt.Errorf("the %s ended (%w)%s", r, err, said())
	}()
	return nil
}

// roleTime is how long a role may take to serve.
const roleTime = 2 * time.Minute

// await waits until a role is of use.
func (m *machineSetup) await(told context.Context, r authority.Role) error {
	ctx, cancel := context.WithTimeout(told, roleTime)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		said := m.ready(ctx, r)
		if said == "" {
			return nil
		}
		select {
		case err := <-m.failed:
			return err
		case <-ctx.Done():
			if told.Err() != nil {
				return fmt.Errorf("the %s does not serve yet: %w", r, told.Err())
			}
			return fmt.Errorf("the %s does not serve after %v: %s", r, roleTime, said)
		case <-time.After(pause):
		}
	}
}

// ready asks a role; "": it is ready.
func (m *machineSetup) ready(ctx context.Context, r authority.Role) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.http(r)+"/readyz", nil)
	if err != nil {
		return err.Error()
	}
	answer, err := m.probe.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if answer.StatusCode == http.StatusOK {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// undo ends what was started, and removes the files that were made.
func (m *machineSetup) undo() error {
	if m.systemd() {
		for _, r := range m.roles {
			_ = exec.Command("systemctl", "disable", "--now", "hops@"+string(r)+".service").Run()
		}
	}
	for _, p := range slices.Backward(m.began) {
		_ = p.cmd.Process.Kill()
	}
	var errs []error
	for _, name := range m.made {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// defaultName is this machine's, as its members call it.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(host, ".")
	return name
}

// addressTowards is this machine's address on the way to another one.
func addressTowards(addr string) (string, error) {
	c, err := net.Dial("udp", addr) // nothing is sent
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String(), nil
}

// certified are the names and addresses that a machine's certificate is good for.
func (m *machineSetup) certified() []string {
	out := []string{m.address}
	if m.name != m.address {
		out = append(out, m.name)
	}
	return out
}
