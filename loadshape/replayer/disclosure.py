# What a server discloses of its configuration, and which of it is worth keeping.
#
# Law: a list of what is wanted, never a copy of what was said: a server's own account of itself holds tokens of model
# hubs, paths and process numbers beside what matters. A fact that it does not tell is not there, and one that is told
# elsewhere (/version, /models) is not kept twice: one change would look like two. Two pages of vLLM have facts, and
# both may be missing:
#
#     /metrics       the labels of vllm:cache_config_info: blocks, their size, whether prefixes are cached
#     /server_info   with VLLM_SERVER_DEV_MODE=1: model, revision, dtype, quantization, parallelism, GPUs, driver
#
# Source: vllm/entrypoints/serve/dev/server_info/api_router.py, vllm/config.

"""Disclosures: the facts about a server that are kept, from its pages about itself."""

from __future__ import annotations

from typing import Any

from loadshape.replayer.samples import parse_page

CACHE_INFO = "vllm:cache_config_info"
UNKNOWN = (None, "", "None", "N/A")
CACHE = (
    *("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "num_gpu_blocks"),
    *("kv_cache_size_tokens", "prefix_caching_hash_algo", "sliding_window", "kv_offloading_size"),
)
CONFIG = {
    "model_config": ("revision", "dtype", "quantization", "enforce_eager"),
    "parallel_config": (
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"),
    ),
    "scheduler_config": (
        *("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "async_scheduling", "policy"),
    ),
    "speculative_config": ("method", "model", "num_speculative_tokens"),
    "lora_config": ("max_loras", "max_lora_rank"),
    "load_config": ("load_format",),
    "attention_config": ("backend",),
}
SYSTEM = (
    *("torch_version", "cuda_runtime_version", "hip_runtime_version", "nvidia_driver_version"),
    *("nvidia_gpu_models", "gpu_topo", "python_version", "os"),
)


def pick_cache(page: str) -> dict[str, str] | None:
    """Return what /metrics says of the cache of the first engine, None where it says nothing."""
    sample = next(iter(parse_page(page, {CACHE_INFO})), None)
    return None if sample is None else _pick(sample.labels, CACHE)


def pick_engine(info: Any) -> dict[str, Any] | None:
    """Return what /server_info?config_format=json says, a flat dictionary a part; None where it says nothing."""
    if not isinstance(info, dict):
        return None
    config = info.get("vllm_config")
    parts = {name: _pick(config.get(name), keys) for name, keys in CONFIG.items()} if isinstance(config, dict) else {}
    parts["system"] = _pick(info.get("system_env"), SYSTEM)
    return {name: part for name, part in parts.items() if part} or None


def _pick(values: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(values, dict):
        return {}
    found = ((name, values.get(name)) for name in wanted)
    return {name: value for name, value in found if isinstance(value, str | int | float) and value not in UNKNOWN}
