package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// tree is a tar being made: sorted by name and of one time, so that the same files give the same bytes.
type tree struct {
	mtime time.Time
	files []file
}

type file struct {
	header tar.Header
	text   []byte
}

// add takes a file, or a directory if the header says so; owners are root unless the header has others.
func (t *tree) add(h tar.Header, text []byte) {
	h.Size, h.ModTime, h.Format = int64(len(text)), t.mtime, tar.FormatPAX
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	t.files = append(t.files, file{h, text})
}

func (t *tree) bytes() []byte {
	slices.SortFunc(t.files, func(a, b file) int { return cmp.Compare(a.header.Name, b.header.Name) })
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range t.files {
		_ = w.WriteHeader(&f.header) // into memory
		_, _ = w.Write(f.text)
	}
	_ = w.Close()
	return b.Bytes()
}

// imageUser is the user of servers in the image; a number, because Kubernetes looks at numbers only (runAsNonRoot).
const imageUser = 10100

// The parts of an OCI image that we write: https://github.com/opencontainers/image-spec, version 1.1.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Platform    *platform         `json:"platform,omitempty"`
	}
	platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	imageIndex struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}
	manifest struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}
	imageConfig struct {
		Created      string `json:"created"`
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Config       struct {
			User       string
			Entrypoint []string
			Cmd        []string
			Env        []string
			Labels     map[string]string
		} `json:"config"`
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		History []struct {
			Created   string `json:"created"`
			CreatedBy string `json:"created_by"`
		} `json:"history"`
	}
)

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// image writes an OCI image layout as one tar, which podman load, skopeo copy oci-archive:, crane and containerd's ctr take. It needs no
// daemon and no registry: a layout is a few JSON files beside one layer.
func (s *shipment) image() error {
	layer, err := s.layer()
	if err != nil {
		return err
	}
	blobs := map[string][]byte{}
	put := func(mediaType string, text []byte) descriptor {
		d := digest(text)
		blobs[d] = text
		return descriptor{MediaType: mediaType, Digest: "sha256:" + d, Size: len(text)}
	}
	created := s.mtime.Format(time.RFC3339)
	var conf imageConfig
	conf.Created, conf.Architecture, conf.OS = created, s.arch, "linux"
	conf.Config.User = fmt.Sprintf("%d:%d", imageUser, imageUser)
	conf.Config.Entrypoint, conf.Config.Cmd = []string{"/usr/bin/hops"}, []string{"--help"}
	conf.Config.Env = []string{"PATH=/usr/bin"}
	conf.Config.Labels = map[string]string{
		"org.opencontainers.image.title": "hops", "org.opencontainers.image.version": s.version, "org.opencontainers.image.licenses": "Apache-2.0",
	}
	conf.RootFS.Type, conf.RootFS.DiffIDs = "layers", []string{"sha256:" + digest(layer)}
	conf.History = append(conf.History, struct {
		Created   string `json:"created"`
		CreatedBy string `json:"created_by"`
	}{created, "go run ./deploy/packages"})
	m := manifest{SchemaVersion: 2, MediaType: manifestType, Config: put(configType, encode(conf)), Layers: []descriptor{put(layerType, compressed(layer))}}
	d := put(manifestType, encode(m))
	d.Platform = &platform{s.arch, "linux"}
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": "hops:" + tag(s.version)}
	index := imageIndex{SchemaVersion: 2, MediaType: indexType, Manifests: []descriptor{d}}

	t := tree{mtime: s.mtime}
	t.add(tar.Header{Name: "oci-layout", Mode: 0o644}, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	t.add(tar.Header{Name: "index.json", Mode: 0o644}, encode(index))
	t.add(tar.Header{Name: "blobs/", Mode: 0o755, Typeflag: tar.TypeDir}, nil)
	t.add(tar.Header{Name: "blobs/sha256/", Mode: 0o755, Typeflag: tar.TypeDir}, nil)
	for d, text := range blobs {
		t.add(tar.Header{Name: "blobs/sha256/" + d, Mode: 0o644}, text)
	}
	return os.WriteFile(filepath.Join(s.out, fmt.Sprintf("hops-%s-oci-%s.tar", s.version, s.arch)), t.bytes(), 0o644)
}

// layer is the root of the image: the static program, its user and its directories, nothing else.
func (s *shipment) layer() ([]byte, error) {
	program, err := os.ReadFile(s.staged("hops-static"))
	if err != nil {
		return nil, err
	}
	licence, err := os.ReadFile(s.staged("third-party-licenses.gz"))
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile(s.staged("LICENSE"))
	if err != nil {
		return nil, err
	}
	t := tree{mtime: s.mtime}
	dir := func(name string, mode int64, owner int) {
		t.add(tar.Header{Name: name + "/", Mode: mode, Typeflag: tar.TypeDir, Uid: owner, Gid: owner}, nil)
	}
	for _, name := range []string{"etc", "usr", "usr/bin", "usr/share", "usr/share/doc", "usr/share/doc/hops", "var", "var/lib", "var/log"} {
		dir(name, 0o755, 0)
	}
	dir("tmp", 0o1777, 0)
	dir("etc/hops", 0o755, imageUser)
	dir("var/lib/hops", 0o711, imageUser)
	dir("var/log/hops", 0o750, imageUser)
	t.add(tar.Header{Name: "etc/passwd", Mode: 0o644}, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nhops:x:%d:%d:hops:/var/lib/hops:/sbin/nologin\n", imageUser, imageUser))
	t.add(tar.Header{Name: "etc/group", Mode: 0o644}, fmt.Appendf(nil, "root:x:0:\nhops:x:%d:\n", imageUser))
	t.add(tar.Header{Name: "usr/bin/hops", Mode: 0o755}, program)
	t.add(tar.Header{Name: "usr/share/doc/hops/LICENSE", Mode: 0o644}, own)
	t.add(tar.Header{Name: "usr/share/doc/hops/third-party-licenses.gz", Mode: 0o644}, licence)
	return t.bytes(), nil
}

// tag is a version as a tag may be written: without the plus sign.
func tag(version string) string {
	return string(bytes.ReplaceAll([]byte(version), []byte("+"), []byte("-")))
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // only our own structs
	}
	return text
}
