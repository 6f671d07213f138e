"""The client's end of an exchange of SASL's GSSAPI with MIT's library: peer.py PORT QOP SERVICE@HOST. Tokens are preceded by their
length, four bytes. After the exchange come messages, each sent back; then the end."""

import socket
import struct
import sys

import gssapi

LAYERS = {"auth": 1, "auth-int": 2, "auth-conf": 4}


def main(port: int, qop: str, service: str) -> None:
    connection = socket.create_connection(("127.0.0.1", port), 30)

    def send(token: bytes) -> None:
        connection.sendall(struct.pack(">I", len(token)) + token)

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = connection.recv(count - len(data))
            if not more:
                raise SystemExit("the server has hung up")
            data += more
        return data

    def receive() -> bytes:
        return exactly(struct.unpack(">I", exactly(4))[0])

    name = gssapi.Name(service, gssapi.NameType.hostbased_service)
    context = gssapi.SecurityContext(name=name, usage="initiate")
    token = context.step()
    while True:
        send(token or b"")
        if context.complete:
            break
        token = context.step(receive())
    offer = context.unwrap(receive()).message
    if not offer[0] & LAYERS[qop]:
        raise SystemExit(f"the server offers {offer[0]}")
    send(context.wrap(bytes([LAYERS[qop], 255, 255, 255]), False).message)
    for size in (0, 1, 15, 16, 17, 1000, 60_000):
        message = bytes([size % 256]) * size
        send(message if qop == "auth" else context.wrap(message, qop == "auth-conf").message)
        back = receive()
        if qop != "auth":
            back = context.unwrap(back).message
        if back != message:
            raise SystemExit(f"a message of {size} bytes came back changed")
    print("qop", qop)


main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
