"""A run's folder: which files lie in it, and which folder is meant. Needs no NumPy."""

from pathlib import Path

from gpt2.errors import UserError
from gpt2.hints import quoted, typed
from gpt2.storage.files import sweep_below
from gpt2.storage.header import load_state

SETTINGS = "settings.toml"  # the recipe; --config reads it
TOKENIZER = "tokenizer.json"  # ranks included, so that sampling needs nothing else
METRICS = "metrics.jsonl"  # a line a step, a validation, a sample
LAST = "last.safetensors"  # everything that --resume needs
BEST = "best.safetensors"  # the weights with the lowest validation loss
FILES = (SETTINGS, TOKENIZER, METRICS, LAST, BEST)

RUNS = Path("runs")


def new(name: str, out: str = "") -> Path:
    """The folder for a new run, made here: two runs that start together get two folders.

    Without `out` it is runs/NAME-N with the first free N. With `out` there may be a run in it: lock the
    folder, then `clear` it.
    """
    if not out:
        return _first_free(name)
    folder = Path(out)
    try:
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(None, "this is a file, expected a folder")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise UserError(f"--out {folder}: {getattr(error, 'strerror', None) or error}") from None
    return folder


def clear(folder: Path, overwrite: bool = False) -> None:
    """Remove the run that was in `folder`. UserError where there is one that is not to be overwritten, or a
    file that is no run's and that one would replace.
    """
    there = [file for file in FILES if (folder / file).exists()]
    if SETTINGS in there and not overwrite:
        raise UserError(
            f"--out {folder} holds a run already; go on with it by --resume {quoted(folder)}, "
            "replace it with --overwrite, or give another folder"
        )
    if there and not overwrite:
        raise UserError(
            f"--out {folder} holds {there[0]}, which a run would replace; give another folder, or replace it "
            "with --overwrite"
        )
    _remove(folder, [folder / file for file in (METRICS, LAST, BEST)])


def _remove(folder, paths):
    try:
        for path in paths:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}") from None


def _first_free(name):
    sweep_below(RUNS)
    number = 1
    while True:
        folder = RUNS / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UserError(
                f"cannot make the folder {folder}: {error.strerror or error}; name another with --out"
            ) from None


def existing(folder: str | Path | None) -> Path:
    """`folder` as a Path if a run is in it; for an empty name the newest run in runs/. Else UserError."""
    if not folder:
        return newest()
    try:
        if (Path(folder) / SETTINGS).exists():
            return Path(folder)
    except OSError as error:
        raise UserError(f"{folder}: no run here ({error.strerror or error})") from None
    raise UserError(f"{folder}: no run here ({SETTINGS} is missing)")


def newest() -> Path:
    """The run in runs/ that was saved last, or UserError where there is none, or it is not known."""
    found = newest_first()
    if not found:
        raise UserError(f"no run in {RUNS.absolute()}; train one with: {typed('gpt2 train')}")
    alike = [run for run in found if turn(run) in (turn(found[0]), None)]
    if len(alike) > 1:
        raise UserError(
            f"the checkpoints of {alike[0]} and {alike[1]} do not say which was saved last; name the run"
        )
    return found[0]


def newest_first() -> list[Path]:
    """The runs in runs/ that were saved, the last one first, by what their checkpoints say."""
    return sorted(sorted(path.parent for path in RUNS.glob(f"*/{LAST}")), key=lambda run: -(turn(run) or 0))


def turn(run: Path) -> int | None:
    """The number that grows with each turn that runs take at saving; 0 in a run of an earlier version.

    None where the run's last checkpoint cannot be read.
    """
    try:
        found = load_state(run / LAST).get("turn", 0)
    except (UserError, AttributeError):
        return None
    return found if type(found) is int else None


def next_turn(folder: Path) -> int:
    """The turn with which a run is saved into `folder`: above those of all other runs in runs/.

    It does not go by the time: a clock may be set, and a copy has the date of copying.
    """
    own = (turn(folder) if (folder / LAST).exists() else 0) or 0
    others = [turn(run) or 0 for run in newest_first() if run.resolve() != folder.resolve()]
    return max(own, max(others, default=0) + 1)
