import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workloads.archive import unpacked
from workloads.formats.containers import files, read_json, rows, values
from workloads.formats.reading import Reading, watched
from workloads.session import WorkloadError

ROWS = [{"number": number, "text": "ünï" * number} for number in range(30)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def read(path: Path) -> list[Any]:
    return [value for _, value in values(path)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", LINES),
        ("rows.ndjson", LINES),
        ("rows.json", LINES),
        ("rows.json", json.dumps(ROWS).encode()),
        ("rows.json", json.dumps(ROWS, indent=1).encode()),
        ("rows.jsonl", json.dumps(ROWS, indent=1).encode()),
        ("rows.jsonl", b"\xef\xbb\xbf" + LINES),
        ("rows.json", b"\xef\xbb\xbf" + json.dumps(ROWS).encode()),
        ("rows.jsonl.gz", gzip.compress(LINES)),
        ("rows.jsonl.gz", gzip.compress(LINES[:100]) + gzip.compress(LINES[100:])),
        ("rows.jsonl.zst", zstd(LINES)),
        ("rows.jsonl.zst", zstd(LINES[:100]) + zstd(LINES[100:])),
        ("rows.json.zst", zstd(json.dumps(ROWS).encode())),
        ("named-wrong.jsonl", gzip.compress(LINES)),
    ],
)
def test_rows_are_the_same_in_every_container(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert read(path) == ROWS
    assert [row for _, row in rows(tmp_path)] == ROWS


def test_parquet_rows_are_the_same_whatever_the_file_is_called(tmp_path: Path) -> None:
    for name in ("rows.parquet", "rows.json"):
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / name, row_group_size=7)
        assert read(tmp_path / name) == ROWS
    assert [row for _, row in rows(tmp_path / "rows.parquet", columns=["number", "absent"])] == [
        {"number": row["number"]} for row in ROWS
    ]


def test_a_place_says_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" + LINES))
    assert [place for place, _ in rows(path)][:2] == [f"{path}, line 2", f"{path}, line 3"]


def test_lines_may_hold_any_value_and_rows_only_objects(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('"text"\n7\n[1]\n{"a": 1}\nnull\n')
    assert read(path) == ["text", 7, [1], {"a": 1}, None]
    with pytest.raises(WorkloadError, match=r"rows\.jsonl, line 1: expected a JSON object, found a text"):
        list(rows(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", gzip.compress(LINES)[:-20], r"a\.jsonl\.gz: broken gzip data .*download it again"),
        ("a.jsonl.gz", gzip.compress(LINES)[:40] + b"\0" * 40, r"a\.jsonl\.gz: broken gzip data"),
        ("a.jsonl.zst", zstd(LINES)[:-20], r"a\.jsonl\.zst: can't be read \(.*\); download it again"),
        ("a.jsonl.zst", zstd(LINES)[:30] + b"\0" * 40, r"a\.jsonl\.zst: can't be read"),
        ("a.jsonl", b"", r"a\.jsonl: the file is empty"),
        ("a.jsonl.gz", gzip.compress(b""), r"a\.jsonl\.gz: the file is empty"),
        ("a.json", b"[]", r"a\.json: the file has no rows"),
        ("a.json", b"[" * 100_000, r"a\.json: JSON nested too deeply"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}', r"a\.jsonl: not UTF-8 text"),
        ("a.jsonl", b'{"a": 1}\n{"a"', r"a\.jsonl: broken JSON at line 2"),
        ("a.parquet", b"PAR1 and no more", r"a\.parquet: not a readable Parquet file"),
        ("a.parquet.gz", gzip.compress(b"PAR1"), r"a\.parquet\.gz: Parquet is compressed inside, .*; unpack it"),
    ],
)
def test_a_broken_container_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=message):
        read(path)


def test_a_folder_gives_its_row_files_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b.jsonl.gz", "a.json", "c.parquet", "notes.txt", "d.json.zst"):
        (tmp_path / name).touch()
    assert [file.name for file in files(tmp_path)] == ["a.json", "b.jsonl.gz", "c.parquet", "d.json.zst"]


def test_reading_says_how_far_it_is(tmp_path: Path) -> None:
    lines, parquet = tmp_path / "rows.jsonl.gz", tmp_path / "rows.parquet"
    lines.write_bytes(gzip.compress(LINES))
    pq.write_table(pa.Table.from_pylist(ROWS), parquet)
    heard: list[Reading] = []
    with watched(heard.append):
        read(lines)
        read(parquet)
    read(lines)
    assert [one.rows for one in heard] == [*range(1, 31), *range(1, 31)]
    size = lines.stat().st_size
    assert (heard[29].bytes_read, heard[29].bytes_total) == (size, size)
    assert str(heard[-1]) == "rows.parquet: 30 of 30 rows"


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_a_zip_is_read_as_the_file_or_folder_in_it(tmp_path: Path) -> None:
    one = zipped(tmp_path / "one.zip", {"runs/rows.jsonl": LINES, "__MACOSX/x": b""})
    many = zipped(tmp_path / "many.zip", {"runs/a.jsonl": LINES, "runs/b.jsonl": LINES})
    with unpacked(one) as path:
        assert path.name == "rows.jsonl"
        assert read(path) == ROWS
    assert not path.exists()
    with unpacked(many) as path:
        assert read(path) == ROWS * 2
    with unpacked(tmp_path) as path:
        assert path == tmp_path


def test_an_error_inside_a_zip_names_the_zip(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "runs.zip", {"a.json": b"{", "b.json": b"{}"})
    with pytest.raises(WorkloadError, match=rf"^{archive}/a\.json: broken JSON"), unpacked(archive) as path:
        read_json(path / "a.json")


def test_a_broken_or_encrypted_zip_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.zip"
    broken.write_bytes(zipped(tmp_path / "a.zip", {"a.json": LINES}).read_bytes()[:200])
    with pytest.raises(WorkloadError, match=r"broken\.zip: not a whole \.zip archive"), unpacked(broken):
        pass
    encrypted = zipped(tmp_path / "locked.zip", {"a.json": b"{}"})
    data = bytearray(encrypted.read_bytes())
    data[6] |= 1  # the flag that says so, in the member's header and in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    encrypted.write_bytes(data)
    with pytest.raises(WorkloadError, match=r"locked\.zip: the archive is encrypted"), unpacked(encrypted):
        pass


def test_a_member_cannot_leave_the_folder(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "evil.zip", {"../../evil.json": b"{}", "good.json": b"{}"})
    with unpacked(archive) as path:
        assert sorted(one.name for one in path.iterdir()) == ["evil.json", "good.json"]
