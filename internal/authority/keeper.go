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
	"slices"
	"sync"
	"syscall"
	"time"
)

// KeeperConfig describes how a process keeps its machine's identity.
type KeeperConfig struct {
	// Path is the identity's file. Several processes of the machine may have it in common.
	Path string
	// Renew asks the cluster for a new certificate: it takes the request and returns the certificate, in DER, and the authorities
	// that are trusted now. It is set before Run.
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
	due chan struct{} // capacity 1: another issuer is wanted

	// mu is held for moments only: never while a file is locked, read or written.
	mu     sync.Mutex
	issuer Fingerprint         // whose certificate is wanted; zero: any authority's
	noted  []*x509.Certificate // authorities, and links to them, that the file has
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
	return &Keeper{KeeperConfig: c, Member: m, key: i.Key, due: make(chan struct{}, 1), noted: slices.Concat(i.Roots, i.Links)}, nil
}

// Want has the certificate renewed soon, unless that authority has issued it: while one follows the other.
func (k *Keeper) Want(issuer Fingerprint) {
	k.mu.Lock()
	k.issuer = issuer
	k.mu.Unlock()
	if k.unwanted() {
		select {
		case k.due <- struct{}{}:
		default:
		}
	}
}

// unwanted reports whether another authority than the one that is wanted issued the certificate, or one that is trusted no more:
// another process of the machine got one in time then.
func (k *Keeper) unwanted() bool {
	k.mu.Lock()
	want := k.issuer
	k.mu.Unlock()
	has := k.Member.Issuer()
	return has == Fingerprint{} || want != Fingerprint{} && want != has
}

// Believe has the member trust what the cluster says now, and notes other authorities in the file: a process that starts later must
// find its cluster. Authorities of which none has issued this machine's certificate are refused (ErrForeign): that is what a namenode says that
// has started and has not read its log to the end, and who believes it is shut out, and shuts others out. Other errors are of the file
// alone: the member trusts what it was told, whatever becomes of the disk, so that who was removed is removed.
func (k *Keeper) Believe(t *Trust) error {
	newer, err := k.fits(t)
	if err != nil {
		return fmt.Errorf("the authorities that it names are not those of this machine's certificate: it lags behind, or the authority was replaced without this machine, which has to join again: %w", err)
	}
	k.Member.Believe(t)
	if newer != nil {
		if err := k.Member.Renewed(newer); err != nil {
			k.Logger.Warn("the certificate that another process of this machine has got cannot be shown", "file", k.Path, "error", err)
		}
	}
	return k.note(t.Roots, t.Links)
}

// fits makes sure that one of the authorities issued this machine's certificate (ErrForeign): the one that is shown, or else the one
// that another process of the machine has got, which is returned then.
func (k *Keeper) fits(t *Trust) (newer []byte, err error) {
	if _, err = t.Verify(k.Member.Certificate(), k.Now()); !errors.Is(err, ErrForeign) {
		return nil, nil
	}
	i, failed := LoadIdentity(k.Path)
	if failed == nil {
		failed = k.owns(i)
	}
	if failed != nil {
		return nil, fmt.Errorf("%w; and the file cannot be used: %w", err, failed)
	}
	leaf, failed := x509.ParseCertificate(i.Certificate)
	if failed != nil {
		return nil, failed
	}
	if _, err := t.Verify(leaf, k.Now()); errors.Is(err, ErrForeign) {
		return nil, err
	}
	return i.Certificate, nil
}

// noteTime is how long the file may be another one's, who may be renewing the certificate, before its note is left for the next
// news.
const noteTime = 2 * time.Second

// note writes authorities into the file, if it has others.
func (k *Keeper) note(roots, links []*x509.Certificate) error {
	if !k.ahead() {
		return nil
	}
	unlock, err := k.lock(syscall.LOCK_EX | syscall.LOCK_NB)
	for waited := time.Duration(0); errors.Is(err, syscall.EWOULDBLOCK) && waited < noteTime; waited += busyAgain {
		time.Sleep(busyAgain)
		unlock, err = k.lock(syscall.LOCK_EX | syscall.LOCK_NB)
	}
	if err != nil {
		return fmt.Errorf("who is trusted is not noted in this machine's identity: %w", err)
	}
	defer unlock()
	i, err := LoadIdentity(k.Path)
	if err != nil {
		return err
	}
	same := slices.EqualFunc(slices.Concat(roots, links), slices.Concat(i.Roots, i.Links), (*x509.Certificate).Equal)
	i.Roots, i.Links = roots, links
	if _, err := i.Member(k.Now); errors.Is(err, ErrForeign) {
		return fmt.Errorf("the authorities are not those of the certificate that another process of this machine has got: %w", err)
	}
	if !same {
		if err := i.Write(k.Path); err != nil {
			return err
		}
	}
	k.has(i)
	return nil
}

// has remembers what the file has.
func (k *Keeper) has(i *Identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noted = slices.Concat(i.Roots, i.Links)
}

// ahead reports whether the member trusts other authorities than those that were noted last.
func (k *Keeper) ahead() bool {
	t := k.Member.Trusts()
	k.mu.Lock()
	defer k.mu.Unlock()
	return !slices.EqualFunc(slices.Concat(t.Roots, t.Links), k.noted, (*x509.Certificate).Equal)
}

// Reload takes what another process of the machine has written into the file.
func (k *Keeper) Reload() error {
	i, err := LoadIdentity(k.Path)
	if err != nil {
		return err
	}
	return k.read(i)
}

// read takes what the file has. What the cluster has said and could not be noted counts more than authorities in the file that came
// before: they count again with a newer certificate, which another process got, that is of none of the others.
func (k *Keeper) read(i *Identity) error {
	if err := k.owns(i); err != nil {
		return err
	}
	if k.ahead() {
		leaf, err := x509.ParseCertificate(i.Certificate)
		if err != nil {
			return err
		}
		if !leaf.NotBefore.After(k.Member.Certificate().NotBefore) {
			return nil
		}
		if _, err := k.Member.Trusts().Verify(leaf, k.Now()); !errors.Is(err, ErrForeign) {
			return k.Member.Renewed(i.Certificate)
		}
	}
	if err := k.take(i); err != nil {
		return err
	}
	k.has(i)
	return nil
}

func (k *Keeper) lock(how int) (unlock func(), err error) {
	f, err := os.OpenFile(k.Path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := likeOwner(f, k.Path); err != nil {
		f.Close()
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil // and lets it go
}

const (
	// renewAgain is how long a keeper waits after it could not renew; it tries for a third of a certificate's life.
	renewAgain = 10 * time.Minute
	// wantAgain is how long it waits while the authority of its certificate is about to go.
	wantAgain = time.Second
	// busyAgain is how long it waits for another process of the machine, whose certificate it takes then.
	busyAgain = 50 * time.Millisecond
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
		if !k.sleep(ctx, wait, k.due) {
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
			if errors.Is(err, syscall.EWOULDBLOCK) {
				if !k.sleep(ctx, busyAgain, nil) {
					return nil
				}
				continue
			}
			again := renewAgain
			if k.unwanted() {
				again = wantAgain
			}
			k.Logger.Warn("this machine's certificate could not be renewed, trying again", "file", k.Path, "in", again, "error", err)
			if !k.sleep(ctx, again, nil) {
				return nil
			}
		}
	}
}

func (k *Keeper) sleep(ctx context.Context, d time.Duration, due <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-due:
		return true
	case <-ctx.Done():
		return false
	}
}

// renew renews the certificate, or takes the one that another process of the machine has got.
func (k *Keeper) renew(ctx context.Context) error {
	unlock, err := k.lock(syscall.LOCK_EX | syscall.LOCK_NB)
	if err != nil {
		return fmt.Errorf("another process of this machine renews it: %w", err)
	}
	defer unlock()
	before := k.Member.RenewAt()
	i, err := LoadIdentity(k.Path)
	if err != nil {
		return err
	}
	if err := k.read(i); err != nil {
		return err
	}
	unwanted := k.unwanted()
	if !unwanted && (k.Member.RenewAt().After(before) || k.Now().Before(before)) {
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
	next := &Identity{Certificate: certificate, Key: i.Key, Roots: roots, Links: k.Member.Trusts().Links}
	if err := k.take(next); err != nil { // before the file says so
		return err
	}
	if !unwanted && !k.Member.RenewAt().After(before) {
		return errors.New("the new certificate ends no later than the old one")
	}
	if err := next.Write(k.Path); err != nil {
		return err
	}
	k.has(next)
	k.Logger.Info("this machine's certificate was renewed", "file", k.Path, "member", k.Member.Self().String())
	return nil
}

// owns makes sure that the file is still of the key that is shown.
func (k *Keeper) owns(i *Identity) error {
	public, ok := k.key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(i.Key.Public()) {
		return errors.New("the file has another key: the machine joined again; restart this process")
	}
	return nil
}

// take makes the member show another certificate for its key, and trust the authorities that came with it.
func (k *Keeper) take(i *Identity) error {
	if err := k.owns(i); err != nil {
		return err
	}
	k.Member.trustRoots(i.Roots, i.Links)
	return k.Member.Renewed(i.Certificate)
}
