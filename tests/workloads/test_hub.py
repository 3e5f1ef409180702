import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from workloads import hub
from workloads.detect import detect
from workloads.formats import registry
from workloads.load import load
from workloads.sample_paths import TOKENIZER
from workloads.session import WorkloadError
from workloads.settings import WorkloadSettings

NAME = Path("nebius/SWE-rebench-openhands-trajectories")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address where a server takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nebius/SWE-rebench-openhands-trajectories", True),
        (f"nebius/SWE-rebench-openhands-trajectories@{COMMIT}", True),
        (f"somebody/some-runs@{COMMIT}", True),
        ("somebody/some-runs", False),
        ("somebody/some-runs@main", False),
        ("data/rows.jsonl", False),
        (f"a/b/c@{COMMIT}", False),
        ("rows.parquet", False),
    ],
)
def test_a_name_of_the_hub_is_known_or_pinned(text: str, expected: bool) -> None:
    assert hub.is_name(Path(text)) is expected


def test_a_folder_here_wins_over_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not hub.is_name(NAME)


def test_known_data_sets_are_pinned_to_whole_commits_and_known_formats() -> None:
    for one in hub.KNOWN.values():
        assert len(one.revision) == 40
        assert one.format in registry.NAMES


def test_a_commit_in_the_name_wins_over_the_pinned_one() -> None:
    pinned, own = hub.data_set(NAME), hub.data_set(Path(f"{NAME}@{COMMIT}"))
    assert (own.revision, own.format, own.splits) == (COMMIT, pinned.format, pinned.splits)
    assert hub.data_set(Path(f"somebody/some-runs@{COMMIT}")).format is None


def test_the_format_of_a_known_data_set_needs_no_network() -> None:
    assert detect(NAME) == "openhands"


def test_a_hub_that_refuses_is_said_at_once_with_the_way_out(hub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    began = time.monotonic()
    settings = WorkloadSettings(name="auto", format="auto", path=str(NAME))
    with pytest.raises(
        WorkloadError, match=r"SWE-rebench.*hub \(http.*\) can't be reached.*download its files .* path=<that folder>"
    ):
        load(settings, TOKENIZER)
    assert time.monotonic() - began < 5


def test_a_hub_that_never_answers_is_given_up_within_seconds(hub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PROBE_S", 0.2)
    began = time.monotonic()
    with pytest.raises(WorkloadError, match=rf"the Hugging Face hub \({hub_url}\) can't be reached \(.*timed out"):
        next(hub.rows(NAME))
    assert time.monotonic() - began < 5


def test_offline_mode_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WorkloadError, match=r"HF_HUB_OFFLINE is set; unset it, or download its files"):
        next(hub.rows(NAME))


@pytest.mark.parametrize("name", ["trajectories_DERIVED.parquet", "rows_3_DERIVED.jsonl"])
def test_a_data_set_is_streamed_row_by_row(shared: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(shared / "data/nebius_openhands" / name, tmp_path)
    wanted = hub.DataSet(name=str(tmp_path), revision=COMMIT)
    found = list(hub.stream(wanted, columns=("trajectory_id", "trajectory", "absent")))
    assert [place for place, _ in found] == [f"{tmp_path}@01234567, train, row {number}" for number in (1, 2, 3)]
    assert [len(row["trajectory"]) for _, row in found] == [41, 26, 61]
    assert found[0][1].keys() == {"trajectory_id", "trajectory"}


def test_streaming_says_after_which_row_it_broke(shared: Path, tmp_path: Path) -> None:
    whole = (shared / "data/nebius_openhands/trajectories_DERIVED.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[: len(whole) // 2])
    wanted = hub.DataSet(name=str(tmp_path), revision=COMMIT)
    with pytest.raises(WorkloadError, match=r"@01234567: could not be read after row 0 .*; try again, or download"):
        list(hub.stream(wanted))


def test_rows_of_the_hub_become_sessions(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(shared / "data/nebius_openhands/trajectories_DERIVED.parquet", tmp_path)
    here = hub.DataSet(name=str(tmp_path), revision=COMMIT, format="openhands")
    monkeypatch.setattr(hub, "rows", lambda path, *, columns: hub.stream(here, columns=columns))
    workload = load(WorkloadSettings(name="auto", format="auto", path=str(NAME)), TOKENIZER)
    assert [len(session.turns) for session in workload.sessions] == [17, 12, 30]
