package client

import (
	"os"

	"github.com/gohops/hops/metadata"
)

// MaySubmit is nil where jobs and experiments may be submitted: outside of containers, and in those of a job whose
// environment says HOPS_MAY_SUBMIT=1. A program that submits itself, by a script that is imported or a job that runs the
// command line that started it, would do so for ever. The resource manager cannot tell a container from its user; what it
// holds a user to is its limit of live jobs.
//
// Error: metadata.ErrPermission.
func MaySubmit() error {
	container := os.Getenv("HOPS_CONTAINER_ID")
	if container == "" || os.Getenv("HOPS_MAY_SUBMIT") == "1" {
		return nil
	}
	return metadata.Errorf(metadata.ErrPermission, "this runs in %s, whose job may not submit others: if it is to, submit it with HOPS_MAY_SUBMIT=1 in its env", container)
}
