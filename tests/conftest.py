"""Where the tests find data; what no test may touch: the network and the user's own cache folder; which skips
are allowed where nothing may be missing; and what several files share."""

import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

os.environ["GPT2_OFFLINE"] = "1"
# blocks of the same sizes on every machine, as pages show them; tests.long.machines sets another size
os.environ.setdefault("GPT2_AD_CACHE", str(16 << 20))

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COLUMNS", None)  # set by xdist, to what the terminal has; programs under test have none

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell script
    signal.signal(signal.SIGINT, signal.default_int_handler)


# GPT2_REQUIRE_PEERS=1 says that nothing is missing, as CI has seen to: a test that is skipped has failed, but
# for these reasons.
REQUIRED = os.environ.get("GPT2_REQUIRE_PEERS") == "1"
ALLOWED = ["NOT CHECKED IN A BROWSER", "needs the released weights", f"NumPy {np.__version__} has no "]
if "GPT2_DATA_DIR" not in os.environ:
    ALLOWED.append("needs tinyshakespeare")
    if "TIKTOKEN_CACHE_DIR" not in os.environ:
        ALLOWED.append("needs GPT-2's vocabulary")
if sys.platform == "linux" and "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
    ALLOWED.append("needs AVX-512")
if sys.platform != "linux":
    ALLOWED += [
        "needs POSIX",
        "needs a pseudo-terminal",
        "needs /dev/shm",
        "needs Linux's /proc",
        "could not import 'fcntl'",
        "could not import 'termios'",
        "shutdown of a listening socket",
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Without a path, pytest runs on all cores, four at most: more would take gigabytes. Parts, `--pdb` and
    `-n 0` run in this process.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:  # this is one of the workers
        return
    option, whole = config.option, config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if whole and getattr(option, "numprocesses", 0) is None and not (option.usepdb or option.collectonly):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if cores > 1:
            option.numprocesses, option.dist = min(4, cores), "worksteal"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out the tests that the file GPT2_PASSED names, a line each: they passed on a bare machine.

    Comparisons with transformers are slow: importing it takes five seconds of each process.
    """
    for item in items:
        if "peers" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    if "GPT2_PASSED" in os.environ:
        passed = set(Path(os.environ["GPT2_PASSED"]).read_text(encoding="utf-8").splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return insisted((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return insisted((yield))


def insisted(report):
    """The report, of a failure where something was skipped that has to run."""
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(tuple(ALLOWED)):
            report.outcome = "failed"
            report.longrepr = f"skipped, which GPT2_REQUIRE_PEERS=1 does not allow: {reason}"
    return report


def pytest_terminal_summary(terminalreporter):
    """One line that counts the skips by what they lack: packages first, and what installs them."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    packages, others = Counter(), Counter()
    for reason in reasons:
        reason = reason.removeprefix("Skipped: ")
        if package := re.match(r"could not import '(\w+)", reason):
            packages[package[1]] += 1
        else:
            others[reason.partition(":")[0]] += 1
    parts = [f"{reason} ({n})" for reason, n in others.most_common()]
    if packages:
        names = ", ".join(f"{name} ({n})" for name, n in packages.most_common())
        extras = "peers,numexpr" if "numexpr" in packages else "peers"
        parts.insert(0, f"not installed: {names}; pip install -e '.[{extras}]' brings them")
    if parts:
        terminalreporter.write_line("skipped: " + "; ".join(parts))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """A cache folder for this session alone; child processes inherit it."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("GPT2_CACHE_DIR")
    os.environ["GPT2_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["GPT2_CACHE_DIR"]
    else:
        os.environ["GPT2_CACHE_DIR"] = before


@pytest.fixture(autouse=True)
def one_thread_afterwards():
    """Programs run on one thread again after each test, whatever it set, and before the first one too."""
    threads = sys.modules.get("gpt2.autodiff.run.threads")
    if threads is not None and not threads.chosen:
        threads.set_threads(1)
    yield
    threads = sys.modules.get("gpt2.autodiff.run.threads")
    if threads is not None and threads.count > 1:
        threads.set_threads(1)


@pytest.fixture(autouse=True)
def subnormal_numbers_afterwards():
    """A test that leaves the processor flushing subnormal numbers to zero fails: those after it would."""
    yield
    kept = np.ldexp([1.0], -1060) * 1.0 != 0.0
    assert kept.all(), "subnormal numbers are flushed to zero from here on, as torch.set_flush_denormal does"


@pytest.fixture(scope="session")
def shakespeare():
    """The text of tinyshakespeare; tests that need the real corpus are skipped where it is not to be had."""
    from gpt2.data import named
    from gpt2.errors import UserError

    try:
        return named.tinyshakespeare()
    except UserError as error:
        pytest.skip(f"needs tinyshakespeare: {error}")


@pytest.fixture(scope="session")
def gpt2_tokenizer():
    """GPT-2's tokenizer; tests that need the real vocabulary are skipped where it is not to be had."""
    from gpt2.data import tokenizer
    from gpt2.errors import UserError

    try:
        return tokenizer.gpt2()
    except UserError as error:
        pytest.skip(f"needs GPT-2's vocabulary: {error}")


@pytest.fixture
def prose(tmp_path):
    """A text file of about 20,000 characters that needs no network: (path, text)."""
    words = "the king and queen of a far country went to see what news the sea may bring, naïve".split()
    lines = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(9)) for i in range(400)]
    text = "\n".join(lines) + "\n"
    path = tmp_path / "prose.txt"
    path.write_text(text, encoding="utf-8", newline="\n")
    return path, text


@pytest.fixture(scope="session")
def peers():
    """(torch, transformers), or a skip that says why."""
    return (
        pytest.importorskip("torch"),
        pytest.importorskip("transformers"),
    )


@pytest.fixture(scope="session")
def numexpr_package():
    """Skips where numexpr, an optional backend, is not installed."""
    pytest.importorskip("numexpr")


@pytest.fixture
def hangup():
    """SIGHUP with its default action, also where pytest runs under nohup, which ignores the signal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def quick_peak(monkeypatch):
    """The machine's peak is not measured: 100 GFLOP/s."""
    from gpt2.train.flops import Peak

    monkeypatch.setattr("gpt2.train.flops.matmul_peak", lambda dtype: Peak(1e11))


@pytest.fixture
def refusal(capsys):
    """refusal(main, *argv): the one line on standard error with which a command ends, at status 2."""

    def refusal(main, *argv):
        capsys.readouterr()
        assert main([str(word) for word in argv]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1, error
        return error

    return refusal


@pytest.fixture
def run(model, tmp_path):
    """The folder of a run of the test file's own `model`, with the byte tokenizer and no settings."""
    from gpt2.data import tokenizer
    from gpt2.weights import checkpoint

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text("")
    tokenizer.byte().save(folder / "tokenizer.json")
    arrays, state = checkpoint.model_arrays(model), checkpoint.model_state(model)
    checkpoint.save(folder / "last.safetensors", arrays, state)
    return folder
