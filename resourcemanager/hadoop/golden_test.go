package hadoop

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// golden are the requests of testdata/requests.txt, by protocol and method.
func golden(t *testing.T) map[string][][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][][]byte{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("%.100q", line)
		}
		b, err := hex.DecodeString(strings.TrimPrefix(f[2], "-"))
		if err != nil {
			t.Fatal(err)
		}
		key := f[0] + " " + f[1]
		out[key] = append(out[key], b)
	}
	return out
}

// Every word of what Hadoop's programs send is known here, and written again it is the same bytes. Methods that are refused take any request.
func TestRequestsOfHadoopsProgramsAreKnownWordForWord(t *testing.T) {
	methods := map[string]hrpc.Method{}
	New(Config{Door: security.NewDoor(security.Config{})}).rpc.Methods(func(protocol string, m hrpc.Method) {
		methods[protocol[strings.LastIndexByte(protocol, '.')+1:]+" "+m.Name] = m
	})
	requests := golden(t)
	if len(requests) < 15 {
		t.Errorf("only %d methods are recorded", len(requests))
	}
	for key, all := range requests {
		method, ok := methods[key]
		if !ok {
			t.Errorf("%s is no method here", key)
			continue
		}
		for _, b := range all {
			q := method.New()
			if err := q.UnmarshalVT(b); err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			if m, ok := q.(proto.Message); ok {
				unknown(m.ProtoReflect(), func(where string) { t.Errorf("%s: unknown words in %s", key, where) })
			}
			again := make([]byte, q.SizeVT())
			_, err := q.MarshalToSizedBufferVT(again)
			if err != nil || !bytes.Equal(again, b) {
				t.Errorf("%s: %x\nagain %x %v", key, b, again, err)
			}
		}
	}
}

// unknown calls found for each message in m that has fields which its definition does not.
func unknown(m protoreflect.Message, found func(where string)) {
	if len(m.GetUnknown()) > 0 {
		found(string(m.Descriptor().FullName()))
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				unknown(v.List().Get(i).Message(), found)
			}
		default:
			unknown(v.Message(), found)
		}
		return true
	})
}

// What the distributed shell and MapReduce submit, and ask for, is read as they mean it.
func TestWhatHadoopsProgramsMean(t *testing.T) {
	requests := golden(t)
	types := map[string]bool{}
	for _, b := range requests["ApplicationClientProtocolPB submitApplication"] {
		var q pb.SubmitApplicationRequestProto
		if err := q.UnmarshalVT(b); err != nil {
			t.Fatal(err)
		}
		c, err := submissionContext(q.ApplicationSubmissionContext)
		if err != nil {
			t.Fatal(err)
		}
		types[c.Type] = true
		if _, err := c.Submission(); err != nil {
			t.Errorf("%s: %v", c.Type, err)
		}
		if c.Queue != "default" || c.Resource.VCores != 1 || len(c.Commands) == 0 || len(c.Local) == 0 || c.Env["CLASSPATH"] == "" {
			t.Errorf("%+v", c)
		}
		if c.Type == "MAPREDUCE" {
			f, err := token.ParseFile(c.Tokens)
			if err != nil || len(f.Tokens) == 0 && len(f.Secrets) == 0 {
				t.Errorf("the credentials of the job: %v %v", f, err)
			}
		}
	}
	if !types["MAPREDUCE"] || !types["YARN"] {
		t.Errorf("%v", types)
	}
	c, most := rowCall(t), 0
	for _, b := range requests["ApplicationMasterProtocolPB allocate"] {
		var q pb.AllocateRequestProto
		if err := q.UnmarshalVT(b); err != nil {
			t.Fatal(err)
		}
		w := newWants()
		changed, err := w.take(c, &q)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range changed {
			if a, ok := only(t, w, c, key); ok {
				most = max(most, a.Count)
				if a.Resource.Memory < 128*rm.MiB || a.Resource.VCores != 1 || a.Strict {
					t.Errorf("%+v", a)
				}
			}
		}
	}
	if most == 0 {
		t.Error("nobody asks for anything")
	}
}
