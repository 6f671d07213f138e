package runs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// manifest lists the runs that count, oldest first. On disk it is a line with a checksum and a line of JSON, replaced as
// a whole.
type manifest struct {
	Next uint64        `json:"next"`
	Runs []manifestRun `json:"runs"`
}

type manifestRun struct {
	Name string `json:"name"`
	At   uint64 `json:"at"`
}

const (
	manifestName = "manifest"
	manifestHead = "hops checkpoint 1 %08x\n"
)

func readManifest(path string) (*manifest, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	head, text, _ := bytes.Cut(data, []byte("\n"))
	if string(head)+"\n" != fmt.Sprintf(manifestHead, crc32.Checksum(text, castagnoli)) {
		return nil, corrupt(path, "checksum or version")
	}
	m := new(manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, corrupt(path, "%v", err)
	}
	at := uint64(0)
	for _, r := range m.Runs {
		if r.At < at || filepath.Base(r.Name) != r.Name {
			return nil, corrupt(path, "run %q at %d", r.Name, r.At)
		}
		at = r.At
	}
	return m, nil
}

// write replaces the manifest in dir and makes it durable.
func (m *manifest) write(dir string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, manifestName)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(fmt.Appendf(nil, manifestHead, crc32.Checksum(text, castagnoli)), text...))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// The names of the runs have to be there when the manifest is.
	if err := syncDir(dir); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(dir)
}
