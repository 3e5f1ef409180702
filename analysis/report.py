"""A folder of runs to ``report.html``, ``summary.md``, numbers for programs, and pictures."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson

from analysis.comment import summary_markdown
from analysis.export import exports, outdated
from analysis.page.render import page
from analysis.results import results
from analysis.static_figures import Format, pictures
from analysis.summary import Summary, summarise

__all__ = ["page", "summary_markdown", "write_report", "write_summary"]

REPORT_FILE = "report.html"
SUMMARY_FILE = "summary.md"
RESULTS_FILE = "results.json"
PICTURES_FOLDER = "figures"


def write_report(folder: Path, *, baseline: str | None = None, form: Format | None = None) -> Path:
    """Write the report into ``folder`` from every run at or below it; all files appear whole or none does.

    The same records give the same bytes.

    Args:
        baseline: key of the engine that the others are compared with; see ``compare.choose_baseline``.
        form: also write the main figures as pictures, for ``summary.md``.

    Returns:
        the path of ``report.html``.

    Raises:
        RecordError: records that are missing, damaged or impossible.
        AnalysisError: ``baseline`` is no engine of these runs, or pictures need a package that is not there.
        OSError: ``folder`` can't be written; names the file.
    """
    return write_summary(summarise(folder, baseline=baseline), form=form)


def write_summary(summary: Summary, *, form: Format | None = None) -> Path:
    """As ``write_report``, from numbers that are there already."""
    folder = summary.folder
    drawn = [] if form is None else pictures(summary, form)
    named = [(picture, f"{PICTURES_FOLDER}/{picture.name}.{form}") for picture in drawn]
    contents = {
        RESULTS_FILE: orjson.dumps(results(summary), option=orjson.OPT_INDENT_2),
        SUMMARY_FILE: summary_markdown(summary, pictures=[(picture.title, name) for picture, name in named]).encode(),
        REPORT_FILE: page(summary).encode(),
        **exports(summary),
        **{name: picture.content for picture, name in named},
    }
    paths = {folder / name: content for name, content in contents.items()}
    made = [parent for parent in {path.parent for path in paths} if not parent.exists()]
    try:
        for parent in made:
            parent.mkdir()
        _replace_all(paths)
    except OSError:
        for parent in made:
            with suppress(OSError):  # it has something of an earlier report
                parent.rmdir()
        raise
    for path in outdated(folder, paths):
        path.unlink()
    return folder / REPORT_FILE


def _replace_all(contents: Mapping[Path, bytes]) -> None:
    """Everything is on the disk before the first file is replaced."""
    temporaries = {path: path.with_name(path.name + ".new") for path in contents}
    path = next(iter(contents))
    try:
        for path, content in contents.items():
            temporaries[path].write_bytes(content)
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError as error:
        # A failed write, unlike a failed open, names no file.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        for temporary in temporaries.values():
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
