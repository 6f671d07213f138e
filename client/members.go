package client

import (
	"context"
	"net/http"
	"net/url"
)

// Resize gives a command another number of instances. Those that it has no more have as long to save their work as what is preempted has. The
// least of a gang stays as it is with a Min of 0. A repeat is no error.
func (j *Jobs) Resize(ctx context.Context, id string, size JobSize) (JobSize, error) {
	var answer struct{ Size JobSize }
	err := j.rest.call(ctx, http.MethodPost, "/api/v1/jobs/"+url.PathEscape(id)+"/resize", size, nil, &answer)
	return answer.Size, err
}

// Members describes members of an array, or instances of a command, that are named by numbers and ranges: "7", "1,3-9".
func (j *Jobs) Members(ctx context.Context, id, members string) ([]JobMember, error) {
	return j.members(ctx, http.MethodGet, id, members, "")
}

// KillMembers ends members of an array for good, also those that wait, and answers what they are then. What has succeeded stays so. A repeat is
// no error.
func (j *Jobs) KillMembers(ctx context.Context, id, members string) ([]JobMember, error) {
	return j.members(ctx, http.MethodDelete, id, members, "")
}

// RetryMembers has members of an array run again that have failed for good or were killed, and answers what they are then. Others stay as they
// are.
func (j *Jobs) RetryMembers(ctx context.Context, id, members string) ([]JobMember, error) {
	return j.members(ctx, http.MethodPost, id, members, "/retry")
}

func (j *Jobs) members(ctx context.Context, method, id, members, act string) ([]JobMember, error) {
	var answer struct{ Members []JobMember }
	err := j.rest.call(ctx, method, "/api/v1/jobs/"+url.PathEscape(id)+"/members/"+url.PathEscape(members)+act, nil, nil, &answer)
	return answer.Members, err
}
