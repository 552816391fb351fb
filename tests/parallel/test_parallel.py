"""Groups of workers, training with processes and MPI, and what happens when a worker fails."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gpt2 import machine
from gpt2.errors import UserError
from gpt2.layers import Layer
from gpt2.model.backward import Gradients, backward_pass
from gpt2.model.forward import forward_pass
from gpt2.model.optimizer import part
from gpt2.parallel import WorkerError, auto, cores, memory
from gpt2.parallel import workers as workers_module
from gpt2.parallel.group import Group
from gpt2.parallel.mpi import TimeLimit
from gpt2.parallel.split import cut
from gpt2.parallel.workers import Workers
from gpt2.storage import runs
from gpt2.train import program
from gpt2.train.recipe import new_settings
from gpt2.train.resolve import resolve
from gpt2.weights import checkpoint
from tests import ROOT
from tests.support import parallel_jobs as jobs
from tests.support import small_run

# What a test leaves behind is found in /proc
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
# Relative error of one step: sums over shares are rounded differently from sums over the batch. In float32
# 16 units in the last place, as sums of a few hundred terms are taken in the order of BLAS's kernel.
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}
UNEVEN = {"float32": 1e-6, "float64": 1e-12}  # of a step beside the formula by PyTorch
# Over several steps it grows: AdamW divides by the gradient's size, so one that is zero but for rounding (of
# a key's bias) has a full effect.
SEVERAL = 10


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def shared_names():
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No new child process and no new name in /dev/shm is left after a test."""
    names, children = shared_names(), children_of(os.getpid())
    yield
    wait_until(lambda: not (children_of(os.getpid()) - children - {tracker()}))
    wait_until(lambda: shared_names() <= names)


def tracker():
    """The process of multiprocessing's resource tracker, which is started once and stays."""
    from multiprocessing import resource_tracker

    return resource_tracker._resource_tracker._pid


def children_of(pid):
    """Process ids of a process's children, without zombies."""
    statuses = {int(folder.name): small_run.status(folder.name) for folder in Path("/proc").glob("[0-9]*")}
    return {child for child, status in statuses.items() if status and status[1] == pid}


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


# ---- Groups ------------------------------------------------------------------------------------------------


def check_words(results, size):
    """results: what jobs.words returned, by rank."""
    all_numbers = [jobs.numbers(rank) for rank in range(size)]
    expected = sum(all_numbers[1:], all_numbers[0])
    for rank, result in enumerate(results):
        assert (result["rank"], result["size"]) == (rank, size)
        if size > 1:  # alone, nothing is to be summed
            assert relative(result["summed"], expected) < 1e-14
            assert abs(result["squares"] / np.dot(expected, expected) - 1) < 1e-12
        assert np.array_equal(result["sent"], all_numbers[-1])
        assert list(result["total"]) == [sum(0.1 * r for r in range(size)), float(size)]
        assert result["highest"] == 0 and result["root"] == 7
    parts = [part(jobs.COUNT, rank, size) for rank in range(size)]
    assert parts[0][0] == 0 and parts[-1][1] == jobs.COUNT
    assert all(a[1] == b[0] for a, b in zip(parts, parts[1:]))
    for (start, stop), mine in zip(parts, all_numbers):
        assert np.array_equal(results[0]["gathered"][start:stop], mine[start:stop])


def test_group_of_one():
    check_words([jobs.words(Group())], 1)


def test_shares_cover_the_batch_and_differ_by_one_at_most():
    for count in (1, 5, 8):
        for size in (1, 2, 3, 7):
            shares = [cut((range(count), range(count)), rank, size)[0] for rank in range(size)]
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


# ---- Same numbers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone():
    """(optimizer, dtype) -> the results of one process without workers; also ("settings", dtype)."""
    kinds = {kind: {"optimizer": kind} for kind in jobs.OPTIMIZERS} | {
        "settings": {"settings": jobs.SETTINGS}
    }
    return {
        (kind, dtype): jobs.train("none", Group(), dtype=dtype, **more)
        for kind, more in kinds.items()
        for dtype in TOLERANCE
    }


def check_agreement(result, expected, dtype):
    for name, array in expected[0].items():
        assert result[0][name].dtype == array.dtype
        assert relative(result[0][name], array) < TOLERANCE[dtype] * (1 if "first" in name else SEVERAL), name
    np.testing.assert_allclose(result[1][0], expected[1][0], rtol=TOLERANCE[dtype])
    np.testing.assert_allclose(result[1], expected[1], rtol=TOLERANCE[dtype] * SEVERAL)


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("workers", "optimizer"), [(2, "AdamW"), (3, "AdamW"), (3, "Muon")])
def test_workers_agree_with_one_process_and_repeat_bit_for_bit(alone, workers, optimizer, dtype):
    """With accumulated batches, clipping and weight decay."""
    first, again = (jobs.train("processes", Group(), workers, dtype, optimizer=optimizer) for _ in range(2))
    check_agreement(first, alone[optimizer, dtype], dtype)
    assert np.array_equal(first[1], again[1])
    assert all(np.array_equal(first[0][name], again[0][name]) for name in first[0])


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("kind", "workers", "options"),
    [("processes", 2, jobs.AS_WRITTEN), ("shares", 3, jobs.AS_WRITTEN), ("shares", 2, {"backward": "whole"})],
    ids=str,
)
def test_model_with_other_settings_agrees_with_one_process(alone, kind, workers, options, dtype):
    result = jobs.train(kind, Group(), workers, dtype, options=options, settings=jobs.SETTINGS)
    check_agreement(result, alone["settings", dtype], dtype)


@pytest.mark.slow
@pytest.mark.parametrize("backward", ("manual", "auto", "whole"))
def test_workers_with_compiled_backwards_agree(alone, backward):
    """With one process that runs the manual backward uncompiled."""
    result = jobs.train("processes", Group(), 2, options={"backward": backward})
    check_agreement(result, alone["AdamW", "float64"], "float64")


@pytest.fixture(scope="module")
def over_the_tokens():
    """Loss, norm and gradient of a step with uneven targets, and the loss of its first batch, from the
    formula over all targets that count: by PyTorch's crossentropy of this model's logits, in float64."""
    torch = pytest.importorskip("torch")
    model, _ = jobs.model_and_optimizer("float64")
    pairs = jobs.uneven()

    def entropy(logits, targets):
        ids = torch.tensor(np.where(targets == -100, -1, targets).reshape(-1))
        return torch.nn.functional.cross_entropy(logits.reshape(-1, jobs.V), ids, ignore_index=-1)

    tokens, targets = (np.concatenate(arrays) for arrays in zip(*pairs))
    logits, saved = forward_pass(model.params, tokens, model.description, model.layers)
    leaf = torch.tensor(logits, requires_grad=True)
    loss = entropy(leaf, targets)
    loss.backward()
    saved["logits"], saved["loss"], saved["targets"] = logits, (), targets
    given = Layer("crossentropy", None, lambda *_, **__: (leaf.grad.numpy(), None))
    layers = {**model.layers, "crossentropy": given}
    grads = Gradients(model.grads, False, None, model.description)
    backward_pass(saved, 1.0, grads, model.description, layers)
    first = entropy(torch.tensor(model.forward(pairs[0][0])), pairs[0][1])
    gradient = model.flat_grads
    return np.array([float(loss.detach()), np.linalg.norm(gradient), float(first)]), gradient


def check_uneven(numbers, gradient, expected, tolerance):
    np.testing.assert_allclose(numbers, expected[0], rtol=tolerance)
    assert relative(gradient, expected[1]) < tolerance


@pytest.mark.numeric
@pytest.mark.parametrize("accumulate", (1, 2))
@pytest.mark.parametrize(
    ("kind", "workers", "options"),
    [
        *(("none", 1, {"backward": backward}) for backward in ("manual", "auto", "whole")),
        ("none", 1, jobs.AS_WRITTEN),
        ("shares", 2, {"backward": "whole"}),
        ("shares", 3, jobs.AS_WRITTEN),
        ("processes", 3, jobs.AS_WRITTEN),
    ],
    ids=str,
)
def test_mean_of_a_step_is_over_its_targets_that_count(over_the_tokens, kind, workers, options, accumulate):
    """Not a mean of means, in any way to run; for MPI see below."""
    for dtype, tolerance in UNEVEN.items():
        result = jobs.uneven_step(kind, Group(), workers, dtype, options, accumulate)
        check_uneven(*result, over_the_tokens, tolerance)


def test_step_without_targets_that_count_is_an_error():
    model, optimizer = jobs.model_and_optimizer("float64")
    before = model.flat_params.copy()
    with jobs.team_of("none", model, optimizer, Group(), 1) as team:
        tokens = jobs.uneven()[0][0]
        with pytest.raises(UserError, match="no target of this step counts: all are -1 or -100"):
            team.step([(tokens, np.full_like(tokens, -1))])
    assert model.loss(tokens, np.full_like(tokens, -100)) == 0.0
    assert np.array_equal(model.flat_params, before)


def test_model_stays_usable_after_its_team_has_ended():
    model, optimizer = jobs.model_and_optimizer("float64")
    with jobs.team_of("processes", model, optimizer, Group(), 2) as team:
        (batch,) = jobs.batches(0, 1)
        team.step([batch])
        with_team = team.loss(*batch)
    assert abs(model.loss(*batch) / with_team - 1) < 1e-13


# ---- Resuming ----------------------------------------------------------------------------------------------


def settings(prose, tmp_path, workers, name="run"):
    options = dict(
        data=str(prose[0]),
        tokenizer="byte",
        dtype="float64",
        batch_size=6,
        block_size=16,
        n_layer=2,
        n_embd=24,
        n_head=3,
        steps=6,
        warmup=2,
        out=str(tmp_path / name),
        threads=1,
        compile="off",
        parallel="processes",
        workers=str(workers),
        sample_tokens=0,
    )
    return new_settings(options)


def continued(settings, folder, steps):
    """The arrays of a run after some more steps, resumed from its checkpoint if there is one."""
    run = resolve(settings)
    with run.team:
        if (folder / runs.LAST).exists():
            run.load(folder)
        folder.mkdir(exist_ok=True)
        run.begin(folder)
        for _ in range(steps):
            run.train_step()
        run.save()
    arrays, state = checkpoint.load(folder / runs.LAST)
    assert state["step"] == run.step
    return arrays


@pytest.mark.slow
def test_run_resumes_with_any_number_of_workers(prose, tmp_path):
    """With the same number bit for bit, with others to rounding."""
    whole = continued(settings(prose, tmp_path, 2), tmp_path / "whole", 6)
    for workers in (2, 1, 3):
        folder = tmp_path / f"half-{workers}"
        continued(settings(prose, tmp_path, 2), folder, 3)
        result = continued(settings(prose, tmp_path, workers), folder, 3)
        assert list(result) == list(whole)
        for name, array in result.items():
            if workers == 2:
                assert np.array_equal(array, whole[name]), name
            assert relative(array, whole[name]) < 1e-12, name


# ---- Failures ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("SIGKILL", "was killed by SIGKILL; the kernel does this when memory runs out"),
        ("SIGSEGV", "was killed by SIGSEGV"),
        ("exit", "ended with exit status 7"),
        ("ValueError", "ValueError: a pear in the apples"),
        ("SIGSTOP", "hung: no heartbeat for 2 seconds"),
        ("sleep", "hung: no heartbeat for 2 seconds, last seen working"),
    ],
)
def test_failing_worker_is_named_and_all_are_ended(how, text, capfd):
    workers = Workers(3, timeout=2.0 if how in ("SIGSTOP", "sleep") else 60.0)
    pids = workers.call(jobs.fail, "none")
    with pytest.raises(WorkerError, match="worker 1 of 3") as raised:
        workers.call(jobs.fail, how)
    assert text in str(raised.value)
    if how == "ValueError":
        assert "in raise_\n" in str(raised.value)  # the traceback
    if how == "sleep":
        assert "in fail" in capfd.readouterr().err  # where it hung
    wait_until(lambda: not any(small_run.alive(pid) for pid in pids))
    with pytest.raises(RuntimeError, match="have ended"):
        workers.call(jobs.nothing)


def test_user_error_in_a_worker_is_raised_as_a_user_error():
    workers = Workers(2)
    with pytest.raises(UserError, match="^take apples$"):
        workers.call(jobs.fail, "UserError")


@pytest.mark.slow
def test_stopped_worker_is_noticed_while_a_long_message_is_sent():
    """The message is longer than a pipe's buffer: a blocking write would wait forever."""
    workers = Workers(2, timeout=1.0)
    workers.call(jobs.stop_yourself)
    time.sleep(0.5)
    with pytest.raises(WorkerError, match="worker 1 of 2 .* hung"):
        workers.call(jobs.nothing, np.zeros(1 << 20))


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_workers_end_when_their_parent_is_killed(how):
    command = [sys.executable, "-m", jobs.__name__, "parent", how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(small_run.alive(pid) for pid in pids)
        parent.kill()
    wait_until(lambda: not any(small_run.alive(pid) for pid in pids))


@pytest.mark.parametrize("anonymous", [True, False])
def test_shared_memory_has_no_name(monkeypatch, anonymous):
    """So nothing is left behind even if all processes are killed at once."""
    before = shared_names()
    script = "import os, time\nfrom gpt2.parallel.workers import Workers\n"
    if not anonymous:  # as in macOS
        monkeypatch.delattr(os, "memfd_create", raising=False)
        script += "del os.memfd_create\n"
    script += "workers = Workers(2, {'x': ((10,), 'float32')})\nprint(1, flush=True)\ntime.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    assert process.stdout.readline() == b"1\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert shared_names() <= before
    with Workers(2, {"x": ((10,), "float32")}) as workers:
        assert shared_names() <= before
        workers.arrays["x"][3] = 7
        assert workers.call(jobs.shared_entry, "x", 3) == [7, 7]


def test_heartbeats_ignore_the_time_that_the_run_was_suspended(monkeypatch):
    """By Ctrl-Z, and resumed an hour later."""
    clock = [0.0]
    monkeypatch.setattr(workers_module.time, "monotonic", lambda: clock[0])
    beats = np.zeros((2, 2), np.int64)
    heartbeats = workers_module._Heartbeats(beats)
    for _ in range(4):
        clock[0] += 0.5
        beats[0, 0] += 1
        assert heartbeats.silence()[0] == 0.0
    assert heartbeats.silence()[1] == 2.0
    clock[0] += 3600
    assert max(heartbeats.silence()) <= 4.0


def test_too_little_shared_memory_is_a_user_error(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda swap: 64 << 20)
    with pytest.raises(UserError, match=r"76.3 MiB of shared .* 64.0 MiB are free; take fewer workers"):
        Workers(2, {"x": ((10_000_000,), "float64")})


@pytest.mark.parametrize(("room", "workers"), [(1 << 40, 3), (950_000, 2), (100_000, 1)])
def test_too_little_shared_memory_reduces_the_workers(prose, tmp_path, monkeypatch, room, workers):
    """They need five copies of the model's 21,000 float64 numbers for two workers, six for three."""
    monkeypatch.setattr(memory, "free_memory", lambda swap: room)
    run = resolve(settings(prose, tmp_path, 3))
    with run.team:
        assert run.team.size == workers
        run.train_step()
    notes = [note for note in run.notes if "shared memory" in note]
    assert len(notes) == 3 - workers
    assert all("processes: " in note and "; taking fewer" in note for note in notes)
    assert run.notes[-1].startswith(f"{workers} process")


@pytest.mark.parametrize("error", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_unavailable_shared_memory_leaves_one_process(prose, tmp_path, monkeypatch, error):
    def fails(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(memory, "Arena", fails)
    run = resolve(settings(prose, tmp_path, 2))
    assert run.team.size == 1 and any(os.strerror(error) in note for note in run.notes)
    run = resolve(settings(prose, tmp_path, "auto"))
    assert run.team.size == 1


@pytest.mark.slow
@pytest.mark.parametrize("limit", [12, 20, 30])
def test_too_few_open_files_are_one_error_line(prose, tmp_path, limit):
    script = "import resource, sys\nfrom gpt2.train import console, program\n"
    script += f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit},) * 2)\n"
    script += "sys.exit(program.main(sys.argv[1:]))"
    for workers in ("4", "auto"):
        out = tmp_path / f"run{workers}"
        more = ["--parallel", "processes", "--workers", workers, "--threads", "4"]
        done = small_run.python(script, *small_run.flags(prose[0], out, *more))
        if done.returncode == 0:  # it ran with threads or fewer workers
            assert (out / runs.LAST).exists() and done.stderr == ""
        else:
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
            assert "Too many open files" in done.stderr and "ulimit -n" in done.stderr


def test_workers_get_their_share_of_threads():
    with Workers(2, threads=3) as workers:
        answers = workers.call(jobs.environment)
    assert answers == [{"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "3"}] * 2
    assert cores.threads_each(2, 8) == 4 and cores.threads_each(3, 8) == 2 and cores.threads_each(4, 2) == 1


def test_cores_respect_the_containers_cpu_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPU_MAX", tmp_path / "cpu.max")
    here = machine.cores()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores() == here
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert machine.cores() == 1


# ---- train.py ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(prose, tmp_path):
    """Arguments of a long run of a small model with two workers, into tmp_path / "run"."""
    options = (
        "--tokenizer byte --batch-size 6 --block-size 16 --n-layer 2 --n-embd 24 --n-head 3 --steps 100000 "
        "--warmup 2 --eval-every 0 --sample-tokens 0 --log-every 1 --save-every 2 --compile off "
        "--parallel processes --workers 2 --threads 2"
    )
    return ["--data", str(prose[0]), *options.split(), "--out", str(tmp_path / "run")]


@pytest.fixture
def mpi_command(command):
    """The same run for --parallel mpi."""
    at = command.index("--parallel")
    return [*command[:at], "--parallel", "mpi", *command[at + 4 :]]


def wait_for_step_3(run):
    for line in run.stdout:
        if re.match(r"step +3/", line):
            return
    raise AssertionError(run.stderr.read())


def start_training(command):
    """A run that has saved a checkpoint, and the ids of its two workers."""
    run = small_run.start(small_run.command(*command), start_new_session=True)
    wait_for_step_3(run)
    workers = {
        pid for pid in children_of(run.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    assert len(workers) == 2
    return run, workers


@pytest.mark.slow
def test_killed_worker_ends_the_run_and_leaves_its_checkpoint(command, tmp_path):
    run, workers = start_training(command)
    os.kill(max(workers), signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "killed by SIGKILL" in errors and f"--resume {tmp_path / 'run'}" in errors
    assert "Traceback" not in errors
    assert checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"] >= 2
    wait_until(lambda: not any(small_run.alive(pid) for pid in workers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_to_all_processes_saves_and_ends_the_run(command, tmp_path, number, status, hangup):
    """A terminal sends Ctrl-C to the workers too, which must finish the step."""
    run, workers = start_training(command)
    os.killpg(run.pid, number)
    out, errors = run.communicate(timeout=60)
    assert run.returncode == status, errors
    step = checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"]
    assert f"stopped and saved at step {step}" in out
    wait_until(lambda: not any(small_run.alive(pid) for pid in workers))


def test_missing_mpi4py_is_one_error_line(mpi_command, monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    errors = refusal(program.main, *mpi_command)
    assert re.search("--parallel mpi needs mpi4py: .* -m pip install mpi4py mpich\n$", errors)


def test_auto_measures_each_number_of_workers_and_takes_the_fastest():
    assert auto.candidates(8, 2) == [1, 2] and auto.candidates(12, 16) == [1, 3, 6, 12]
    assert auto.candidates(7, 4) == [1] and auto.candidates(8, 64) == [1, 2, 4, 8]
    model, _ = jobs.model_and_optimizer("float32")
    best, times = auto.choose(model.config, 2, jobs.T, threads=2, options=jobs.AS_WRITTEN)
    assert set(times) == {1, 2} and times[best] == min(times.values()) > 0
    assert "2 processes of 1 thread" in auto.as_text(times, best, 2)


# ---- MPI ---------------------------------------------------------------------------------------------------


def mpi_words(size, *arguments):
    """The command that runs python with these arguments on `size` ranks."""
    pytest.importorskip("mpi4py")
    program = Path(sys.executable).with_name("mpiexec")
    words = (program if program.exists() else "mpiexec", "-n", size, sys.executable, *arguments)
    return [str(word) for word in words]


def mpiexec(size, *arguments):
    return small_run.run(mpi_words(size, *arguments))


@pytest.mark.numeric
@pytest.mark.parametrize("size", [1, 2, 3])
def test_mpi_agrees_with_one_process_and_repeats_bit_for_bit(alone, over_the_tokens, size, tmp_path):
    """With moments split among ranks or not; and its group has the contract of all groups."""
    done = mpiexec(size, "-m", jobs.__name__, "under_mpi", tmp_path / "results.npz")
    assert done.returncode == 0, done.stderr
    results = dict(np.load(tmp_path / "results.npz"))
    words = {name[5:]: value for name, value in results.items() if name.startswith("word ")}
    assert results["met"]
    check_words([words], size)
    for dtype, tolerance in UNEVEN.items():
        numbers, gradient = results[f"uneven {dtype}"], results[f"uneven gradient {dtype}"]
        check_uneven(numbers, gradient, over_the_tokens, tolerance)
    for optimizer, dtype, shard, run in jobs.MPI_VARIANTS:
        of_run = f"{optimizer} {dtype} {shard} {run}"
        arrays = {name: results[f"{of_run} {name}"] for name in alone[optimizer, dtype][0]}
        check_agreement((arrays, results[f"{of_run} losses"]), alone[optimizer, dtype], dtype)
        for name, array in arrays.items():
            assert np.array_equal(array, results[f"{optimizer} {dtype} False 1 {name}"]), name
    for dtype in TOLERANCE:
        arrays = {name: results[f"settings {dtype} {name}"] for name in alone["settings", dtype][0]}
        check_agreement((arrays, results[f"settings {dtype} losses"]), alone["settings", dtype], dtype)


def test_mpi_trains_and_only_rank_0_prints(mpi_command, tmp_path):
    more = ["--steps", "4", "--shard", "--save-every", "2", "--sample-tokens", "3"]
    done = mpiexec(2, ROOT / "train.py", *mpi_command, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: 4 steps") == 1 and "note: 2 MPI processes" in done.stdout
    arrays, state = checkpoint.load(tmp_path / "run" / runs.LAST)
    moments = [arrays[f"muon.{name}"] for name in ("v.wte", "m.fcprojw", "v.lnfb")]
    assert state["step"] == 4 and all(moment.any() for moment in moments)
    lines = (tmp_path / "run" / runs.METRICS).read_text().splitlines()
    assert sum('"loss"' in line for line in lines) == 4
    again = mpiexec(3, ROOT / "train.py", "--resume", tmp_path / "run", "--steps", "6")
    assert again.returncode == 0, again.stderr
    assert checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"] == 6


@pytest.mark.parametrize(
    ("how", "text"),
    [("ValueError", "a pear in the apples"), ("UserError", "error: rank 1: take apples"), ("SIGKILL", "")],
)
def test_failing_mpi_rank_ends_the_job(how, text):
    done = mpiexec(2, "-m", jobs.__name__, "fail_under_mpi", how)
    assert done.returncode != 0
    assert text in done.stderr


def test_error_on_all_mpi_ranks_is_reported_once(mpi_command):
    done = mpiexec(2, ROOT / "train.py", *mpi_command, "--batch-size", "5")
    assert done.returncode == 2
    assert done.stderr.count("mpiexec -n 2: a batch of 5 sequences cannot be cut into 2 equal shares") == 1
    assert "Traceback" not in done.stderr


def start_mpi(*arguments):
    """A job of two ranks."""
    return small_run.start(mpi_words(2, *arguments), start_new_session=True)


def rank_1(run):
    """The process id of a job's second rank, which has the same folder among its arguments."""
    out = run.args[run.args.index("--out") + 1].encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            second = b"PMI_RANK=1\0" in (folder / "environ").read_bytes()
            if second and out in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("no second rank")


def test_stopped_mpi_rank_ends_the_job(mpi_command):
    run = start_mpi(ROOT / "train.py", *mpi_command, "--worker-timeout", "2")
    wait_for_step_3(run)
    stopped = rank_1(run)
    os.kill(stopped, signal.SIGSTOP)
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0
    complaints = [line for line in errors.splitlines() if line.startswith("error")]
    assert len(complaints) == 1 and "does not answer" in complaints[0] and "--worker-timeout" in complaints[0]
    wait_until(lambda: not small_run.alive(stopped))


def test_interrupt_of_one_mpi_rank_saves_the_run(mpi_command, tmp_path):
    run = start_mpi(ROOT / "train.py", *mpi_command)
    wait_for_step_3(run)
    os.kill(rank_1(run), signal.SIGINT)
    out, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and errors == ""
    step = checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"]
    assert f"stopped and saved at step {step}" in out


@pytest.fixture
def mpich_remains():
    """Removes what MPICH itself leaves in /dev/shm if a job is ended while it starts."""
    before = shared_names()
    yield
    for name in shared_names() - before:
        if name.startswith("mpich_shm_"):
            (Path("/dev/shm") / name).unlink(missing_ok=True)


@pytest.mark.usefixtures("mpich_remains")
@pytest.mark.parametrize("place", ["read_settings", "limit_threads", "console.run"])
def test_interrupt_of_a_starting_mpi_rank_ends_the_job(mpi_command, place):
    """Before and after MPI starts, where the other rank waits for it and cannot be interrupted."""
    script = f"""
import os, signal, sys
from gpt2.train import program
if os.environ["PMI_RANK"] == "1":
    if {place!r} == "console.run":
        from gpt2.parallel.mpi import MPIGroup as owner
        name = "_start"
    else:
        owner, name = program, {place!r}
    original = getattr(owner, name)
    def interrupted(*arguments):
        result = original(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return result
    setattr(owner, name, interrupted)
sys.exit(program.main(sys.argv[1:]))
"""
    run = start_mpi("-c", script, *mpi_command)
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0 and "Traceback" not in errors


@pytest.mark.usefixtures("mpich_remains")
def test_mpi_rank_that_never_starts_ends_the_job(mpi_command):
    """The other one waits inside MPI, where no Python thread runs."""
    script = """
import os, sys
from gpt2.train import program
if os.environ["PMI_RANK"] == "1":
    sys.exit(2)
sys.exit(program.main(sys.argv[1:]))
"""
    run = start_mpi("-c", script, *mpi_command, "--worker-timeout", "2")
    run.communicate(timeout=60)
    assert run.returncode != 0


def test_time_limit_counts_the_time_inside_a_block():
    late = threading.Event()
    limit = TimeLimit(0.2, late.set)
    with limit:
        assert not late.is_set()
    with limit.patient():  # ten times as long
        assert not late.wait(0.4)
    assert not late.wait(0.4)  # outside of a block
    with limit, limit:
        assert late.wait(10)
