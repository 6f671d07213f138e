package server

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// TestRepeatedChangesOfConnectionsThatEnd has pairs of connections make the same changes under the same numbers, one of which hangs up somewhere: each
// change is made once, and who hears the answer to it hears the same bytes as the other, whatever calls had the memory of this one before.
func TestRepeatedChangesOfConnectionsThatEnd(t *testing.T) {
	m := newCluster(t, 1, nil).leader()
	const workers, rounds, files = 6, 8, 12
	// script makes the calls of a pair, and returns the answers to those that have the same one each time.
	script := func(c *hrpc.Client, dir string) (answers [][]byte, err error) {
		call := func(method string, request, answer hrpc.Message) {
			if err == nil {
				err = c.Call(t.Context(), clientprotocol.Name, method, request, answer)
			}
		}
		keep := func(answer interface{ MarshalVT() ([]byte, error) }) {
			if b, merr := answer.MarshalVT(); err == nil && merr == nil {
				answers = append(answers, b)
			}
		}
		create := func(path string) *hadoop.CreateResponseProto {
			client, answer := "client of "+dir, new(hadoop.CreateResponseProto)
			call("create", &hadoop.CreateRequestProto{
				Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o644))}, ClientName: &client, CreateFlag: ptr(uint32(1)),
				CreateParent: ptr(true), Replication: ptr(uint32(1)), BlockSize: ptr(uint64(1 << 20)),
			}, answer)
			return answer
		}
		for i := 0; i < files && err == nil; i++ {
			open, moved, closed, gone := fmt.Sprintf("%s/%d", dir, i), fmt.Sprintf("%s/%d-moved", dir, i), fmt.Sprintf("%s/%d-closed", dir, i), fmt.Sprintf("%s/%d-gone", dir, i)
			keep(create(open))
			renamed := new(hadoop.RenameResponseProto)
			call("rename", &hadoop.RenameRequestProto{Src: &open, Dst: &moved}, renamed)
			keep(renamed)
			call("rename2", &hadoop.Rename2RequestProto{Src: &moved, Dst: &open, OverwriteDest: ptr(false)}, new(hadoop.Rename2ResponseProto))
			made := create(closed) // the other one may have closed it, later
			keep(&hadoop.GetFileInfoRequestProto{Src: ptr(fmt.Sprint(made.GetFs().GetFileId()))})
			client, completed := "client of "+dir, new(hadoop.CompleteResponseProto)
			call("complete", &hadoop.CompleteRequestProto{Src: &closed, ClientName: &client, FileId: ptr(made.GetFs().GetFileId())}, completed)
			keep(completed)
			there, deleted := new(hadoop.MkdirsResponseProto), new(hadoop.DeleteResponseProto)
			call("mkdirs", &hadoop.MkdirsRequestProto{Src: &gone, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, there)
			keep(there)
			call("delete", &hadoop.DeleteRequestProto{Src: &gone, Recursive: ptr(false)}, deleted)
			keep(deleted)
		}
		return answers, err
	}
	looks := m.rpc(t)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(w)))
			for round := range rounds {
				dir := fmt.Sprintf("/w%d/%d", w, round)
				dial := hrpc.DialConfig{Protocol: clientprotocol.Name, User: m.config.Door.Daemon(), DialTimeout: limit, ClientID: hrpc.NewClientID()}
				var pair [2]*hrpc.Client
				for i := range pair {
					c, err := hrpc.Dial(t.Context(), m.ipc, dial)
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					pair[i] = c
				}
				var answers [2][][]byte
				var failed [2]error
				var both sync.WaitGroup
				for i, c := range pair {
					both.Go(func() { answers[i], failed[i] = script(c, dir) })
				}
				if calls := rng.IntN(3 * files); calls < 2*files { // else it stays
					both.Go(func() {
						for range calls { // for about so long
							var r hadoop.GetFileInfoResponseProto
							_ = looks.Call(t.Context(), clientprotocol.Name, "getFileInfo", &hadoop.GetFileInfoRequestProto{Src: &dir}, &r)
						}
						pair[0].Close()
					})
				}
				both.Wait()
				if failed[1] != nil || len(answers[1]) != 6*files {
					t.Errorf("%s: %d answers, then %v", dir, len(answers[1]), failed[1])
				}
				for i, a := range answers[0] {
					if i < len(answers[1]) && !bytes.Equal(a, answers[1][i]) {
						t.Errorf("%s: answer %d is %x for one, %x for the other", dir, i, a, answers[1][i])
					}
				}
			}
		})
	}
	all.Wait()
}
