package roles

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
)

// followEvery is how often the configuration is looked at. A change counts when two looks have seen the same.
const followEvery = time.Second

// followLists calls set whenever the cluster's servers change, by what the cluster says or by what the configuration file does.
func (b *Builder) followLists(set func(config.Servers) error) []program.Part {
	b.membership.follow(set)
	return b.follow(func(f *config.File) error {
		now := config.Servers{Namenodes: f.Namenodes, ResourceManagers: f.ResourceManagers}
		b.membership.relist(now)
		return set(now)
	})
}

// follow keeps a server's lists of servers what the configuration file says, while the server runs. Nothing else of a changed
// file counts before the next start. A file that cannot be read, or has mistakes, changes nothing.
func (b *Builder) follow(set func(*config.File) error) []program.Part {
	if b.Path == "" || b.File != nil && b.File.Followed {
		return nil
	}
	return []program.Part{{Name: "lists of servers", Run: func(ctx context.Context) error {
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		var seen, taken []byte
		for {
			text, err := os.ReadFile(b.Path)
			if err == nil && bytes.Equal(text, seen) && !bytes.Equal(text, taken) {
				taken = text
				b.take(text, set)
			}
			if err == nil {
				seen = text
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	}}}
}

// take gives a server the text of a changed configuration.
func (b *Builder) take(text []byte, set func(*config.File) error) {
	file, err := config.Parse(b.Path, text)
	if err == nil {
		err = set(file)
	}
	if err != nil {
		b.Logger.LogAttrs(context.Background(), slog.LevelWarn, "the changed configuration is not followed", slog.String("file", b.Path), slog.Any("err", err))
	}
}
