"""Distributed training that a function need not know of.

    def train(lr, reporter):
        import torch
        from hops import dist
        ctx = dist.context()
        model = ctx.wrap(Net())                       # DistributedDataParallel in a gang, the model itself on a laptop
        for step, (x, y) in enumerate(ctx.loader(dataset, batch_size=32, shuffle=True)):
            ...
            reporter.broadcast(ctx.all_reduce(loss, "mean"))

context() finds out where it runs: in a member of a gang (HOPS_RANK, …; training/rendezvous sets them), under torchrun or whoever else
sets RANK and WORLD_SIZE, under horovodrun, or alone, where everything is the identity. Collectives are those of torch.distributed (NCCL for
tensors on GPUs, gloo for others), in a gang of Horovod those of Horovod. torch, TensorFlow, JAX and Horovod are imported when something asks for them.
"""
import importlib.util
import json
import os
import sys

_OPERATIONS = ("sum", "mean", "min", "max")
# Roles that serve instead of calling the function, by framework; parameter servers always do.
_SERVING_WORKERS = ("parameter_server", "mpi")

_HOROVODS = ("horovod.torch", "horovod.tensorflow", "horovod.mxnet")

_context = None
_began_group = False


def every_role(fn):
    """Mark a function that is to be called on parameter servers and serving workers too, as programs for TensorFlow 1 are: it
    starts the server itself."""
    fn.hops_every_role = True
    return fn


def context():
    """This process's place among those that train together. The same object until the environment changes."""
    global _context
    here = _place(os.environ)
    if _context is None or _context._here != here:
        _context = Context(here)
    return _context


def _place(env):
    for prefix, size in (("", "WORLD_SIZE"), ("HOPS_", "WORLD_SIZE"), ("HOROVOD_", "SIZE")):
        if prefix + "RANK" in env and prefix + size in env:
            break
    names = [prefix + n for n in ("RANK", size, "LOCAL_RANK", "LOCAL_" + size)]
    given = [env.get(name, default) for name, default in zip(names, "0101")]
    try:
        numbers = tuple(map(int, given))
    except ValueError:
        raise ValueError("%s are %r, not numbers" % (", ".join(names), given)) from None
    if not 0 <= numbers[0] < numbers[1]:
        raise ValueError("rank %d is none of a group of %d" % numbers[:2])
    framework = env.get("HOPS_FRAMEWORK") or ("" if numbers[1] == 1 else "horovod" if prefix == "HOROVOD_" else "torch" if env.get("MASTER_ADDR") else "")
    return numbers + (framework, env.get("HOPS_ROLE") or ("chief" if numbers[0] == 0 else "worker"), int(env.get("HOPS_ROLE_INDEX") or 0),
                      int(env.get("HOPS_GENERATION") or 1), env.get("HOPS_MEMBERS") or "[]")


class Context:
    """rank of world processes; local_rank of local_world that see the same devices; role (chief, worker, ps, evaluator) and index in
    it; framework ("" alone); generation (how often the gang has started, from 1); members (rank, role, index, host, ports)."""

    def __init__(self, here):
        self._here = here
        (self.rank, self.world, self.local_rank, self.local_world, self.framework, self.role, self.index, self.generation, members) = here
        self.members = json.loads(members)

    def __repr__(self):
        return "<rank %d of %d, %s%s>" % (self.rank, self.world, self.role, " of " + self.framework if self.framework else "")

    @property
    def is_chief(self):
        """Whether this process's reports, checkpoints and result are the trial's: rank 0."""
        return self.rank == 0

    @property
    def device(self):
        """The torch.device of this process: one of the GPUs that it sees, by its local rank, else the CPU."""
        torch = _torch("device")
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    # -- torch

    def wrap(self, model, mixed_precision=False, zero_lvl=0, **options):
        """The model on this process's device; in a gang it averages its gradients with the others' (DistributedDataParallel, which gets
        the options). Its state_dict is that of the model, so that checkpoints fit a laptop and a gang of any size. In a gang of Horovod it is the model
        itself, with the parameters of rank 0, whose gradients are averages when backward() returns; hvd.DistributedOptimizer is not needed, and takes no options here.

        mixed_precision: the model computes in bfloat16 where torch.autocast finds that safe; parameters and what it returns are of 32 bits.
        zero_lvl (Rajbhandari et al., ZeRO, 2020): 1 and 2, each rank keeps its share of the gradients and of what the optimizer has; 3, of the
        parameters too, which are put together block by block (the entries of Sequential and ModuleList). Both are PyTorch's fully_shard. state_dict()
        and load_state_dict() are collectives then: every rank calls them. ValueError: another level, or one in a gang of Horovod; a device without
        bfloat16."""
        if zero_lvl not in (0, 1, 2, 3):
            raise ValueError("zero_lvl is %r, not 0, 1, 2 or 3" % (zero_lvl,))
        if zero_lvl and self._of_horovod():
            raise ValueError("zero_lvl is of gangs of torch; in one of Horovod each rank has the whole model")
        model = model.to(self.device)
        if mixed_precision:
            _mix(model, self.device)
        if self._of_horovod():
            return _averaged(self._horovod(), model)
        if not self._group() or not any(p.requires_grad for p in model.parameters()):
            return model
        if zero_lvl:
            return _shard(model, self.device, self.world, zero_lvl == 3, **options)
        return _parallel()(model, device_ids=[self.device] if self.device.type == "cuda" else None, **options)

    def loader(self, dataset, shuffle=False, seed=0, drop_last=False, **options):
        """A torch DataLoader over this rank's part of a dataset; batch_size is that of one rank. Each pass shuffles anew, and all ranks
        alike; set_epoch(n) chooses which pass comes next."""
        torch = _torch("loader")
        data = torch.utils.data
        if self.world == 1:
            return data.DataLoader(dataset, shuffle=shuffle, drop_last=drop_last, **options)
        if isinstance(dataset, data.IterableDataset):
            raise ValueError("an IterableDataset has no order that ranks could share: have it give every world-th element itself (rank, world of hops.dist.context())")
        for name in ("sampler", "batch_sampler"):
            if options.get(name) is not None:
                raise ValueError("loader() chooses each rank's part with a sampler of its own; %s does not go with it" % name)
        sampler = data.distributed.DistributedSampler(dataset, self.world, self.rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        return _loader()(dataset, sampler=sampler, drop_last=drop_last, **options)

    def barrier(self):
        """Wait for all ranks."""
        if self._of_horovod():
            self._horovod().allgather_object(None)
            return
        group = self._group()
        if group:
            group.barrier()

    def all_reduce(self, x, op="sum"):
        """The sum, mean, min or max of x over all ranks: of a tensor as a new tensor, of a number as a float."""
        if op not in _OPERATIONS:
            raise ValueError("op is %r, want one of %s" % (op, ", ".join(_OPERATIONS)))
        if self.world == 1:
            return x
        if self._of_horovod():
            return _reduced(self._horovod(), x, op)
        group, torch = self._group(), _torch("all_reduce")
        tensor = x.detach().clone() if isinstance(x, torch.Tensor) else torch.tensor(float(x), dtype=torch.float64)
        group.all_reduce(tensor, {"min": group.ReduceOp.MIN, "max": group.ReduceOp.MAX}.get(op, group.ReduceOp.SUM))
        if op == "mean":
            tensor = tensor / self.world
        return tensor if isinstance(x, torch.Tensor) else tensor.item()

    def broadcast_object(self, x, src=0):
        """What rank src has as x, on all ranks. It travels pickled, between the members of this gang."""
        if self._of_horovod():
            return self._horovod().broadcast_object(x, root_rank=src)
        group = self._group()
        if not group:
            return x
        box = [x]
        group.broadcast_object_list(box, src=src)
        return box[0]

    def _group(self):
        """torch.distributed with its process group, None alone."""
        global _began_group
        if self.world == 1:
            return None
        if self.framework != "torch":
            raise RuntimeError("a gang of %s has no torch.distributed: name framework torch in `distributed`, or use the framework's own collectives" % (
                self.framework or "unknown kind (MASTER_ADDR is not set)"))
        torch = _torch("distributed training")
        group = torch.distributed
        if not group.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(self.device)
                group.init_process_group("cpu:gloo,cuda:nccl")
            else:
                group.init_process_group("gloo")
            _began_group = True
        return group

    def _of_horovod(self):
        return self.world > 1 and self.framework == "horovod"

    def _horovod(self):
        """Horovod, initialised: the one that the function uses, for TensorFlow if it has imported that, else for PyTorch. Each has its own
        connections, and one process has one of them."""
        for hvd in map(sys.modules.get, _HOROVODS):
            if hvd is not None and hvd.is_initialized():
                return hvd
        name = "horovod.torch" if "horovod.tensorflow" not in sys.modules and importlib.util.find_spec("torch") else "horovod.tensorflow"
        try:
            hvd = importlib.import_module(name)
        except ModuleNotFoundError as e:
            raise ModuleNotFoundError("hops.dist: a gang of Horovod needs the package %s, and %s is not installed for %s" % (name, e.name, sys.executable), name=e.name) from None
        if name == "horovod.torch" and self.device.type == "cuda":
            sys.modules["torch"].cuda.set_device(self.device)
        hvd.init()
        return hvd

    # -- TensorFlow, JAX

    def strategy(self, **options):
        """The tf.distribute.Strategy for this gang: MultiWorkerMirroredStrategy, ParameterServerStrategy, MirroredStrategy of the GPUs that
        one process sees, or the one that does nothing. Before any other call of TensorFlow."""
        tf = _import("tensorflow", "strategy")
        if self.framework == "parameter_server":
            return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver(), **options)
        if self.world > 1 and self.framework == "tensorflow":
            return tf.distribute.MultiWorkerMirroredStrategy(**options)
        if self.world > 1:
            raise RuntimeError("a gang of %s has no strategy of TensorFlow: name framework tensorflow or parameter_server in `distributed`" % self.framework)
        return tf.distribute.MirroredStrategy(**options) if len(tf.config.list_physical_devices("GPU")) > 1 else tf.distribute.get_strategy()

    def initialize_jax(self):
        """jax.distributed.initialize for this gang; nothing alone. Before any other call of JAX. Returns jax."""
        jax = _import("jax", "initialize_jax")
        if self.world > 1 and self.framework != "jax":
            raise RuntimeError("a gang of %s has no coordinator of JAX: name framework jax in `distributed`" % self.framework)
        if self.world > 1 and not jax.distributed.is_initialized():
            jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], self.world, self.rank)
        return jax

    def shutdown(self):
        """Leave the process group, if this context formed it. A trial's process does so when its function has returned."""
        global _began_group
        if _began_group:
            _began_group = False
            group = sys.modules["torch"].distributed
            if group.is_initialized():
                group.destroy_process_group()


def wrap_module_class(cls):
    """A class that makes modules as cls does, wrapped as Context.wrap does; cls itself alone."""
    ctx = context()
    if ctx.world == 1:
        return cls
    if ctx._of_horovod():
        def averaged(self, *args, **kwargs):
            cls.__init__(self, *args, **kwargs)
            ctx.wrap(self)

        return type(cls.__name__, (cls,), {"__init__": averaged, "__doc__": cls.__doc__, "__module__": cls.__module__})

    def make(self, *args, **kwargs):
        model = cls(*args, **kwargs).to(ctx.device)
        super(made, self).__init__(model, device_ids=[ctx.device] if ctx.device.type == "cuda" else None)

    ctx._group()
    made = type(cls.__name__, (_parallel(),), {"__init__": make, "__doc__": cls.__doc__, "__module__": cls.__module__})
    return made


def _mix(model, device):
    """The model's forward under torch.autocast, with results of 32 bits."""
    torch = _torch("mixed_precision")
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ValueError("mixed_precision: %s has no bfloat16; use torch.autocast with float16 and a GradScaler in the function" % torch.cuda.get_device_name(device))
    forward = model.forward

    def whole(x):
        if isinstance(x, torch.Tensor):
            return x.float() if x.dtype == torch.bfloat16 else x
        if isinstance(x, dict):
            return type(x)((k, whole(v)) for k, v in x.items())
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(whole, x))
        return type(x)(map(whole, x)) if type(x) in (list, tuple) else x

    def mixed(*args, **kwargs):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return whole(forward(*args, **kwargs))

    model.forward = mixed


def _shard(model, device, world, parameters, **options):
    """The model with its parameters in shares, one of each rank; put together for a pass and, if parameters says so, given up after each block of it."""
    torch = _torch("zero_lvl")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    options = {"mesh": init_device_mesh(device.type, (world,)), "reshard_after_forward": parameters, **options}
    if parameters:
        for block in _blocks(model, torch.nn):
            fully_shard(block, **options)
    model.__class__ = type(type(model).__name__, (_whole_state(), type(model)), {"__module__": type(model).__module__})
    return fully_shard(model, **options)


def _blocks(model, nn):
    """The parts of a model that are called one after the other: the outermost entries of Sequential and ModuleList with parameters that no other part
    of the model has."""
    holders = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            holders.setdefault(p, set()).add(module)
    found = []

    def walk(module):
        for child in module.children():
            inside, own = set(child.modules()), list(child.parameters())
            if isinstance(module, (nn.Sequential, nn.ModuleList)) and not isinstance(child, (nn.Sequential, nn.ModuleList)):
                if own and all(holders[p] <= inside for p in own):
                    found.append(child)
            else:
                walk(child)

    walk(model)
    return found


def _whole_state():
    """What gives a module in shares the state of one that is whole."""
    if "whole" not in _classes:
        from torch.distributed.tensor import DTensor, distribute_tensor

        class Whole:
            def state_dict(self, *args, **kwargs):
                state = super().state_dict(*args, **kwargs)
                for name, x in state.items():
                    if isinstance(x, DTensor):
                        state[name] = x.full_tensor()
                return state

            def load_state_dict(self, state_dict, *args, **kwargs):
                mine, shares = super().state_dict(), {}
                for name, x in state_dict.items():
                    here = mine.get(name)
                    if isinstance(here, DTensor) and not isinstance(x, DTensor) and here.shape == x.shape:
                        x = distribute_tensor(x.to(here.device, here.dtype), here.device_mesh, here.placements, src_data_rank=None)
                    shares[name] = x
                return super().load_state_dict(shares, *args, **kwargs)

        _classes["whole"] = Whole
    return _classes["whole"]


def shutdown():
    """context().shutdown(), if there is a context; and the end of Horovod, whoever has initialised it, as it comes with the end of a program."""
    if _context is not None:
        _context.shutdown()
    for hvd in map(sys.modules.get, _HOROVODS):
        if hvd is not None and hvd.is_initialized():
            hvd.shutdown()


def _reduced(hvd, x, op):
    """Context.all_reduce by Horovod. What is no tensor of torch is a number."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return hvd.allreduce(x.detach(), op={"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max}[op])
    numbers = hvd.allgather_object(float(x))
    if op in ("min", "max"):
        return {"min": min, "max": max}[op](numbers)
    return sum(numbers) / (len(numbers) if op == "mean" else 1)


def _averaged(hvd, model):
    """The model with rank 0's parameters. Each gradient is on its way as soon as it is there, and all have arrived when backward() returns."""
    import torch
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    handles, number = {}, len(_kept)

    def send(name, p):
        if p.grad is None:  # of no use to this rank's loss, but maybe to another's
            p.grad = torch.zeros_like(p)
        handles[name] = hvd.allreduce_async_(p.grad, name="hops.%d.%s" % (number, name), op=hvd.Average)

    def arrive():
        for name, p in trained:
            if name not in handles:
                send(name, p)
        for handle in handles.values():
            hvd.synchronize(handle)
        handles.clear()

    def hook(name, p):
        def there(*_):
            if not handles:
                torch.autograd.Variable._execution_engine.queue_callback(arrive)
            send(name, p)
        return there

    adders = []
    for name, p in trained:  # the node of the graph that adds to p.grad; nobody else keeps it
        adder = p.expand_as(p).grad_fn.next_functions[0][0]
        adder.register_hook(hook(name, p))
        adders.append(adder)
    _kept.append(adders)
    return model


_classes = {}
_kept = []  # of each model that Horovod averages, what has to stay; a process has few


def _parallel():
    """DistributedDataParallel that looks like its module: attributes, and the names in its state."""
    if "parallel" not in _classes:
        from torch.nn.parallel import DistributedDataParallel

        class Parallel(DistributedDataParallel):
            def __getattr__(self, name):
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    if name == "module":
                        raise
                    return getattr(self.module, name)

            def state_dict(self, *args, **kwargs):
                return self.module.state_dict(*args, **kwargs)

            def load_state_dict(self, *args, **kwargs):
                return self.module.load_state_dict(*args, **kwargs)

        _classes["parallel"] = Parallel
    return _classes["parallel"]


def _loader():
    """A DataLoader that tells its sampler which pass it is."""
    if "loader" not in _classes:
        from torch.utils.data import DataLoader

        class Loader(DataLoader):
            _pass = 0

            def set_epoch(self, epoch):
                self._pass = epoch

            def __iter__(self):
                self.sampler.set_epoch(self._pass)
                self._pass += 1
                return super().__iter__()

        _classes["loader"] = Loader
    return _classes["loader"]


def _torch(what):
    torch = _import("torch", what)
    import torch.distributed
    import torch.utils.data.distributed  # noqa: F401
    return torch


def _import(name, what):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise
        raise ModuleNotFoundError("hops.dist: %s needs the package %s, which is not installed for %s" % (what, name, sys.executable), name=name) from None


# -- for the process of a trial

def warm(framework):
    """Before the function's module is imported: import what a gang of the framework needs and imports late, so that a process that is forked
    has it, and say to TensorFlow what it reads once."""
    if framework in ("tensorflow", "parameter_server") and importlib.util.find_spec("tf_keras"):
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # fit() of Keras 3 does not know their strategies
    if framework == "torch":
        _beforehand("torch", "torch.distributed", "torch.nn.parallel.distributed", "torch.utils.data.distributed", _LATE)


def warmed(framework):
    """After the function's module is imported: as warm(), of what that has chosen. Horovod is for several."""
    if framework == "horovod" and "torch" in sys.modules:
        _beforehand(_LATE)


_LATE = "torch._dynamo"  # the first step of an optimizer imports it


def _beforehand(*names):
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as e:  # noqa: B902 - who needs it will say so
            print("%s cannot be imported beforehand: %s" % (name, e), file=sys.stderr)
            return


def prepare(trial):
    """Before the function: what has to be said to frameworks that are imported already."""
    if trial.gang and "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS", "").isdigit():
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # the variable is read when torch is loaded


def calls(fn, gang):
    """Whether a member calls the function; otherwise it serves."""
    if getattr(fn, "hops_every_role", False):
        return True
    return gang["role"] != "ps" and not (gang["role"] == "worker" and gang["framework"] in _SERVING_WORKERS)


def serve(trial):
    """What a member does that does not call the function, until it is killed. The executor does that when the trial has ended."""
    trial.serving()
    if trial.gang["framework"] == "parameter_server":
        tf = _import("tensorflow", "a parameter server")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True).join()
    return trial.wait()
