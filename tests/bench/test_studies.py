"""The studies: measuring, reports, and a quick run of all of them from end to end."""

import functools
import json
import math
import os
import sys
import time

import numpy as np
import pytest

from bench.studies import STUDIES, eam, load, peers, roots, scalar
from bench.studies import __main__ as main
from bench.studies.markdown import cell_text, markdown, table_text
from bench.studies.measure import Sample, interleave, memory
from bench.studies.study import Column, Report, Result
from gpt2 import autodiff as ad
from gpt2.errors import UserError
from tests.support import small_run

# ---- Measuring ---------------------------------------------------------------------------------------------


def test_sample_statistics():
    sample = Sample([4.0, 1.0, 2.0, 3.0], first=9.0)
    assert (sample.median, sample.q1, sample.q3, sample.n) == (2.5, 1.75, 3.25, 4)
    # twice as slow in the second round, both of them: the ratio is the same
    assert Sample([1.0, 2.0]).over(Sample([2.0, 4.0])).values == [0.5, 0.5]


def test_interleave_calls_each_function_in_every_round(monkeypatch):
    """The first call is timed separately, and a turn is filled with calls."""
    clock = iter(range(10**6))
    tick = 2.0**-13
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) * tick)
    called = []
    functions = {name: functools.partial(called.append, name) for name in "ab"}
    samples = interleave(functions, seconds=1e3, rounds=5, turn_s=10 * tick)
    assert {name: (s.n, s.first) for name, s in samples.items()} == dict.fromkeys("ab", (5, tick))
    # a call takes one tick, so ten fill a turn; one before them, and three to find that number
    assert called.count("a") == called.count("b") == 3 + 5 * 11
    assert np.allclose(samples["a"].values, tick / 10)


@pytest.mark.slow
def test_memory_counts_arrays_and_bytes():
    x = np.ones(10_000)
    used = memory(lambda: np.sqrt(x * 2.0 + 1.0))
    # sqrt does not reuse the temporary: three arrays, two of them alive at the peak, one at the end
    assert used.arrays == 3 and used.array_bytes == 3 * x.nbytes
    assert 2 * x.nbytes <= used.peak_bytes < 2.1 * x.nbytes
    out = np.empty_like(x)
    again = memory(lambda: np.sqrt(x, out=out))
    assert again.arrays == 0 and again.peak_bytes < 1000


# ---- Reporting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (0.00123456, "s", "1.23 ms"),
        (2.5e-7, "s", "250 ns"),
        (61.0, "s", "61.0 s"),
        (0.0, "s", "0 s"),
        (1536, "B", "1.54 kB"),
        (0, "B", "0 B"),
        (0.987654, "x", "0.988"),
        (12, "", "12"),
        (1234567, "", "1,234,567"),
        (1e-12, "", "1.00e-12"),
        (None, "s", "-"),
        ("none", "s", "none"),
        (float("nan"), "x", "nan"),
        (Sample([0.001, 0.002, 0.003]), "s", "2.00 ms [1.50 2.50]"),
        (Sample([0.9996, 1.0004]), "x", "1.00 [1.00 1.00]"),
    ],
)
def test_numbers_are_shown_with_three_digits(cell, unit, text):
    assert cell_text(cell, unit) == text


def test_missing_peers_are_named(monkeypatch):
    for package in peers.TITLES:
        monkeypatch.setitem(sys.modules, package, None)
    result = Result()
    assert peers.gradients(result) == {} and set(result.missing) == set(peers.TITLES)


def sample_result():
    result = Result()
    table = result.table("Time & <space>", "name | time [s]", "bytes [B]", note="A.")
    assert table.columns == [Column("name"), Column("time", "s"), Column("bytes", "B")]
    table.add("a|b", Sample([1e-3, 2e-3, 3e-3], 0.5), np.int64(2048))
    table.add("c<d", None, 0)
    result.note("f is `faster`,   by far.")
    result.missing["ghost"] = "pip install ghost"
    result.load = {"others": 0.25}
    result.machine = {"cpu": "one", "cores": 2, "memory_gb": 1, "python": "3", "blas": "b", "packages": {}}
    return result


def report_of(result):
    return Report(result.machine, {"quick": True, "threads": 1}, {"layers": result}, {"eam": "out of memory"})


def test_markdown_has_every_part_of_a_report():
    text = markdown(report_of(sample_result()))
    for part in (
        load("layers").question,
        "2.00 ms [1.50 2.50]",
        "2.05 kB",
        "a\\|b",
        "of 3 samples",
        "25%",
        "ghost",
        "f is `faster`, by far.",
        "Failed: out of memory",
        "mean nothing",
    ):
        assert part in text
    lines = table_text(sample_result().tables[0]).splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 4


def test_kept_results_make_the_same_report(tmp_path, capsys):
    report = report_of(sample_result())
    written = main.write(report, tmp_path)
    again = main.read(tmp_path / "studies.json", [])
    assert again == report and main.read(tmp_path / "studies.json", ["eam"]).results == {}
    assert main.main(["--from", written[1], "--out", str(tmp_path / "again")]) == 1  # one study failed
    assert capsys.readouterr().out == markdown(report) + "\n"
    assert (tmp_path / "again" / "studies.json").read_text() == (tmp_path / "studies.json").read_text()
    for text in ("{}", "no JSON"):
        (tmp_path / "studies.json").write_text(text)
        with pytest.raises(UserError, match="from .*: no report of python -m bench.studies"):
            main.read(tmp_path / "studies.json", [])


# ---- Scalar functions, roots, an energy: what they compute is right ----------------------------------------


@pytest.mark.parametrize("name", scalar.CASES)
def test_scalar_derivatives_are_the_known_ones(name):
    case = scalar.CASES[name]
    f = case.formula(np)
    assert case.by_hand(2.0) == pytest.approx(case.derivative, rel=1e-13)
    assert ad.grad(f)(2.0) == pytest.approx(case.derivative, rel=1e-13)
    assert (f(2.0 + 1e-6) - f(2.0 - 1e-6)) / 2e-6 == pytest.approx(case.derivative, rel=1e-8)


@pytest.mark.parametrize("equation", roots.EQUATIONS, ids=lambda e: e.text)
def test_derivatives_up_to_the_third_agree_with_those_by_hand(equation):
    d, by_hand = roots.derived(equation.formula(np)), roots.by_hand(equation)
    for k in range(4):
        for x in (0.3, 1.1):
            assert len(d[k](x)) == k + 1
            assert d[k](x) == pytest.approx(by_hand[k](x), rel=1e-13)
    f, h = equation.formula(np), 1e-4
    slope = (by_hand[2](0.3 + h)[2] - by_hand[2](0.3 - h)[2]) / (2 * h)
    assert d[3](0.3)[3] == pytest.approx(slope, rel=1e-6)
    assert f(equation.root) == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("equation", roots.EQUATIONS, ids=lambda e: e.text)
@pytest.mark.parametrize("name", roots.METHODS)
def test_measured_order_of_convergence(name, equation):
    method, d = roots.METHODS[name], roots.derived(equation.formula(np))
    root, iterations = roots.solve(method, d, equation.start)
    assert root == pytest.approx(equation.root, rel=1e-14)
    # From an error of about 0.5; each step multiplies the digits by the order, and a last one changes nothing
    assert iterations <= math.ceil(math.log(40, method.order)) + 3
    order = roots.observed_order(method, d, equation.root)
    # Errors before a step are at least 1e-11 ** (1 / order): terms of the next order still contribute
    assert order == pytest.approx(method.order, rel=0.1)


@pytest.mark.parametrize("n", eam.SIZES)
def test_energy_gradients_agree(n):
    x = np.random.default_rng(n).normal(size=n) / 3
    rho = sum(math.exp(-3 * (v + 1)) for v in x)
    assert eam.energy(x) == pytest.approx(rho**2 + rho**3 + rho**4 / 4, rel=1e-12)
    h = 1e-6 * np.eye(n)[7]
    slope = (eam.energy(x + h) - eam.energy(x - h)) / 2e-6
    for title, gradient in eam.gradients(n).items():
        for _ in range(2):  # twice: a reused buffer must not accumulate
            got = gradient(x)
        np.testing.assert_allclose(got, eam.manual(x), rtol=1e-12, err_msg=title)
        assert got[7] == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
def test_preallocated_gradients_allocate_no_arrays():
    x = np.random.default_rng(0).normal(size=100)
    arrays = {}
    for title, gradient in eam.gradients(100).items():
        gradient(x), gradient(x)  # compiled
        arrays[title] = memory(functools.partial(gradient, x)).arrays
    for title in ("by hand, preallocated", "derived, into a buffer", "derived, preallocated shadow"):
        assert arrays[title] == 0, title
    assert arrays["gradient by hand"] >= 3


# ---- From end to end ---------------------------------------------------------------------------------------


def run(*flags):
    return small_run.module("bench.studies", *flags, env=None, timeout=900)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The folder of a quick run of all studies."""
    folder = tmp_path_factory.mktemp("studies")
    done = run("--quick", "--seconds", "0.2", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_quick_run_reports_every_study(quick):
    report = json.loads((quick / "studies.json").read_text())
    assert list(report["results"]) == list(STUDIES) and not report["failed"]
    for name, result in report["results"].items():
        assert load(name).name == name
        # Peers that a study compares may not be installed; it then says what is missing
        assert (result["tables"] and result["notes"]) or result["missing"], name
        assert all(table["rows"] for table in result["tables"]), name
        assert result["seconds"] > 0 and result["machine"]["packages"]["numpy"] == np.__version__
    text = (quick / "studies.md").read_text()
    assert all(f"\n## {name}\n" in text for name in STUDIES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["rots"], "roots"), (["--threads", "999"], "cores"), (["--seconds", "-1"], "seconds")],
)
def test_invalid_argument_is_one_error_line(flags, message):
    small_run.assert_one_error_line(run(*flags), message)


# ---- pytest-benchmark --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_microbenchmarks_are_grouped_described_and_compared(tmp_path):
    """pytest bench/ --benchmark-only: a group for each part of a layer, with facts; then a comparison."""
    flags = (
        "bench/ --benchmark-only -k gelu-manual --bench-batch B1T8 --benchmark-max-time=0.01 "
        f"--benchmark-min-rounds=2 --benchmark-storage=file://{tmp_path} -p no:cacheprovider"
    ).split()
    # without pytest-xdist's variables: in its workers pytest-benchmark measures nothing
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def bench(flag):
        return small_run.module("pytest", *flags, flag, env=env)

    saved = bench("--benchmark-save=before")
    assert saved.returncode == 0, saved.stdout
    (file,) = tmp_path.rglob("*_before.json")
    content = json.loads(file.read_text())
    rows = content["benchmarks"]
    assert content["machine_info"]["cpu"]["brand_raw"] == rows[0]["extra_info"]["cpu"]
    parts = "forward", "backward", "both"
    assert {row["group"] for row in rows} == {f"gelu {part}, B1T8, 1 thread" for part in parts}
    for row in rows:
        info = row["extra_info"]
        assert (info["threads"], info["dtype"], info["shapes"]) == (1, "float32", [[1, 8, 3072]])
        assert info["numpy"] == np.__version__ and info["blas"] and info["cpu"]
    compared = bench("--benchmark-compare")
    assert compared.returncode == 0, compared.stdout
    assert "test_layer[gelu-manual-both] (0001_before)" in compared.stdout
    wrong = bench("--bench-batch=B4")
    assert "argument --bench-batch: 'B4' is not a batch such as B4T64" in wrong.stderr
    assert "Traceback" not in wrong.stderr and wrong.returncode == pytest.ExitCode.USAGE_ERROR
