package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/logpiece"
)

func logsCommand() *cli.Command {
	return &cli.Command{
		Name:  "logs",
		Usage: "print the logs of an application or of one container, as `yarn logs` does: -applicationId ID, -containerId ID",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "applicationId", Usage: "`APPLICATION` whose containers' logs to print"},
			&cli.StringFlag{Name: "containerId", Usage: "`CONTAINER` whose logs to print"},
			&cli.StringFlag{Name: "log_files", Usage: "`NAMES` of log files with commas, or *; default: all"},
			&cli.StringFlag{Name: "log_files_pattern", Usage: "log files whose whole name a regular expression `PATTERN` matches"},
			&cli.StringFlag{Name: "am", Usage: "the logs of the masters of `ATTEMPTS` alone: numbers with commas, -1 for the last, ALL"},
			&cli.StringFlag{Name: "out", Usage: "write into files below `DIRECTORY`, in a folder for each container"},
			&cli.BoolFlag{Name: "show_application_log_info", Usage: "list the containers that have logs"},
			&cli.BoolFlag{Name: "show_container_log_info", Usage: "list the log files of the containers"},
			confFlag(), userFlag(),
		},
		Action: func(c *cli.Context) error {
			l, err := newLogRequest(c)
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return yarnError(err)
			}
			defer cl.Close()
			return yarnError(l.run(cl))
		},
	}
}

// logRequest is what `hops logs` is asked for.
type logRequest struct {
	*cli.Context
	app, container string
	wanted         func(file string) bool
}

func newLogRequest(c *cli.Context) (*logRequest, error) {
	l := &logRequest{Context: c, app: c.String("applicationId"), container: c.String("containerId"), wanted: func(string) bool { return true }}
	if l.container != "" {
		m := containerName.FindStringSubmatch(l.container)
		if m == nil {
			return nil, fail(exitYarn, "Invalid ContainerId specified: %.100s", l.container)
		}
		if of := "application_" + m[1]; l.app != "" && l.app != of {
			return nil, fail(exitYarn, "The Application:%s does not have the container:%s", l.app, l.container)
		} else if l.app == "" {
			l.app = of
		}
	}
	if l.app == "" {
		return nil, fail(exitYarn, "Both applicationId and containerId are missing, one of them must be specified.")
	}
	if l.container != "" && c.IsSet("am") {
		return nil, fail(exitYarn, "logs: -am is for an application, not for one container")
	}
	if c.IsSet("log_files") && c.IsSet("log_files_pattern") {
		return nil, fail(exitYarn, "logs: give one of -log_files and -log_files_pattern")
	}
	if names := words(c.String("log_files")); len(names) > 0 && !slices.Contains(names, "*") && !slices.Contains(names, "ALL") {
		l.wanted = func(file string) bool { return slices.Contains(names, file) }
	}
	if pattern := c.String("log_files_pattern"); pattern != "" {
		re, err := regexp.Compile("^(?:" + pattern + ")$")
		if err != nil {
			return nil, fail(exitYarn, "logs: -log_files_pattern: %v", err)
		}
		l.wanted = re.MatchString
	}
	return l, nil
}

// logFile is one as /api/v1/jobs/ID/logs lists it.
type logFile struct {
	Container string `json:"container"`
	File      string `json:"file"`
	Size      int64  `json:"size"`
	Modified  int64  `json:"modified"`
}

func (l *logRequest) run(cl *client.Client) error {
	if l.container == "" && l.plain() {
		return l.missing(printLogs(l.Context, cl, l.app))
	}
	path := "/api/v1/jobs/" + url.PathEscape(l.app) + "/logs?"
	raw, err := cl.Jobs().Raw(l.Context.Context, http.MethodGet, path+"list=true", nil)
	if err != nil {
		return l.missing(err)
	}
	var answer struct{ Logs []logFile }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return err
	}
	containers, err := l.masters(cl)
	if err != nil {
		return err
	}
	files := slices.DeleteFunc(answer.Logs, func(f logFile) bool {
		return l.container != "" && f.Container != l.container || containers != nil && !slices.Contains(containers, f.Container) || !l.wanted(f.File) && !l.wanted(wholeLog(f.File))
	})

	switch {
	case len(files) == 0 && l.container != "":
		fmt.Fprintf(l.App.ErrWriter, "Can not find any log file matching the pattern: [%s] for the container: %s within the application: %s\n", strings.Join(l.names(), ", "), l.container, l.app)
		return &statusError{code: exitYarn}
	case len(files) == 0:
		fmt.Fprintf(l.App.ErrWriter, "Can not find any log file matching the pattern: [%s] for the application: %s\n", strings.Join(l.names(), ", "), l.app)
		return &statusError{code: exitYarn}
	case l.Bool("show_container_log_info"), l.Bool("show_application_log_info"):
		l.list(files)
		return nil
	}
	for _, f := range files {
		if whole := wholeLog(f.File); whole != f.File && slices.ContainsFunc(files, func(o logFile) bool { return o.Container == f.Container && o.File == whole }) {
			continue // it comes with the first piece
		}
		if err := l.print(cl, path, f); err != nil {
			return err
		}
	}
	return nil
}

// wholeLog is the log file of which a name is a piece: of one that is rolled the filesystem has several (nodemanager.log_rolled).
func wholeLog(name string) string {
	file, _ := logpiece.Parse(name)
	return file
}

// plain: everything is wanted, in one answer.
func (l *logRequest) plain() bool {
	for _, flag := range []string{"log_files", "log_files_pattern", "am", "out", "show_application_log_info", "show_container_log_info"} {
		if l.IsSet(flag) {
			return false
		}
	}
	return true
}

func (l *logRequest) names() []string {
	if names := words(l.String("log_files") + l.String("log_files_pattern")); len(names) > 0 {
		return names
	}
	return []string{"ALL"}
}

// missing gives YARN's words for an application without logs.
func (l *logRequest) missing(err error) error {
	var answer *client.Error
	if errors.As(err, &answer) && answer.Status == 404 {
		fmt.Fprintf(l.App.ErrWriter, "Could not locate application logs for %s\n", l.app)
		return &statusError{code: exitYarn}
	}
	return err
}

// masters are the containers of the attempts of -am; nil: it is not given.
func (l *logRequest) masters(cl *client.Client) ([]string, error) {
	which := words(strings.ToUpper(l.String("am")))
	if len(which) == 0 {
		return nil, nil
	}
	list, err := attempts(l.Context, cl, l.app)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for i, a := range list {
		last := i == len(list)-1
		if slices.Contains(which, "ALL") || slices.Contains(which, fmt.Sprint(i+1)) || last && slices.Contains(which, "-1") {
			out = append(out, a.Container)
		}
	}
	return out, nil
}

// list prints the files of each container, or the containers alone.
func (l *logRequest) list(files []logFile) {
	last := ""
	for _, f := range files {
		if f.Container != last {
			title := "Container: " + f.Container
			fmt.Fprintf(l.App.Writer, "%s\n", title)
			if l.Bool("show_container_log_info") {
				fmt.Fprintf(l.App.Writer, "%s\n%30s\t%20s\t%30s\n%s\n", strings.Repeat("=", len(title)), "LogFile", "LogLength", "LastModificationTime", strings.Repeat("=", 90))
			}
			last = f.Container
		}
		if l.Bool("show_container_log_info") {
			fmt.Fprintf(l.App.Writer, "%30s\t%20d\t%30s\n", f.File, f.Size, jersey.FileTime(time.UnixMilli(f.Modified)))
		}
	}
}

// print copies one file to standard output, or below the directory of -out.
func (l *logRequest) print(cl *client.Client, path string, f logFile) error {
	if filepath.Base(f.Container) != f.Container || filepath.Base(f.File) != f.File {
		return fmt.Errorf("the resource manager names a log file %q of %q", f.File, f.Container)
	}
	body, err := cl.Jobs().Open(l.Context.Context, path+url.Values{"container": {f.Container}, "file": {f.File}}.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	out := l.App.Writer
	if dir := l.String("out"); dir != "" {
		dir = filepath.Join(dir, f.Container)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		file, err := os.Create(filepath.Join(dir, f.File))
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, body); err != nil {
			file.Close()
			return err
		}
		return file.Close()
	}
	_, err = io.Copy(out, body)
	return err
}
