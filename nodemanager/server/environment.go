package server

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// inherited are the only variables of the daemon that containers see; nothing secret travels in these. A container may set
// its own value.
var inherited = []string{"PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "JAVA_HOME", "VIRTUAL_ENV", "PYENV_ROOT", "PYENV_VERSION"}

// platformPrefix begins the names of variables that are the cluster's own.
const platformPrefix = "HOPS_"

// environment builds the complete environment of a container. Precedence: what the platform says, then the container's own, then
// defaults. Of a launch in YARN's dialect the container's own are not in it.
func (s *Server) environment(spec *nodemanager.Spec, c *container, simulated bool) map[string]string {
	dir, a := c.dir, c.account
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/",
		"LANG": "C.UTF-8",
	}
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	if a != nil {
		env["HOME"] = a.Home
		if info, err := os.Stat(a.Home); err != nil || !info.IsDir() {
			env["HOME"] = filepath.Join(dir, "work")
		}
	}
	env["OMP_NUM_THREADS"] = strconv.Itoa(max(1, spec.Resources.VCores))
	env["TMPDIR"] = filepath.Join(dir, "tmp")
	for name, value := range spec.Env {
		if spec.Dialect != nodemanager.YARN || strings.HasPrefix(name, platformPrefix) { // the others are its script's
			env[name] = value
		}
	}
	if java := javaHome(); java != "" && spec.Dialect == nodemanager.YARN {
		env["JAVA_HOME"] = java
	}
	_, port, _ := net.SplitHostPort(s.config.NodeID)
	_, httpPort, _ := net.SplitHostPort(s.config.HTTP.Addr().String())
	work, logs := filepath.Join(dir, "work"), filepath.Join(dir, "logs")
	gpus := strings.Join(spec.Resources.GPUs, ",")
	place := s.place()
	set := map[string]string{
		"HOPS_APPLICATION_ID": string(spec.Application),
		"HOPS_ATTEMPT":        strconv.Itoa(spec.Attempt),
		"HOPS_CONTAINER_ID":   string(spec.ID),
		"HOPS_USER":           string(spec.User),
		"HOPS_WORK_DIR":       work,
		"HOPS_LOG_DIR":        logs,
		"HOPS_CLUSTER":        s.cluster(),
		"HOPS_QUEUE":          spec.Queue,
		"HOPS_FS":             place.cluster.FS,
		"HOPS_WEBHDFS":        strings.Join(place.cluster.WebHDFS, ","),
		"HOPS_RM":             strings.Join(place.cluster.ResourceManagers, ","),
		"HOPS_RM_GRPC":        strings.Join(place.managers, ","),
		"HADOOP_CONF_DIR":     place.cluster.HadoopConfDir,
		"HADOOP_USER_NAME":    string(spec.User),
		// Empty without GPUs: a container that was granted none must not find any.
		"CUDA_VISIBLE_DEVICES":   gpus,
		"NVIDIA_VISIBLE_DEVICES": gpus,
		"CUDA_DEVICE_ORDER":      "PCI_BUS_ID",
		// YARN's names.
		"CONTAINER_ID": string(spec.ID),
		"NM_HOST":      s.config.Host,
		"NM_PORT":      port,
		"NM_HTTP_PORT": httpPort,
		"LOCAL_DIRS":   filepath.Join(dir, "tmp"),
		"LOG_DIRS":     logs,
		"USER":         string(spec.User),
		"LOGNAME":      string(spec.User),
		"PWD":          work,
	}
	if spec.Dialect == nodemanager.YARN {
		set["LOCAL_DIRS"] = c.appDir(spec)
		set["LOCAL_USER_DIRS"] = set["LOCAL_DIRS"]
	}
	if len(spec.Resources.GPUs) == 0 {
		set["NVIDIA_VISIBLE_DEVICES"] = "void" // what NVIDIA's runtime calls "none"
	}
	if spec.Token != "" {
		set["HOPS_TOKEN"] = filepath.Join(dir, "token")
		set["HOPS_AUTHORITY"] = filepath.Join(dir, "authority.pem")
	}
	if spec.Dialect != nodemanager.YARN {
		set["HOPS_PREEMPTION_FILE"] = c.noticeFile()
	}
	if len(spec.Secrets) > 0 {
		set["HOPS_SECRETS_DIR"] = c.secretsDir()
	}
	if c.handed.Tokens != nil {
		set[token.LocationVariable] = filepath.Join(c.credentialsDir(), supervisor.TokensFile)
	}
	if simulated {
		set["HOPS_GPUS_SIMULATED"] = "1"
	}
	for k, v := range set {
		if v != "" || k == "CUDA_VISIBLE_DEVICES" {
			env[k] = v
		}
	}
	// Never in a container, whoever asks: it belongs to servers.
	delete(env, "HOPS_SECRET_FILE")
	return env
}

// pairs are variables as name=value, sorted.
func pairs(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// supervisorEnvironment is as little as a supervisor needs.
func supervisorEnvironment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "GOMAXPROCS=2"}
}

// mark recognises the container's processes when its supervisor is gone.
func mark(dir string) string { return supervisor.Mark(filepath.Join(dir, "work")) }
