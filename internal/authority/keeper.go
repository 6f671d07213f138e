package authority

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

// KeeperConfig describes how a process keeps its machine's identity.
type KeeperConfig struct {
	// Path is the identity's file. Several processes of the machine may have it in common.
	Path string
	// Renew asks the cluster for a new certificate: it takes the request and returns the certificate, in DER, and the authorities
	// that are trusted now.
	Renew func(ctx context.Context, request []byte) (certificate []byte, roots []*x509.Certificate, err error)
	// Now is the clock.
	Now    func() time.Time
	Logger *slog.Logger
}

// Keeper makes a Member of an identity's file and renews its certificate in time.
type Keeper struct {
	KeeperConfig
	Member *Member

	key crypto.Signer
}

// NewKeeper reads the file.
func NewKeeper(c KeeperConfig) (*Keeper, error) {
	i, err := LoadIdentity(c.Path)
	if err != nil {
		return nil, err
	}
	m, err := i.Member(c.Now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	return &Keeper{KeeperConfig: c, Member: m, key: i.Key}, nil
}

const (
	// renewAgain is how long a keeper waits after it could not renew; it tries for a third of a certificate's life.
	renewAgain = 10 * time.Minute
	// renewSpread keeps machines that joined together from renewing together, as a part of a certificate's life.
	renewSpread = 20
)

// Run renews until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		at := k.Member.RenewAt()
		wait := at.Sub(k.Now()) + rand.N(MachineLife/renewSpread) // wakes later, rather than often
		if wait < 0 {
			wait = 0
		}
		if !sleep(ctx, wait) {
			return nil
		}
		for {
			err := k.renew(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return nil
			}
			k.Logger.Warn("this machine's certificate could not be renewed, trying again", "file", k.Path, "in", renewAgain, "error", err)
			if !sleep(ctx, renewAgain) {
				return nil
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// renew renews the certificate, or takes the one that another process of the machine has got.
func (k *Keeper) renew(ctx context.Context) error {
	lock, err := os.OpenFile(k.Path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // and lets it go
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process of this machine renews it: %w", err)
	}
	before := k.Member.RenewAt()
	i, err := LoadIdentity(k.Path)
	if err != nil {
		return err
	}
	if err := k.take(i); err != nil {
		return err
	}
	if k.Member.RenewAt().After(before) {
		return nil
	}
	request, err := Request(i.Key)
	if err != nil {
		return err
	}
	certificate, roots, err := k.Renew(ctx, request)
	if err != nil {
		return err
	}
	next := &Identity{Certificate: certificate, Key: i.Key, Roots: roots}
	if err := k.take(next); err != nil { // before the file says so
		return err
	}
	if !k.Member.RenewAt().After(before) {
		return errors.New("the new certificate ends no later than the old one")
	}
	if err := next.Write(k.Path); err != nil {
		return err
	}
	k.Logger.Info("this machine's certificate was renewed", "file", k.Path, "member", k.Member.Self().String())
	return nil
}

// take makes the member show another certificate for its key, and trust the authorities that came with it.
func (k *Keeper) take(i *Identity) error {
	public, ok := k.key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(i.Key.Public()) {
		return errors.New("the file has another key: the machine joined again; restart this process")
	}
	k.Member.trustRoots(i.Roots)
	return k.Member.Renewed(i.Certificate)
}
