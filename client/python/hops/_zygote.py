"""The warm interpreter: a single-threaded process that has imported the user's modules and forks one process a trial.

The executor sends it a JSON line {"id": n} with three file descriptors (the trial's socket, its output, the read end of
a pipe that closes with the executor) and gets {"id": n, "pid": p}; when a trial ends it gets {"id": n, "status": s} with
the wait status. What else the trial's process group holds then is killed: a child that outlives the function does not hold the
trial. The first thing that it says is {"fork": true}, or {"spawn": reason} when a process that was forked here could not work:
then it ends.

CUDA does not survive a fork. torch.cuda.is_available() while a module is imported would initialise it, so PyTorch is told to ask
NVML instead (PYTORCH_NVML_BASED_CUDA_CHECK; vllm-project/vllm#15951); and since other libraries, or a tensor made at the top of a
module, initialise it as well, the driver itself is asked after the imports (as vllm does, vllm-project/vllm#44252).

Neither do Python's threads: what one of them holds at that moment, the lock of a module that it imports or of a log that it writes,
is held in the child for ever.
"""
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading

from hops import _trial

PR_SET_PDEATHSIG = 1


def die_with_parent():
    """Have the kernel kill this process when its parent dies, however it dies."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: the container's supervisor kills the tree


def cuda_initialised(maps="/proc/self/maps"):
    """Whether cuInit was called in this process: the driver's library is loaded, and a call that needs it succeeds."""
    try:
        with open(maps) as f:
            loaded = {line.split(None, 5)[5].strip() for line in f if "libcuda.so" in line}
    except OSError:
        return False
    for path in loaded:
        try:
            count = ctypes.c_int(0)
            # CUDA_ERROR_NOT_INITIALIZED is 3.
            if ctypes.CDLL(path).cuDeviceGetCount(ctypes.byref(count)) == 0:
                return True
        except (OSError, AttributeError):
            continue
    return False


def other_threads():
    """The names of the interpreter's threads but the caller's."""
    names = {t.ident: t.name for t in threading.enumerate()}
    return [names.get(ident, "unnamed") for ident in sys._current_frames() if ident != threading.get_ident()]


def end_group(pid):
    """Kill what is left of the process group of a trial whose process has ended but is not waited for: nobody else can have
    its number yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def serve(control, setup):
    """Fork trials as asked for on a socket until it closes. setup is the executor's start-up document."""
    problem = _trial.prepare(setup)
    if cuda_initialised():
        _send(control, {"spawn": "importing %s has initialised CUDA, which does not survive a fork" % setup["entry"].split(":", 1)[0]})
        return
    if setup.get("framework") == "horovod" and "tensorflow" in sys.modules:
        _send(control, {"spawn": "importing %s has imported TensorFlow, whose threads do not survive a fork" % setup["entry"].split(":", 1)[0]})
        return
    threads = other_threads()
    if threads:
        _send(control, {"spawn": "importing %s has started threads, which do not survive a fork (%s)" % (setup["entry"].split(":", 1)[0], ", ".join(threads[:5]))})
        return
    gc.collect()
    gc.freeze()  # else the collector of each child would copy all pages by touching them
    _send(control, {"fork": True})
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
                    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if ended is None:
                        break
                    if ended.si_pid in children:
                        end_group(ended.si_pid)
                    pid, status = os.waitpid(ended.si_pid, 0)
                except ChildProcessError:
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


def serve_here(control, setup):
    """Run trials as asked for on a socket until it closes, one after the other in this process (executor mode inproc)."""
    problem = _trial.prepare(setup)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 3, 2)  # one order: {}
        if len(descriptors) < 2:
            return
        if not _trial.run_here(socket.socket(fileno=descriptors[0]), descriptors[1], problem):
            os._exit(0)  # the executor sees that, and starts another one
        _send(control, {"status": 0})


def _send(control, message):
    control.sendall(json.dumps(message).encode("utf-8") + b"\n")


def main():
    """Started by the executor: argument 1 is the descriptor of the control socket, standard input the set-up document. With the
    argument inproc it forks nothing: it runs the trials itself."""
    die_with_parent()
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    (serve_here if sys.argv[2:] == ["inproc"] else serve)(socket.socket(fileno=int(sys.argv[1])), setup)


if __name__ == "__main__":
    main()
