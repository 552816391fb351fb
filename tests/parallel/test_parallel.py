"""Groups, teams of workers, and how they end when something fails."""

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

from gpt2 import parallel
from gpt2.errors import UserError
from gpt2.parallel import WorkerError, auto, cores, memory
from gpt2.parallel import workers as workers_module
from gpt2.parallel.group import share
from gpt2.parallel.one import One
from gpt2.parallel.processes import Processes
from gpt2.parallel.time_limit import TimeLimit
from gpt2.parallel.workers import Workers
from gpt2.storage import runs
from gpt2.train import program
from gpt2.train.recipe import new_settings
from gpt2.train.resolve import resolve
from gpt2.train.run import Run
from gpt2.weights import checkpoint
from tests.support import parallel_jobs as jobs
from tests.support import small_run

ROOT = Path(__file__).resolve().parents[2]
# Without it there is no telling what a test has left behind, and waiting for that would have no end
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
SIZES = (1, 2, 3)
# Of one step: sums of shares are rounded otherwise than sums over the batch. Over several steps it adds up,
# as AdamW divides by the gradient's size: one that is zero but for rounding (a key's bias) counts fully.
# In float32 16 units in the last place: sums of a few hundred terms, in the order that BLAS's kernel takes.
AGREES = {"float32": 2e-6, "float64": 1e-13}
SEVERAL = 10


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def shared_names():
    folder = Path(memory.FOLDER)
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """After each test: no process of it, and no name in /dev/shm. (Other programs' names come and go.)"""
    names, children = shared_names(), children_of(os.getpid())
    yield
    wait_until(lambda: not (children_of(os.getpid()) - children - {tracker()}))
    wait_until(lambda: shared_names() <= names)


def tracker():
    """The standard library's resource tracker is started once, and stays."""
    from multiprocessing import resource_tracker

    return resource_tracker._resource_tracker._pid


def children_of(pid):
    """Process ids of the children that a process has now, zombies not counted."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(folder.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# ---- Groups: one contract, three implementations -----------------------------------------------------------


def check_words(results, size, exact=True):
    """results: what jobs.words gave each worker, by rank. exact: sums are taken in the order of ranks."""
    all_numbers = [jobs.numbers(rank) for rank in range(size)]
    expected = sum(all_numbers[1:], all_numbers[0])
    for rank, result in enumerate(results):
        assert (result["rank"], result["size"]) == (rank, size)
        if exact:
            assert np.array_equal(result["summed"], expected)
        assert relative(result["summed"], expected) < 1e-14
        assert relative(result["early"], expected) < 1e-6 and result["early"].dtype == np.float32
        assert np.array_equal(result["sent"], all_numbers[-1])
        assert np.array_equal(result["everywhere"], results[0]["gathered"])
        assert result["total"] == [sum(0.1 * r for r in range(size)), float(size)]
        assert result["highest"] == 0 and result["root"] == 7
    parts = [One().__class__.part(_rank_of(size, rank), jobs.COUNT) for rank in range(size)]
    assert parts[0][0] == 0 and parts[-1][1] == jobs.COUNT
    assert all(a[1] == b[0] for a, b in zip(parts, parts[1:]))
    for (start, stop), mine in zip(parts, all_numbers):
        assert np.array_equal(results[0]["gathered"][start:stop], mine[start:stop])


def _rank_of(size, rank):
    group = One()
    group.size, group.rank = size, rank
    return group


def test_a_group_of_one():
    check_words([jobs.words(One())], 1)


@pytest.mark.parametrize("size", SIZES)
def test_a_group_of_processes(size):
    with Workers(size) as workers:
        results = workers.call(jobs.words_in_a_worker)
    check_words(results, size)
    before, after = zip(*(result["times"] for result in results))
    assert min(after) >= max(before)  # no worker left the barrier before the last one arrived


def test_shares_cover_the_batch_and_differ_by_one_at_most():
    for count in (1, 5, 8):
        for size in (1, 2, 3, 7):
            slices = [share(count, rank, size) for rank in range(size)]
            assert [i for s in slices for i in range(count)[s]] == list(range(count))
            lengths = [s.stop - s.start for s in slices]
            assert max(lengths) - min(lengths) <= 1


# ---- Same numbers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone():
    """dtype -> what one process comes to, without workers."""
    return {dtype: jobs.train("none", One(), dtype=dtype) for dtype in AGREES}


def check_agreement(result, expected, dtype):
    for name, array in expected[0].items():
        assert result[0][name].dtype == array.dtype
        assert relative(result[0][name], array) < AGREES[dtype] * (1 if "first" in name else SEVERAL), name
    np.testing.assert_allclose(result[1][0], expected[1][0], rtol=AGREES[dtype])
    np.testing.assert_allclose(result[1], expected[1], rtol=AGREES[dtype] * SEVERAL)


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", AGREES)
@pytest.mark.parametrize("workers", (2, 3))
def test_workers_agree_with_one_process_and_repeat_bit_for_bit(alone, workers, dtype):
    """Accumulated batches, clipping and weight decay included."""
    first, again = (jobs.train("processes", One(), workers, dtype) for _ in range(2))
    check_agreement(first, alone[dtype], dtype)
    assert np.array_equal(first[1], again[1])
    assert all(np.array_equal(first[0][name], again[0][name]) for name in first[0])


@pytest.mark.slow
@pytest.mark.parametrize("backward", ("manual", "auto", "whole"))
def test_workers_agree_whoever_wrote_the_backward(alone, backward):
    """Compiled, against one process with the hand-written backward as it is written."""
    result = jobs.train("processes", One(), 2, options={"backward": backward})
    check_agreement(result, alone["float64"], "float64")


def test_the_gradient_after_a_step_is_that_of_the_whole_batch():
    model, _ = jobs.model_and_optimizer("float64")
    ((inputs, targets),) = jobs.batches(0, 1)
    model.forward(inputs, targets)
    model.backward()
    shared, optimizer = jobs.model_and_optimizer("float64")
    with Processes(shared, optimizer, 3, threads=1, options=jobs.AS_WRITTEN) as team:
        team.step([(inputs, targets)])
        for name, grad in model.grads.items():
            assert relative(shared.grads[name], grad) < 1e-13, name


def test_a_model_stays_usable_when_its_team_has_ended():
    model, optimizer = jobs.model_and_optimizer("float64")
    with Processes(model, optimizer, 2, threads=1, options=jobs.AS_WRITTEN) as team:
        (batch,) = jobs.batches(0, 1)
        team.step([batch])
        with_team = team.loss(*batch)
    assert abs(model.loss(*batch) / with_team - 1) < 1e-13


def test_a_batch_that_cannot_be_shared_out_is_refused():
    model, optimizer = jobs.model_and_optimizer("float64")
    with pytest.raises(UserError, match="--workers 7: a batch has only 6 sequences"):
        parallel.start("processes", model, optimizer, One(), workers=7, batch_size=6)
    with Processes(model, optimizer, 2, threads=1, options=jobs.AS_WRITTEN) as team:
        inputs, targets = jobs.batches(0, 1)[0]
        with pytest.raises(UserError, match="--workers 2: a batch of 5 sequences"):
            team.step([(inputs[:5], targets[:5])])


def test_a_loss_that_is_not_finite_leaves_everything_as_it_was():
    model, optimizer = jobs.model_and_optimizer("float64")
    model.params["lnfb"][0] = np.nan
    before = model.flat_params.copy()
    with Processes(model, optimizer, 2, threads=1, options=jobs.AS_WRITTEN) as team:
        loss, _ = team.step(jobs.batches(0, 1))
    assert np.isnan(loss) and optimizer.t == 0
    assert np.array_equal(model.flat_params, before, equal_nan=True)
    assert not optimizer.m.any()


def test_backward_announces_what_is_final_and_nothing_twice():
    model, _ = jobs.model_and_optimizer("float64")
    ((inputs, targets),) = jobs.batches(0, 1)
    announced = []
    model.forward(inputs, targets)
    model.backward(on_ready=lambda a, b: announced.append((a, b, model.flat_grads[a:b].copy())))
    C, L = model.config.n_embd, model.config.n_layer
    assert sum(stop - start for start, stop, _ in announced) == 12 * C * C * L
    ranges = sorted((start, stop) for start, stop, _ in announced)
    assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:]))
    assert all(np.array_equal(model.flat_grads[a:b], then) and then.any() for a, b, then in announced)


def test_an_update_in_parts_is_the_update_of_all():
    (whole, one), (cut, parts) = (jobs.model_and_optimizer("float32") for _ in range(2))
    for model in (whole, cut):
        model.flat_grads[...] = np.random.default_rng(4).standard_normal(model.num_parameters)
    norm = one.step(lr=1e-2, clip=1.0)
    n = cut.num_parameters
    edges = [0, 1000, 1001, n // 2, n]
    for start, stop in zip(edges, edges[1:]):
        parts.t = 0
        parts.update(norm, 1e-2, 1.0, start, stop)
    assert np.array_equal(whole.flat_params, cut.flat_params)
    assert np.array_equal(one.v, parts.v)


# ---- Resuming ----------------------------------------------------------------------------------------------


def settings(prose, tmp_path, workers, name="run"):
    given = dict(
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
    return new_settings(given)


def go_on(settings, folder, steps):
    """A run, its checkpoint loaded where there is one, some steps further."""
    run = Run(resolve(settings))
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
def test_a_run_of_two_workers_goes_on_under_any_number(prose, tmp_path):
    """With two again bit for bit, with others to rounding."""
    whole = go_on(settings(prose, tmp_path, 2), tmp_path / "whole", 6)
    for workers in (2, 1, 3):
        folder = tmp_path / f"half-{workers}"
        go_on(settings(prose, tmp_path, 2), folder, 3)
        result = go_on(settings(prose, tmp_path, workers), folder, 3)
        assert list(result) == list(whole)
        for name, array in result.items():
            if workers == 2:
                assert np.array_equal(array, whole[name]), name
            assert relative(array, whole[name]) < 1e-12, name


# ---- Misfortunes -------------------------------------------------------------------------------------------


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
def test_a_worker_that_fails_ends_all_and_is_named(how, text, capfd):
    workers = Workers(3, timeout=2.0 if how in ("SIGSTOP", "sleep") else 60.0)
    pids = workers.call(jobs.fail, "none")
    with pytest.raises(WorkerError, match="worker 1 of 3") as raised:
        workers.call(jobs.fail, how)
    assert text in str(raised.value)
    if how == "ValueError":
        assert "raise_value_error" in str(raised.value)  # the traceback
    if how == "sleep":
        assert "in fail" in capfd.readouterr().err  # where it hung
    wait_until(lambda: not any(alive(pid) for pid in pids))
    with pytest.raises(RuntimeError, match="have ended"):
        workers.call(jobs.nothing)


def test_a_users_mistake_in_a_worker_is_a_users_mistake():
    workers = Workers(2)
    with pytest.raises(UserError, match="^take apples$"):
        workers.call(jobs.fail, "UserError")


@pytest.mark.slow
def test_a_worker_that_hangs_before_a_long_message_is_noticed():
    """More than a pipe holds: writing it would wait for ever."""
    workers = Workers(2, timeout=1.0)
    workers.call(jobs.stop_yourself)
    time.sleep(0.5)
    with pytest.raises(WorkerError, match="worker 1 of 2 .* hung"):
        workers.call(jobs.nothing, np.zeros(1 << 20))


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_workers_end_with_a_parent_that_was_killed(how):
    command = [sys.executable, str(ROOT / "tests" / "support" / "parallel_jobs.py"), "parent", how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(alive(pid) for pid in pids)
        parent.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids))


@pytest.fixture
def named(monkeypatch):
    """Shared memory as on systems where all of it has a name."""
    monkeypatch.delattr(os, "memfd_create", raising=False)


def test_shared_memory_with_a_name_is_private_and_loses_it_at_once(named):
    workers = Workers(2, {"x": ((10,), "float32")})
    with workers:
        path = Path(memory.FOLDER) / workers.memory.name
        if path.parent.is_dir():
            assert path.stat().st_mode & 0o777 == 0o600
        workers.wait_until_ready()
        assert not path.exists()
        assert workers.call(jobs.nothing, 1) == [1, 1]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux's /proc")
def test_shared_memory_has_no_name_on_linux():
    """Whatever is killed while workers start, nothing is left: here all processes at once."""
    before = shared_names()
    script = "import time\nfrom gpt2.parallel.workers import Workers\n"
    script += "workers = Workers(2, {'x': ((10,), 'float32')})\nprint(1, flush=True)\ntime.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    assert process.stdout.readline() == b"1\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert shared_names() <= before
    with Workers(2, {"x": ((10,), "float32")}) as workers:
        assert workers.memory.name is None and shared_names() <= before
        workers.arrays["x"][3] = 7
        assert workers.call(jobs.shared_entry, "x", 3) == [7, 7]


def test_time_in_which_all_stood_still_is_no_silence(monkeypatch):
    """Ctrl-Z, and fg an hour later."""
    clock = [0.0]
    monkeypatch.setattr(workers_module.time, "monotonic", lambda: clock[0])
    beats = np.zeros((2, 2), np.int64)
    signs = workers_module._Heartbeats(beats)
    for _ in range(4):
        clock[0] += 0.5
        beats[0, 0] += 1
        assert signs.silence()[0] == 0.0
    assert signs.silence()[1] == 2.0
    clock[0] += 3600
    assert max(signs.silence()) <= 4.0


@pytest.fixture
def docker(named, monkeypatch):
    """A container with docker's 64 MB of shared memory, where all of it has a name."""

    class Small:
        f_bavail, f_frsize = 16384, 4096

    monkeypatch.setattr(memory.os, "statvfs", lambda folder: Small)


def test_too_little_shared_memory_is_one_line(docker):
    with pytest.raises(UserError, match=r"80 MB .* has 67.1 MB free; .*--shm-size=1g"):
        Workers(2, {"x": ((10_000_000,), "float64")})


def test_bytes_for_people():
    assert [memory.in_bytes(n) for n in (17, 4096, 67108864, 2.5e9)] == [
        "17 bytes",
        "4.1 kB",
        "67.1 MB",
        "2.5 GB",
    ]


@pytest.mark.parametrize(("room", "workers"), [(1 << 40, 3), (950_000, 2), (100_000, 1)])
def test_with_too_little_shared_memory_fewer_workers_are_taken(prose, tmp_path, monkeypatch, room, workers):
    """The model's 21,000 numbers of 8 bytes, five times for two workers and six times for three."""
    monkeypatch.setattr(memory, "space", lambda: ("memory", room))
    run = Run(resolve(settings(prose, tmp_path, 3)))
    with run.team:
        assert run.team.size == workers
        run.train_step()
    notes = [note for note in run.notes if "shared memory" in note]
    assert len(notes) == 3 - workers and all(
        "processes: " in note and "; taking fewer" in note for note in notes
    )
    assert run.notes[-1].startswith(f"{workers} process")


@pytest.mark.parametrize("error", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_shared_memory_that_cannot_be_made_leaves_threads(prose, tmp_path, named, monkeypatch, error):
    def refuses(*_, **__):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(memory, "_Named", refuses)
    run = Run(resolve(settings(prose, tmp_path, 2)))
    assert run.team.size == 1 and any(os.strerror(error) in note for note in run.notes)
    run = Run(resolve(settings(prose, tmp_path, "auto")))
    assert run.team.size == 1


@pytest.mark.slow
@pytest.mark.parametrize("limit", [12, 20, 30])
def test_too_few_open_files_are_one_line(prose, tmp_path, limit):
    script = "import resource, sys\nfrom gpt2.train import console, program\n"
    script += (
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit},) * 2)\nsys.exit(program.main(sys.argv[1:]))"
    )
    for workers in ("4", "auto"):
        out = tmp_path / f"run{workers}"
        more = ["--parallel", "processes", "--workers", workers, "--threads", "4"]
        done = small_run.python(script, *small_run.flags(prose[0], out, *more))
        if done.returncode == 0:  # threads, or fewer workers, were found to be possible
            assert (out / runs.LAST).exists() and done.stderr == ""
        else:
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
            assert "Too many open files" in done.stderr and "ulimit -n" in done.stderr


def test_threads_are_shared_out_before_numpy_starts():
    with Workers(2, threads=3) as workers:
        answers = workers.call(jobs.environment)
    assert answers == [{"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "3"}] * 2
    assert cores.threads_each(2, 8) == 4 and cores.threads_each(3, 8) == 2 and cores.threads_each(4, 2) == 1


def test_cores_keep_to_the_containers_share(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "CPU_MAX", tmp_path / "cpu.max")
    here = cores.cores()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.cores() == here
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert cores.cores() == 1


# ---- train.py ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(prose, tmp_path):
    """Arguments of a small run with two workers, into tmp_path / "run"."""
    return [
        "--data",
        str(prose[0]),
        "--tokenizer",
        "byte",
        "--batch-size",
        "6",
        "--block-size",
        "16",
        "--n-layer",
        "2",
        "--n-embd",
        "24",
        "--n-head",
        "3",
        "--steps",
        "100000",
        "--warmup",
        "2",
        "--eval-every",
        "0",
        "--sample-tokens",
        "0",
        "--log-every",
        "1",
        "--save-every",
        "2",
        "--compile",
        "off",
        "--parallel",
        "processes",
        "--workers",
        "2",
        "--threads",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]


@pytest.fixture
def mpi_command(command):
    """The same run for --parallel mpi."""
    at = command.index("--parallel")
    return [*command[:at], "--parallel", "mpi", *command[at + 4 :]]


def start_training(command):
    """A run in a new process group, once it has saved: (process, the workers' ids)."""
    run = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *command],
        text=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    for line in run.stdout:
        if line.startswith("step 3/") or line.startswith("step      3/"):
            break
    workers = {
        pid for pid in children_of(run.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    assert len(workers) == 2
    return run, workers


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_and_leaves_the_checkpoint(command, tmp_path):
    run, workers = start_training(command)
    os.kill(max(workers), signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "killed by SIGKILL" in errors and f"--resume {tmp_path / 'run'}" in errors
    assert "Traceback" not in errors
    assert checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"] >= 2
    wait_until(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_all_processes_saves_and_ends_them(command, tmp_path, number, status, hangup):
    """As a terminal sends Ctrl-C: to the workers too, which have to finish the step."""
    run, workers = start_training(command)
    os.killpg(run.pid, number)
    out, errors = run.communicate(timeout=60)
    assert run.returncode == status, errors
    step = checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"]
    assert f"stopped and saved at step {step}" in out
    wait_until(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            ["--workers", "4"],
            "--workers 4: a batch of 6 sequences cannot be cut into 4 equal shares; "
            "take --batch-size 4 or 8, or --workers 3",
        ),
        (["--workers", "7"], "--workers 7: a batch has only 6 sequences"),
        (["--workers", "0"], "--workers 0: expected a number from 1, or auto"),
        (["--workers", "two"], "--workers two: expected a number from 1, or auto"),
        (["--parallel", "thread"], "--parallel: expected one of fastest, none, shares, processes, mpi"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(command, more, text, capsys):
    assert program.main([*command, *more]) == 2
    errors = capsys.readouterr().err
    assert text in errors and errors.count("\n") == 1


def test_a_missing_mpi4py_is_one_line(mpi_command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert program.main(mpi_command) == 2
    errors = capsys.readouterr().err
    assert re.search("--parallel mpi needs mpi4py: .* -m pip install mpi4py mpich\n$", errors)


def test_auto_measures_each_way_and_takes_the_fastest(monkeypatch):
    assert auto.candidates(8, 2) == [1, 2] and auto.candidates(12, 16) == [1, 3, 6, 12]
    assert auto.candidates(7, 4) == [1] and auto.candidates(8, 64) == [1, 2, 4, 8]
    model, _ = jobs.model_and_optimizer("float32")
    best, times = auto.choose(model.config, 2, jobs.T, threads=2, options=jobs.AS_WRITTEN)
    assert set(times) == {1, 2} and times[best] == min(times.values()) > 0
    assert "2 processes of 1 thread" in auto.as_text(times, best, 2)


# ---- MPI ---------------------------------------------------------------------------------------------------


def mpiexec(size, *arguments, **options):
    """Run python with arguments on `size` ranks; CompletedProcess."""
    pytest.importorskip("mpi4py")
    program = Path(sys.executable).with_name("mpiexec")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [
            str(program) if program.exists() else "mpiexec",
            "-n",
            str(size),
            sys.executable,
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=environment,
        **options,
    )


@pytest.mark.numeric
@pytest.mark.parametrize("size", SIZES)
def test_mpi(alone, size, tmp_path):
    """A group's contract; the numbers of one process, moments shared out or not; and the same bits again."""
    done = mpiexec(
        size, ROOT / "tests" / "support" / "parallel_jobs.py", "under_mpi", tmp_path / "results.npz"
    )
    assert done.returncode == 0, done.stderr
    results = dict(np.load(tmp_path / "results.npz"))
    words = {name[5:]: value for name, value in results.items() if name.startswith("word ")}
    assert results["met"]
    all_numbers = [jobs.numbers(rank) for rank in range(size)]
    assert relative(words["summed"], sum(all_numbers)) < 1e-14
    assert relative(words["early"], sum(all_numbers)) < 1e-6
    assert np.array_equal(words["sent"], all_numbers[-1])
    assert np.array_equal(words["everywhere"], words["gathered"])
    assert words["total"].tolist() == [sum(0.1 * r for r in range(size)), float(size)]
    for dtype in AGREES:
        found = {
            (shard, n): (
                {name: results[f"{dtype} {shard} {n} {name}"] for name in alone[dtype][0]},
                results[f"{dtype} {shard} {n} losses"],
            )
            for shard in (False, True)
            for n in (1, 2)
        }
        for result in found.values():
            check_agreement(result, alone[dtype], dtype)
            for name, array in result[0].items():  # the same whether moments are shared out or not
                assert np.array_equal(array, found[False, 1][0][name]), name


def test_mpi_trains_and_rank_0_alone_speaks(mpi_command, tmp_path):
    more = ["--steps", "4", "--shard", "--save-every", "2", "--sample-tokens", "3"]
    done = mpiexec(2, ROOT / "train.py", *mpi_command, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: 4 steps") == 1 and "note: 2 MPI processes" in done.stdout
    arrays, state = checkpoint.load(tmp_path / "run" / runs.LAST)
    assert state["step"] == 4 and all(arrays[f"adamw.v.{name}"].any() for name in ("wte", "fcprojw", "lnfb"))
    lines = (tmp_path / "run" / runs.METRICS).read_text().splitlines()
    assert sum('"loss"' in line for line in lines) == 4
    again = mpiexec(3, ROOT / "train.py", "--resume", tmp_path / "run", "--steps", "6")
    assert again.returncode == 0, again.stderr
    assert checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"] == 6


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("ValueError", "a pear in the apples"),
        ("UserError", "error: rank 1: take apples"),
        ("SIGKILL", ""),
    ],
)
def test_an_mpi_rank_that_fails_ends_the_job(how, text):
    done = mpiexec(2, ROOT / "tests" / "support" / "parallel_jobs.py", "fail_under_mpi", how)
    assert done.returncode != 0
    assert text in done.stderr


def test_an_error_on_all_mpi_ranks_is_reported_once(mpi_command):
    done = mpiexec(2, ROOT / "train.py", *mpi_command, "--batch-size", "5")
    assert done.returncode == 2
    assert done.stderr.count("mpiexec -n 2: a batch of 5 sequences cannot be cut into 2 equal shares") == 1
    assert "Traceback" not in done.stderr


def start_mpi(*arguments):
    """A job of two ranks in a new process group."""
    pytest.importorskip("mpi4py")
    words = [Path(sys.executable).with_name("mpiexec"), "-n", "2", sys.executable, *arguments]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen([str(word) for word in words], cwd=ROOT, env=environment, **pipes)


def rank_1(run):
    """The process id of a job's second rank, which has the same folder among its arguments."""
    out = run.args[run.args.index("--out") + 1].encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"PMI_RANK=1\0" in (folder / "environ").read_bytes()
                and out in (folder / "cmdline").read_bytes()
            ):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("no second rank")


def until_step_3(run):
    for line in run.stdout:
        if line.startswith("step      3/"):
            return
    raise AssertionError(run.stderr.read())


def test_an_mpi_rank_that_does_not_answer_ends_the_job(mpi_command):
    run = start_mpi(ROOT / "train.py", *mpi_command, "--worker-timeout", "2")
    until_step_3(run)
    stopped = rank_1(run)
    os.kill(stopped, signal.SIGSTOP)
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0
    complaints = [line for line in errors.splitlines() if line.startswith("error")]
    assert len(complaints) == 1 and "does not answer" in complaints[0] and "--worker-timeout" in complaints[0]
    wait_until(lambda: not alive(stopped))


def test_one_mpi_rank_alone_that_is_interrupted_saves_the_run(mpi_command, tmp_path):
    run = start_mpi(ROOT / "train.py", *mpi_command)
    until_step_3(run)
    os.kill(rank_1(run), signal.SIGINT)
    out, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and errors == ""
    step = checkpoint.load(tmp_path / "run" / runs.LAST)[1]["step"]
    assert f"stopped and saved at step {step}" in out


@pytest.fixture
def mpich_remains():
    """What mpich itself leaves in /dev/shm where a job is ended while it starts is removed."""
    before = shared_names()
    yield
    for name in shared_names() - before:
        if name.startswith("mpich_shm_"):
            (Path(memory.FOLDER) / name).unlink(missing_ok=True)


@pytest.mark.usefixtures("mpich_remains")
@pytest.mark.parametrize("place", ["read_settings", "limit_threads", "console.run"])
def test_an_mpi_rank_that_is_interrupted_as_it_starts_ends_the_job(mpi_command, place):
    """Before and after MPI starts; the other rank waits for it there, which nothing but its end can end."""
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
def test_an_mpi_rank_that_never_starts_ends_the_job(mpi_command):
    """The other one waits within MPI, where no thread of Python runs."""
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


def test_a_watch_counts_the_time_of_a_block(monkeypatch):
    late = threading.Event()
    watch = TimeLimit(0.2, late.set)
    with watch:
        assert not late.is_set()
    with watch.patient():  # ten times as long
        assert not late.wait(0.4)
    assert not late.wait(0.4)  # outside of a block time does not count
    with watch, watch:
        assert late.wait(10)
