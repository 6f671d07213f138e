package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// trust is whom datanodes may trust, as of a newest key and a membership. It does not change.
type trust struct {
	newest     int32
	membership uint64
	keys       *security.BlockKeys
	message    *pb.Trust
}

// currentTrust is the trust of now, made anew if keys or datanodes have changed.
func (s *Server) currentTrust() *trust {
	s.trustMu.Lock()
	defer s.trustMu.Unlock()
	newest := s.ns.NewestBlockKey() // keys go only when others come
	s.soft.mu.Lock()
	membership := s.soft.m.Membership()
	before := s.trust.Load()
	if before != nil && before.newest == newest && before.membership == membership {
		s.soft.mu.Unlock()
		return before
	}
	nodes := s.soft.m.Nodes()
	s.soft.mu.Unlock()

	t := &trust{newest: newest, membership: membership, message: &pb.Trust{}}
	if before != nil && before.newest == newest { // datanodes come while the namespace cannot be asked
		t.keys, t.message.Keys = before.keys, before.message.Keys
	} else {
		seeds, _ := s.ns.BlockKeys()
		keys := s.config.Credentials.DeriveBlockKeys(seeds)
		t.keys = security.NewBlockKeys(keys)
		for _, k := range keys {
			t.message.Keys = append(t.message.Keys, &pb.BlockKey{Id: k.ID, Key: k.Key})
		}
	}
	sum := sha256.New()
	for _, k := range t.message.Keys {
		sum.Write(binary.BigEndian.AppendUint32(nil, uint32(k.Id)))
		sum.Write(k.Key)
	}
	for _, n := range nodes {
		if n.Alive {
			port := strconv.FormatUint(uint64(n.Node.TransferPort), 10)
			t.message.Datanodes = append(t.message.Datanodes, n.Node.TransferAddr(), net.JoinHostPort(n.Node.Host, port))
		}
	}
	slices.Sort(t.message.Datanodes)
	t.message.Datanodes = slices.Compact(t.message.Datanodes)
	for _, addr := range t.message.Datanodes {
		sum.Write([]byte(addr + " "))
	}
	t.message.Version = binary.BigEndian.Uint64(sum.Sum(nil))
	s.trust.Store(t)
	return t
}

// GetTrust implements pb.DatanodesServer.
func (d *datanodes) GetTrust(context.Context, *pb.GetTrustRequest) (*pb.Trust, error) {
	return d.server.currentTrust().message, nil
}

// sign makes a token for a caller who has passed the checks of what the block was located for.
func (s *Server) sign(c *metadata.Caller, b metadata.BlockID, modes security.BlockMode) security.Token {
	return s.signers().Sign(security.BlockGrant{User: c.User, Pool: s.BlockPool(), Block: b, Modes: modes},
		time.Now().Add(s.config.BlockTokenLifetime))
}

// signers are the keys that sign, as of the last look, unless there were none then: who has just heard of the first ones looks again.
func (s *Server) signers() *security.BlockKeys {
	t := s.trust.Load()
	if t.newest == 0 {
		t = s.currentTrust()
	}
	return t.keys
}

// rollAgain is how long a leader waits after it could not roll the keys.
const rollAgain = 5 * time.Second

// checkBlockKeys has the next key take over when the one that signs has done so for long enough.
func (s *Server) checkBlockKeys(r *reign, now time.Time) {
	_, rolled := s.ns.BlockKeys()
	if s.clock.log(now)-rolled < namespace.LogTime(s.config.BlockKeyInterval.Milliseconds()) || now.Before(r.rollAt) || !r.rolling.CompareAndSwap(false, true) {
		return
	}
	r.rollAt = now.Add(min(rollAgain, s.config.BlockKeyInterval))
	s.rollBlockKeys(func(err error) {
		r.rolling.Store(false)
		if err != nil {
			s.log.Warn("keys of block tokens not rolled, trying again", "error", err)
		}
	})
}

// rollBlockKeys adds a key, or the first two. A key is kept for as long as its last tokens are good after it has ceased to
// sign, and as long again as it signed: servers that were not told at once may have signed with it.
func (s *Server) rollBlockKeys(done func(error)) {
	op := &logpb.RollBlockKeys{
		After: s.ns.NewestBlockKey(), Keep: (s.config.BlockTokenLifetime + s.config.BlockKeyInterval).Milliseconds(),
	}
	fresh := 1
	if op.After == 0 {
		fresh = 2
	}
	for range fresh {
		seed := make([]byte, metadata.KeySeedSize)
		rand.Read(seed) // never fails (crypto/rand)
		op.Seeds = append(op.Seeds, seed)
	}
	s.send(&logpb.Command{Op: &logpb.Command_RollBlockKeys{RollBlockKeys: op}}, func(result *namespace.Result, err error) {
		if err == nil {
			t := s.currentTrust()
			if result.OK {
				s.log.Info("keys of block tokens rolled", "newest", t.newest)
			}
		}
		done(err)
	})
}
