package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// conversion is a run of `hops ec convert`.
type conversion struct {
	t       *hadoopTool
	options dfs.ConvertOptions
	code    metadata.ErasurePolicyID // 0: replicated

	converted, there, failed int
	bytes                    int64
	live                     bool      // there is a terminal to show progress on
	shown                    time.Time // when it was shown last
}

// convertEC gives files another form, one after the other. What was done stays done when it is interrupted, and is passed over when it is repeated.
func convertEC(t *hadoopTool, a *adminArguments) (int, error) {
	path, policy := a.at, a.value["-policy"]
	if a.has("-replicate") == (policy != "") {
		fmt.Fprintln(t.errOut, "convert: Please specify one of -policy <policy> and -replicate.")
		return exitAdminUsage, nil
	}
	c := &conversion{t: t, options: dfs.ConvertOptions{Policy: policy}, live: isTerminal(t.errOut)}
	if given := a.value["-replication"]; given != "" {
		n, err := strconv.ParseUint(given, 10, 16)
		if err != nil || n < 1 || n > metadata.MaxReplication || policy != "" {
			fmt.Fprintf(t.errOut, "convert: -replication %s: want the number of replicas, 1 to %d, beside -replicate.\n", given, metadata.MaxReplication)
			return exitAdminUsage, nil
		}
		c.options.Replication = int(n)
	}
	if a.has("-replicate") {
		c.options.Policy = namenode.ReplicationPolicy
	} else {
		known, ok := metadata.ErasurePolicyNamed(policy)
		if !ok {
			fmt.Fprintf(t.errOut, "convert: The policy name %s does not exist: `hops ec -listPolicies` shows all.\n", policy)
			return exitAdminUsage, nil
		}
		c.code = known.ID
	}
	st, err := t.fs.Stat(t.ctx, path)
	if err == nil {
		err = c.walk(path, &st)
	}
	c.clear()
	if err != nil {
		return t.failedAdmin(err, exitAdminFailed), nil
	}
	t.printf("%d files converted, %d bytes; %d were in that form already; %d could not be converted\n", c.converted, c.bytes, c.there, c.failed)
	if c.converted > 0 {
		fmt.Fprintln(t.errOut, backupDue)
	}
	if c.failed > 0 {
		return exitAdminFailed, nil
	}
	return 0, nil
}

// walk converts a file, or all below a directory. An error ends all.
func (c *conversion) walk(path string, st *metadata.FileStatus) error {
	if !st.IsDir() {
		return c.file(path, st)
	}
	entries, err := c.t.fs.List(c.t.ctx, path)
	if err != nil {
		return c.refused(path, err)
	}
	for i := range entries {
		below := path
		if below[len(below)-1] != '/' {
			below += "/"
		}
		if err := c.walk(below+entries[i].Name, &entries[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *conversion) file(path string, st *metadata.FileStatus) error {
	if st.Erasure == c.code {
		c.there++
		return nil
	}
	done := int64(0)
	o := c.options
	o.Copied = func(n int64) {
		done += n
		c.show(path, done, st.Length)
	}
	if err := c.t.fs.Convert(c.t.ctx, path, o); err != nil {
		return c.refused(path, err)
	}
	c.clear()
	c.converted++
	c.bytes += done
	c.t.printf("Converted %s\n", path)
	return nil
}

// refused takes note of what could not be converted. The error is one that would befall all others too.
func (c *conversion) refused(path string, err error) error {
	if c.t.ctx.Err() != nil || errors.Is(err, metadata.ErrUnsupported) || errors.Is(err, metadata.ErrStandby) {
		return err
	}
	c.clear()
	c.failed++
	fmt.Fprintf(c.t.errOut, "convert: %s: %s\n", path, strings.TrimPrefix(hadoopMessage(err), "convert "+path+": "))
	return nil
}

// show says how far a file is, twice a second at most.
func (c *conversion) show(path string, done, all int64) {
	if !c.live || time.Since(c.shown) < 500*time.Millisecond {
		return
	}
	c.shown = time.Now()
	fmt.Fprintf(c.t.errOut, "\r\x1b[K%s: %d of %d MiB", path, done>>20, all>>20)
}

// clear takes that off the terminal.
func (c *conversion) clear() {
	if c.live && !c.shown.IsZero() {
		fmt.Fprint(c.t.errOut, "\r\x1b[K")
		c.shown = time.Time{}
	}
}
