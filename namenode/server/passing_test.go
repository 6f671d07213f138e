package server

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
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

// TestPassingAnswersTellNothingOfOthers has many ask at once where files of several kinds are, in memory that serves one answer after the other: what each
// is told, until it lets go of it, is what it is told in memory of its own.
func TestPassingAnswersTellNothingOfOthers(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	m := c.leader()
	write := func(path string, blocks int, close bool) {
		w := m.begin(t, path, "writer of "+path, 1)
		for i := range blocks {
			if _, err := w.addBlock(); err != nil {
				t.Fatal(err)
			}
			b := w.block(uint64(100 + i))
			if i < blocks-1 || close {
				dn.has(b, pb.ReplicaState_FINALIZED)
				m.knows(t, b, 1)
			}
		}
		if !close {
			return
		}
		if ok, err := w.complete(); !ok || err != nil {
			t.Fatal(path, ok, err)
		}
	}
	write("/empty", 0, true)
	write("/one", 1, true)
	write("/two", 2, true)
	write("/open", 1, false)
	paths := []string{"/empty", "/one", "/two", "/open"}
	kept := map[string]*namenode.LocatedFile{}
	bare := func(f *namenode.LocatedFile) *namenode.LocatedFile { // without tokens, which differ
		out := *f
		out.Blocks = append([]namenode.LocatedBlock{}, f.Blocks...)
		for i := range out.Blocks {
			if len(out.Blocks[i].Token.Identifier) == 0 {
				t.Errorf("%v has no token", out.Blocks[i].Block)
			}
			out.Blocks[i].Token = security.Token{}
		}
		if f.Last != nil {
			last := *f.Last
			last.Token, out.Last = security.Token{}, &last
		}
		return &out
	}
	for _, path := range paths {
		kept[path] = bare(m.locate(t, path))
	}
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(4, uint64(worker)))
			for range 300 {
				path := paths[rng.IntN(len(paths))]
				told := make(chan struct{})
				m.Locate(m.caller(), namenode.LocateRequest{Path: path, Length: 1 << 40, Passing: true, Unnoticed: true}, func(f *namenode.LocatedFile, err error) {
					defer close(told)
					if err != nil {
						t.Error(path, err)
						return
					}
					if got := bare(f); !reflect.DeepEqual(got, kept[path]) {
						t.Errorf("%s: %+v, in memory of its own %+v", path, got, kept[path])
					}
					f.Tails = true // whoever has it may change it
				})
				<-told
			}
		})
	}
	all.Wait()
}
