package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/metadata"
)

// What the commands have in common that stand in for tools of Hadoop: their options have one dash, their text and their exit statuses
// are Hadoop's.

// hadoopTool is one run of such a command.
type hadoopTool struct {
	ctx         context.Context
	name        string
	out, errOut io.Writer
	properties  map[string]string
	filesystem  string // of -fs
	interrupted int    // exit status after Ctrl-C

	fs  *dfs.Client
	uri string
}

// exitHadoop is the status of Java's -1.
const exitHadoop = 255

// hadoopCommand makes the command of a tool. What run returns is the exit status; an error is said as the library's are.
func hadoopCommand(name, usage, arguments, description string, run func(*hadoopTool, []string) (int, error)) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: arguments, Description: description, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			t := &hadoopTool{ctx: c.Context, name: name, out: c.App.Writer, errOut: c.App.ErrWriter, properties: map[string]string{}, interrupted: exitInterrupted}
			args, err := t.generic(c.Args().Slice())
			if err != nil {
				return fail(exitUsage, "%s: %w", name, err)
			}
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return cli.ShowSubcommandHelp(c)
			}
			defer t.close()
			code, err := run(t, args)
			if c.Context.Err() != nil {
				return &statusError{t.interrupted, nil}
			}
			if err != nil {
				return err
			}
			if code != 0 {
				return &statusError{code: code}
			}
			return nil
		},
	}
}

// generic takes Hadoop's generic options off the front: -conf, -D and -fs.
func (t *hadoopTool) generic(args []string) ([]string, error) {
	for len(args) > 0 {
		word := args[0]
		value := func() (string, error) {
			if len(args) < 2 {
				return "", fmt.Errorf("%s needs a value", word)
			}
			return args[1], nil
		}
		switch {
		case word == "-conf" || word == "--conf":
			v, err := value()
			if err != nil {
				return nil, err
			}
			t.properties["-conf"] = v
			args = args[2:]
		case word == "-fs":
			v, err := value()
			if err != nil {
				return nil, err
			}
			t.filesystem = v
			args = args[2:]
		case word == "-D":
			v, err := value()
			if err != nil {
				return nil, err
			}
			if err := t.property(v); err != nil {
				return nil, err
			}
			args = args[2:]
		case strings.HasPrefix(word, "-D") && strings.Contains(word, "="):
			if err := t.property(word[2:]); err != nil {
				return nil, err
			}
			args = args[1:]
		default:
			return args, nil
		}
	}
	return args, nil
}

func (t *hadoopTool) property(pair string) error {
	name, value, ok := strings.Cut(pair, "=")
	if !ok || name == "" {
		return fmt.Errorf("-D %s: want NAME=VALUE", pair)
	}
	t.properties[name] = value
	return nil
}

// client is the filesystem's.
func (t *hadoopTool) client() (*dfs.Client, error) {
	if t.fs != nil {
		return t.fs, nil
	}
	var err error
	t.fs, t.uri, err = dialShell(t.filesystem, t.properties, t.errOut)
	return t.fs, err
}

// own is the login that the tool's client takes; nil: a configuration says where the cluster is.
func (t *hadoopTool) own() (*login.File, error) {
	if t.properties["-conf"] != "" {
		return nil, nil
	}
	return login.Chosen()
}

// at is where a path that the tool was given is: below the user's home if it is relative, and in its own filesystem if it names one, which the tool's is from then on.
func (t *hadoopTool) at(given string) (string, error) {
	p := given
	if rest, ok := strings.CutPrefix(given, "hdfs://"); ok {
		authority, below, _ := strings.Cut(rest, "/")
		p = "/" + below
		switch of := "hdfs://" + authority; {
		case authority == "": // hdfs:///p is in the default one
		case t.fs == nil:
			t.filesystem = of
		case of != strings.TrimSuffix(t.uri, "/"):
			return "", fmt.Errorf("Wrong FS: %s, expected: %s", given, t.uri) //nolint:revive // Hadoop's words
		}
	}
	fs, err := t.client()
	if err != nil || p == "" || strings.HasPrefix(p, "/") {
		return p, err
	}
	return path.Join(fs.Home(), p), nil
}

func (t *hadoopTool) close() {
	if t.fs != nil {
		t.fs.Close()
	}
}

func (t *hadoopTool) printf(format string, args ...any) { fmt.Fprintf(t.out, format, args...) }

// failed says an error as Hadoop's tools do, COMMAND: MESSAGE, and is their status.
func (t *hadoopTool) failed(command string, err error) int {
	fmt.Fprintf(t.errOut, "%s: %s\n", strings.TrimPrefix(command, "-"), hadoopMessage(err))
	return exitHadoop
}

// hadoopMessage is the first line of what the server said, without what the client adds.
func hadoopMessage(err error) string {
	text := err.Error()
	if known, ok := errors.AsType[*dfs.Error](err); ok && known.Message != "" {
		text = known.Message
	}
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// each runs do for every namenode, as Hadoop's dfsadmin does in a cluster with several, and reports whether there are several.
func (t *hadoopTool) each(command string, do func(addr string) error) int {
	code := 0
	for _, addr := range t.fs.Namenodes() {
		if err := do(addr); err != nil {
			code = t.failed(command, err)
		}
	}
	return code
}

// several: there is more than one namenode, and Hadoop's text names each.
func (t *hadoopTool) several() bool { return len(t.fs.Namenodes()) > 1 }

// javaAddress is an address as Java prints it, NAME/IP:PORT.
func javaAddress(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if net.ParseIP(host) != nil {
		return "/" + addr
	}
	ips, err := net.LookupHost(host)
	if err != nil || len(ips) == 0 {
		return host + "/<unresolved>:" + port
	}
	return host + "/" + net.JoinHostPort(ips[0], port)
}

// bytesOf is a size as Hadoop's StringUtils.byteDesc has it: 28 KB, 1006.85 GB.
func bytesOf(n int64) string {
	sign := ""
	if n < 0 {
		if n == math.MinInt64 {
			return "-8 EB"
		}
		sign, n = "-", -n
	}
	if n < 1024 {
		return fmt.Sprintf("%s%d B", sign, n)
	}
	for i, prefix := range "KMGTPE" {
		unit := int64(1) << (10 * (i + 1))
		if i < 5 && n/1024 >= unit {
			continue
		}
		if n%unit == 0 {
			return fmt.Sprintf("%s%d %cB", sign, n/unit, prefix)
		}
		return fmt.Sprintf("%s%.2f %cB", sign, float64(n)/float64(unit), prefix)
	}
	return ""
}

// percent is a share as Hadoop prints it.
func percent(part, whole int64) string {
	if whole <= 0 {
		return "100.00%"
	}
	return fmt.Sprintf("%.2f%%", float64(part)*100/float64(whole))
}

// javaDate is a time as Java's Date prints it.
func javaDate(t metadata.Time) string {
	return time.UnixMilli(int64(t)).Format("Mon Jan 02 15:04:05 MST 2006")
}

// nameOf is the host name of an address HOST:PORT, as NetUtils.getHostNameOfIP has it; empty: there is none.
func nameOf(ctx context.Context, addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	names, err := net.DefaultResolver.LookupAddr(ctx, host)
	if err != nil || len(names) == 0 {
		return ""
	}
	return strings.TrimSuffix(names[0], ".")
}
