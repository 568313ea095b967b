"""A loader for vLLM: ``vllm serve MODEL --load-format forebay``.

vLLM finds it by the entry point ``vllm.general_plugins`` in each of its processes. Options go into
``--model-loader-extra-config``, as JSON: ``{"gds": "prefer", "verify": "prefer", "pinned": "256MiB",
"device": "cuda", "cache": "/nvme/cache:200GiB", "shared": true}``.

Files are loaded one after the other and let go once the model has taken their tensors, so that at most one
of them is on the device beside the model.

Every rank reads all files, since only the model knows which parts it takes. Where there are several on a
machine, they read through the page cache, so that the disk is read once and not once by each of them;
``shared`` says so in place of the number of ranks. What comes from a bucket is shared by ``cache``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from forebay._forebay import NativeWeights
from forebay.loading import _device, load_from

NAME = "forebay"
# What may be in the extra configuration, and what it is otherwise.
OPTIONS: dict[str, Any] = {
    "gds": "prefer",
    "verify": "prefer",
    "pinned": None,
    "cache": None,
    "device": None,
    "shared": None,
}


def options_of(extra: dict[str, Any] | None) -> dict[str, Any]:
    """Check the extra configuration: an option that is not known is an error, not ignored."""
    extra = dict(extra or {})
    unknown = sorted(set(extra) - set(OPTIONS))
    if unknown:
        message = f"unknown options of the forebay loader: {', '.join(unknown)}"
        raise ValueError(f"{message}; known: {', '.join(OPTIONS)}")
    return {**OPTIONS, **extra}


def _ranks_here() -> int:
    """Say how many ranks there are on this machine, or at most."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdigit():
        return int(told)
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def reading_of(options: dict[str, Any], folder: str) -> tuple[str, str | None]:
    """Say whether to read by GPUDirect Storage, and which path to require."""
    shared = options["shared"]
    if shared is None:
        shared = _ranks_here() > 1
    if not shared or options["gds"] == "require" or "://" in folder:
        return options["gds"], None
    return "off", "buffered"


def tensors_of(folder: str, options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give the tensors of a folder, one file at a time."""
    import torch

    device = _device(options["device"] or ("cuda" if torch.cuda.is_available() else "cpu"))
    gds, require_path = reading_of(options, folder)
    source = NativeWeights([folder], {"verify": options["verify"], "cache": options["cache"]})
    names: dict[int, list[tuple[str, None]]] = {}
    for name, _, _, file in source.tensors({}):
        names.setdefault(file, []).append((name, None))
    for exact in names.values():
        wanted = {"exact": exact, "gds": gds, "pinned": options["pinned"], "require_path": require_path}
        (weights,) = load_from(source, [device], "torch", wanted)
        while weights:
            yield weights.popitem()


def _folder(model_config: Any, load_config: Any) -> str:
    """Give the local folder of a model, fetched from the hub where it is not one."""
    model = getattr(model_config, "model_weights", None) or model_config.model
    if os.path.isdir(model) or "://" in model:
        return str(model)
    from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf

    # One after the other: of several patterns only the first that is found is fetched.
    for pattern in ("*.safetensors.index.json", "*.safetensors"):
        folder = download_weights_from_hf(
            model, load_config.download_dir, [pattern], getattr(model_config, "revision", None)
        )
    return str(folder)


def loader_class() -> type[Any]:
    """Make the class; vLLM is imported here and not before."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class ForebayModelLoader(BaseModelLoader):
        """Loads weights with an account of every byte."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            self.options = options_of(load_config.model_loader_extra_config)

        def download_model(self, model_config: Any) -> None:
            """Fetch a model so that it can be loaded at once."""
            _folder(model_config, self.load_config)

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Load weights into a model; what no file has is an error, as for vLLM's own loader."""
            folder = _folder(model_config, self.load_config)
            loaded = model.load_weights(tensors_of(folder, self.options))
            if loaded is None or getattr(model_config, "quantization", None) is not None:
                # The model does not tell, or has parameters that are made of others.
                return
            missing = sorted({name for name, _ in model.named_parameters()} - set(loaded))
            if missing:
                some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
                raise ValueError(f"{len(missing)} parameters are in no file of {folder}: {some}")

    return ForebayModelLoader


def register() -> None:
    """Make the loader known to vLLM; called by it."""
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader(NAME)(loader_class())
