"""Weights as tensors of torch, where it is installed; the library's own tests run with the peers."""

from __future__ import annotations

from pathlib import Path

import forebay
import pytest

torch = pytest.importorskip("torch")


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist()) if tensor.nelement() else b""


def test_tensors_of_every_type_come_back(tmp_path: Path) -> None:
    from forebay.safetensors.torch import load_file, save_file

    tensors = {
        "bf16": torch.randn(40, 50, dtype=torch.bfloat16),
        "fp8": torch.randn(8).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(3, dtype=torch.complex64),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty((0, 4), dtype=torch.int32),
        "u16": torch.tensor([1, 2, 65535], dtype=torch.uint16),
    }
    path = tmp_path / "m.safetensors"
    save_file(tensors, path, hashes=True)
    for found in (load_file(path), forebay.load(path, verify="require", framework="torch")):
        assert set(found) == set(tensors)
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
            assert bits(found[name]) == bits(tensor), name


def test_models_are_saved_and_loaded(tmp_path: Path) -> None:
    from forebay.safetensors.torch import load_model, save_model

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(20, 20)
            self.b = self.a

    source, target = Tied(), Tied()
    path = tmp_path / "m.safetensors"
    save_model(source, path)
    assert load_model(target, path) == (set(), [])
    assert torch.equal(source.a.weight, target.b.weight)


def test_state_dicts_take_what_is_loaded(tmp_path: Path) -> None:
    from forebay.safetensors.torch import save_file

    model = torch.nn.Linear(30, 7)
    path = tmp_path / "m.safetensors"
    save_file({name: value.clone() for name, value in model.state_dict().items()}, path)
    other = torch.nn.Linear(30, 7)
    other.load_state_dict(forebay.load(path, framework="torch"))
    assert torch.equal(model.weight, other.weight)
