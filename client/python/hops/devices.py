"""The GPUs of this container."""
import ctypes
import os


def get_gpu_uuids():
    """UUIDs of the container's GPUs, from CUDA_VISIBLE_DEVICES."""
    return [u for u in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if u]


def get_num_gpus():
    """How many GPUs there are for this process: EXECUTOR_GPUS, if it is set; those of CUDA_VISIBLE_DEVICES; outside of a container, where neither is set,
    those that the driver knows (NVML)."""
    told = os.environ.get("EXECUTOR_GPUS", "").strip()
    if told.isdigit():
        return int(told)
    if "CUDA_VISIBLE_DEVICES" in os.environ or os.environ.get("HOPS_CONTAINER_ID"):
        return len(get_gpu_uuids())
    return _nvml()


def _nvml():
    """How many GPUs the driver of this machine has; 0 without a driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() != 0:
            return 0
        count = ctypes.c_uint(0)
        found = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        library.nvmlShutdown()
        return count.value if found == 0 else 0
    except (OSError, AttributeError):
        return 0
