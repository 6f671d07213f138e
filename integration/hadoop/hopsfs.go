package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"
)

// hopsFS is `hops fs` as a runner.
func hopsFS(binary string) runner {
	run := hopsTool(binary)
	return func(ctx context.Context, c *cluster, user, stdin string, args []string) (outcome, error) {
		return run(ctx, c, user, stdin, append([]string{"fs"}, args...))
	}
}

// hopsTool is a command of hops as a runner.
func hopsTool(binary string) runner {
	return func(ctx context.Context, c *cluster, user, stdin string, args []string) (outcome, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = append(os.Environ(), "HADOOP_CONF_DIR="+c.conf, "HADOOP_USER_NAME="+user, "TZ=UTC")
		cmd.Stdin = strings.NewReader(stdin)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		o := outcome{stdout: stdout.String(), stderr: stderr.String()}
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			if o.status = exit.ExitCode(); ctx.Err() != nil {
				o.stderr += "no end within a minute\n"
			}
			return o, nil
		}
		return o, err
	}
}
