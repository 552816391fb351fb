"""Runs that are killed without warning, resumed, and compared with one that nothing interrupted.

    python -m tests.long.crashes                      200 kills, about five minutes
    python -m tests.long.crashes --kills 20 --seed 3

A run is killed, resumed, killed again, and in the end left to finish. Half of the kills come at a moment
that the clock draws, half in the middle of writing a file (tests/support/faults.py). After each the
checkpoint must be whole and no older than the last one that was reported as saved; at the end weights,
moments, metrics and the best weights must be those of the undisturbed run, bit for bit, and nothing else may
lie in the folder.

At last a run meets a disk that is really full: a small one in memory, which only root can mount.

Processes are forked from one that has everything imported: that is what makes 200 of them quick. A tenth are
processes of their own, with nothing changed in them. The last runs share their batches out to two workers.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy: threads do not survive a fork

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from gpt2.commands import sample  # noqa: F401  all is imported now
from gpt2.data import corpora
from gpt2.errors import UserError
from gpt2.storage import lock, runs  # noqa: F401  all is imported now
from gpt2.train import console, flops, llmc, program  # noqa: F401  all is imported now
from gpt2.weights import checkpoint, pretrained  # noqa: F401  all is imported now
from tests.support.faults import Faults, kill

ROOT = Path(__file__).resolve().parents[2]
STEPS = 24
SETTINGS = (
    f"--tokenizer byte --n-layer 2 --n-head 2 --n-embd 32 --block-size 32 --batch-size 4 --steps {STEPS} "
    "--warmup 2 --lr 1e-2 --eval-every 4 --eval-batches 2 --sample-tokens 4 --sample-every 6 "
    "--save-every 2 --threads 1"
).split()
KINDS = {
    "manual": ["--backward", "manual", "--compile", "off"],
    "compiled": ["--backward", "manual,gelu=auto"],
    "accumulated": ["--compile", "off", "--accumulate", "2", "--order", "random"],
    "workers": ["--compile", "off", "--parallel", "processes", "--workers", "2"],
}
FILES = {runs.SETTINGS, runs.TOKENIZER, runs.METRICS, runs.LAST, runs.BEST}
MOST = 10  # kills of one run, before it is left to finish
OWN = 10  # one process of so many is not forked
CALLS = 400  # counted disk calls of a run; a checkpoint takes some fifty
LIMIT = 120.0  # seconds until a process counts as hanging


class Wrong(Exception):
    """A lost or damaged checkpoint, or a run that ends differently."""


# ---- One process -------------------------------------------------------------------------------------------


def fork(argv, log, saved, faults):
    """A child that runs train.py with `argv`, tells each save in the file `saved`; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)
        tell_saves(saved)
        with faults:
            status = program.main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def tell_saves(path):
    """Note in the file at `path` the step of each checkpoint as soon as save() has come back."""
    save = checkpoint.save
    text = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def saves(where, arrays, state):
        save(where, arrays, state)
        if Path(where).name == runs.LAST:
            os.write(text, f"{state['step']}\n".encode())

    checkpoint.save = saves


def start(argv, log):
    """Start train.py in a new process, without faults."""
    command, env = [sys.executable, str(ROOT / "train.py"), *argv], {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(log, "ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=env).pid


def wait(child, seconds):
    """The child's status once it ends, or None after so many seconds. Counted in short waits: time in which
    this process and its child are both suspended does not count as hanging."""
    for _ in range(max(1, int(seconds / 0.002))):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def finish(child, log):
    """Wait for a child that is left to finish."""
    status = wait(child, LIMIT)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise Wrong(f"hung for {LIMIT:g} s: {log.read_text()[-500:]}")
    return status


def finished_well(child, log):
    if status := finish(child, log):
        raise Wrong(f"status {status}: {log.read_text()[-500:]}")


# ---- One run -----------------------------------------------------------------------------------------------


def command(folder, settings):
    """The command by which a user would continue with the folder."""
    if (folder / runs.LAST).exists():
        return ["--resume", str(folder)]
    return [*settings, "--out", str(folder), "--overwrite"]


def disturbed(folder, settings, kills, draw, seconds, own):
    """A run that is killed `kills` times and then finishes. Returns how often it was killed, and where."""
    log, saved = folder.with_suffix(".log"), folder.with_suffix(".saved")
    where = {"clock": 0, "write": 0}
    for number in range(kills):
        argv = command(folder, settings)
        if own and number % OWN == OWN - 1:
            child, kind = start(argv, log), "clock"
            status = wait(child, draw.uniform(0.3, 2.5))
        elif draw.random() < 0.5:
            child, kind = fork(argv, log, saved, Faults()), "clock"
            status = wait(child, draw.uniform(0, seconds))
        else:
            child, kind = fork(argv, log, saved, Faults(at=draw.randint(1, CALLS), act=kill)), "write"
            status = wait(child, LIMIT)
        if status is None:
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return where  # it was quicker
        if status != -signal.SIGKILL:
            raise Wrong(f"status {status}: {log.read_text()[-500:]}")
        where[kind] += 1
        check(folder, saved)
        if complete(folder):
            return where  # killed after its last step had been saved: there is nothing to resume
    finished_well(fork(command(folder, settings), log, saved, Faults()), log)
    return where


def complete(folder):
    """Whether the last step has been saved."""
    return (folder / runs.LAST).exists() and checkpoint.load_state(folder / runs.LAST)["step"] == STEPS


def check(folder, saved):
    """After a kill: every checkpoint that is there is whole, and the one reported last is there."""
    saves = [int(line) for line in saved.read_text().split()] if saved.exists() else []
    step = -1
    for name in (runs.LAST, runs.BEST):
        if (folder / name).exists():
            _, state = checkpoint.load(folder / name)
            step = max(step, state["step"]) if name == runs.LAST else step
    if saves and step < saves[-1]:
        raise Wrong(f"lost: step {saves[-1]} was reported as saved, found {step}")


def same(one, other):
    """Raise Wrong unless two runs ended with the same bits."""
    for name in (runs.LAST, runs.BEST):
        (a, state_a), (b, state_b) = checkpoint.load(one / name), checkpoint.load(other / name)
        if list(a) != list(b) or any(a[key].tobytes() != b[key].tobytes() for key in a):
            raise Wrong(f"{name} differs in {[key for key in a if a[key].tobytes() != b[key].tobytes()][:3]}")
        for key in set(state_a) - {"metrics_bytes", "settings", "turn"}:
            if state_a[key] != state_b[key]:
                raise Wrong(f"{name}: {key} is {state_a[key]} and {state_b[key]}")
    if lines(one) != lines(other):
        raise Wrong(f"{runs.METRICS} differs")
    for folder in (one, other):
        extra = {path.name for path in folder.iterdir()} - {lock.NAME} ^ FILES  # a killed one leaves the lock
        if extra:
            raise Wrong(f"{folder.name}: {sorted(extra)} there or missing")


def lines(folder):
    """The metrics without the times."""
    timed = ("seconds", "tokens_per_second", "gflops")
    records = [json.loads(line) for line in (folder / runs.METRICS).read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in timed} for record in records]


def full_disk(place, settings, whole):
    """A run on a disk with room for one checkpoint and a half. Returns a description of the outcome."""
    disk = place / "disk"
    disk.mkdir()
    size = int(1.6 * (whole / runs.LAST).stat().st_size) + (whole / runs.BEST).stat().st_size
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        return "full disk: not tried, a disk in memory cannot be mounted here"
    try:
        folder, log, saved = disk / "run", place / "disk.log", place / "disk.saved"
        status = finish(fork([*settings, "--out", str(folder)], log, saved, Faults()), log)
        said = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
        if status != 2 or len(said) != 1 or "No space left" not in said[0] or "Traceback" in log.read_text():
            raise Wrong(f"full disk: status {status}, said {log.read_text()[-500:]}")
        check(folder, saved)
        step = checkpoint.load(folder / runs.LAST)[1]["step"]
        subprocess.run(["mount", "-o", f"remount,size={4 * size}", str(disk)], check=True)
        finished_well(fork(command(folder, settings), log, saved, Faults()), log)
        same(whole, folder)
        return f"full disk: stopped with the checkpoint of step {step} valid, resumed, no difference"
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def plan(kills):
    """How many kills each kind gets: workers take seconds to start, so they get few."""
    workers = min(kills // 20, 8)
    rest = [(kills - workers) // 3] * 3
    rest[0] += kills - workers - sum(rest)
    return dict(zip(KINDS, [*rest, workers]))


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.long.crashes", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the folder of the runs")
    args = parser.parse_args(argv)
    flops.matmul_peak = lambda dtype: flops.Peak(1e11)  # speed is not checked here
    place = Path(tempfile.mkdtemp(prefix="gpt2-crashes-"))
    os.environ["GPT2_CACHE_DIR"], os.environ["GPT2_OFFLINE"] = str(place / "cache"), "1"
    text = place / "text.txt"
    text.write_text("".join(f"{i} times {i + 1} is {i * (i + 1)}.\n" for i in range(600)))
    corpora.prepare(str(text), "byte")  # once for all
    draw = random.Random(args.seed)
    done, finished, bad = {"clock": 0, "write": 0}, 0, []
    begin = time.monotonic()
    for kind, wanted in plan(args.kills).items():
        settings = ["--data", str(text), *SETTINGS, *KINDS[kind]]
        whole = place / f"{kind}-whole"
        started = time.monotonic()
        if wanted:
            log, saved = whole.with_suffix(".log"), whole.with_suffix(".saved")
            finished_well(fork([*settings, "--out", str(whole)], log, saved, Faults()), log)
        seconds = time.monotonic() - started
        while wanted > 0:
            folder = place / f"{kind}-{finished}"
            try:
                where = disturbed(folder, settings, min(wanted, MOST), draw, seconds, kind == "compiled")
                same(whole, folder)
            except (Wrong, UserError) as error:
                bad.append(f"{folder.name}: {error}")
                where = {"clock": 1}
            for name, count in where.items():
                done[name] += count
                wanted -= count
            finished += 1
        so_far = f"{kind:12} {sum(done.values()):4} kills so far"
        print(f"{so_far}, {finished} runs, {len(bad)} lost or differing", flush=True)
    print(
        f"{sum(done.values())} kills ({done['clock']} by the clock, {done['write']} while writing) of "
        f"{finished} runs in {time.monotonic() - begin:.0f} s: {len(bad)} lost or differing"
    )
    try:
        print(full_disk(place, ["--data", str(text), *SETTINGS, *KINDS["manual"]], place / "manual-whole"))
    except (Wrong, UserError) as error:
        bad.append(str(error))
    print("\n".join(bad[:20]), end="")
    if not args.keep and not bad:
        shutil.rmtree(place)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
