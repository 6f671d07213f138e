// Package hrpc is Hadoop IPC, version 9, at both ends: length-framed protobuf calls, pipelined over one TCP connection
// and answered in any order.
//
//	client → server   "hrpc" 09 class auth                                        once
//	                  length | RpcRequestHeader(-3) | IpcConnectionContext        once: who calls
//	                  length | RpcRequestHeader(id) | RequestHeader | request     any number
//	server → client   length | RpcResponseHeader(id) | response                   or the header alone for an error
//
// length is four bytes, big-endian; every message has a varint with its own length in front.
//
// # Server
//
// A Server has a table of methods, each with the Right that it needs. One goroutine per connection reads, decodes and
// calls the handlers, which therefore must not block: they answer at once, or later from any goroutine. Answers collect
// in the connection's outbox while the reader is busy and leave together in one system call. Others are sent by a few
// senders that all connections share, so that a group of results wakes one goroutine and not one per connection; a peer
// that does not take its answers gets a goroutine of its own until it has. A connection is read through syscall.RawConn, one system call for what has arrived and none to
// find that nothing more has; a handler that closes the connection itself would wait for its own end.
//
// What comes from outside is limited: connections, frames (small until the caller is known), calls in flight, time to say
// who one is, time to finish a frame, time to take an answer. A buffer grows with the bytes that have arrived, never with
// a length that was announced.
//
// All connections together are limited in memory by two security.Budgets. Requests pays for frames that do not fit into a
// connection's first buffer, from when they are announced, and for calls until they are answered, by the size and the
// number of their fields: a list of two-byte elements becomes a hundred times as large when it is decoded. Answers pays for
// the outboxes, and for answers that are being made: Method.Answer before the handler is called, Call.Admit before one
// that is larger. Waiting for either is the connection's reader's business, or of a goroutine that the call has for
// itself. A call that gets nothing is answered with a RetriableException; a frame is skipped.
//
// Who calls is decided once per connection. Where security.Door lets a bare name count, the client may claim one (SIMPLE);
// anywhere it may prove one by a method of SASL that the server offers (Offer):
//
//	client → server   NEGOTIATE
//	server → client   NEGOTIATE: the methods, the first one with its challenge; or SUCCESS: there is nothing but SIMPLE
//	client → server   INITIATE: the chosen one, with a token; then RESPONSE
//	server → client   CHALLENGE, at last SUCCESS
//	                  then the context; with auth-int and auth-conf everything that follows is the token of a WRAP, in both
//	                  directions, and what comes otherwise ends the connection
//
// Until the caller is known a frame has 64 KiB at most, an exchange twelve messages, and all of it the time of FirstByte. The
// user of a token may not claim to be anybody else; who is known in another way may act for whom a rule for proxies allows.
//
// # Client
//
// A Client is one connection. A call that is the only one under way is sent by its caller; of several a writer goroutine
// makes one system call. A Failover keeps one to each of several servers, remembers which of them leads, and repeats a
// call under the same client id and call id until somebody has answered it, so that a server's retry cache recognises a
// call whose first answer was lost. Between rounds over servers that do not lead it pauses, a tenth of a second at most in the first three seconds, then half a
// one; calls of one Failover share their pauses, and the first that is answered ends those of the others. A single server that has never answered is given a second, others ten; a port that
// speaks something else is given up at once (WrongPortError).
//
// # Memory of calls
//
// The memory of a call whose method is Passing, and its request, serve other calls of any connection when nobody holds them: the reader does until
// the handler has returned, the answer until it is in the outbox and the call is counted out, and what Call.Go runs. A handler has the memory by a
// *Call of its own, 32 bytes, with the number of the call; an answer counts only under the number that the memory has now, and so goes nowhere
// when the call is answered, whoever has the memory by then. Counts.Again counts those, a line in the log says where the first came from, and tests
// of the namenode's server fail where there is one. Strings, lists and messages in a request are made for each: whoever keeps one keeps it whole.
//
// # Calls that come together
//
// What has arrived on a connection is looked at sixteen calls at a time, before the first is served. Neighbours among them that are one method's which has a Batch, differ from
// the call before in nothing but their number and the path, and whose requests are a path and nothing else, are served together when it is their turn, also where it is one: what holds for all
// of them is looked at once, they count as one call for what they hold, nothing is made for each but the answer, and all answers go to the outbox at once. The Batch answers
// as many of the first as it can at once and without an error; the one behind them, and whatever else is not as mostly (the audit log keeps reads, there is no room, the login has ended), is
// served by Handle, and those behind that together again, unless two batches in a row have answered none. For Counts the time that a batch takes is shared by its calls, as if each had waited for those before it; one is slow if the batch was.
//
// ServerConfig.Prefetch is told the paths of those that the first batch does not answer. It is a hint: nothing of the calls was checked, what is wrong with one is found when it is its
// turn. A protected connection has neither.
//
// The first of them has its turn when they have come, each other one when that before it was answered, unless the reader had to wait in between or the
// answer comes later: so the clock is read once for a call. The header of a call is parsed where more of it than the call's number differs from that
// before it (headers).
//
// # Locks
//
// serverConn.mu before outbox.mu before the budgets'; Client.mu and outbox.mu are never held together; handlers run without
// either.
package hrpc
