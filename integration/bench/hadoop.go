package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
)

const hadoopVersion = "3.4.3"

// findHadoop returns the directory with Hadoop's jars, which it fetches with Maven when they are not there; `make compat`
// uses the same directory. The error is a line that says what is missing.
func findHadoop(ctx context.Context, cache string, say func(string, ...any)) (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", errors.New("java is not installed: install a JDK 17")
	}
	if cache == "" {
		cache = os.Getenv("HOPS_COMPAT_CACHE")
	}
	if cache == "" {
		cache = "integration/hadoop/.cache"
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	jars := filepath.Join(cache, "hadoop-"+hadoopVersion)
	complete := func() bool {
		for _, name := range []string{"hadoop-hdfs-" + hadoopVersion + ".jar", "hadoop-common-" + hadoopVersion + ".jar"} {
			if _, err := os.Stat(filepath.Join(jars, name)); err != nil {
				return false
			}
		}
		return true
	}
	if complete() {
		return jars, nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return "", fmt.Errorf("Maven is not installed, and Hadoop's jars are not in %s: install Maven 3", jars)
	}
	say("fetching Apache Hadoop %s with Maven, once", hadoopVersion)
	partial := jars + ".partial"
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-ntp", "-q", "-f", "integration/hadoop/pom.xml", "dependency:copy-dependencies",
		"-DoutputDirectory="+partial, "-DincludeScope=runtime")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("Maven could not fetch Hadoop (%w): %s", err, lastLine(out))
	}
	if err := os.Rename(partial, jars); err != nil && !complete() {
		return "", err
	}
	return jars, nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// hadoop is a running Apache HDFS.
type hadoop struct {
	name  string // in tables
	dir   string
	jars  string
	ports processes.Ports
	mu    sync.Mutex
	procs map[string]*java // guarded by mu
	nodes []string         // addresses of namenodes
	argv  map[string][]string
	heap  map[string]string
	count int // datanodes
}

type java struct {
	cmd  *exec.Cmd
	done chan struct{}
	// expected: it is being ended on purpose.
	expected bool
}

// opens is what Hadoop's reflection needs on JDK 17.
var opens = func() []string {
	var out []string
	for _, p := range []string{"lang", "util", "util.concurrent", "nio", "net", "io"} {
		out = append(out, "--add-opens=java.base/java."+p+"=ALL-UNNAMED")
	}
	return append(out, "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
}()

const (
	classNamenode    = "org.apache.hadoop.hdfs.server.namenode.NameNode"
	classDatanode    = "org.apache.hadoop.hdfs.server.datanode.DataNode"
	classJournalnode = "org.apache.hadoop.hdfs.qjournal.server.JournalNode"
	classController  = "org.apache.hadoop.hdfs.tools.DFSZKFailoverController"
	classZooKeeper   = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
	classShell       = "org.apache.hadoop.fs.FsShell"
	classAdmin       = "org.apache.hadoop.hdfs.tools.DFSAdmin"
)

// log4j keeps the audit log and per-block lines off, as Hadoop's own benchmarks do.
const log4j = `log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=OFF
log4j.logger.org.apache.hadoop.hdfs.StateChange=WARN
log4j.logger.BlockStateChange=WARN
`

// startHadoop brings up Apache HDFS with its documented production settings: edits are fsynced in groups, 64 handlers,
// CRC32C. With two namenodes: three journal nodes, ZooKeeper and failover controllers. sync: datanodes fsync blocks when
// they are closed, as hops does; HDFS's default does not.
func (r *runner) startHadoop(ctx context.Context, name, label string, sh shape, sync bool) (_ *hadoop, err error) {
	h := &hadoop{name: label, dir: filepath.Join(r.dir, name), jars: r.jars, procs: map[string]*java{}, argv: map[string][]string{}, heap: map[string]string{}, count: sh.datanodes}
	for _, d := range []string{"conf", "data", "logs", "tmp"} {
		if err := os.MkdirAll(filepath.Join(h.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.stop())
		}
	}()
	ha := sh.namenodes > 1
	free, err := h.ports.Take(2*sh.namenodes + 3*sh.datanodes + 12)
	if err != nil {
		return nil, err
	}
	next := func() string {
		a := free[0]
		free = free[1:]
		return a
	}
	data := func(name string) string { return filepath.Join(h.dir, "data", name) }
	core := [][2]string{{"fs.defaultFS", "hdfs://peer"}, {"hadoop.tmp.dir", data("tmp")}, {"ipc.server.listen.queue.size", "1024"}}
	hdfs := [][2]string{
		{"dfs.replication", "1"},
		{"dfs.namenode.handler.count", "64"},
		{"dfs.datanode.handler.count", "32"},
		{"dfs.datanode.max.transfer.threads", "8192"},
		{"dfs.namenode.safemode.extension", "0"},
		{"dfs.namenode.fs-limits.min-block-size", "0"},
		{"dfs.namenode.fs-limits.max-directory-items", "6400000"},
		{"dfs.namenode.datanode.registration.ip-hostname-check", "false"},
		{"dfs.datanode.synconclose", strconv.FormatBool(sync)},
	}
	if sh.datanodes > 3 { // block groups want all of them, and by default those are left out that have twice the average load, which is next to nothing here
		hdfs = append(hdfs, [2]string{"dfs.namenode.redundancy.considerLoad", "false"})
	}
	var zookeeper string
	var journals []string
	if ha {
		zookeeper = next()
		var quorum []string
		for range 3 {
			journals = append(journals, next())
			quorum = append(quorum, journals[len(journals)-1])
		}
		core = append(core, [2]string{"ha.zookeeper.quorum", zookeeper})
		hdfs = append(hdfs, [][2]string{
			{"dfs.nameservices", "peer"},
			{"dfs.ha.namenodes.peer", "nn1,nn2"},
			{"dfs.namenode.shared.edits.dir", "qjournal://" + strings.Join(quorum, ";") + "/peer"},
			{"dfs.client.failover.proxy.provider.peer", "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"},
			{"dfs.ha.automatic-failover.enabled", "true"},
			{"dfs.ha.fencing.methods", "shell(/bin/true)"},
		}...)
		for i := range 2 {
			id := fmt.Sprintf("nn%d", i+1)
			h.nodes = append(h.nodes, next())
			_, port, _ := net.SplitHostPort(next())
			hdfs = append(hdfs, [2]string{"dfs.namenode.rpc-address.peer." + id, h.nodes[i]}, [2]string{"dfs.namenode.http-address.peer." + id, next()},
				[2]string{"dfs.namenode.name.dir.peer." + id, "file://" + data(id)}, [2]string{"dfs.ha.zkfc.port.peer." + id, port})
		}
	} else {
		h.nodes = []string{next()}
		core[0][1] = "hdfs://" + h.nodes[0]
		hdfs = append(hdfs, [2]string{"dfs.namenode.rpc-address", h.nodes[0]}, [2]string{"dfs.namenode.http-address", next()},
			[2]string{"dfs.namenode.secondary.http-address", next()}, [2]string{"dfs.namenode.name.dir", "file://" + data("nn1")})
	}
	for file, text := range map[string]string{"core-site.xml": siteXML(core), "hdfs-site.xml": siteXML(hdfs), "log4j.properties": log4j} {
		if err := os.WriteFile(filepath.Join(h.dir, "conf", file), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	steps := []func() error{}
	step := func(f func() error) { steps = append(steps, f) }
	start := func(name, heap, class string, args ...string) {
		h.argv[name], h.heap[name] = append([]string{class}, args...), heap
		step(func() error { return h.start(name) })
	}
	once := func(class string, args ...string) {
		step(func() error { return h.once(ctx, class, args...) })
	}
	id := func(i int) []string {
		if !ha {
			return nil
		}
		return []string{"-D", fmt.Sprintf("dfs.ha.namenode.id=nn%d", i)}
	}
	if ha {
		if err := os.MkdirAll(data("zk"), 0o755); err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(zookeeper)
		zoo := fmt.Sprintf("tickTime=2000\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n", data("zk"), port)
		if err := os.WriteFile(data("zoo.cfg"), []byte(zoo), 0o644); err != nil {
			return nil, err
		}
		start("zk", "256m", classZooKeeper, data("zoo.cfg"))
		for i, a := range journals {
			start(fmt.Sprintf("jn%d", i+1), "512m", classJournalnode, "-D", "dfs.journalnode.rpc-address="+a, "-D", "dfs.journalnode.http-address="+next(),
				"-D", "dfs.journalnode.edits.dir="+data(fmt.Sprintf("jn%d", i+1)))
		}
		step(func() error { return h.listening(ctx, append(slices.Clone(journals), zookeeper)...) })
	}
	once(classNamenode, append(id(1), "-format", "-force", "-nonInteractive")...)
	if ha {
		once(classController, append(id(1), "-formatZK", "-force", "-nonInteractive")...)
	}
	heap := "4g"
	if ha {
		heap = "3g"
	} else if sh.datanodes > 1 {
		heap = "2g" // it serves rows with data only, beside a whole replicated HDFS
	}
	each := "1g"
	if sh.datanodes > 3 { // of a datanode; nine of them fit beside hops
		heap, each = "1g", "256m"
	}
	start("nn1", heap, classNamenode, id(1)...)
	step(func() error { return h.listening(ctx, h.nodes[0]) })
	if ha {
		once(classNamenode, append(id(2), "-bootstrapStandby", "-force", "-nonInteractive")...)
		start("nn2", heap, classNamenode, id(2)...)
		step(func() error { return h.listening(ctx, h.nodes[1]) })
		start("zkfc1", "256m", classController, id(1)...)
		start("zkfc2", "256m", classController, id(2)...)
	}
	for i := range sh.datanodes {
		name := fmt.Sprintf("dn%d", i+1)
		start(name, each, classDatanode, "-D", "dfs.datanode.address="+next(), "-D", "dfs.datanode.http.address="+next(), "-D", "dfs.datanode.ipc.address="+next(),
			"-D", "dfs.datanode.data.dir=file://"+data(name))
	}
	for _, do := range steps {
		if err := do(); err != nil {
			return nil, err
		}
	}
	r.watch(h)
	return h, ready(ctx, h, sh.datanodes, 3*time.Minute, h.died)
}

func siteXML(pairs [][2]string) string {
	var b strings.Builder
	b.WriteString("<?xml version=\"1.0\"?>\n<configuration>\n")
	for _, p := range pairs {
		fmt.Fprintf(&b, "  <property><name>%s</name><value>%s</value></property>\n", p[0], p[1])
	}
	b.WriteString("</configuration>\n")
	return b.String()
}

func (h *hadoop) args(heap, class string, args []string) []string {
	base := slices.Clone(opens)
	base = append(base, "-Djava.net.preferIPv4Stack=true", "-Djava.io.tmpdir="+filepath.Join(h.dir, "tmp"), "-Dhadoop.log.dir="+filepath.Join(h.dir, "logs"), "-XX:+UseG1GC")
	if heap != "" {
		base = append(base, "-Xms"+heap, "-Xmx"+heap)
	}
	return append(append(base, "-cp", filepath.Join(h.dir, "conf")+":"+h.jars+"/*", class), args...)
}

func (h *hadoop) log(name string) string { return filepath.Join(h.dir, "logs", name+".log") }

// start runs a server.
func (h *hadoop) start(name string) error {
	log, err := os.OpenFile(h.log(name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("java", h.args(h.heap[name], h.argv[name][0], h.argv[name][1:])...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := processes.Spawn(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	j := &java{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(j.done)
	}()
	h.mu.Lock()
	h.procs[name] = j
	h.mu.Unlock()
	return nil
}

// once runs a program to its end.
func (h *hadoop) once(ctx context.Context, class string, args ...string) error {
	cmd := exec.CommandContext(ctx, "java", h.args("", class, args)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := processes.Spawn(cmd, syscall.SIGKILL)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w%s", class[strings.LastIndexByte(class, '.')+1:], strings.Join(args, " "), err, cmp.Or(complaint(out.String()), ": "+lastLine(out.Bytes())))
	}
	return nil
}

// listening waits until somebody listens at the addresses.
func (h *hadoop) listening(ctx context.Context, addrs ...string) error {
	deadline := time.Now().Add(2 * time.Minute)
	for _, a := range addrs {
		for {
			conn, err := net.DialTimeout("tcp", a, time.Second)
			if err == nil {
				conn.Close()
				break
			}
			if err := h.died(); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("Apache HDFS: nobody listens at %s after two minutes", a)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// died names a server that ended by itself.
func (h *hadoop) died() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, j := range h.procs {
		select {
		case <-j.done:
			if !j.expected {
				return fmt.Errorf("the %s of Apache HDFS ended by itself (%v)%s: run again, with -keep if you need its log", name, j.cmd.ProcessState, complaint(processes.Tail(h.log(name), 100)))
			}
		default:
		}
	}
	return nil
}

// complaint is the line of a Java program's output that says most about why it ended: the last exception that is the
// cause of no other.
func complaint(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		line := lines[i]
		if strings.HasPrefix(line, "java.") || strings.HasPrefix(line, "org.apache.") || strings.Contains(line, "OutOfMemoryError") || strings.Contains(line, "No space left") {
			return ": " + line
		}
	}
	return ""
}

func (h *hadoop) label() string { return h.name }

func (h *hadoop) connect() (*dfs.Client, error) { return plainly(h.nodes) }

func (h *hadoop) servers() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]int{}
	for name, j := range h.procs {
		out[name] = j.cmd.Process.Pid
	}
	return out
}

func (h *hadoop) kill(name string) {
	h.mu.Lock()
	j := h.procs[name]
	j.expected = true
	h.mu.Unlock()
	_ = j.cmd.Process.Kill()
	<-j.done
}

func (h *hadoop) killLeader(ctx context.Context, host bool) (func(context.Context) error, error) {
	i, err := leader(ctx, h)
	if err != nil {
		return nil, err
	}
	names := []string{fmt.Sprintf("nn%d", i+1)}
	if host {
		names = append(names, fmt.Sprintf("zkfc%d", i+1))
	}
	for _, name := range names {
		h.kill(name)
	}
	return func(ctx context.Context) error {
		for _, name := range names {
			if err := h.start(name); err != nil {
				return err
			}
		}
		return standing(ctx, h)
	}, nil
}

func (h *hadoop) stop() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, j := range h.procs {
		j.expected = true
		_ = j.cmd.Process.Signal(syscall.SIGTERM)
	}
	patience := time.After(10 * time.Second)
	for _, j := range h.procs {
		select {
		case <-j.done:
		case <-patience:
			patience = nil
			for _, j := range h.procs {
				_ = j.cmd.Process.Kill()
			}
			<-j.done
		}
	}
	return h.ports.Close()
}
