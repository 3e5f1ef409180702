"""A .zip of recordings, unpacked for as long as it is read."""

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workloads.session import WorkloadError

SUFFIX = ".zip"
"""Other archives are formats of their own (Inspect's ``.eval``) and their loaders open them."""


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield ``path`` itself, or, for a .zip, a temporary folder with what it holds (the file, if it is only one).

    Raises:
        WorkloadError: not a whole archive, an encrypted one, or one larger than the disk; and whatever is raised in
            the block, with the archive named in place of the temporary folder.
    """
    if path.suffix.lower() != SUFFIX or not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="unpacked-") as name:
        folder = Path(name)
        _unpack(path, folder)
        try:
            yield _innermost(folder)
        except WorkloadError as error:
            raise WorkloadError(str(error).replace(name, str(path))) from error


def _unpack(path: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
            free = shutil.disk_usage(folder).free
            if size > free:
                raise WorkloadError(
                    f"{path}: holds {size / 1e6:,.0f} MB and {folder.parent} has {free / 1e6:,.0f} MB free;"
                    " set TMPDIR to a larger disk, or unpack it yourself"
                )
            archive.extractall(folder)  # never writes outside of the folder
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise WorkloadError(f"{path}: not a whole .zip archive ({error}); download it again") from error
    except RuntimeError as error:  # zipfile's way to ask for a password
        raise WorkloadError(f"{path}: the archive is encrypted; unpack it and name the folder") from error
    except OSError as error:
        raise WorkloadError(f"{path}: can't be unpacked ({error.strerror or error}); unpack it yourself") from error


def _innermost(folder: Path) -> Path:
    """Step into folders (and to the file) that are alone in theirs."""
    while folder.is_dir():
        inside = [one for one in folder.iterdir() if not one.name.startswith((".", "__MACOSX"))]
        if len(inside) != 1:
            break
        (folder,) = inside
    return folder
