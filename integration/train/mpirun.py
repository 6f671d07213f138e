"""A program of MPI in a gang: the chief calls mpirun, which finds the members by the hostfile of the gang."""
import os
import subprocess
import sys

from hops import dist

PROGRAM = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(float(sys.argv[1]) * (world.rank + 1))
if world.rank == 0:
    print("TOTAL", world.size, total)
"""


def train(scale, reporter):
    ctx = dist.context()
    with open(os.environ["HOPS_HOSTFILE"]) as f:
        print(f.read())
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]  # mpirun is of this environment
    done = subprocess.run(["mpirun", "--bind-to", "none", *root, sys.executable, "-c", PROGRAM, str(scale)], capture_output=True, text=True, env=dict(os.environ, PATH=path))
    print(done.stdout, done.stderr)
    done.check_returncode()
    size, total = done.stdout.split("TOTAL")[1].split()[:2]
    if int(size) != ctx.world:
        raise RuntimeError("MPI has %s processes, the gang has %d members" % (size, ctx.world))
    return float(total)
