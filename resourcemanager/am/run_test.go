package am

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security/securitytest"
)

// What a master does is tested against a real resource manager in resourcemanager/server.

func TestTheEnvironmentIsCheckedAtOnce(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trust := filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(trust, authority.MarshalRoots(securitytest.Credentials(t).Member.Roots()), 0o600); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{
		"HOPS_APPLICATION_ID": "application_1_0001", "HOPS_ATTEMPT": "2", "HOPS_CONTAINER_ID": "container_1_0001_02_000001", "HOPS_RM_GRPC": "127.0.0.1:1, 127.0.0.1:2,", "HOPS_TOKEN": token,
		"HOPS_WORK_DIR": "/w", "HOPS_AUTHORITY": trust,
	}
	e, err := EnvFrom(func(name string) string { return vars[name] })
	if err != nil || e.Token != "secret" || len(e.ResourceManagers) != 2 || e.Attempt != 2 || e.WorkDir != "/w" || e.Trust == nil {
		t.Errorf("%+v %v", e, err)
	}
	_, err = EnvFrom(func(string) string { return "" })
	for _, want := range []string{"HOPS_APPLICATION_ID", "HOPS_CONTAINER_ID", "HOPS_ATTEMPT", "HOPS_RM_GRPC", "HOPS_TOKEN", "HOPS_AUTHORITY"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}
