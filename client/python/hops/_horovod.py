"""The rendezvous of a gang of Horovod: where its processes leave the addresses at which gloo connects them.

Horovod's own lives in horovodrun; here the executor of rank 0 has it, for one attempt, at the port that it joins with. A rank that starts
puts its addresses under /<scope>/<rank>, gets those of the others and deletes its own once all are connected
(horovod/common/gloo/http_store.cc and horovod/runner/http/http_server.py of v0.28.1). Values are bytes, which nobody here looks at.

    PUT    /global/1      200
    GET    /global/0      200 with the value, 404 while there is none
    DELETE /global/1      200
"""
import asyncio
import re
import socket
import threading

# A client that gets 404 asks again 10 ms later, on a new connection. One that asks for a rank's addresses is kept waiting so long for them.
HOLD_SECONDS = 1.0
# How long a connection may take to say what it wants, and to take the answer.
PATIENCE_SECONDS = 10.0
MAX_HEAD = 8192
_TARGET = re.compile(r"/([!-.0-~]{1,512})/([!-.0-~]{1,64})")
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 413: "Content Too Large", 507: "Insufficient Storage"}


class _Problem(Exception):
    """A request that is refused, with the status."""


class Rendezvous:
    """A server for the processes of a gang of world members, in a thread of its own. numbers: its port, open on all addresses."""

    def __init__(self, world):
        # gloo has 136 bytes for each peer in a value. A rank is in three groups at a time, with two keys in each; groups that are made
        # later (process sets) come one after the other, and take their keys away.
        self._max_value, self._max_keys = 4096 + 256 * world, 64 + 32 * world
        self._max_bytes, self._max_open = 8 * world * self._max_value, 64 + 4 * world
        self._values, self._bytes, self._open = {}, 0, 0  # bytes: of the values that are there, and of those that are being sent
        self._waiting = {}  # futures of those who wait, by key
        listening = _listen()
        self.numbers = [listening.getsockname()[1]]
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connected, sock=listening, limit=MAX_HEAD, backlog=1024))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def starting(self):
        """The process is about to start: the port stays."""

    def close(self):
        """End it, and forget what is there. Connections are closed."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self):
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self):
        self._loop.set_exception_handler(lambda loop, context: None)  # that tasks are cancelled is no error
        self._server.close()
        await asyncio.sleep(0)  # a connection that was just taken gets its task
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # and those that were closed their end

    async def _connected(self, reader, writer):
        self._open += 1
        try:
            if self._open <= self._max_open:  # the client tries again
                writer.write(_response(*await self._answer(reader)))
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), PATIENCE_SECONDS)
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # it has gone, or does not take its answer
        finally:
            writer.transport.abort()
            self._open -= 1

    async def _answer(self, reader):
        """(status, value)"""
        try:
            method, key, length = await asyncio.wait_for(self._request(reader), PATIENCE_SECONDS)
            if method == "GET":
                return await self._get(key)
            if method == "PUT":
                await self._put(key, length, reader)
            else:
                self._drop(key)
                self._drop((key[0], "rank_" + key[1]))  # gloo's own, by which ranks of one host find each other
            return 200, b""
        except asyncio.TimeoutError:
            return 408, b""
        except _Problem as problem:
            return problem.args[0], b""

    async def _request(self, reader):
        """(method, (scope, key), length of the body)"""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.LimitOverrunError:
            raise _Problem(413) from None
        parts = head[0].split(" ")
        target = _TARGET.fullmatch(parts[1]) if len(parts) == 3 else None
        if not target:
            raise _Problem(400)
        if parts[0] not in ("GET", "PUT", "DELETE"):
            raise _Problem(405)
        if parts[0] != "PUT":
            return parts[0], target.groups(), 0
        lengths = [v.strip() for name, _, v in (line.partition(":") for line in head[1:]) if name.lower() == "content-length"]
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,12}", lengths[0]):
            raise _Problem(400)
        return "PUT", target.groups(), int(lengths[0])

    async def _get(self, key):
        if key not in self._values and key[1].isdigit():
            put = self._loop.create_future()
            waiting = self._waiting.setdefault(key, [])
            waiting.append(put)
            await asyncio.wait([put], timeout=HOLD_SECONDS)
            waiting.remove(put)
            if not waiting:
                self._waiting.pop(key, None)
        value = self._values.get(key)
        return (404, b"") if value is None else (200, value)

    async def _put(self, key, length, reader):
        if length > self._max_value:
            raise _Problem(413)
        if self._bytes + length > self._max_bytes or key not in self._values and len(self._values) >= self._max_keys:
            raise _Problem(507)
        self._bytes += length
        try:
            value = await asyncio.wait_for(reader.readexactly(length), PATIENCE_SECONDS)
        except BaseException:
            self._bytes -= length
            raise
        self._drop(key)
        self._values[key] = value
        for put in self._waiting.get(key, ()):
            if not put.done():
                put.set_result(None)

    def _drop(self, key):
        self._bytes -= len(self._values.pop(key, b""))


def _response(status, value):
    # Horovod's client knows this spelling of the header alone, and takes what it gets when the connection ends for the whole.
    return b"HTTP/1.0 %d %s\r\nContent-Length: %d\r\n\r\n" % (status, _REASONS[status].encode(), len(value)) + value


def _listen():
    try:
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):  # no IPv6
        return socket.create_server(("0.0.0.0", 0))
