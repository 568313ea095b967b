"""Weights as tensors of torch, where it is installed; the library's own tests run with the peers."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import forebay
import pytest
from forebay.safetensors import SafetensorError, safe_open

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


def test_views_that_are_conjugate_or_negative_are_saved_as_what_they_show(tmp_path: Path) -> None:
    from forebay.safetensors.torch import load, load_file, save, save_file

    tensors = {
        "conj": (torch.ones(2, dtype=torch.complex64) * (1 + 2j)).conj(),
        "neg": torch._neg_view(torch.arange(1.0, 4.0)),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    for found in (load_file(tmp_path / "m.safetensors"), load(save(tensors))):
        for name, tensor in tensors.items():
            assert torch.equal(found[name], tensor), name


def test_slices_of_torch_end_where_tensors_do(tmp_path: Path) -> None:
    from forebay.safetensors.torch import save_file

    whole = torch.arange(15).reshape(5, 3)
    save_file({"x": whole}, tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        part = file.get_slice("x")
        for index in (slice(3, 9), slice(7, 9), (slice(None), slice(1, 5)), torch.tensor(2), (..., 1)):
            assert torch.equal(part[index], whole[index]), index
        for beyond in (5, -6, (0, 3)):
            with pytest.raises(IndexError, match="out of bounds"):
                part[beyond]
        with pytest.raises(SafetensorError, match="an int or a slice"):
            part[True]


def raw(path: Path, dtype: str, shape: list[int], data: bytes) -> Path:
    """Write a file with one tensor, `x`."""
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_types_that_torch_has_not_are_named_before_anything_is_read(tmp_path: Path) -> None:
    from forebay.safetensors.torch import load_file

    path = raw(tmp_path / "m.safetensors", "F6_E2M3", [2, 4], bytes(6))
    words = f"tensor 'x' is of dtype F6_E2M3, which torch {torch.__version__} does not have"
    with pytest.raises(forebay.UnsupportedError, match=re.escape(words)):
        forebay.load(path, framework="torch")
    with pytest.raises(SafetensorError, match=re.escape(words)):
        load_file(path)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch has no such type")
def test_values_that_share_bytes_are_sliced_in_pairs(tmp_path: Path) -> None:
    # A byte of row r and column pair c is 8 r + c.
    path = raw(tmp_path / "m.safetensors", "F4", [4, 16], bytes(range(32)))
    whole = torch.arange(32, dtype=torch.uint8).reshape(4, 8)
    with safe_open(path, "pt") as file:
        part = file.get_slice("x")
        assert part.get_shape() == [4, 16]
        for index, expected in (
            ((slice(0, 2), slice(0, 8)), whole[0:2, 0:4]),
            ((slice(None), slice(4, 12)), whole[:, 2:6]),
            ((slice(1, 4, 2), slice(10, None)), whole[1:4:2, 5:]),
            ((2, slice(2, 6)), whole[2, 1:3]),
            ((..., slice(-4, None)), whole[:, 6:]),
            ((slice(None), slice(0, 16)), whole),
            (3, whole[3]),
            (slice(1, 1), whole[1:1]),
        ):
            found = part[index]
            assert found.dtype == torch.float4_e2m1fn_x2
            assert found.shape == expected.shape, index
            assert bits(found) == bits(expected.contiguous()), index
        for index in (
            (slice(None), slice(1, 5)),
            (slice(None), slice(0, 3)),
            (slice(0, 2), 4),
            (slice(None), slice(0, 8, 2)),
            (slice(0, 1), slice(0, 16, 2)),
        ):
            with pytest.raises(SafetensorError, match="come in pairs"):
                part[index]
    path = raw(tmp_path / "odd.safetensors", "F4", [2, 3], bytes(3))
    words = "tensor 'x' of dtype F4 has 3 values in a row"
    with pytest.raises(forebay.UnsupportedError, match=words):
        forebay.load(path, framework="torch")
    with safe_open(path, "pt") as file, pytest.raises(SafetensorError, match=words):
        file.get_tensor("x")


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
