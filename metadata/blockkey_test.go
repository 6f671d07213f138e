package metadata

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestKeySeedsDoNotShow(t *testing.T) {
	const seed = "a seed that nobody is to see ..."
	key := BlockKey{ID: 7, Seed: seed}
	shown := []string{fmt.Sprint(key, &key, []BlockKey{key}, key.Seed)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		shown = append(shown, fmt.Sprintf(verb, key), fmt.Sprintf(verb, key.Seed), fmt.Sprintf(verb, map[int]BlockKey{1: key}))
	}
	asJSON, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("text", "key", key, "seed", key.Seed)
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("json", "key", key, "seed", key.Seed)
	shown = append(shown, string(asJSON), logged.String())
	for _, s := range shown {
		if strings.Contains(s, "nobody") || strings.Contains(strings.ToLower(s), fmt.Sprintf("%x", "nobody")) {
			t.Errorf("a seed shows in %s", s)
		}
	}
}
