package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	pb "github.com/gohops/hops/namenode/api/v1"
)

func joinCommand() *cli.Command {
	return &cli.Command{
		Name:      "join",
		Usage:     "let this machine join a cluster, and start its servers",
		ArgsUsage: "HOST:PORT",
		Description: "hops join 10.0.0.1:8486 --token hops1.…\n\n" +
			"`hops cluster init` and `hops cluster token` print the whole line. The machine makes its own key, which never leaves it, and\n" +
			"makes sure by the token that it speaks to the right cluster.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "token", Usage: "`TOKEN` that the cluster gave"},
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the token, which the list of processes does not show then"},
		}, setupFlags("datanode,nodemanager")...),
		Action: join,
	}
}

// joinTime is how long a cluster may take to take a machine in.
const joinTime = 30 * time.Second

func join(c *cli.Context) (err error) {
	began := time.Now()
	if c.NArg() != 1 {
		return fail(exitUsage, "join: give HOST:PORT of a namenode, as `hops cluster token` prints it")
	}
	addr := c.Args().First()
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fail(exitUsage, "join: %q is not HOST:PORT", addr)
	}
	m, err := setup(c, addr)
	if err != nil {
		return err
	}
	if m.member() {
		return errors.Join(m.halfway(), m.again(c.Context))
	}
	token, err := joinToken(c)
	if err != nil {
		return err
	}
	if err := m.halfway(); err != nil {
		return err
	}
	if err := m.fresh(); err != nil {
		return err
	}
	if err := m.join(c.Context, addr, token); err != nil {
		return err
	}
	if err := m.start(c.Context, c.App.Writer); err != nil {
		return m.unstarted(c.Context, err, c.App.ErrWriter)
	}
	fmt.Fprintf(c.App.Writer, "%s is in cluster %s: ready in %.1fs\n", m.name, m.cluster, time.Since(began).Seconds())
	if m.run {
		return m.stay(c.Context)
	}
	return nil
}

// unstarted ends a join after which the machine is a member and not all of its servers were seen to serve. Those that it runs end.
func (m *machineSetup) unstarted(ctx context.Context, err error, errOut io.Writer) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) { // a command that was killed for it, for one
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	err = m.notStarted(err)
	switch {
	case !m.run:
		return err
	case ctx.Err() != nil: // it was told to end, and is a member: it goes on the next time
		fmt.Fprintf(errOut, "hops: %v\n", err)
		return m.end()
	}
	return errors.Join(err, m.end())
}

// notStarted says of a machine that has joined that not all of its servers were seen to serve, and what is to be done.
func (m *machineSetup) notStarted(err error) error {
	err = fmt.Errorf("%s is a member of cluster %s, but %w", m.name, m.cluster, err)
	for _, line := range m.toDo() {
		err = fmt.Errorf("%w\n%s", err, line)
	}
	return &leftError{err}
}

// toDo says, a line each, what starts the servers that were not seen to serve.
func (m *machineSetup) toDo() (lines []string) {
	if m.run {
		return []string{"The same command starts its servers, and goes on."}
	}
	units := m.systemd()
	for _, r := range startOrder {
		if !m.has(r) || slices.Contains(m.serve, r) {
			continue
		}
		start := fmt.Sprintf("hops server --role %s -c %s", r, m.file("hops.yaml"))
		if uid, _ := m.owner(); m.servesAs(r, uid) {
			start = fmt.Sprintf("runuser -u %s -- %s", userOf(uid), start)
		}
		line := fmt.Sprintf("The %s was not begun: `%s`", r, start)
		if units {
			line = fmt.Sprintf("The %s, if it does not run: `systemctl enable --now hops@%s.service`", r, r)
		} else if i := slices.IndexFunc(m.began, func(p *child) bool { return p.role == r }); i >= 0 {
			line = fmt.Sprintf("The %s goes on as process %d with its log in %s. Where that has ended: `%s`", r, m.began[i].cmd.Process.Pid, m.log(r), start)
		}
		if raft := m.raft(r); raft != "" && !m.alone(r) {
			line += fmt.Sprintf("; then, where `hops %s list` does not name it: `hops %s add %s %s`", r, r, m.name, raft)
		}
		lines = append(lines, line)
	}
	return lines
}

// joinToken is the token that is given, or in the file that is.
func joinToken(c *cli.Context) (authority.Token, error) {
	text, path := c.String("token"), c.String("token-file")
	if path != "" {
		if text != "" {
			return authority.Token{}, fail(exitUsage, "join: give --token or --token-file")
		}
		read, err := readToken(c, path)
		if err != nil {
			return authority.Token{}, fmt.Errorf("--token-file: %w", err)
		}
		text = string(read)
	}
	token, err := authority.ParseToken(text)
	if err != nil {
		return token, fail(exitUsage, "--token: %w", err)
	}
	return token, nil
}

// joiningKey is the file of the key with which this machine asks to be taken in, until it is a member.
const joiningKey = "joining.pem"

// keptKey is the key in a file that is its owner's alone. If there is none it is made, and is on the disk on return.
func keptKey(path string) (key crypto.Signer, made bool, err error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if key, err = authority.NewKey(); err != nil {
			return nil, false, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, false, err
		}
		return key, true, writeNew(path, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), 0o600)
	case err != nil:
		return nil, false, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, false, fmt.Errorf("%s is no key in PEM: remove it", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, false, fmt.Errorf("%s is no key: %w: remove it", path, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, false, fmt.Errorf("%s is no key to sign with: remove it", path)
	}
	return key, false, nil
}

// halfway removes what a join that was interrupted has written of its answer: this one has its key, and is given the same. Of one that had written all of it the key is
// left, which the machine has as a member.
func (m *machineSetup) halfway() error {
	key := m.file(joiningKey)
	if _, err := os.Lstat(key); err != nil {
		return nil //nolint:nilerr // there is none, or the next look tells
	}
	if _, err := os.Lstat(m.file("hops.yaml")); err == nil {
		return os.Remove(key)
	}
	if _, err := os.Lstat(m.file("authority.pem")); err == nil { // the rest is of another
		return nil
	}
	for _, name := range []string{"identity.pem", "secret", "servers.yaml", joining} {
		if err := os.Remove(m.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// join has the machine taken in, and writes its files.
func (m *machineSetup) join(ctx context.Context, addr string, token authority.Token) (err error) {
	key, made, err := keptKey(m.file(joiningKey)) // before anybody is asked
	if err != nil {
		return err
	}
	asked, err := m.asks(key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	answer, root, unknown, err := askToJoin(ctx, addr, token, asked)
	switch {
	case err != nil && (unknown || !made && ctx.Err() != nil): // an earlier one may have been heard that nobody has answered
		return &leftError{fmt.Errorf("%w. Whether %s was taken in is not known: the same command finds out, and goes on", err, m.name)}
	case err != nil && made:
		return errors.Join(err, os.Remove(m.file(joiningKey)))
	case err != nil:
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("the cluster took %s in, but its files cannot be written: %w; when that is mended the same command goes on", m.name, errors.Join(err, m.undo()))
		}
	}()
	trust, servers, err := roles.MembersOf(answer.Members)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(trust.Roots, root.Equal) {
		return errors.New("the cluster does not trust the authority that the token names")
	}
	i := &authority.Identity{Certificate: answer.Certified.GetCertificate(), Key: key, Roots: trust.Roots, Links: trust.Links}
	if _, err := i.Member(time.Now); err != nil {
		return err
	}
	if err := i.Create(m.file("identity.pem")); err != nil {
		return err
	}
	if err := m.own("identity.pem"); err != nil {
		return err
	}
	if m.has(authority.Namenode) || m.has(authority.ResourceManager) {
		if err := security.StoreSecret(m.file("secret"), answer.Secret); err != nil {
			return err
		}
		if err := m.own("secret"); err != nil {
			return err
		}
	}
	if err := servers.Write(m.file("servers.yaml")); err != nil {
		return err
	}
	if err := m.own("servers.yaml"); err != nil {
		return err
	}
	m.cluster, m.settings = answer.Name, answer.Properties
	if err := writeNew(m.file(joining), "The groups of this machine's servers have not taken them yet.\n", 0o644); err != nil {
		return err
	}
	if err := m.own(joining); err != nil {
		return err
	}
	if err := m.configure(); err != nil {
		return err
	}
	if m.has(authority.ResourceManager) && m.alone(authority.ResourceManager) {
		if err := m.foundManagers(); err != nil {
			return errors.Join(err, os.RemoveAll(filepath.Join(m.data, string(authority.ResourceManager)))) // fresh has seen that nothing was there
		}
	}
	return os.Remove(m.file(joiningKey))
}

// foundManagers makes the group of the resource managers, in a cluster that has none. fs.ErrExist: it was made before.
func (m *machineSetup) foundManagers() error {
	file, err := config.Load(m.file("hops.yaml"))
	if err != nil {
		return err
	}
	b, err := roles.New(file, false, "", version, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	err = b.FoundManager()
	if err != nil && !errors.Is(err, fs.ErrExist) { // whoever made it may have died before the next line
		return err
	}
	return errors.Join(err, likeTree(file.ResourceManager.Data, m.dir))
}

// asks is what the machine asks for.
func (m *machineSetup) asks(key crypto.Signer) ([]byte, error) {
	request, err := authority.Request(key)
	if err != nil {
		return nil, err
	}
	asked := &pb.Joining{Machine: m.name, Addresses: m.certified(), Request: request, NowMs: time.Now().UnixMilli(), Level: release.Level, Oldest: release.Oldest}
	for _, r := range m.roles {
		asked.Roles = append(asked.Roles, string(r))
	}
	if m.has(authority.Namenode) {
		n := m.namenode()
		asked.Namenode = &pb.NamenodeAddresses{Id: n.ID, Ipc: n.IPC, Http: n.HTTP, Grpc: n.GRPC, Raft: n.Raft}
	}
	if m.has(authority.ResourceManager) {
		r := m.manager()
		asked.ResourceManager = &pb.ManagerAddresses{Id: r.ID, Http: r.HTTP, Grpc: r.GRPC, Raft: r.Raft, Ipc: r.IPC}
	}
	return proto.Marshal(asked)
}

// askToJoin asks a namenode, or the one that leads if it names that. It waits for an election, and asks again where it does not hear whether it was taken in: who
// asks the same with the same key is answered the same. unknown: in spite of the error it may have been taken in.
func askToJoin(ctx context.Context, addr string, token authority.Token, asked []byte) (answer *pb.JoinResponse, root *x509.Certificate, unknown bool, err error) {
	first := addr
	for began, tries := time.Now(), 1; ; tries++ {
		answer, root, again, err := askOnceToJoin(ctx, addr, token, asked, tries > 1)
		_, unheard := errors.AsType[*unheardError](err)
		unknown = unknown || unheard
		switch {
		case err == nil && answer.Leader == "":
			return answer, root, false, nil
		case err == nil:
			if addr = answer.Leader; tries%3 != 0 {
				continue
			}
			err = fail(exitUnreachable, "the namenodes do not agree on who of them leads: try again")
		case !again:
			return nil, nil, unknown, err
		default: // who was said to lead may have gone
			addr = first
		}
		if time.Since(began) > electionTime {
			return nil, nil, unknown, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, unknown, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// askOnceToJoin asks one namenode. again: it does not lead and knows of none that does, or nobody knows what it has done; or it cannot be reached, which is no
// reason to give up for who has been answered by one (known).
func askOnceToJoin(ctx context.Context, addr string, token authority.Token, asked []byte, known bool) (answer *pb.JoinResponse, root *x509.Certificate, again bool, err error) {
	j, err := security.DialToJoin(ctx, addr, token.Authority)
	if err != nil {
		return nil, nil, known && !errors.Is(err, security.ErrProof), joinError(addr, err)
	}
	defer j.Close()
	answer, err = pb.NewAdmissionClient(j).Join(ctx, &pb.JoinRequest{Asked: asked, Token: token.ID, Proof: token.Prove(j.Bound, asked)})
	if err != nil {
		s := grpcstatus.Convert(err)
		return nil, nil, s.Code() == codes.Unavailable || s.Code() == codes.Aborted, notTakenIn(addr, err)
	}
	return answer, j.Authority, false, nil
}

// joinError says why there is no connection to join on.
func joinError(addr string, err error) error {
	if errors.Is(err, security.ErrProof) {
		return fail(exitDenied, "%w", err)
	}
	return fail(exitUnreachable, "no namenode of hops answers at %s: %w. The port is that of gRPC, 8486 unless somebody chose another; `hops cluster token` prints it", addr, err)
}

// unheardError is one after which nobody knows whether the machine was taken in.
type unheardError struct{ error }

func (e *unheardError) Unwrap() error { return e.error }

// notTakenIn is what a machine is told that asked to be taken in, or why it was told nothing.
func notTakenIn(addr string, err error) error {
	s := grpcstatus.Convert(err)
	text := strings.TrimPrefix(s.Message(), "invalid argument: ")
	switch s.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		return fail(exitDenied, "%s", text)
	case codes.InvalidArgument:
		return fail(exitUsage, "%s", text)
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return &unheardError{fail(exitUnreachable, "namenode %s: %s", addr, text)}
	case codes.Aborted, codes.Unknown, codes.Internal:
		return &unheardError{fail(exitFailed, "%s", text)}
	}
	return fail(exitFailed, "%s", text)
}

// enlist has the group of a role, namenode or resourcemanager, give this machine's its vote.
func (m *machineSetup) enlist(ctx context.Context, r authority.Role) error {
	call := roles.Enlist
	if r == authority.ResourceManager {
		call = roles.EnlistManager
	}
	if err := call(ctx, m.file("hops.yaml")); err != nil {
		return fmt.Errorf("the others do not take its %s into their group: %w; `hops %s add %s %s` does it later", r, err, r, m.name, m.raft(r))
	}
	return nil
}
