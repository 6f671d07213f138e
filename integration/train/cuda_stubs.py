"""Lets a PyTorch that was built for CUDA be imported on a machine without CUDA's packages, which are five times its size.

    python cuda_stubs.py

run by the interpreter that has torch (pip install --no-deps torch). PyTorch's libraries are linked with libraries of CUDA; on a
CPU none of their functions is called, but the dynamic loader wants them all. For each library that is not there a small one
is made in torch/lib with the same name, the same symbols and the same versions of them, whose functions all return 35,
CUDA's word for a driver that cannot be used. Needs objdump (binutils) and a C compiler.
"""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

FOREIGN = re.compile(r"lib(cu|nv|nccl)")
# The driver's own library is opened when CUDA is asked for, and must not be hidden.
NEVER = {"libcuda.so.1"}


def objdump(flag, path):
    return subprocess.run(["objdump", flag, path], check=True, capture_output=True, text=True).stdout


class Library:
    """What one shared object wants of others, and what it has."""

    def __init__(self, path):
        self.needed, self.owner = set(), {}  # owner: version of symbols -> library that has them
        at = None
        for line in objdump("-p", path).splitlines():
            words = line.split()
            if words[:1] == ["NEEDED"]:
                self.needed.add(words[1])
            elif line.strip().startswith("required from "):
                at = line.strip()[len("required from "):].rstrip(":")
            elif at and len(words) == 4 and words[0].startswith("0x"):
                self.owner[words[3]] = at
        self.undefined, self.defined = {}, set()
        for line in objdump("-T", path).splitlines():
            m = re.match(r"[0-9a-f]{16} (.{7}) (\S+)\s+[0-9a-f]{16}\s+(.*)$", line)
            if not m:
                continue
            rest = m.group(3).split()
            name, version = rest[-1], rest[0].strip("()") if len(rest) > 1 else ""
            version = "" if version == "Base" else version  # objdump's word for none
            if m.group(2) != "*UND*":
                self.defined.add(name)
            elif "w" not in m.group(1):
                self.undefined[name] = version


def loadable(name):
    try:
        ctypes.CDLL(name)
        return True
    except OSError:
        return False


def write(directory, name, symbols):
    """Make the library; symbols is {symbol: version}, "" for none."""
    with tempfile.TemporaryDirectory() as work:
        source, script = os.path.join(work, "stub.c"), os.path.join(work, "versions")
        with open(source, "w") as f:
            f.writelines("int %s(void) { return 35; }\n" % s for s in sorted(symbols))
        options = []
        versions = sorted({v for v in symbols.values() if v})
        if versions:
            with open(script, "w") as f:
                for v in versions:
                    f.write("%s { global: %s };\n" % (v, " ".join("%s;" % s for s in sorted(symbols) if symbols[s] == v)))
            options = ["-Wl,--version-script=" + script]
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-fno-builtin", "-w", "-O0", "-Wl,-soname," + name, *options,
                        "-o", os.path.join(directory, name), source], check=True)


def main():
    directory = os.path.join(sysconfig.get_paths()["platlib"], "torch", "lib")
    if not os.path.isdir(directory):
        sys.exit("there is no torch in %s" % directory)
    for program in ("objdump", os.environ.get("CC", "cc")):
        if not shutil.which(program):
            sys.exit("%s is needed to make PyTorch work without CUDA (Debian: apt-get install binutils gcc libc6-dev)" % program)
    libraries = [Library(os.path.join(directory, n)) for n in sorted(os.listdir(directory)) if ".so" in n]
    have = set(os.listdir(directory))
    missing = sorted(n for n in set().union(*(x.needed for x in libraries)) if FOREIGN.match(n) and n not in NEVER and n not in have and not loadable(n))
    if not missing:
        return
    defined = set().union(*(x.defined for x in libraries))
    wanted = {n: {} for n in missing}
    for x in libraries:
        for symbol, version in x.undefined.items():
            owner = x.owner.get(version)
            if version and owner in wanted:
                wanted[owner][symbol] = version
            elif not version and symbol not in defined and re.match(r"_*(cu|nv|nccl)", symbol, re.I):
                # Nobody says which library it is in: any will do.
                wanted[missing[0]].setdefault(symbol, "")
    for name, symbols in wanted.items():
        write(directory, name, symbols)
    print("%d libraries of CUDA are stood in for in %s" % (len(wanted), directory))


if __name__ == "__main__":
    main()
