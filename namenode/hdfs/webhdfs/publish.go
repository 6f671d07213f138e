package webhdfs

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// maxPublish is how many bytes the body of a PUBLISH may have. What it says takes less in the log, where 512 KiB is the most.
const maxPublish = 1 << 20

// publishStep is a step of a PUBLISH: one of these. Paths are absolute, or below the request's path; an empty one, or none, is that itself, but not for what moves or deletes.
type publishStep struct {
	Rename *struct {
		Source      string `json:"source"`
		Destination string `json:"destination"`
		Overwrite   bool   `json:"overwrite"`
	} `json:"rename"`
	Delete *struct {
		Path      string `json:"path"`
		Recursive bool   `json:"recursive"`
		IfThere   bool   `json:"ifThere"`
	} `json:"delete"`
	SetXAttr *struct {
		Path string `json:"path"`
		Name string `json:"name"`
		// Value and Flag are as xattr.value and flag of SETXATTR; without flags an attribute may be made, and one replaced.
		Value string `json:"value"`
		Flag  string `json:"flag"`
	} `json:"setXAttr"`
	RemoveXAttr *struct {
		Path string `json:"path"`
		Name string `json:"name"`
	} `json:"removeXAttr"`
	CreateSnapshot *struct {
		Path string `json:"path"`
		Name string `json:"name"`
	} `json:"createSnapshot"`
}

// publishList are the steps of a PUBLISH. Those behind the most that there may be are counted and not decoded.
type publishList struct {
	steps []publishStep
	n     int
}

func (l *publishList) UnmarshalJSON(text []byte) error {
	*l = publishList{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	switch begin, err := decoder.Token(); {
	case err != nil:
		return err
	case begin == nil: // null
		return nil
	case begin != json.Delim('['):
		return errors.New("the steps are no list")
	}
	var passed json.RawMessage
	for decoder.More() {
		if l.n++; l.n > namenode.MaxPublishSteps {
			if err := decoder.Decode(&passed); err != nil {
				return err
			}
			continue
		}
		var s publishStep
		if err := decoder.Decode(&s); err != nil {
			return err
		}
		l.steps = append(l.steps, s)
	}
	return nil
}

// step is what the namenode is asked for.
func (s *publishStep) step(q *request) (out namenode.PublishStep, err error) {
	path := func(name string) string {
		if strings.HasPrefix(name, "/") {
			return name
		}
		return strings.TrimSuffix(strings.TrimSuffix(q.path, "/")+"/"+name, "/")
	}
	verbs := 0
	if r := s.Rename; r != nil {
		if verbs++; r.Source == "" || r.Destination == "" {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "a rename takes a source and a destination")
		}
		out = namenode.PublishStep{What: namenode.PublishRename, Path: path(r.Source), To: path(r.Destination), Overwrite: r.Overwrite}
	}
	if d := s.Delete; d != nil {
		if verbs++; d.Path == "" { // which nobody means to be the request's path
			err = metadata.Errorf(metadata.ErrInvalidArgument, "a delete takes a path")
		}
		out = namenode.PublishStep{What: namenode.PublishDelete, Path: path(d.Path), Recursive: d.Recursive, IfThere: d.IfThere}
	}
	if x := s.SetXAttr; x != nil {
		verbs++
		out = namenode.PublishStep{What: namenode.PublishSetXAttr, Path: path(x.Path), Create: true, Replace: true}
		if x.Flag != "" {
			out.Create, out.Replace, err = xattrFlags(x.Flag)
		}
		if err == nil {
			out.Attribute, err = xattrName(x.Name)
		}
		if err == nil {
			out.Attribute.Value, err = decodeValue(x.Value)
		}
	}
	if x := s.RemoveXAttr; x != nil {
		verbs++
		out = namenode.PublishStep{What: namenode.PublishRemoveXAttr, Path: path(x.Path)}
		out.Attribute, err = xattrName(x.Name)
	}
	if c := s.CreateSnapshot; c != nil {
		verbs++
		out = namenode.PublishStep{What: namenode.PublishSnapshot, Path: path(c.Path), Name: c.Name}
	}
	if verbs != 1 {
		return out, metadata.Errorf(metadata.ErrInvalidArgument, "it is one of rename, delete, setXAttr, removeXAttr and createSnapshot")
	}
	if out.Path == "" {
		out.Path = "/"
	}
	return out, err
}

// publish does several things in one go, all of them or none. The body says which. With a requestid, 32 hexadecimal digits that nobody uses for another request, it is done
// once, however often it is asked for within ten minutes.
func (q *request) publish() (response, error) {
	var retry namenode.Retry
	if id := q.params["requestid"]; id != "" {
		var err error
		if retry.ClientID, err = hex.DecodeString(id); err != nil || len(retry.ClientID) != 16 {
			return response{}, invalid("requestid", "%q is not 32 hexadecimal digits.", id)
		}
	}
	if err := q.take(maxPublish); err != nil {
		return response{}, err
	}
	text, err := io.ReadAll(io.LimitReader(q.http.Body, maxPublish+1))
	if err != nil {
		return response{}, metadata.Errorf(metadata.ErrIO, "the steps cannot be read: %v", err)
	}
	if len(text) > maxPublish {
		return response{}, metadata.Errorf(metadata.ErrInvalidArgument, "publish: the body has more than %d bytes", maxPublish)
	}
	steps, err := q.publishSteps(text)
	if err != nil {
		return response{}, err
	}
	snapshot, err := wait(q, func(done func(string, error)) { q.service.Publish(q.caller, retry, steps, done) })
	failed, isStep := errors.AsType[*namenode.PublishError](err)
	if q.audited = err == nil || isStep; q.audited {
		at := 0
		if isStep {
			at = failed.Step
		}
		for _, d := range namenode.PublishDecisions(steps, snapshot, at, err) {
			d.Caller, d.Port = q.caller, "webhdfs"
			q.door.Record(d)
		}
	}
	if err != nil {
		return response{}, err
	}
	answer := struct {
		Steps    int     `json:"steps"`
		Snapshot *string `json:"snapshot"`
	}{Steps: len(steps)}
	if snapshot != "" {
		answer.Snapshot = &snapshot
	}
	return body(map[string]any{"Publish": answer}), nil
}

// publishSteps reads the body of a PUBLISH.
func (q *request) publishSteps(text []byte) ([]namenode.PublishStep, error) {
	var asked struct {
		Steps publishList `json:"steps"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&asked)
	if _, more := decoder.Token(); err == nil && !errors.Is(more, io.EOF) {
		err = errors.New("something follows them")
	}
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "publish: the body is no JSON of steps: %v", err)
	}
	if asked.Steps.n > namenode.MaxPublishSteps {
		return nil, namenode.ManySteps(asked.Steps.n)
	}
	steps := make([]namenode.PublishStep, len(asked.Steps.steps))
	for i := range asked.Steps.steps {
		if steps[i], err = asked.Steps.steps[i].step(q); err != nil {
			return nil, metadata.Errorf(metadata.KindOf(err), "publish: step %d of %d: %s", i+1, len(steps), err)
		}
	}
	return steps, nil
}
