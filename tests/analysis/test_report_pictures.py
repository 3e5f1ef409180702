"""Pictures for Markdown: drawn without a browser, linked where they are, the same for the same records."""

import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from analysis.cli import main
from analysis.compare import AnalysisError
from analysis.report import write_report
from analysis.static_figures import Picture, pictures
from analysis.summary import Summary, summarise

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def summary(three: Path) -> Summary:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install -e '.[static]'")
    return summarise(three)


@pytest.fixture(scope="module")
def svg(summary: Summary) -> list[Picture]:
    return pictures(summary, "svg")


def test_saving_waits_and_phases_are_drawn_in_each_engines_colour(svg: list[Picture]) -> None:
    drawn = {picture.name: picture.content.decode() for picture in svg}
    assert list(drawn) == ["saved", "ttft", "phases"]
    for name, text in drawn.items():
        root = ET.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert len(list(root.iter(f"{SVG}path"))) > 10
        colours = {"#d55e00", "#009e73"} if name == "saved" else {"#d55e00", "#009e73", "#0072b2"}
        assert all(colour in text for colour in colours)


def test_the_same_records_give_the_same_picture(summary: Summary, svg: list[Picture]) -> None:
    assert pictures(summary, "svg") == svg


def test_a_png_is_wide_enough_for_a_sharp_screen(summary: Summary) -> None:
    for picture in pictures(summary, "png"):
        assert picture.content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", picture.content[16:24])
        assert width >= 1200
        assert height >= 200


def test_the_summary_links_every_picture(world: Any, speed: Any, summary: Summary) -> None:
    folder = world({"llamacpp": speed(), "ostinato": speed(0.5)}, sessions=8)
    write_report(folder, form="svg")
    text = (folder / "summary.md").read_text()
    for name in ("saved", "ttft", "phases"):
        assert f"](figures/{name}.svg)" in text
        assert (folder / "figures" / f"{name}.svg").stat().st_size > 1000
    write_report(folder)
    assert "figures/" not in (folder / "summary.md").read_text()


def test_one_engine_has_no_saving_to_draw(world: Any, speed: Any, summary: Summary) -> None:
    alone = summarise(world({"ostinato": speed()}, sessions=1))
    assert [picture.name for picture in pictures(alone, "svg")] == ["ttft", "phases"]


def test_without_matplotlib_it_says_what_to_install(
    three: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AnalysisError, match=r"pip install 'ostinato-replay\[static\]'"):
        pictures(summarise(three), "svg")
    with pytest.raises(SystemExit, match="2"):
        main([str(three), "--pictures", "png"])
    assert capsys.readouterr().err.startswith("analyse: pictures need matplotlib; install")
