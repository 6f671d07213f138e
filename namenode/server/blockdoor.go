package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	dn "github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/transfer"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// The block door: this namenode as the datanode of small files. It serves reads and checksums of their bodies over the data transfer protocol, by the code
// and the limits of a datanode's door, and tells clients where the doors of the other namenodes are.

// newBlockDoor makes the server of that port.
func (s *Server) newBlockDoor() *transfer.Server {
	c := &s.config
	return transfer.New(transfer.Config{
		Source:     bodies{s},
		Trust:      doorTrust{s},
		BlockPool:  s.BlockPool,
		Protection: c.Properties.TransferProtection,
		Encrypt:    c.Properties.EncryptTransfer,
		Prove:      func(nc net.Conn) bool { return !c.Door.Carries(c.Door.Peer(nc)) },
		Share:      func(nc net.Conn) uint32 { return c.Door.Peer(nc).UID() },
		Unwelcome: func(nc net.Conn, proved bool) error {
			p := c.Door.Peer(nc)
			if proved && !p.Secure() { // in plain, wherever from
				return nil
			}
			return p.Refused()
		},
		Refused: c.Door.Record,
		Logger:  s.log,
	})
}

// serveBlockDoor serves that port until ctx is done. Then it cuts off who reads: they go on at another door.
func (s *Server) serveBlockDoor(ctx context.Context) error {
	return s.blockDoor.Serve(ctx, s.config.Door.Guard(s.config.Transfer, security.Doorway{Name: "namenode data transfer"}))
}

// bodies are small files as replicas that are only read. It implements transfer.Source.
type bodies struct{ server *Server }

// Open implements transfer.Source.
func (b bodies) Open(block metadata.Block) (dn.Reader, error) {
	ctx, cancel := context.WithTimeout(b.server.watching, bodyPatience)
	defer cancel()
	data, err := b.server.Body(ctx, block.ID, block.Generation)
	if err != nil {
		return nil, err
	}
	block.Length = int64(len(data))
	return &bodyReader{block: block, data: data}, nil
}

// Wait implements transfer.Source: no body grows.
func (bodies) Wait(context.Context, metadata.BlockID, int64) {}

// bodyReader reads a body, of which the checksums are made when they are asked for. It implements datanode.Reader.
type bodyReader struct {
	block metadata.Block
	data  []byte
}

func (r *bodyReader) Replica() dn.Replica {
	return dn.Replica{Block: r.block, State: dn.Finalized, Visible: r.block.Length}
}

// Checksum implements datanode.Reader: no client can say that it wants others of a small file.
func (*bodyReader) Checksum() dn.Checksum { return dn.DefaultChecksum }

func (r *bodyReader) Sums(dst []byte, off, end int64) ([]byte, error) {
	if off < 0 || end < off || end > r.block.Length {
		return dst, io.ErrUnexpectedEOF
	}
	return dtp.DefaultChecksum.Append(dst, r.data[off:end]), nil
}

func (r *bodyReader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > r.block.Length {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, r.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (*bodyReader) File() *os.File       { return nil }
func (*bodyReader) Sending(int64, int64) {}
func (*bodyReader) Close() error         { return nil }

// doorTrust is whom the block door trusts: the bearers of tokens that the namenodes sign. It implements transfer.Trust.
type doorTrust struct{ server *Server }

// keys are those of now: one that was added a moment ago is known, too.
func (t doorTrust) keys() *security.BlockKeys { return t.server.currentTrust().keys }

// Check implements transfer.Trust.
func (t doorTrust) Check(_ context.Context, tok security.Token, pool string, b metadata.BlockID, mode security.BlockMode) error {
	return t.keys().Check(tok, pool, b, mode, time.Now())
}

// Password implements transfer.Trust.
func (t doorTrust) Password(_ context.Context, identifier []byte) ([]byte, error) {
	return t.keys().Password(identifier, time.Now())
}

// EncryptionKey implements transfer.Trust.
func (t doorTrust) EncryptionKey(_ context.Context, id int32, nonce []byte) ([]byte, int32, error) {
	return t.keys().EncryptionKey(id, nonce)
}

// Sign implements transfer.Trust. Nothing is sent from here that would need a token.
func (doorTrust) Sign(string, metadata.BlockID, security.BlockMode) security.Token {
	return security.Token{}
}

// Datanode implements transfer.Trust.
func (doorTrust) Datanode(_ context.Context, addr string) error {
	return metadata.Errorf(metadata.ErrPermission, "a namenode sends nothing to datanodes, not to %s either", addr)
}

const (
	// doorsEvery is how often the other namenodes are asked for their doors, and doorGone after how long one is named no more that was not heard of.
	doorsEvery = 5 * time.Second
	doorGone   = 30 * time.Second
)

// doors are the block doors of the namenodes as clients are told of them.
type doors struct {
	mu     sync.Mutex
	own    *namenode.Location
	others map[string]otherDoor // by the namenode's id
	again  map[namenode.NodeID]otherDoor
}

type otherDoor struct {
	namenode.Location
	heard time.Time
	of    *namenode.Node // of one that is told of again: whose it is
}

// doorAt is the door of a namenode as the datanode that clients take it for. Both ids stay the same for the life of the cluster.
func (s *Server) doorAt(id, ip, host string, port uint32) namenode.Location {
	sum := sha256.Sum256([]byte("block door of " + s.ClusterID()))
	name := namenode.DoorID(id, hex.EncodeToString(sum[:4]))
	return namenode.Location{
		Node:   &namenode.Node{ID: name, IP: ip, Host: host, Rack: namenode.DefaultRack, TransferPort: port},
		Volume: namenode.VolumeID("DS-" + string(name)), Type: namenode.Disk,
	}
}

// doorLocations are the doors where a small file is read: this namenode's first, because it has what it tells of, then those of the others, in the order of
// their names.
func (s *Server) doorLocations() []namenode.Location {
	d := &s.doors
	d.mu.Lock()
	defer d.mu.Unlock()
	own := d.own
	if own == nil {
		ip, host := s.config.advertised()
		_, text, _ := net.SplitHostPort(s.config.Transfer.Addr().String())
		port, _ := strconv.ParseUint(text, 10, 16)
		at := s.doorAt(s.config.ID, ip, host, uint32(port))
		if own = &at; s.ClusterID() != "" { // which is in its id
			d.own = own
		}
	}
	out := []namenode.Location{*own}
	for _, o := range d.others {
		if time.Since(o.heard) < doorGone {
			out = append(out, o.Location)
		}
	}
	slices.SortFunc(out[1:], func(a, b namenode.Location) int {
		switch {
		case a.Node.ID < b.Node.ID:
			return -1
		case a.Node.ID > b.Node.ID:
			return 1
		}
		return 0
	})
	return out
}

// manyDoors are so many doors: who waits for the replicas that a file is to have counts them. Where there are fewer namenodes they come again, as other
// datanodes at the same address; who tries these as well meets the same namenodes.
func (s *Server) manyDoors(n int) []namenode.Location {
	doors := s.doorLocations()
	if n <= len(doors) {
		return doors[:n:n]
	}
	d := &s.doors
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.again == nil {
		d.again = map[namenode.NodeID]otherDoor{}
	}
	for i, all := len(doors), len(doors); i < n; i++ {
		door := doors[i%all]
		id := namenode.AgainID(door.Node.ID, 1+i/all)
		known := d.again[id]
		if known.Node == nil || known.of != door.Node {
			node := *door.Node
			node.ID = id
			known = otherDoor{Location: namenode.Location{Node: &node, Volume: namenode.VolumeID("DS-" + string(id)), Type: door.Type}, of: door.Node}
			d.again[id] = known
		}
		doors = append(doors, known.Location)
	}
	return doors
}

// placeSmall adds the places of small files' blocks: as many as the file has replicas, as far as a file on datanodes, of which there are so many, would have
// them.
func (s *Server) placeSmall(f *namenode.LocatedFile, datanodes int) {
	doors := s.manyDoors(max(1, min(int(f.Status.Replication), max(datanodes, len(s.doorLocations())))))
	for i := range f.Blocks {
		if f.Blocks[i].Small {
			f.Blocks[i].Locations = doors
		}
	}
	if f.Last != nil && f.Last.Small {
		f.Last.Locations = doors
	}
}

// advertised is how clients reach this machine.
func (c *Config) advertised() (ip, host string) {
	if ip = c.AdvertiseIP; ip == "" {
		ip, _, _ = net.SplitHostPort(c.Transfer.Addr().String())
	}
	if host = c.AdvertiseHost; host == "" {
		host = ip
	}
	return ip, host
}

// heardOf notes the door of another namenode. The Node is the same as long as the address is.
func (s *Server) heardOf(id string, at *pb.BlockDoorResponse, now time.Time) {
	if s.ClusterID() == "" {
		return
	}
	l := s.doorAt(id, at.GetIp(), at.GetHost(), at.GetPort())
	d := &s.doors
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.others == nil {
		d.others = map[string]otherDoor{}
	}
	if o, ok := d.others[id]; ok && *o.Node == *l.Node {
		l = o.Location
	}
	d.others[id] = otherDoor{Location: l, heard: now}
}

// BlockDoor implements pb.MembershipServer.
func (m *membership) BlockDoor(ctx context.Context, _ *pb.BlockDoorRequest) (*pb.BlockDoorResponse, error) {
	if _, err := callerAs(ctx, authority.Namenode); err != nil {
		return nil, err
	}
	own := m.server.doorLocations()[0].Node
	return &pb.BlockDoorResponse{Ip: own.IP, Host: own.Host, Port: own.TransferPort}, nil
}

// learnDoors asks the other namenodes for their doors until ctx is done.
func (s *Server) learnDoors(ctx context.Context) error {
	conns := map[string]*grpc.ClientConn{} // by address
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for {
		servers, err := s.roster.Servers()
		if err != nil { // nobody is known
			servers = config.Servers{}
		}
		s.askDoors(ctx, servers.Namenodes, conns)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(doorsEvery):
		}
	}
}

// askDoors asks namenodes, all at the same time. Connections to others are closed.
func (s *Server) askDoors(ctx context.Context, namenodes []config.NamenodeMember, conns map[string]*grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	wanted := map[string]bool{}
	var asked sync.WaitGroup
	for _, n := range namenodes {
		if n.ID == s.config.ID || n.GRPC == "" {
			continue
		}
		wanted[n.GRPC] = true
		conn := conns[n.GRPC]
		if conn == nil {
			var err error
			key := s.config.Credentials.Key(authority.Namenode)
			if conn, err = grpc.NewClient("passthrough:///"+n.GRPC, grpc.WithTransportCredentials(key.Credentials())); err != nil {
				s.log.Warn("a namenode cannot be asked for its block door", "namenode", n.ID, "error", err)
				continue
			}
			conns[n.GRPC] = conn
		}
		asked.Go(func() {
			at, err := pb.NewMembershipClient(conn).BlockDoor(ctx, &pb.BlockDoorRequest{})
			if err != nil || at.GetIp() == "" || at.GetPort() == 0 || at.GetPort() > 65535 {
				s.log.Debug("a namenode does not say where its block door is", "namenode", n.ID, "error", err)
				return
			}
			s.heardOf(n.ID, at, time.Now())
		})
	}
	asked.Wait()
	for addr, c := range conns {
		if !wanted[addr] {
			c.Close()
			delete(conns, addr)
		}
	}
}

// Bodies implements namenode.SmallFiles.
func (s *Server) Bodies(ctx context.Context, pool string, wanted []namenode.WantedBody, each func(i int, data []byte, err error)) error {
	if own := s.BlockPool(); pool != own {
		return metadata.Errorf(metadata.ErrInvalidArgument, "block pool %q is not served here, %q is", pool, own)
	}
	keys, now := s.currentTrust().keys, time.Now()
	for i := range wanted {
		if err := keys.Check(wanted[i].Token, pool, wanted[i].Block.ID, security.ReadBlock, now); err != nil {
			return metadata.Errorf(metadata.ErrToken, "piece %d: %v", i, err)
		}
	}
	var user string
	if len(wanted) > 0 {
		user = security.BlockUser(wanted[0].Token)
	}
	refs, at := make([]namespace.BodyRef, 0, len(wanted)), make([]int, 0, len(wanted))
	for i := range wanted {
		b := wanted[i].Block
		r, err := s.ns.FindBody(b.ID, b.Generation)
		if err == nil && r == nil {
			err = metadata.Errorf(metadata.ErrReplicaNotFound, "Replica not found for blk_%d_%d", b.ID, b.Generation)
		}
		switch {
		case err != nil:
			each(i, nil, err)
		case r.Data != nil: // which stays in memory no longer than it is looked at
			err = s.readBodies(ctx, user, []namespace.BodyRef{*r}, func(_ int, data []byte, err error) { each(i, data, err) })
			if err != nil {
				return err
			}
		default:
			refs, at = append(refs, *r), append(at, i)
		}
	}
	if err := s.readBodies(ctx, user, refs, func(k int, data []byte, err error) { each(at[k], data, err) }); err != nil {
		return err
	}
	return ctx.Err()
}

// readBodies reads many at once: with one of a user's places, or, while there is none, first those that are in memory. Those that this namenode does not have, or has damaged, come last:
// they are got from another one, for mendTime in all. each is called for every one, one call at a time, unless there is an error. Errors: those of takeReadPlace and inPlace.
func (s *Server) readBodies(ctx context.Context, user string, refs []namespace.BodyRef, each func(i int, data []byte, err error)) error {
	m := s.mending(ctx)
	defer m.end()
	rest := make([]int, 0, len(refs))
	glance := func(i int) bool {
		data, inMemory := s.ns.GlanceBody(refs[i])
		if inMemory {
			each(i, data, nil)
		}
		return inMemory
	}
	for i := range refs {
		if refs[i].Data == nil || !glance(i) {
			rest = append(rest, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	if !s.bodyReads.try(user) {
		if rest = slices.DeleteFunc(rest, glance); len(rest) == 0 {
			return nil
		}
		if err := s.takeReadPlace(ctx, user); err != nil {
			return err
		}
	}
	wanted := make([]namespace.BodyRef, len(rest))
	for k, i := range rest {
		wanted[k] = refs[i]
	}
	var mu sync.Mutex
	givenUp := false
	bad := map[int]error{}
	err := s.inPlace(ctx, user, func() {
		s.ns.ReadBodies(wanted, func(k int, data []byte, err error) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case givenUp:
			case err != nil:
				bad[rest[k]] = err
			default:
				each(rest[k], data, nil)
			}
		})
	})
	if err != nil {
		mu.Lock() // nobody is told anything when this has returned
		givenUp = true
		mu.Unlock()
		return err
	}
	for _, i := range slices.Sorted(maps.Keys(bad)) {
		data, err := m.body(&refs[i], bad[i])
		each(i, data, err)
	}
	return nil
}
