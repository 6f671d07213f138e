package dfs

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// statPaths and statBytes are about how many paths one call asks, and how many bytes they have together: a namenode answers it at once, beside other reads.
	statPaths = 96
	statBytes = 8 << 10
	// statCalls is how many such calls are under way at a time, and statAlone how many that ask about one path each.
	statCalls = 4
	statAlone = 32
)

// ManyStatuses is what StatMany has found: for each path its status, or why there is none.
type ManyStatuses struct {
	Statuses []metadata.FileStatus
	Errors   []error
}

// StatMany is Stat of many paths, of which many go with a call; a server without such a call is asked about each, several at a time. Each is looked up by itself: what
// is changed meanwhile some of them may show. The error is of all of them.
func (c *Client) StatMany(ctx context.Context, names []string) (*ManyStatuses, error) {
	out := &ManyStatuses{Statuses: make([]metadata.FileStatus, len(names)), Errors: make([]error, len(names))}
	paths := make([]string, len(names))
	var asked []int
	for i, name := range names {
		if paths[i], out.Errors[i] = clean("stat", name); out.Errors[i] == nil {
			asked = append(asked, i)
		}
	}
	group, together := errgroup.WithContext(ctx)
	group.SetLimit(statCalls)
	var mu sync.Mutex
	var alone []int // guarded by mu
	for len(asked) > 1 && c.infos.served() {
		n := 0
		for size := 0; n < min(len(asked), statPaths) && (n == 0 || size+len(paths[asked[n]]) <= statBytes); n++ {
			size += len(paths[asked[n]])
		}
		some := asked[:n]
		asked = asked[n:]
		group.Go(func() error {
			served, err := c.statSome(together, paths, some, out)
			if !served {
				mu.Lock()
				defer mu.Unlock()
				alone = append(alone, some...)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return out, err
	}
	return out, c.statEach(ctx, paths, append(alone, asked...), out)
}

// statSome asks about the paths of some numbers with one call. served false: the server has no such call.
func (c *Client) statSome(ctx context.Context, paths []string, some []int, out *ManyStatuses) (served bool, err error) {
	request := &hadooppb.GetFileInfosRequestProto{Paths: make([]string, len(some))}
	for k, i := range some {
		request.Paths[k] = paths[i]
	}
	answer := infosAnswer{paths: paths, some: some, out: out}
	err = c.rpc.Call(ctx, operatorProtocol, "getFileInfos", request, &answer)
	switch {
	case c.infos.unknown(err):
		return false, nil
	case err != nil:
		return true, wrap("stat", paths[some[0]], c.hinted(err))
	case answer.told != len(some):
		return true, &Error{Op: "stat", Path: paths[some[0]], Kind: metadata.ErrIO, Message: fmt.Sprintf("the namenode answers about %d paths, asked about %d", answer.told, len(some))}
	}
	return true, nil
}

// statEach asks about each path of some numbers by itself. What the server says is of that path, what keeps it from being asked of all.
func (c *Client) statEach(ctx context.Context, paths []string, some []int, out *ManyStatuses) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(statAlone)
	for _, i := range some {
		group.Go(func() error {
			status, err := c.Stat(ctx, paths[i])
			if _, told := errors.AsType[*Error](err); err != nil && !told {
				return err
			}
			out.Statuses[i], out.Errors[i] = status, err
			return nil
		})
	}
	return group.Wait()
}

// infosAnswer is a GetFileInfosResponseProto about the paths of some numbers, which is decoded into what is told of all.
type infosAnswer struct {
	onlyAnswers
	paths []string
	some  []int
	out   *ManyStatuses
	told  int // of how many of the paths
}

func (a *infosAnswer) UnmarshalVT(b []byte) error {
	a.told = 0
	owner, group := "", ""
	return walk(b, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		if value == nil {
			return errAnswer
		}
		if a.told++; a.told > len(a.some) {
			return nil
		}
		i := a.some[a.told-1]
		name, found, failed, remote := a.paths[i], false, false, hrpc.RemoteError{}
		err := walk(value, func(field protowire.Number, _ uint64, value []byte) error {
			switch {
			case field <= 3 && value == nil:
				return errAnswer
			case field == 1:
				found = true
				s := &a.out.Statuses[i]
				err := decodeStatus(value, s, name, owner, group)
				owner, group = s.Owner, s.Group
				return err
			case field == 2:
				remote.Class, failed = string(value), true
			case field == 3:
				remote.Message = string(value)
			}
			return nil
		})
		switch a.out.Errors[i] = nil; {
		case err != nil:
			return err
		case failed:
			a.out.Errors[i] = wrap("stat", name, &remote)
		case !found:
			a.out.Errors[i] = notExist("stat", name)
		}
		return nil
	})
}
