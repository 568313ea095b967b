"""A loader for vLLM: ``vllm serve MODEL --load-format forebay``.

vLLM finds it by the entry point ``vllm.general_plugins`` in each of its processes. Options go into
``--model-loader-extra-config``, as JSON: ``{"gds": "prefer", "verify": "prefer", "pinned": "256MiB",
"device": "cuda", "cache": "/nvme/cache:200GiB"}``.

Files are loaded one after the other and let go once the model has taken their tensors, so that at most one
of them is on the device beside the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from forebay.loading import load

NAME = "forebay"
# What may be in the extra configuration, and what it is otherwise.
OPTIONS: dict[str, Any] = {
    "gds": "prefer",
    "verify": "prefer",
    "pinned": None,
    "cache": None,
    "device": None,
}


def options_of(extra: dict[str, Any] | None) -> dict[str, Any]:
    """Check the extra configuration: an option that is not known is an error, not ignored."""
    extra = dict(extra or {})
    unknown = sorted(set(extra) - set(OPTIONS))
    if unknown:
        message = f"unknown options of the forebay loader: {', '.join(unknown)}"
        raise ValueError(f"{message}; known: {', '.join(OPTIONS)}")
    return {**OPTIONS, **extra}


def files_of(folder: str) -> list[str]:
    """Name the weight files of a folder: those of its index where it has one."""
    import json

    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as text:
            names = sorted(set(json.load(text)["weight_map"].values()))
    else:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    if not names:
        raise FileNotFoundError(f"no *.safetensors file in {folder}")
    return [os.path.join(folder, name) for name in names]


def tensors_of(urls: list[str], options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give the tensors of files, one file at a time."""
    import torch

    device = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    for url in urls:
        weights = load(
            url,
            device,
            gds=options["gds"],
            verify=options["verify"],
            pinned=options["pinned"],
            cache=options["cache"],
            framework="torch",
        )
        while weights:
            yield weights.popitem()


def _folder(model_config: Any, load_config: Any) -> str:
    """Give the local folder of a model, fetched from the hub where it is not one."""
    model = getattr(model_config, "model_weights", None) or model_config.model
    if os.path.isdir(model) or "://" in model:
        return str(model)
    from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf

    return str(
        download_weights_from_hf(
            model,
            load_config.download_dir,
            ["*.safetensors", "*.safetensors.index.json"],
            getattr(model_config, "revision", None),
        )
    )


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
            """Load weights into a model."""
            folder = _folder(model_config, self.load_config)
            urls = [folder] if "://" in folder else files_of(folder)
            model.load_weights(tensors_of(urls, self.options))

    return ForebayModelLoader


def register() -> None:
    """Make the loader known to vLLM; called by it."""
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader(NAME)(loader_class())
