package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	rm "github.com/gohops/hops/resourcemanager"
)

// awaitSession is what a job with a session runs, in a shell: it waits 5 minutes for the session to begin, and ends with it and its
// exit status. A session that broke off has left none. Its arguments are the command, for people who look at the job.
const awaitSession = `n=0
until [ -s .hops-session ]; do
  n=$((n+1))
  if [ $n -gt 1500 ]; then echo "nobody came for the session within 5 minutes" >&2; exit 124; fi
  sleep 0.2
done
read -r pid < .hops-session
while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
if [ -s .hops-session.status ]; then read -r status < .hops-session.status; exit "$status"; fi
echo "the session broke off" >&2
exit 129
`

// beSession is what runs in the session: the command, behind a shell that says when it began and how it ended. The traps keep that
// shell through a Ctrl-C, and are not the command's.
const beSession = `echo $$ > .hops-session.new && mv .hops-session.new .hops-session || exit 126
trap : INT QUIT
"$@"
status=$?
echo $status > .hops-session.status
exit $status
`

// sessionName is the first word of both, the name of the shell in what it says.
const sessionName = "hops-session"

// sessionEnd is how long the end of a job is waited for after that of its session.
const sessionEnd = 30 * time.Second

// sessionWords are those of a job's command before that of the session.
var sessionWords = []string{"sh", "-c", awaitSession, sessionName}

// sessionJob makes the job of a command that runs in a session.
func sessionJob(c *cli.Context, job client.Job, asJSON bool) (client.Job, error) {
	if c.Bool("tty") {
		if _, err := ownTerminal(c); err != nil {
			return job, err
		}
	}
	switch {
	case c.Bool("detach") || c.Bool("verbose") || asJSON:
		return job, fail(exitUsage, "-i and -t: without --detach, --verbose and --output json")
	case c.String("file") == "-":
		return job, fail(exitUsage, "-i: the job is read from standard input already: name a file")
	case job.Kind != "" && job.Kind != string(rm.KindCommand) || job.Experiment != nil:
		return job, fail(exitUsage, "-i and -t are for a command, not for a job of kind %s", job.Kind)
	case job.Instances > 1 || job.Array != nil || job.Gang != (client.Gang{}):
		return job, fail(exitUsage, "-i and -t are for one instance; `hops job exec` opens sessions in the instances of a job that runs")
	case job.Retry != nil:
		return job, fail(exitUsage, "-i and -t: a session is not tried again: leave out retry")
	}
	if job.Run != "" {
		job.Argv, job.Run = []string{"/bin/sh", "-c", job.Run}, ""
	}
	if job.Name == "" {
		job.Name = "session"
	}
	job.Argv = append(slices.Clone(sessionWords), job.Argv...)
	return job, nil
}

// runSession waits until the job of sessionJob runs, and runs its command in a session. The job ends with that, or with this program.
func runSession(c *cli.Context, cl *client.Client, id string, argv []string) error {
	fmt.Fprintln(c.App.ErrWriter, id)
	end := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), sessionEnd)
		defer cancel()
		if err := cl.Jobs().Stop(ctx, id); err != nil {
			fmt.Fprintf(c.App.ErrWriter, "%s may go on: %v; end it with: hops job stop %[1]s\n", id, err)
		}
	}
	k, s, err := awaitInstance(c, cl, id)
	if c.Context.Err() != nil {
		end()
		return &statusError{code: exitInterrupted}
	}
	if err != nil {
		end()
		return explain(err)
	}
	if s.Ended() {
		return result(s, false)
	}
	r, err := session(c, cl, k, append([]string{"sh", "-c", beSession, sessionName}, argv...))
	if err != nil {
		end()
		if c.Context.Err() != nil {
			return &statusError{code: exitInterrupted}
		}
		return explain(err)
	}
	ctx, cancel := context.WithTimeout(c.Context, sessionEnd)
	defer cancel()
	if _, err := cl.Jobs().Wait(ctx, id, nil); err != nil {
		end()
	}
	return sessionStatus(k, r)
}

// awaitInstance waits until the instance of a job runs, or the job has ended, and says meanwhile what it waits for.
func awaitInstance(c *cli.Context, cl *client.Client, id string) (k client.JobContainer, s client.JobStatus, err error) {
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	last, running := "", false
	s, err = cl.Jobs().Wait(ctx, id, func(s client.JobStatus) {
		for _, one := range s.Containers {
			if !one.Master && one.State == rm.ContainerRunning {
				k, running = one, true
				cancel()
				return
			}
		}
		if line := progress(s); line != last && !s.Ended() {
			fmt.Fprintln(c.App.ErrWriter, line)
			last = line
		}
	})
	if running {
		err = nil
	}
	return k, s, err
}
