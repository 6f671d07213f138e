"""The GPUs of this container."""
import os


def get_gpu_uuids():
    """UUIDs of the container's GPUs, from CUDA_VISIBLE_DEVICES."""
    return [u for u in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if u]


def get_num_gpus():
    return len(get_gpu_uuids())
