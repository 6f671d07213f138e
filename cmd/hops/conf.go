package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/login"
)

// Every command finds the cluster in the same way: by --conf, else by HOPS_LOGIN, else by HADOOP_CONF_DIR, else by the user's login
// (`hops login`), else it is the user's `hops dev` that runs, else the one of this machine's servers (/etc/hops/conf). What is not found, or known not to run, is an error at once that says what to do.

// confFlag names the cluster.
func confFlag() cli.Flag {
	return &cli.StringFlag{Name: "conf", Usage: "`DIR` with core-site.xml and yarn-site.xml of the cluster; default: HOPS_LOGIN, else HADOOP_CONF_DIR, else `hops login`, else `hops dev`, else /etc/hops/conf"}
}

// devDirectory is where `hops dev` keeps its data unless told otherwise.
func devDirectory() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "hops", "dev"), nil
}

// noClusterError says why no cluster was found.
type noClusterError struct{ error }

func (e noClusterError) Unwrap() error { return e.error }

func noCluster(format string, args ...any) error { return noClusterError{fmt.Errorf(format, args...)} }

func isNoCluster(err error) bool {
	_, ok := errors.AsType[noClusterError](err)
	return ok
}

// siteFiles are what makes a directory one of configuration.
var siteFiles = []string{"core-site.xml", "hdfs-site.xml", "yarn-site.xml"}

// machineConf is the configuration that the servers of this machine write; tests change it.
var machineConf = dfs.MachineConf

// findConf is the directory of the cluster's configuration: dir if given (--conf), else as above.
func findConf(dir string) (string, error) {
	from := "--conf"
	if dir == "" {
		dir, from = os.Getenv("HADOOP_CONF_DIR"), "HADOOP_CONF_DIR"
	}
	if dir == "" {
		dev, err := devDirectory()
		dir = filepath.Join(dev, "conf")
		if (err != nil || !hasSite(dir) || devEnded(dev)) && hasSite(machineConf) {
			return machineConf, nil
		}
		if err != nil {
			return "", noCluster("no cluster is configured (%w): set HADOOP_CONF_DIR", err)
		}
		if !hasSite(dir) {
			return "", noCluster("no cluster is configured: start one with `hops dev`, log in to one (`hops login`), or set HADOOP_CONF_DIR to the directory with its core-site.xml")
		}
	} else if !hasSite(dir) {
		if _, err := os.Stat(dir); err != nil {
			return "", noCluster("%s: %w", from, err)
		}
		return "", noCluster("%s is %s, which holds none of %s: name the directory with the cluster's configuration", from, dir, strings.Join(siteFiles, ", "))
	}
	if dev := filepath.Dir(dir); devEnded(dev) {
		start := "hops dev"
		if own, err := devDirectory(); err != nil || own != dev {
			start += " --data " + quoted(dev)
		}
		return "", noCluster("cluster: %s, not running: start it with `%s`", dev, start)
	}
	return dir, nil
}

func hasSite(dir string) bool {
	for _, name := range siteFiles {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// devLock is the file in the data directory of `hops dev` that it locks while it runs.
const devLock = "lock"

// devEnded reports whether a directory is that of a `hops dev` that does not run.
func devEnded(dir string) bool {
	f, err := os.Open(filepath.Join(dir, devLock))
	if err != nil {
		return false
	}
	defer f.Close()
	// The lock is let go of at once; a `hops dev` that starts at this moment tries for longer than that.
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
}

// quoted is a word as a POSIX shell takes it.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:=@%", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// dial makes the client of a command.
func dial(c *cli.Context) (*client.Client, error) {
	if c.String("conf") == "" && os.Getenv("HOPS_RM") == "" {
		f, err := login.Chosen()
		if err != nil {
			return nil, err
		}
		if f != nil {
			return client.New(client.Config{User: c.String("user"), Logger: clientLogger(c.App.ErrWriter), Waiting: waiting(c.App.ErrWriter)})
		}
	}
	dir, err := findConf(c.String("conf"))
	if err != nil && (c.String("conf") != "" || os.Getenv("HOPS_RM") == "") {
		return nil, err
	}
	return client.New(client.Config{ConfDir: dir, User: c.String("user"), Logger: clientLogger(c.App.ErrWriter), Waiting: waiting(c.App.ErrWriter)})
}

// clusterConf is the configuration of the cluster, as the filesystem's client needs it, and the login by which it was found; nil: it
// was found in another way.
func clusterConf(dir string) (*dfs.HadoopConf, *login.File, error) {
	if dir == "" {
		own, err := login.Chosen()
		if err != nil {
			return nil, nil, err
		}
		if own != nil {
			conf, err := loginConf(own)
			return conf, own, err
		}
	}
	conf, err := hadoopConf(dir)
	return conf, nil, err
}

// loginConf says of the cluster of a login what the configuration of a Hadoop client would.
func loginConf(own *login.File) (*dfs.HadoopConf, error) {
	if err := own.Expired(time.Now()); err != nil {
		return nil, fail(exitDenied, "%w", err)
	}
	if err := knowServers(""); err != nil {
		return nil, err
	}
	conf := &dfs.HadoopConf{Properties: map[string]string{"fs.defaultFS": "hdfs://" + own.Cluster, "dfs.nameservices": own.Cluster}}
	var ids []string
	for i, n := range own.Namenodes {
		id := fmt.Sprintf("nn%d", i+1)
		ids = append(ids, id)
		conf.Properties["dfs.namenode.rpc-address."+own.Cluster+"."+id] = n.IPC
		conf.Properties["dfs.namenode.http-address."+own.Cluster+"."+id] = n.HTTP
	}
	conf.Properties["dfs.ha.namenodes."+own.Cluster] = strings.Join(ids, ",")
	return conf, nil
}

// locate resolves a URI for a user; empty: who runs this, or the login's.
func locate(conf *dfs.HadoopConf, own *login.File, uri, user string) (dfs.Location, error) {
	if own == nil {
		return conf.LocateAs(uri, user)
	}
	as := client.FilesOf(own)
	location, err := conf.LocateAs(uri, cmp.Or(user, as.User))
	location.Config.Dial, location.Config.Bearer = as.Dial, as.Bearer
	return location, err
}

// hadoopConf is the configuration of the cluster in a directory of files, as the filesystem's client needs it.
func hadoopConf(dir string) (*dfs.HadoopConf, error) {
	dir, err := findConf(dir)
	if err != nil {
		return nil, err
	}
	conf, err := dfs.LoadHadoopConf(dir)
	if err != nil {
		return nil, err
	}
	if conf.DefaultFS() == "" {
		return nil, noCluster("%s does not say fs.defaultFS: name the filesystem there, or with -fs hdfs://host:port", filepath.Join(dir, "core-site.xml"))
	}
	if err := knowServersAs(conf.Properties["hops.cluster.identity"], conf.Properties["hops.cluster.roots"]); err != nil {
		return nil, err
	}
	return conf, nil
}
