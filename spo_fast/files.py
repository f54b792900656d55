"""Arrays from files and results into files, for the command line.

What cannot be read is a ValueError of one line that names the file. Results appear under their name complete
or not at all.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

import numpy as np

import spo_fast
from spo_fast.simulation import FIELDS, Simulation, from_values, variables_of
from spo_fast.validation import describe

READABLE = (".csv", ".npy", ".npz")
RESULTS = (".npz", ".nc")
_SPARSE_KEYS = {"format", "shape", "data"}  # what scipy.sparse.save_npz writes, whatever the format


def read(text: str, name: str) -> Any:
    """Read an array, or a sparse matrix, from a file.

    Parameters
    ----------
    text : str
        A .csv file (numbers separated by commas, # starts a comment), a .npy or a .npz file. Of a .npz file
        with several arrays the one called ``name`` is taken, or NAME of FILE.npz:NAME. A .npz file written
        by ``scipy.sparse.save_npz`` gives a sparse matrix.
    name : str
        Argument it is meant for: "knm", "theta", "omega" or "alpha".

    Returns
    -------
    ndarray or sparse matrix

    Raises
    ------
    ValueError
        When the content is not what the suffix says, or there is no such array.
    OSError
        When the file cannot be opened.
    ImportError
        When it holds a sparse matrix and SciPy is missing.
    """
    path, key = _split(text)
    suffix = path.suffix.lower()
    if suffix not in READABLE:
        raise ValueError(f"{name} must be in a file ending in {', '.join(READABLE)}, got {text}")
    try:
        if suffix == ".csv":
            return _read_csv(path)
        with path.open("rb") as file:  # NumPy leaves a file open that is no archive
            return np.load(file, allow_pickle=False) if suffix == ".npy" else _read_npz(file, key, name)
    except (OSError, ImportError):
        raise
    except Exception as error:  # a damaged file can make the readers raise anything
        raise ValueError(f"{name} cannot be read from {text}: {_one_line(error)}") from error


def _split(text: str) -> tuple[Path, str | None]:
    """Take FILE.npz:NAME apart."""
    before, colon, after = text.rpartition(":")
    if colon and before.lower().endswith(".npz"):
        return Path(before), after
    return Path(text), None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _read_csv(path: Path) -> np.ndarray:
    with warnings.catch_warnings(), path.open(encoding="utf-8") as lines:
        warnings.simplefilter("ignore", UserWarning)  # an empty file, which is refused below
        array = np.loadtxt(lines, delimiter=",", comments="#", ndmin=2)
    if array.size == 0:
        raise ValueError("it holds no numbers")
    return array


def _read_npz(file: BinaryIO, key: str | None, name: str) -> Any:
    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it is a .npy file by another name")
    with archive:
        found = archive.files
        if key is None and set(found) >= _SPARSE_KEYS:
            file.seek(0)
            return _read_sparse(file)
        wanted = key if key is not None else found[0] if len(found) == 1 else name
        if wanted not in found:
            listed = ", ".join(found) or "nothing"
            raise ValueError(f"it holds {listed}; name one as FILE.npz:NAME")
        array = archive[wanted]
        if not isinstance(array, np.ndarray):
            raise ValueError(f"its member {wanted} is no array")
        return array


def _read_sparse(file: BinaryIO) -> Any:
    try:
        from scipy.sparse import load_npz
    except ImportError as error:
        raise ImportError(
            f"{file.name} holds a sparse matrix, which needs SciPy: pip install scipy"
        ) from error
    return load_npz(file)


def vector(array: Any, name: str, source: str = ".csv") -> np.ndarray:
    """Take a row or a column of a .csv file as a vector; arrays of other files have the shape they have.

    Parameters
    ----------
    array : ndarray or sparse matrix
        What ``read`` returned.
    name : str
        For the message.
    source : str
        File it was read from.

    Returns
    -------
    ndarray, shape (N,), or (M, N) for an ensemble

    Raises
    ------
    ValueError
        For a sparse matrix.
    """
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} must be a dense array, got a sparse matrix of shape {array.shape}")
    table = source.lower().endswith(".csv")
    return array.reshape(-1) if table and array.ndim == 2 and 1 in array.shape else array


# ---------------------------------------------------------------- results


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name to write to beside ``path``, and move what was written there when all went well.

    Parameters
    ----------
    path : Path
        Where the file shall appear; one that exists is replaced in one piece. A link stays and its target is
        replaced; what is no file (a pipe, a terminal) is written to as it is.

    Yields
    ------
    Path
        A new file in the same folder. After an exception it is gone and ``path`` is as it was.

    Raises
    ------
    OSError
        When the folder cannot be written.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    with NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix, delete=False
    ) as file:
        temporary = Path(file.name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private, results are not
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def lock(file: Any, path: Path) -> None:
    """Keep a second writer out; the lock goes with the file, and with the process, however that ends.

    Parameters
    ----------
    file : file or int
        An open file, or its descriptor.
    path : Path
        Its name, for the message.

    Raises
    ------
    RuntimeError
        When another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RuntimeError(f"another process is writing to {path}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder.

    Raises
    ------
    RuntimeError
        When another process holds the lock.
    """
    if os.name != "posix":  # elsewhere a folder cannot be opened
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock(handle, folder)
        yield
    finally:
        os.close(handle)


def require_writable(paths: list[Path]) -> None:
    """Refuse paths that could not be written, before a long run rather than after it.

    Parameters
    ----------
    paths : list of Path

    Raises
    ------
    ValueError
        When two are the same.
    OSError
        When a folder is missing or read-only, or a folder stands where the file shall.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"results must go to different files, got {paths[0]} twice")
    for path in paths:
        if path.is_dir():
            raise IsADirectoryError(f"cannot write {path}: it is a folder")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(f"cannot write {path}: the folder is read-only")


def require_format(path: Path) -> None:
    """Refuse results that could not be written for their format.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ValueError
        When the suffix is no format of results.
    ImportError
        When a .nc file is wanted and xarray or SciPy is missing.
    """
    suffix = path.suffix.lower()
    if suffix not in RESULTS:
        raise ValueError(f"result must be a file ending in {' or '.join(RESULTS)}, got {path}")
    if suffix == ".nc":
        try:
            import scipy.io  # noqa: F401
            import xarray  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "a .nc file needs xarray and SciPy: pip install 'spo-fast[xarray]' scipy"
            ) from error


def write(result: Simulation, path: Path) -> None:
    """Write a result as it is, under the very name given.

    Parameters
    ----------
    result : Simulation
    path : Path
        .npz: every attribute that is not None under its name, and the version of the package. .nc: netCDF 3
        of ``to_xarray``.

    Raises
    ------
    ValueError
        When a .nc file shall hold a network without oscillators or an ensemble without members: an axis of
        length 0 means another thing in netCDF 3.
    """
    if path.suffix.lower() == ".nc":
        if result.final.size == 0:
            raise ValueError("a .nc file cannot hold an axis of length 0; .npz can")
        result.to_xarray().to_netcdf(path, engine="scipy")
        return
    values = {name: getattr(result, name, None) for name in FIELDS} | {"version": spo_fast.__version__}
    with path.open("wb") as file:
        np.savez(file, **{name: value for name, value in values.items() if value is not None})


def load(path: Path) -> Simulation:
    """Read a result that ``write`` has written.

    Parameters
    ----------
    path : Path
        .npz, or .nc, which may be netCDF of any kind that the installed packages read.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        When the suffix is no format of results, or the file holds none.
    ImportError
        When it is a .nc file and xarray is missing.
    OSError
        When the file cannot be opened.
    """
    require_format(path)
    with path.open("rb") as file:
        try:
            values = _members(file) if path.suffix.lower() == ".npz" else _variables(file)
            return from_values(values)
        except ImportError:
            raise
        except Exception as error:  # a damaged file can make the readers raise anything
            raise ValueError(f"{path} holds no simulation: {_one_line(error)}") from error


def _variables(file: BinaryIO) -> dict[str, Any]:
    import xarray

    engine = "scipy" if file.read(3) == b"CDF" else None  # netCDF 3 is read by what wrote it here
    with xarray.open_dataset(file.name, engine=engine, decode_times=False) as dataset:
        return variables_of(dataset.load())


def _members(file: BinaryIO) -> dict[str, np.ndarray]:
    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it is a .npy file by another name")
    with archive:
        return {name: archive[name] for name in archive.files}


def as_path(path: Any, name: str = "path") -> Path:
    """Return a path.

    Parameters
    ----------
    path : str or path-like
    name : str
        For the message.

    Raises
    ------
    ValueError
        When it is neither.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name} must be a path, got {describe(path)}")
    return Path(os.fsdecode(path))


def draw(result: Simulation, path: Path) -> None:
    """Draw a result as PNG: R above the phases, of an ensemble R alone.

    Parameters
    ----------
    result : Simulation
        With R.
    path : Path
        Drawn without a display.
    """
    from matplotlib.figure import Figure

    from spo_fast import plotting

    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    if result.theta.ndim == 2:
        plotting.plot_simulation(result, figure.subplots(2, 1, sharex=True))
    else:
        plotting.plot_order_parameter(result, figure.subplots())
    figure.savefig(path, dpi=150, format="png")


def save(result: Simulation, path: Path, picture: Path | None = None) -> None:
    """Write a result and its picture, both or neither.

    Parameters
    ----------
    result : Simulation
    path : Path
        .npz or .nc.
    picture : Path, optional
        PNG.

    Raises
    ------
    OSError
        When a file cannot be written.
    """
    with ExitStack() as stack:
        write(result, stack.enter_context(replacing(path)))
        if picture is not None:
            draw(result, stack.enter_context(replacing(picture)))


def write_text(text: str, path: Path) -> None:
    """Write a text file in one piece.

    Parameters
    ----------
    text : str
    path : Path

    Raises
    ------
    OSError
        When it cannot be written.
    """
    require_writable([path])
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
