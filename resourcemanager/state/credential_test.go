package state

import (
	"errors"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// A token never takes the place of another one, which nobody would cancel then.
func TestATokenIsNotReplacedByAnother(t *testing.T) {
	c := newCluster(t, Config{})
	id := c.submit(&rm.Application{Name: "x"}).Application
	keep := func(sealed string, renewed int64) error {
		return c.do(&statepb.Command{Op: &statepb.Command_KeepCredentials{KeepCredentials: &statepb.KeepCredentials{Epoch: c.epoch, Keep: []*statepb.Credential{
			{Application: ApplicationID(id), Number: 1, Sealed: []byte(sealed), RenewedMs: renewed},
		}}}}).Err
	}
	if err := keep("one", 0); err != nil {
		t.Fatal(err)
	}
	if err := keep("two", 0); !errors.Is(err, rm.ErrStaleAttempt) {
		t.Errorf("another token with its number: %v", err)
	}
	if err := keep("one", 7); err != nil {
		t.Errorf("renewed: %v", err)
	}
	if all := c.View().Credentials(id); len(all) != 1 || string(all[0].Sealed) != "one" || all[0].Renewed != 7 {
		t.Errorf("kept %+v", all)
	}
}
