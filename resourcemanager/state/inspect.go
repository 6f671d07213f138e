package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/outline"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// shortForms are those of what commands name.
var shortForms = outline.Writer{
	(*statepb.ApplicationID)(nil).ProtoReflect().Descriptor().FullName(): func(m protoreflect.Message) string {
		id, _ := m.Interface().(*statepb.ApplicationID)
		return appIDOf(id).String()
	},
	(*statepb.ContainerID)(nil).ProtoReflect().Descriptor().FullName(): func(m protoreflect.Message) string {
		id, _ := m.Interface().(*statepb.ContainerID)
		return containerIDOf(id).String()
	},
	(*statepb.Resource)(nil).ProtoReflect().Descriptor().FullName(): func(m protoreflect.Message) string {
		r, _ := m.Interface().(*statepb.Resource)
		return outline.Text(resourceOf(r).String())
	},
}

// Describe says what a command of the log is.
//
// Errors: release.ErrOlder for one that has something in it which this program does not know; metadata.ErrCorrupt.
func Describe(command []byte) (outline.Command, error) {
	c := &statepb.Command{}
	if err := proto.Unmarshal(command, c); err != nil {
		return outline.Command{}, metadata.Errorf(metadata.ErrCorrupt, "no command of a resource manager: %v", err)
	}
	if unknown(c.ProtoReflect()) {
		return outline.Command{}, fmt.Errorf("command of a newer version of the program (%w)", release.ErrOlder)
	}
	d, ok := shortForms.Of(c, "op")
	if !ok {
		return d, metadata.Errorf(metadata.ErrCorrupt, "no command of a resource manager: it has no operation")
	}
	return d, nil
}

// InspectSnapshot reads a snapshot to its end without keeping it, and returns its index and how many records of each kind there are.
//
// Errors: metadata.ErrCorrupt; metadata.ErrUnsupported or release.ErrOlder for one of a newer version.
func InspectSnapshot(r io.Reader) (index uint64, classes []outline.Class, err error) {
	in := bufio.NewReaderSize(r, 1<<16)
	options := protodelim.UnmarshalOptions{MaxSize: maxRecord}
	at := map[string]int{}
	for n := uint64(0); ; n++ {
		record := &statepb.Record{}
		if err := options.UnmarshalFrom(in, record); err != nil {
			return 0, nil, metadata.Errorf(metadata.ErrCorrupt, "record %d: %v", n, err)
		}
		m := record.ProtoReflect()
		field := m.WhichOneof(m.Descriptor().Oneofs().ByName("item"))
		switch header := record.GetHeader(); {
		case field == nil || unknown(m):
			return 0, nil, fmt.Errorf("record %d is of a newer version of the program: %w", n, release.ErrOlder)
		case (header != nil) != (n == 0):
			return 0, nil, metadata.Errorf(metadata.ErrCorrupt, "record %d: the header is the first record and only that", n)
		case header != nil && header.Version != version:
			return 0, nil, metadata.Errorf(metadata.ErrUnsupported, "the snapshot has version %d, this program reads %d", header.Version, version)
		case header != nil:
			index = header.Index
		case record.GetEnd() != nil:
			if records := record.GetEnd().Records; records != n {
				return 0, nil, metadata.Errorf(metadata.ErrCorrupt, "%d records came of %d", n, records)
			}
			if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				return 0, nil, metadata.Errorf(metadata.ErrCorrupt, "there is more behind the end")
			}
			return index, classes, nil
		}
		name := string(field.Name())
		i, ok := at[name]
		if !ok {
			i = len(classes)
			at[name] = i
			classes = append(classes, outline.Class{Name: name})
		}
		classes[i].Records++
		classes[i].Bytes += uint64(proto.Size(record))
	}
}
