package clientprotocol

import (
	"errors"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Small files, whose bytes the namenodes keep: hops' own calls that make one, and read one, in one round trip. Hadoop's clients see them as files of one block.

func (p *protocol) smallMethods() []hrpc.Method {
	open := on("openWithData", security.ByPath, p.openWithData)
	open.Answer = metadata.MaxBody + 1<<10
	return []hrpc.Method{
		on("createWithData", security.ByPath, p.createWithData), open, on("openManyWithData", security.ByPath, p.openManyWithData),
		on("keepFile", security.ByPath, p.keepFile),
		on("setSmallFiles", security.ByPath, p.setSmallFiles), on("getSmallFiles", security.ByPath, p.getSmallFiles),
	}
}

func (p *protocol) createWithData(c *hrpc.Call, r *pb.CreateWithDataRequestProto) {
	create, data := r.GetCreate(), r.GetData()
	request, err := createRequest(c, create)
	switch {
	case err != nil:
	case len(data) > metadata.MaxBody:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "createWithData: %s has %d bytes, and %d is the most: create it and write blocks", create.GetSrc(), len(data), metadata.MaxBody)
	case !request.Create:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "createWithData: the flag CREATE is missing")
	}
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.StoreFile(c.Caller, request, data, func(f *metadata.FileStatus, err error) {
		switch {
		case errors.Is(err, metadata.ErrUnsupported): // it is made as any other then
			c.Reply(&storedAnswer{limit: p.service.SmallFileLimit()})
		case err != nil:
			c.Fail(err)
		default:
			c.Reply(&storedAnswer{infoAnswer: infoAnswer{encoder: &p.encode, status: f}})
		}
	})
}

func (p *protocol) keepFile(c *hrpc.Call, r *pb.KeepFileRequestProto) {
	request := namenode.KeepFileRequest{Retry: retry(c), Path: r.GetSrc(), Data: r.GetData(), Blocks: make([]metadata.Block, 0, len(r.GetBlocks()))}
	var err error
	if len(request.Data) > metadata.MaxBody {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "keepFile: %s has %d bytes, and %d is the most", r.GetSrc(), len(request.Data), metadata.MaxBody)
	}
	for _, one := range r.GetBlocks() {
		var b *metadata.Block
		if err == nil {
			b, err = p.block(one)
		}
		if err == nil && b == nil {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "keepFile: %s is not made of a block 0", r.GetSrc())
		}
		if err != nil {
			break
		}
		request.Blocks = append(request.Blocks, *b)
	}
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.KeepFile(c.Caller, request, done(c))
}

func (p *protocol) openWithData(c *hrpc.Call, r *pb.OpenWithDataRequestProto) {
	length := int64(r.GetLength())
	if length < 0 {
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "Negative length is not supported. File: %s", r.GetPath()))
		return
	}
	request := namenode.FileWithDataRequest{Path: r.GetPath(), Most: min(int64(r.GetMost()), metadata.MaxBody), Length: length, Admit: c.Admit}
	p.service.FileWithData(c.Caller, request, func(f *namenode.FileWithData, err error) {
		switch {
		case err != nil:
			c.Fail(err)
		case f.Whole:
			c.Reply(dataAnswer{data: f.Data})
		default:
			f.Tails = true
			c.Reply(&locatedAnswer{locationsAnswer{encoder: &p.encode, file: &f.LocatedFile, pool: *p.blockPool()}})
		}
	})
}

const (
	// maxOpenMany is how many paths one call may name, and maxManyBytes about the most that its answer has.
	maxOpenMany  = 1024
	maxManyBytes = 4 << 20
)

// openManyWithData answers with the bytes of small files, on a goroutine of its own: it may have to wait for room for them.
func (p *protocol) openManyWithData(c *hrpc.Call, r *pb.OpenManyWithDataRequestProto) {
	paths, most := r.GetPaths(), int64(min(r.GetMost(), maxManyBytes))
	if len(paths) > maxOpenMany {
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "openManyWithData: %d paths, and %d is the most: ask for fewer at a time", len(paths), maxOpenMany))
		return
	}
	c.Go(func() {
		if err := c.Admit(most + metadata.MaxBody + 64*int64(len(paths))); err != nil {
			c.Fail(err)
			return
		}
		type opened struct {
			files []namenode.OpenedFile
			err   error
		}
		got := make(chan opened, 1)
		p.service.FilesWithData(c.Context(), c.Caller, paths, most, func(files []namenode.OpenedFile, err error) { got <- opened{files, err} })
		many := <-got
		if many.err != nil {
			c.Fail(many.err) // of all of them
			return
		}
		answer := &pb.OpenManyWithDataResponseProto{Files: make([]*pb.OpenedFileProto, len(many.files))}
		ones := make([]pb.OpenedFileProto, len(many.files))
		for i, f := range many.files {
			one := &ones[i]
			switch answer.Files[i] = one; {
			case f.Err != nil:
				class, message := hdfs.Exception(f.Err)
				one.Exception, one.Message = &class, &message
			case f.Whole:
				if one.Data = f.Data; one.Data == nil {
					one.Data = []byte{}
				}
			}
		}
		c.Reply(openedAnswer{answer, many.files})
	})
}

// openedAnswer implements hrpc.ManyAnswers.
type openedAnswer struct {
	*pb.OpenManyWithDataResponseProto
	files []namenode.OpenedFile
}

func (a openedAnswer) Outcomes() int       { return len(a.files) }
func (a openedAnswer) Outcome(i int) error { return a.files[i].Err }

func (p *protocol) setSmallFiles(c *hrpc.Call, r *pb.SetSmallFilesRequestProto) {
	policy := namenode.SmallFilePolicy(r.GetPolicy())
	switch r.GetPolicy() {
	case pb.SmallFilesProto_INHERIT, pb.SmallFilesProto_OFF, pb.SmallFilesProto_ON:
		p.service.SetSmallFiles(c.Caller, r.GetPath(), policy, done(c))
	default:
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "setSmallFiles: policy %d", r.GetPolicy()))
	}
}

func (p *protocol) getSmallFiles(c *hrpc.Call, r *pb.GetSmallFilesRequestProto) {
	p.service.SmallFilesAt(c.Caller, r.GetPath(), func(policy namenode.SmallFilePolicy, own bool, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(&pb.GetSmallFilesResponseProto{Policy: pb.SmallFilesProto(policy).Enum(), Own: &own, Limit: new(uint32(p.service.SmallFileLimit()))})
	})
}

// storedAnswer is a CreateWithDataResponseProto. Without a status nothing was stored, and the limit is told.
type storedAnswer struct {
	infoAnswer
	limit int
}

func (a *storedAnswer) SizeVT() int {
	if a.status == nil {
		return 2 + 1 + varintSize(uint64(a.limit))
	}
	a.size = a.encoder.statusSize(a.status, &a.blocks)
	return 2 + delimitedSize(a.size)
}

func (a *storedAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	b := appendBool(to[:0], 1, a.status != nil)
	if a.status != nil {
		b = a.encoder.appendStatus(appendLength(b, 2, a.size), a.status, &a.blocks)
	} else {
		b = appendVarint(b, 3, uint64(a.limit))
	}
	return whole(b, to, nil)
}

// dataAnswer is an OpenWithDataResponseProto with the bytes, which are there even if they are none.
type dataAnswer struct {
	onlyAnswers
	data []byte
}

func (a dataAnswer) SizeVT() int { return delimitedSize(len(a.data)) }

func (a dataAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	return whole(append(appendLength(to[:0], 1, len(a.data)), a.data...), to, nil)
}

// locatedAnswer is an OpenWithDataResponseProto with locations.
type locatedAnswer struct{ locationsAnswer }

func (a *locatedAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	return whole(a.encoder.appendFile(to[:0], 2, a.file, a.pool, a.size), to, nil)
}
