package server

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gohops/hops/nodemanager"
)

// In YARN's dialect a launch is a command line and an environment for bash, in which variables are expanded. They are run as
// YARN's own node managers run them (ContainerLaunch, UnixShellScriptBuilder): by a script, launch_container.sh, that exports the
// environment and becomes the command.

// scriptFile and discoveryFile are files of a container in YARN's dialect: the script in the container's directory, the other in
// its work directory.
const (
	scriptFile    = "launch_container.sh"
	discoveryFile = "gpu-discovery.sh"
)

// javaHome is where Java is for containers whose node manager was not told (JAVA_HOME): above the java of the PATH.
var javaHome = sync.OnceValue(func() string {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return home
	}
	java, err := exec.LookPath("java")
	if err == nil {
		java, err = filepath.EvalSymlinks(java)
	}
	if err != nil || filepath.Base(filepath.Dir(java)) != "bin" {
		return ""
	}
	return filepath.Dir(filepath.Dir(java))
})

// addOpens is what Java from 17 on wants to be told for Hadoop's libraries (ApplicationConstants.JVM_ADD_OPENS_VAR).
const addOpens = "--add-opens=java.base/java.lang=ALL-UNNAMED --add-exports=java.base/sun.net.dns=ALL-UNNAMED --add-exports=java.base/sun.net.util=ALL-UNNAMED"

// opens is addOpens, or nothing for a Java that is older, which would not start with it: as YARN does, by the node's own.
var opens = sync.OnceValue(func() string {
	about, err := os.ReadFile(filepath.Join(javaHome(), "release"))
	if err == nil && oldJava.Match(about) {
		return ""
	}
	return addOpens
})

// oldJava is in the file that describes a Java below 17.
var oldJava = regexp.MustCompile(`(?m)^JAVA_VERSION="(1\.|9|1[0-6]\b)`)

// expand replaces what YARN lets a launch say without knowing the machine (ApplicationConstants).
func expand(text, logs string) string {
	return strings.NewReplacer("<LOG_DIR>", logs, "<CPS>", ":", "<ADD_OPENS>", opens(), "{{", "$", "}}", "").Replace(text)
}

// ownVariables are those of a container that YARN's node manager sets, and that a launch cannot change.
var ownVariables = []string{
	"CONTAINER_ID", "NM_HOST", "NM_PORT", "NM_HTTP_PORT", "LOCAL_DIRS", "LOCAL_USER_DIRS", "LOG_DIRS", "USER", "LOGNAME", "HOME", "PWD",
	"HADOOP_TOKEN_FILE_LOCATION",
}

// script is launch_container.sh of a container. own are the variables that say who the container is; they are exported first and
// win over those of the launch.
func script(spec *nodemanager.Spec, own map[string]string, dir string) (string, error) {
	if len(spec.Argv) != 1 {
		return "", fmt.Errorf("a launch in YARN's dialect is one command line, not %d", len(spec.Argv))
	}
	logs := filepath.Join(dir, "logs")
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#!/bin/bash\n\nset -o pipefail -e")
	line("exec >%s/prelaunch.out\nexec 2>%s/prelaunch.err", quoteShell(logs), quoteShell(logs))
	line(`echo "Setting up env variables"`)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		line("export %s=%s", name, quoteShell(own[name]))
	}
	line(`export JVM_PID="$$"`)
	theirs := map[string]string{}
	for name, value := range spec.Env {
		if _, ours := own[name]; ours || strings.HasPrefix(name, platformPrefix) {
			continue
		}
		if !variable.MatchString(name) {
			return "", fmt.Errorf("%.60q is no name of a variable in a shell", name)
		}
		theirs[name] = expand(value, logs)
	}
	for _, name := range byDependency(theirs) {
		line(`export %s="%s"`, name, guard(theirs[name]))
	}
	line(`echo "Copying debugging information"`)
	line("cp %s %s || true", quoteShell(filepath.Join(dir, scriptFile)), quoteShell(filepath.Join(logs, scriptFile)))
	line("{ echo 'ls -l:'; ls -l; echo 'find -L . -maxdepth 5 -ls:'; find -L . -maxdepth 5 -ls; } >%s/directory.info 2>&1 || true", quoteShell(logs))
	line(`echo "Launching container"`)
	line(`exec /bin/bash -c "%s"`, expand(spec.Argv[0], logs))
	return b.String(), nil
}

// variable is the name of a variable that a shell exports.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// quoteShell makes one word of a text, in which nothing is expanded.
func quoteShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// guard keeps the quotation marks of a value that will stand between such. YARN does not, and programs that know it write \".
func guard(value string) string {
	var b strings.Builder
	escaped := false
	for _, c := range []byte(value) {
		if c == '"' && !escaped {
			b.WriteByte('\\')
		}
		escaped = c == '\\' && !escaped
		b.WriteByte(c)
	}
	if escaped { // it would take the closing one
		b.WriteByte('\\')
	}
	return b.String()
}

// reference is a variable that a shell expands: $X, ${X} or ${X:-…}.
var reference = regexp.MustCompile(`\$\{?([A-Za-z_][A-Za-z0-9_]*)`)

// byDependency orders variables so that each comes after those that its value refers to, by name otherwise, as YARN does
// (ShellScriptBuilder.orderEnvByDependencies). In a circle the first by name comes first.
func byDependency(env map[string]string) []string {
	const (
		begun = 1
		done  = 2
	)
	seen := map[string]int{}
	order := make([]string, 0, len(env))
	// The path to a variable is kept here and not on the stack: it is as long as somebody from outside wants.
	type step struct {
		name string
		next []string
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		var path []step
		enter := func(name string) {
			if _, known := env[name]; !known || seen[name] != 0 {
				return
			}
			seen[name] = begun
			var next []string
			for _, m := range reference.FindAllStringSubmatch(env[name], -1) {
				next = append(next, m[1])
			}
			path = append(path, step{name, next})
		}
		for enter(name); len(path) > 0; {
			top := &path[len(path)-1]
			if len(top.next) > 0 {
				next := top.next[0]
				top.next = top.next[1:]
				enter(next)
				continue
			}
			seen[top.name] = done
			order = append(order, top.name)
			path = path[:len(path)-1]
		}
	}
	return order
}

// discovery is a program that prints the container's GPUs as Spark's discovery scripts do. Their addresses are places in
// CUDA_VISIBLE_DEVICES, which is how programs count the devices that they see.
func discovery(gpus int) string {
	addresses := make([]string, gpus)
	for i := range addresses {
		addresses[i] = fmt.Sprintf(`"%d"`, i)
	}
	return fmt.Sprintf("#!/bin/sh\n# The GPUs of this container: spark.executor.resource.gpu.discoveryScript=./%s\necho '{\"name\": \"gpu\", \"addresses\": [%s]}'\n",
		discoveryFile, strings.Join(addresses, ", "))
}

// furnish puts into a work directory what YARN has there beside the artifacts.
func furnish(work string, spec *nodemanager.Spec) error {
	root, err := os.OpenRoot(work)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Mkdir("tmp", 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := root.OpenFile(discoveryFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil // an artifact has its name
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(discovery(len(spec.Resources.GPUs)))
	return errors.Join(err, f.Close())
}

// executable lets every file of a work directory be run, as YARN's are (FSDownload).
func executable(work string) error {
	root, err := os.OpenRoot(work)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return root.Chmod(name, 0o755)
	})
}
