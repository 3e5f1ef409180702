"""Data sets of the Hugging Face hub, at pinned revisions, streamed row by row."""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.formats.reading import report
from workloads.session import WorkloadError

BATCH_ROWS = 8
"""`datasets` reads a whole row group at once unless told otherwise, and one can hold 1 GB."""
PROBE_S = 5.0
RETRIES = 3  # `datasets` tries 20 times, 5 s apart
NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*?)(@(?P<revision>[0-9a-f]{40}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set and the commit whose layout its format was written for."""

    name: str
    revision: str
    format: str | None = None
    """None: to be detected from the rows."""
    splits: tuple[str, ...] = ()
    """Those to read; all when empty."""


KNOWN = {
    one.name: one
    for one in (
        DataSet(
            name="nebius/SWE-rebench-openhands-trajectories",
            revision="35455389ab51bf5e2306bfd436ef72d0f98bf882",
            format="openhands",
        ),
        DataSet(
            name="SWE-Gym/OpenHands-Sampled-Trajectories",
            revision="baf3a4e4bff514d48ddc08a93a2ade5c126212c7",
            format="openhands",
            splits=("train.raw",),
        ),
        DataSet(
            name="nebius/SWE-agent-trajectories",
            revision="68195a1450865274106246d0d0296a1d6807b88e",
            format="swe_agent",
        ),
        DataSet(
            name="SWE-bench/SWE-smith-trajectories",
            revision="08e109b4a59eaeebf80e4675cd125d42e7ac99a4",
            format="openhands_text",
            splits=("xml",),
        ),
        DataSet(
            name="AgentSuite/tau2-bench-trajectories",
            revision="07264f1d253a618fc20966670eddc44246212916",
            format="agentsuite",
        ),
        DataSet(
            name="AgentSuite/tau-bench-trajectories",
            revision="382e57d1784b55c5155f4ef394ef48f1c747a287",
            format="agentsuite",
        ),
    )
}


def is_name(path: Path) -> bool:
    """Whether this is no file here but a known data set, or any other written as ``owner/name@commit``."""
    found = NAME.fullmatch(str(path))
    if found is None or path.exists():
        return False
    return found["name"] in KNOWN or found["revision"] is not None


def data_set(path: Path) -> DataSet:
    """Return the data set of a name that `is_name`; a commit in the name wins over the pinned one."""
    found = NAME.fullmatch(str(path))
    assert found, "only names come here"
    known = KNOWN.get(found["name"])
    if known is None:
        return DataSet(name=found["name"], revision=found["revision"])
    if found["revision"] is None:
        return known
    return DataSet(name=known.name, revision=found["revision"], format=known.format, splits=known.splits)


def rows(path: Path, *, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(place, row)`` of every row, as they come from the hub.

    Raises:
        WorkloadError: the hub can't be reached (said within seconds), or has no such data set for this user.
    """
    wanted = data_set(path)
    _require_hub(wanted)
    yield from stream(wanted, columns=columns)


def stream(wanted: DataSet, *, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what `rows` yields; the name may also be a folder in the hub's layout.

    Raises:
        WorkloadError: as `rows`.
    """
    # Read when huggingface_hub is imported.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(int(PROBE_S)))
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", str(int(2 * PROBE_S)))
    import datasets
    import httpx

    datasets.config.STREAMING_READ_MAX_RETRIES = RETRIES
    datasets.config.STREAMING_OPEN_MAX_RETRIES = RETRIES
    datasets.disable_progress_bars()
    revision = None if Path(wanted.name).is_dir() else wanted.revision
    label = f"{wanted.name}@{wanted.revision[:8]}"
    number = 0
    try:
        builder = datasets.load_dataset_builder(wanted.name, revision=revision)
        if hasattr(builder.config, "batch_size"):
            builder.config.batch_size = BATCH_ROWS
        parts = builder.as_streaming_dataset()
        for split in wanted.splits or tuple(parts):
            for row in parts[split]:
                number += 1
                yield f"{label}, {split}, row {number}", {key: row[key] for key in columns if key in row} or row
                report(Path(wanted.name), rows=number)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise WorkloadError(
            f"{label}: the hub has no such data set at that commit, or not for you; check the name, or log in with"
            " `hf auth login` if it is gated"
        ) from error
    except (OSError, ValueError, KeyError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        raise WorkloadError(
            f"{label}: could not be read after row {number} ({_line(error)}); try again, or {_LOCAL}"
        ) from error


_LOCAL = "download its files on a machine with access and give path=<that folder>"


def _require_hub(wanted: DataSet) -> None:
    """Ask the hub for a sign of life, so that no user waits for minutes of retries.

    In a thread of its own: looking up a name can hang for much longer than any timeout of a connection.
    """
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise WorkloadError(f"{wanted.name}: HF_HUB_OFFLINE is set; unset it, or {_LOCAL}")
    trouble: list[str] = ["no answer"]

    def probe() -> None:
        try:
            httpx.head(constants.ENDPOINT, timeout=PROBE_S)
            trouble.clear()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            trouble[:] = [_line(error)]

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(2 * PROBE_S)
    if trouble:
        raise WorkloadError(
            f"{wanted.name}: no such file or folder here, and the Hugging Face hub ({constants.ENDPOINT}) can't be"
            f" reached ({trouble[0]}); {_LOCAL}"
        )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
