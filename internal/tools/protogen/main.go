// Command protogen compiles the repository's .proto files and runs the Go code generators on them, so that
// generating needs Go alone. Run from the repository root by `make gen`:
//
//	protogen -plugins DIR
//
// DIR holds protoc-gen-go, protoc-gen-go-grpc and protoc-gen-go-vtproto. Files under a folder of grpcRoots get
// service stubs, files under vtRoots get reflection-free codecs.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	plugins := flag.String("plugins", "", "directory of the protoc-gen-* programs")
	flag.Parse()
	if err := run(*plugins); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(plugins string) error {
	var names []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir // caches, which hold others' sources
		}
		if err == nil && strings.HasSuffix(path, ".proto") {
			names = append(names, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		return err
	}
	sort.Strings(names)
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), names...)
	if err != nil {
		return err
	}
	for _, g := range []struct {
		program, parameter string
		want               func(linker.File) bool
	}{
		{"protoc-gen-go", "paths=source_relative", func(linker.File) bool { return true }},
		{"protoc-gen-go-grpc", "paths=source_relative", func(f linker.File) bool { return f.Services().Len() > 0 }},
		{"protoc-gen-go-vtproto", "paths=source_relative,features=marshal+unmarshal+size", hot},
	} {
		if err := generate(filepath.Join(plugins, g.program), g.parameter, files, g.want); err != nil {
			return fmt.Errorf("%s: %w", g.program, err)
		}
	}
	return nil
}

// hot reports whether a file's messages travel on a hot path: Hadoop's wire and the replicated log.
func hot(f linker.File) bool {
	return strings.HasPrefix(f.Path(), "namenode/hdfs/hadooppb/") || strings.HasPrefix(f.Path(), "metadata/logpb/") ||
		strings.HasPrefix(f.Path(), "resourcemanager/hadoop/yarnpb/")
}

func generate(program, parameter string, files linker.Files, want func(linker.File) bool) error {
	request := &pluginpb.CodeGeneratorRequest{Parameter: &parameter}
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, descriptor(f))
	}
	for _, f := range files {
		add(f)
		if want(f) {
			request.FileToGenerate = append(request.FileToGenerate, f.Path())
		}
	}
	if len(request.FileToGenerate) == 0 {
		return nil
	}
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(out, response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, f := range response.File {
		if err := os.WriteFile(f.GetName(), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func descriptor(f protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	if r, ok := f.(linker.Result); ok {
		return r.FileDescriptorProto()
	}
	return protodesc.ToFileDescriptorProto(f)
}
