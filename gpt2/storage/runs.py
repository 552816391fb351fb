"""Folders of runs: their files, new ones, and the newest one. Needs no NumPy."""

from pathlib import Path

from gpt2.errors import UserError, os_errors
from gpt2.hints import quoted, typed
from gpt2.storage.files import sweep_below
from gpt2.storage.safetensors import load_state

SETTINGS = "settings.toml"  # the recipe; --config reads it
TOKENIZER = "tokenizer.json"  # ranks included, so that sampling needs nothing else
METRICS = "metrics.jsonl"  # a line a step, a validation, a sample
LAST = "last.safetensors"  # everything that --resume needs
BEST = "best.safetensors"  # the weights with the lowest validation loss
FILES = (SETTINGS, TOKENIZER, METRICS, LAST, BEST)

RUNS = Path("runs")


def new(name: str, out: str = "") -> Path:
    """Create the folder for a new run; two runs that start together get two folders.

    Without `out` it is runs/NAME-N with the first free N. With `out` it may contain a run: lock the
    folder, then `clear` it.
    """
    if not out:
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
    folder = Path(out)
    try:
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(None, "this is a file, expected a folder")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        raise UserError(f"--out {folder}: {getattr(error, 'strerror', None) or error}") from None
    return folder


def clear(folder: Path, overwrite: bool = False) -> None:
    """Remove the run in `folder`. Raises UserError for an existing run without `overwrite`, or for other
    files that the new run would replace.
    """
    existing = [file for file in FILES if (folder / file).exists()]
    if SETTINGS in existing and not overwrite:
        raise UserError(
            f"--out {folder} holds a run already; continue it with --resume {quoted(folder)}, "
            "replace it with --overwrite, or give another folder"
        )
    if existing and not overwrite:
        raise UserError(
            f"--out {folder} holds {existing[0]}, which a run would replace; give another folder, or "
            "replace it with --overwrite"
        )
    with os_errors(folder):
        for file in (METRICS, LAST, BEST):
            (folder / file).unlink(missing_ok=True)


def existing(folder: str | Path | None) -> Path:
    """`folder` as a Path if it has a run; for an empty name the newest run in runs/. Otherwise UserError."""
    if not folder:
        return newest()
    try:
        if (Path(folder) / SETTINGS).exists():
            return Path(folder)
    except OSError as error:
        raise UserError(f"{folder}: no run here ({error.strerror or error})") from None
    raise UserError(f"{folder}: no run here ({SETTINGS} is missing)")


def newest() -> Path:
    """The run in runs/ that was saved last, or UserError if there is none, or it is unknown."""
    saved = newest_first()
    if not saved:
        raise UserError(f"no run in {RUNS.absolute()}; train one with: {typed('gpt2 train')}")
    alike = [run for run in saved if turn(run) in (turn(saved[0]), None)]
    if len(alike) > 1:
        raise UserError(
            f"the checkpoints of {alike[0]} and {alike[1]} do not say which was saved last; name the run"
        )
    return saved[0]


def newest_first() -> list[Path]:
    """The runs in runs/ that were saved, the last one first, by what their checkpoints say."""
    return sorted(sorted(path.parent for path in RUNS.glob(f"*/{LAST}")), key=lambda run: -(turn(run) or 0))


def turn(run: Path) -> int | None:
    """The serial number of a run's last save, across all runs in runs/.

    None if the run's last checkpoint cannot be read.
    """
    try:
        number = load_state(run / LAST).get("turn", 0)
    except (UserError, AttributeError):
        return None
    return number if type(number) is int else None


def next_turn(folder: Path) -> int:
    """The turn for saving a run into `folder`: above those of all other runs in runs/.

    Not a time: clocks are changed, and a copy has the date of copying.
    """
    own = (turn(folder) if (folder / LAST).exists() else 0) or 0
    others = [turn(run) or 0 for run in newest_first() if run.resolve() != folder.resolve()]
    return max(own, max(others, default=0) + 1)
