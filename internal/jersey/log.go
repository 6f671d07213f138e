package jersey

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Log is the frame in which YARN puts one log file of a container (ContainerLogsUtils, LogToolUtils).
type Log struct {
	// Container and Node are ids; Node may be empty.
	Container, Node string
	// Aggregation is LOCAL or AGGREGATED.
	Aggregation, File string
	Modified          time.Time
	// Length is that of the file, whatever part of it is shown.
	Length int64
	// Running: the container may write more.
	Running bool
}

// Begin writes what stands before the contents.
func (l Log) Begin(w io.Writer) error {
	title := "Container: " + l.Container
	if l.Node != "" {
		title += " on " + l.Node
	}
	_, err := fmt.Fprintf(w, "%s\nLogAggregationType: %s\n%s\nLogType:%s\nLogLastModifiedTime:%s\nLogLength:%d\nLogContents:\n",
		title, l.Aggregation, strings.Repeat("=", len(title)), l.File, FileTime(l.Modified), l.Length)
	return err
}

// End writes what stands behind the contents; whole: they ended with a line.
func (l Log) End(w io.Writer, whole bool) error {
	end := "End of LogType:" + l.File
	stars := strings.Repeat("*", len(end)+50)
	if !whole {
		end = "\n" + end
	}
	if l.Running {
		end += fmt.Sprintf(".This log file belongs to a running container (%s) and so may not be complete.", l.Container)
	}
	_, err := fmt.Fprintf(w, "%s\n%s\n\n", end, stars)
	return err
}
