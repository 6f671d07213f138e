package transfer

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/slowlog"
)

// lines is a log that is written by many.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Where everything is slow, each thing that may be is told in HDFS's words.
func TestSlowDisksAndMirrorsAreTold(t *testing.T) {
	var log lines
	first := startOne(t, func(c *Config) {
		c.Slow = &slowlog.Log{Limits: slowlog.Limits{IO: time.Nanosecond}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	})
	second := startOne(t)
	data := pattern(100_000)
	mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, first, second).writeAll(0, data, "S S")
	second.wantContent(block(7, 1001, 0), data)
	for _, want := range []string{
		`Slow BlockReceiver write data to disk cost:\d+ms \(threshold=0ms\), volume=DS-\S+, blockId=7`,
		`Slow flushOrSync took \d+ms \(threshold=0ms\), volume=DS-\S+, blockId=7`,
		fmt.Sprintf(`Slow BlockReceiver write packet to mirror took \d+ms \(threshold=0ms\), downstream DN=127.0.0.1:%d, blockId=7`, second.info.GetId().GetXferPort()),
		`Slow PacketResponder send ack to upstream took \d+ms \(threshold=0ms\), upstream=127.0.0.1:\d+, blockId=7`,
	} {
		for end := time.Now().Add(30 * time.Second); !regexp.MustCompile(want).MatchString(log.String()); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %s in\n%s", want, log.String())
			}
		}
	}
}
