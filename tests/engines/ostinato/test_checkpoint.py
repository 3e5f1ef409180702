"""What a damaged model folder says, and that bytes are read as they are stored."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from safetensors.torch import save_file

from engines.ostinato.checkpoint import Checkpoint, natural
from engines.ostinato.errors import SetupError

TENSORS = {
    "a": torch.arange(12.0).reshape(3, 4),
    "b": torch.arange(10).to(torch.bfloat16),
    "c": torch.arange(6, dtype=torch.int64).reshape(2, 3),
    "d": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
    "e": torch.zeros(0, 3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


def said(folder: Path) -> str:
    with pytest.raises(SetupError) as caught:
        Checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_tensors_come_back_as_they_were_saved(folder: Path) -> None:
    with Checkpoint(folder).open() as checkpoint:
        assert set(checkpoint) == set(TENSORS)
        for name, tensor in TENSORS.items():
            got = checkpoint.tensor(name)
            assert got.dtype == tensor.dtype
            assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8))


def test_a_part_of_a_tensor_is_read_into_memory_that_is_there(folder: Path) -> None:
    target = torch.zeros(4, dtype=torch.float32)
    with Checkpoint(folder).open() as checkpoint:
        checkpoint.read_into("a", target.view(torch.uint8).numpy(), start=16)
    assert target.tolist() == [4.0, 5.0, 6.0, 7.0]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    assert "holds no *.safetensors" in said(tmp_path)


def test_a_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "z": "other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "other.safetensors is missing" in said(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_damaged_index_is_refused(text: str, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    assert "is damaged" in said(folder)


def test_a_short_file_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert "cut short or damaged" in said(folder)
    file.write_bytes(content[:50])
    assert "is cut short: its header claims" in said(folder)
    file.write_bytes(content[:5])
    assert "cut short" in said(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [1]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": ["x", 4]}}',
    ],
)
def test_a_damaged_header_is_refused(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    assert "download the file again" in said(tmp_path)


def test_a_type_that_is_not_known_is_refused(tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    assert "a has type F4" in said(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(folder: Path) -> None:
    with Checkpoint(folder).open() as checkpoint:
        file = folder / "model.safetensors"
        with file.open("r+b") as opened:
            opened.truncate(checkpoint["a"].offset + 8)
        with pytest.raises(SetupError, match="ends within a; download the file again"):
            checkpoint.tensor("a")


def test_names_are_ordered_by_their_numbers() -> None:
    names = ["experts.10.w", "experts.9.w", "experts.w", "experts.1.w"]
    assert sorted(names, key=natural)[:3] == ["experts.1.w", "experts.9.w", "experts.10.w"]
