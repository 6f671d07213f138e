// Package jmxtest compares a server's beans with those that Hadoop 3.4.3 was asked for.
package jmxtest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// recorded has the beans of a namenode, a datanode and a resource manager of Apache Hadoop 3.4.3, with the type of each attribute.
//
//go:embed hadoop-3.4.3.json
var recorded []byte

// ours are attributes that Hadoop does not have on every cluster.
var ours = map[string]bool{"Capability.yarn.io/gpu": true}

var changing = regexp.MustCompile(`ForPort\d+|FSDatasetState-.*`)

// Check asks a server at HOST:PORT for all its beans, complains of attributes that Hadoop does not have, or has with another type, and
// returns what was answered by bean and attribute. want are beans that must be there; the variable end of a name is 0 or UUID.
func Check(t *testing.T, addr string, want ...string) map[string]map[string]any {
	t.Helper()
	var hadoop map[string]map[string]string
	if err := json.Unmarshal(recorded, &hadoop); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + addr + "/jmx")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	var answer struct{ Beans []map[string]any }
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	got := map[string]map[string]any{}
	for _, b := range answer.Beans {
		name := changing.ReplaceAllStringFunc(b["name"].(string), func(s string) string {
			if strings.HasPrefix(s, "ForPort") {
				return "ForPort0"
			}
			return "FSDatasetState-UUID"
		})
		got[name] = b
		for attribute, value := range b {
			if attribute == "name" || attribute == "modelerType" {
				continue
			}
			switch theirs, have := hadoop[name][attribute], kind(value); {
			case ours[attribute] || theirs == have || theirs == "any":
			case theirs == "":
				t.Errorf("%s: Hadoop has no %s", name, attribute)
			default:
				t.Errorf("%s: %s is of type %s, in Hadoop %s", name, attribute, have, theirs)
			}
		}
		if kind := changing.ReplaceAllString(b["modelerType"].(string), "ForPort0"); kind != hadoop[name]["modelerType"] {
			t.Errorf("%s is a %s, in Hadoop %s", name, kind, hadoop[name]["modelerType"])
		}
	}
	for _, name := range want {
		if got[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
	return got
}

func kind(v any) string {
	switch v := v.(type) {
	case bool:
		return "bool"
	case json.Number:
		if strings.ContainsAny(v.String(), ".E") {
			return "double"
		}
		return "int"
	case string:
		return "string"
	case []any:
		return "list"
	}
	return "object"
}
