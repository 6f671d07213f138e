package blockstore

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain runs every test twice: with handles that stay for a while, and with such that rest as soon as they can.
func TestMain(m *testing.M) {
	flag.Parse()
	usual := idleHandles
	if flag.Lookup("test.bench").Value.String() == "" {
		idleHandles = 0
		if code := m.Run(); code != 0 {
			fmt.Println("with idleHandles 0")
			os.Exit(code)
		}
	}
	idleHandles = usual
	os.Exit(m.Run())
}
