"""The warm interpreter: a single-threaded process that has imported the user's modules and forks one process a trial.

The executor sends it a JSON line {"id": n} with three file descriptors (the trial's socket, its output, the read end of
a pipe that closes with the executor) and gets {"id": n, "pid": p}; when a trial ends it gets {"id": n, "status": s} with
the wait status. {"exit": true} ends it.
"""
import ctypes
import json
import os
import select
import signal
import socket
import sys

from hops import _trial

PR_SET_PDEATHSIG = 1


def die_with_parent():
    """Have the kernel kill this process when its parent dies, however it dies."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: the container's supervisor kills the tree


def serve(control, setup):
    """Fork trials as asked for on a socket until it closes. setup is the executor's start-up document."""
    problem = _trial.prepare(setup)
    children = {}
    woken_read, woken_write = os.pipe()
    os.set_blocking(woken_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken_write, warn_on_full_buffer=False)
    buffer = b""
    while True:
        ready = select.select([control, woken_read], [], [])[0]
        if woken_read in ready:
            os.read(woken_read, 4096)
            while children:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == 0:
                    break
                if pid in children:
                    _send(control, {"id": children.pop(pid), "status": status})
        if control not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 16)
        if not data:
            return
        buffer += data
        while b"\n" in buffer:
            line, buffer = buffer.split(b"\n", 1)
            order = json.loads(line.decode("utf-8"))
            channel, output = descriptors[:2]
            descriptors = descriptors[2:]
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken_read)
                os.close(woken_write)
                control.close()
                _trial.run_and_exit(socket.socket(fileno=channel), output, problem)
            os.close(channel)
            os.close(output)
            children[pid] = order["id"]
            _send(control, {"id": order["id"], "pid": pid})


def _send(control, message):
    control.sendall(json.dumps(message).encode("utf-8") + b"\n")


def main():
    """Started by the executor: argument 1 is the descriptor of the control socket, standard input the set-up document."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    serve(socket.socket(fileno=int(sys.argv[1])), setup)


if __name__ == "__main__":
    main()
