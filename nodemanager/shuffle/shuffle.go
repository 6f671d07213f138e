// Package shuffle serves the outputs of MapReduce's maps to its reduces, as Hadoop's ShuffleHandler does: the auxiliary service
// mapreduce_shuffle of a node manager.
//
//	master ── startContainers, service_data[mapreduce_shuffle]: the job's token ──► Register; its answer says the port
//	reduce ── GET /mapOutput?job=J&reduce=N&map=A,B,…, signed with the token ─────► for each map a header and its part for the reduce
//
// The token is the right: who signs with it reads outputs of its application and nothing else. They are files in the directory that
// the application's containers share on the node, output/MAP/file.out and its index.
package shuffle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/nodemanager/durable"
	rm "github.com/gohops/hops/resourcemanager"
)

// Service is the name of the auxiliary service.
const Service = "mapreduce_shuffle"

// MaxApplications is how many applications have outputs here at a time.
const MaxApplications = 1000

// maxPassword bounds the key of a token, in bytes; Hadoop's have 8 to 64.
const maxPassword = 1 << 10

// Service's data, as masters send it and get it.
var (
	// ErrForm: what a master sends is no token.
	ErrForm = errors.New("the data of mapreduce_shuffle is no token of a job")
	// ErrFull: as many applications of a user have outputs here as may.
	ErrFull = errors.New("this node keeps no outputs of more applications")
)

// Meta is what a master is told about the service: its port, four bytes, the greatest first.
func Meta(port int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(port)) }

// Keys are the tokens of the applications that have, or will have, outputs here. They are files of a directory, mode 0600, so
// that the next node manager has them. Its methods may be called from several goroutines.
type Keys struct {
	dir string

	writing sync.Mutex // of who changes the files; mu is not held meanwhile, because reports of the node want it and a disk may be slow

	mu   sync.Mutex
	keys map[rm.ApplicationID]*key
}

type key struct {
	password []byte
	user     string // who has submitted the application; empty: an earlier program has not said so
	busy     int    // requests that are being answered
	// launched: a container of the application was launched with a token, as far as is known; pending are the launches of which that is not known yet.
	launched bool
	pending  int
}

// record is the file of an application's key.
type record struct {
	Password []byte `json:"password"`
	User     string `json:"user,omitempty"`
}

const suffix = ".json"

// Open reads the keys of a directory, which is made when the first comes. Files that cannot be read are removed: their applications'
// reduces are refused until a master brings the token again. Errors: the directory cannot be read.
func Open(dir string) (*Keys, error) {
	k := &Keys{dir: dir, keys: map[rm.ApplicationID]*key{}}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, fmt.Errorf("shuffle: %w", err)
	}
	for _, e := range entries {
		name, _ := strings.CutSuffix(e.Name(), suffix)
		app, err := rm.ParseApplicationID(name)
		var r record
		if err == nil {
			err = durable.ReadJSON(filepath.Join(dir, e.Name()), &r)
		}
		if err != nil || len(r.Password) == 0 {
			os.Remove(filepath.Join(dir, e.Name()))
			continue
		}
		k.keys[app] = &key{password: r.Password, user: r.User, launched: true}
	}
	return k, nil
}

func (k *Keys) file(app rm.ApplicationID) string { return filepath.Join(k.dir, app.String()+suffix) }

// Register takes the token of an application's job, in place of an earlier one: another attempt of the master may have another. A user has at most as many
// applications here as are free afterwards. The token comes with a launch; settle is to be called when it is known whether a container may start with it. A
// new one is given back when none may.
// Errors: ErrForm, ErrFull, those of the disk.
func (k *Keys) Register(app rm.ApplicationID, user string, data []byte) (settle func(launched bool), err error) {
	t, err := token.ParseWritable(data)
	if err != nil || len(t.Password) == 0 || len(t.Password) > maxPassword {
		return nil, ErrForm
	}
	k.writing.Lock()
	defer k.writing.Unlock()
	settle = func(launched bool) { k.settle(app, launched) }
	k.mu.Lock()
	have := k.keys[app]
	same := have != nil && slices.Equal(have.password, t.Password)
	if same {
		have.pending++
	}
	mine, free := k.ofUser(user), MaxApplications-len(k.keys)
	k.mu.Unlock()
	if same {
		return settle, nil
	}
	if have == nil && mine+1 > free-1 {
		return nil, fmt.Errorf("%w: %d of user %s have some, and %d places of %d are free, of which a user may take half", ErrFull, mine, user, free, MaxApplications)
	}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return nil, fmt.Errorf("shuffle: %w", err)
	}
	if err := durable.ReplaceJSON(k.file(app), record{t.Password, user}, 0o600); err != nil {
		return nil, fmt.Errorf("shuffle: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys[app] == nil {
		k.keys[app] = &key{}
	}
	k.keys[app].password, k.keys[app].user = t.Password, user
	k.keys[app].pending++
	return settle, nil
}

// ofUser counts a user's applications. k.mu is held.
func (k *Keys) ofUser(user string) (n int) {
	for _, have := range k.keys {
		if have.user == user {
			n++
		}
	}
	return n
}

// settle notes whether a launch came to something.
func (k *Keys) settle(app rm.ApplicationID, launched bool) {
	k.mu.Lock()
	have := k.keys[app]
	if have == nil { // it has ended meanwhile
		k.mu.Unlock()
		return
	}
	have.pending--
	have.launched = have.launched || launched
	back := have.pending == 0 && !have.launched
	if back {
		delete(k.keys, app)
	}
	k.mu.Unlock()
	if back {
		k.Clean(app)
	}
}

// Has reports whether an application's outputs are to be kept.
func (k *Keys) Has(app rm.ApplicationID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[app] != nil
}

// Applications are those that Has is true of, in their order.
func (k *Keys) Applications() []rm.ApplicationID {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]rm.ApplicationID, 0, len(k.keys))
	for app := range k.keys {
		all = append(all, app)
	}
	slices.SortFunc(all, rm.ApplicationID.Compare)
	return all
}

// End forgets an application; false: it was not known. Its file is there until Clean.
func (k *Keys) End(app rm.ApplicationID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys[app] == nil {
		return false
	}
	delete(k.keys, app)
	return true
}

// Clean removes the file of an application that has ended. If it stays, the next node manager asks again.
func (k *Keys) Clean(app rm.ApplicationID) {
	k.writing.Lock()
	defer k.writing.Unlock()
	if !k.Has(app) { // another token has come
		os.Remove(k.file(app))
	}
}

// maxBusy is how many requests of one application are answered at a time. A reduce has 5 fetchers by default.
const maxBusy = 200

// enter is the key of an application, for one request; busy: it has too many. Every key wants a leave.
func (k *Keys) enter(app rm.ApplicationID, signed func(password []byte) bool) (password []byte, busy bool) {
	k.mu.Lock()
	have := k.keys[app]
	if have != nil {
		password = have.password
	}
	k.mu.Unlock()
	if have == nil || !signed(password) { // only who may is counted
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if have.busy >= maxBusy {
		return nil, true
	}
	have.busy++
	return password, false
}

func (k *Keys) leave(app rm.ApplicationID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if have := k.keys[app]; have != nil && have.busy > 0 {
		have.busy--
	}
}
