"""The files of a report: complete, in agreement, the same for the same records, whole or not there."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from analysis import wording
from analysis.report import write_report
from analysis.results import results
from analysis.summary import summarise


def test_the_files_agree_and_come_out_the_same_twice(three: Path) -> None:
    report = write_report(three)
    assert report == three / "report.html"
    first = {path.name: path.read_bytes() for path in three.iterdir() if path.is_file()}
    assert set(first) >= {"report.html", "summary.md", "results.json"}
    write_report(three)
    assert {path.name: path.read_bytes() for path in three.iterdir() if path.is_file()} == first
    numbers = orjson.loads(first["results.json"])
    assert numbers["version"] == 1
    assert numbers["valid"] is True
    saved = wording.percent(numbers["comparisons"][0]["saved"])
    verdict = numbers["verdicts"][0]
    assert all(said in first["summary.md"].decode() for said in (saved, verdict))
    assert all(said in first["report.html"].decode().replace("\u00a0", " ") for said in (saved, verdict))
    assert len(first["summary.md"]) < 60_000  # a comment may hold 65,536 characters


def test_the_results_hold_every_number_and_null_for_what_is_absent(world: Any, speed: Any) -> None:
    numbers = results(summarise(world({"llamacpp": speed(), "ostinato": speed(0.5)}, sessions=3, turns=1)))
    engine = numbers["engines"]["ostinato"]
    assert engine["ttft_s"]["first"]["turns"] == 3
    assert engine["ttft_s"]["first"]["low"] is None
    assert "tool" not in engine["ttft_s"]
    (comparison,) = numbers["comparisons"]
    assert comparison["low"] is None
    assert comparison["p_value"] is None
    assert comparison["saved"] == pytest.approx(0.5, abs=2e-3)
    orjson.dumps(numbers)


def test_sessions_left_out_are_counted_and_named(world: Any, speed: Any, fail_turn: Any) -> None:
    summary = summarise(
        world(
            {"llamacpp": speed(), "ostinato": speed()}, sessions=3, records={"ostinato": fail_turn("session-02", 0)}
        )
    )
    (said,) = [warning for warning in wording.warnings(summary) if "left out" in warning]
    assert said.startswith(
        "1 session left out of the comparison, not finished by every engine: session-02 (Ostinato: "
    )
    assert "expected 7, got 9" in said


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (7119.04, "7,119.0 s"),
        (1.256, "1.26 s"),
        (0.0342, "34.2 ms"),
        (-0.002, "−2.00 ms"),
        (-1e-9, "0.00 ms"),
    ],
)
def test_times_are_said_with_the_digits_they_have(value: float | None, text: str) -> None:
    assert wording.seconds(value) == text


def test_a_disk_that_gets_full_leaves_the_earlier_report_whole(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(three, tmp_path / "runs"))
    write_report(folder)
    for name in ("results.json", "summary.md", "report.html"):
        (folder / name).write_text("earlier")
    before = sorted(folder.iterdir())
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[:10])
        if path.name.startswith("report.html"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as failure:
        write_report(folder)
    assert failure.value.filename == str(folder / "report.html")
    assert sorted(folder.iterdir()) == before
    assert {(folder / name).read_text() for name in ("results.json", "summary.md", "report.html")} == {"earlier"}
