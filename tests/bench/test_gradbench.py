"""GradBench's evaluations: values against those of its definitions, gradients against finite differences."""

import json
import math
from functools import partial

import numpy as np
import pytest

from bench.gradbench import ba, descent, figures, particle, protocol, saddle
from tests import ROOT
from tests.support import small_run

pytestmark = pytest.mark.slow


def plain_flight(w):
    """The square of where the particle lands, with the force written by hand."""
    x, v = np.array([0.0, 8.0]), np.array([0.75, 0.0])
    while True:
        force = sum((x - c) / math.dist(x, c) ** 3 for c in ((10, 10 - w), (10, 0)))
        x = x + 0.1 * v
        if x[1] <= 0:
            return (x - x[1] / v[1] * v)[0] ** 2
        v = v + 0.1 * force


# ---- Inputs ------------------------------------------------------------------------------------------------


SIZES = {"hello": (), "lse": (9,), "llsq": (11, 4), "det": (5,), "ode": (6, 3), "kmeans": (4, 40, 3)}
SIZES |= {"lstm": (2, 6, 3), "gmm": (3, 4, 7), "ba": (3, 5, 12), "ht": (13, 5, True)}
SIZES |= {"particle": (), "saddle": ()}
RNG = np.random.default_rng(5)
INPUTS = {name: figures.INPUTS[name](RNG, *sizes) for name, sizes in SIZES.items()}
INPUTS["gmm"] |= {"gamma": 1.3, "m": 2}
INPUTS["ht"]["data"]["model"]["is_mirrored"] = True
INPUTS["ht-simple"] = {**INPUTS["ht"], "us": []}
INPUTS["det-9"] = figures.INPUTS["det"](RNG, 9)  # beyond det.AT_ONCE
FUNCTIONS = {
    "hello": "square double",
    **dict.fromkeys(("lse", "llsq", "det", "det-9", "ode"), "primal gradient"),
    "kmeans": "cost dir",
    **dict.fromkeys(("lstm", "gmm", "ba", "ht", "ht-simple"), "objective jacobian"),
    **dict.fromkeys(("particle", "saddle"), "rr"),
}
REQUESTS = [(key, function) for key, names in FUNCTIONS.items() for function in names.split()]


def ask(**message):
    return protocol.answer({"id": 7, **message})


def session(messages):
    """The answers of the program, run as GradBench runs it."""
    lines = "".join(json.dumps({"id": i, **m}) + "\n" for i, m in enumerate(messages))
    done = small_run.module("bench.gradbench", input=lines, timeout=300, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [a["id"] for a in answers] == list(range(len(messages)))
    return answers


@pytest.fixture(scope="module")
def answers():
    """(key of INPUTS, function) -> output, all of one session."""
    messages = [
        {"kind": "evaluate", "module": key.split("-")[0], "function": function, "input": INPUTS[key]}
        for key, function in REQUESTS
    ]
    outputs = {}
    for request, answer in zip(REQUESTS, session(messages), strict=True):
        assert answer["success"], (request, answer.get("error"))
        outputs[request] = answer["output"]
    return outputs


def numbers(output):
    """The numbers of an objective; those of bundle adjustment are of one observation."""
    return np.ravel(output["reproj_error"]["elements"] if isinstance(output, dict) else output)


def differences(key, *names):
    """Central differences of an objective for every number of these fields: an array (numbers, *results).

    Error about h**2 = 1e-10 for values, and derivatives, of order 1.
    """
    module = key.split("-")[0]
    objective = {"kind": "evaluate", "module": module, "function": FUNCTIONS[key].split()[0]}

    def f(inp):
        return numbers(ask(**objective, input=inp)["output"])

    rows, h = [], 1e-5
    for name in names:
        values = np.array(INPUTS[key][name], float)
        for i in np.ndindex(values.shape):
            ends = []
            for sign in (1, -1):
                moved = values.copy()
                moved[i] += sign * h
                ends.append(f({**INPUTS[key], name: moved.tolist()}))
            rows.append((ends[0] - ends[1]) / (2 * h))
    return np.array(rows)


def close(got, expected, rel=1e-7):
    """Relative to the largest of all numbers, as rounding errors are."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(got, expected, rtol=rel, atol=rel * np.max(np.abs(expected)))


# ---- Values and gradients ----------------------------------------------------------------------------------


# The sum of an objective's numbers times 1, cos 1, cos 2 ... at INPUTS. At other inputs loops in plain Python
# gave the same as the formulas that these were computed by
VALUES = {
    "hello": 9.0,
    "lse": math.log(sum(map(math.exp, INPUTS["lse"]["x"]))),
    "llsq": 15.573713672309932,
    "det": np.linalg.det(np.reshape(INPUTS["det"]["A"], (5, 5))),
    "det-9": np.linalg.det(np.reshape(INPUTS["det-9"]["A"], (9, 9))),
    "ode": 0.35859596420796097,
    "kmeans": 5.541178304738821,
    "lstm": -0.2618738335388329,
    "gmm": -50.049400803047305,
    "ba": -16568.514197931265,
    "ht": -19.466647826797107,
    "ht-simple": 17.25933005111424,
}


@pytest.mark.parametrize("key", VALUES)
def test_value_is_that_of_the_definition(answers, key):
    values = numbers(answers[key, FUNCTIONS[key].split()[0]])
    assert values @ np.cos(np.arange(values.size)) == pytest.approx(VALUES[key], rel=1e-11)


@pytest.mark.parametrize(
    "key, function, names",
    [
        ("hello", "double", []),
        ("lse", "gradient", ["x"]),
        ("llsq", "gradient", ["x"]),
        ("det", "gradient", ["A"]),
        ("ode", "gradient", ["x"]),
        ("lstm", "jacobian", ["main_params", "extra_params"]),
    ],
)
def test_gradient_agrees_with_finite_differences(answers, key, function, names):
    """Of a solution of equations, that of its last component."""
    expected = differences(key, *names) if names else np.array([6.0])  # of a square
    close(answers[key, function], expected[:, -1] if key == "ode" else np.ravel(expected))


def test_gradient_of_a_determinant_computed_in_parts(answers):
    a = np.reshape(INPUTS["det-9"]["A"], (9, 9))
    close(answers["det-9", "gradient"], (np.linalg.det(a) * np.linalg.inv(a).T).ravel(), rel=1e-10)


def test_gmm_gradient_by_name(answers):
    got = answers["gmm", "jacobian"]
    assert list(got) == ["alpha", "mu", "q", "l"]
    for name, gradient in got.items():
        assert np.shape(gradient) == np.shape(INPUTS["gmm"][name])
        close(np.ravel(gradient), np.ravel(differences("gmm", name)))


def test_kmeans_direction(answers):
    """Newton's step: from the mean of the points nearest to a centroid to the centroid."""
    points, centroids = (np.array(INPUTS["kmeans"][name]) for name in ("points", "centroids"))
    nearest = np.argmin(np.linalg.norm(points[:, None] - centroids, axis=2), axis=1)
    expected = [c - points[nearest == k].mean(axis=0) for k, c in enumerate(centroids)]
    close(answers["kmeans", "dir"], expected, rel=1e-12)


# ---- Hand tracking and bundle adjustment -------------------------------------------------------------------


def test_hand_jacobian(answers):
    by_theta = differences("ht", "theta").T  # (3 N, 26)
    got = np.array(answers["ht", "jacobian"])
    assert got.shape == (15, 2 + 26)
    close(got[:, 2:], by_theta)
    by_us = differences("ht", "us").reshape(5, 2, 5, 3)  # point, coordinate, point, axis
    close(got[:, :2], np.concatenate([by_us[i, :, i].T for i in range(5)]))
    close(answers["ht-simple", "jacobian"], differences("ht-simple", "theta").T)


def test_bundle_errors(answers):
    got = answers["ba", "objective"]
    assert (got["reproj_error"]["repeated"], got["w_err"]["repeated"]) == (12, 12)
    assert got["w_err"]["element"] == pytest.approx(1 - 0.7**2)


def test_bundle_jacobian_is_sent_as_sparse_rows(answers):
    got = answers["ba", "jacobian"]
    assert [len(got[k]) for k in ("rows", "cols", "vals")] == [31, 31, 31]
    assert got["rows"] == [*range(0, 361, 15), 361, 362, 363, 364, 365, 372]
    columns = [*range(11), 33, 34, 35, 48]  # of the first observation: its camera, point, weight
    assert got["cols"] == columns * 2 + [59]
    expected = differences("ba", "cam", "x", "w")  # (15, 2)
    close(got["vals"], [*expected.T.ravel(), -2 * 0.7])


def test_bundle_jacobian_of_different_cameras():
    rng = np.random.default_rng(2)
    n, m, P = 3, 4, 6
    params = [rng.normal(size=s) for s in ((n, 11), (m, 3), (P,))]
    params[0][1, :3] = 0.0  # a camera without rotation
    observed = np.stack([rng.integers(0, n, P), rng.integers(0, m, P)], axis=1)
    observed[0, 0] = 1
    features = rng.normal(size=(P, 2))
    sparse = ba.jacobian(*params, observed, features)
    dense = np.zeros((3 * P, 11 * n + 3 * m + P))
    for row, (begin, end) in enumerate(zip(sparse["rows"], sparse["rows"][1:])):
        dense[row, sparse["cols"][begin:end]] = sparse["vals"][begin:end]

    def flat_errors(v):
        parts = [p.reshape(x.shape) for p, x in zip(np.split(v, [11 * n, 11 * n + 3 * m]), params)]
        return np.concatenate([e.ravel() for e in ba.errors(*parts, observed, features)])

    v, h = np.concatenate([x.ravel() for x in params]), 1e-6
    columns = [(flat_errors(v + h * e) - flat_errors(v - h * e)) / (2 * h) for e in np.eye(len(v))]
    expected = np.stack(columns, axis=1)
    # Each row relative to its largest entry: those of a point close to a camera's plane are huge. At a zero
    # rotation h itself is the angle, and the definition omits its second-order terms: a relative error of h.
    scale = np.max(np.abs(expected), axis=1, keepdims=True)
    np.testing.assert_allclose(dense / scale, expected / scale, rtol=0, atol=3e-6)


# ---- Nested derivatives ------------------------------------------------------------------------------------


def test_particle_lands_at_the_origin(answers):
    # The value is GradBench's. The descent ends where its next step would be shorter than 1e-5.
    assert answers["particle", "rr"] == pytest.approx(0.2071918746486116, rel=1e-9)
    assert plain_flight(answers["particle", "rr"]) < 1e-7


@pytest.mark.parametrize("outer, inner", descent.VARIANTS)
def test_gradient_of_the_particles_landing_place(outer, inner):
    force, value, gradient = particle.programs(outer, inner)
    w, h = 0.1, 1e-6
    steps = particle.steps_above(force, [w])
    assert value([w], steps) == pytest.approx(plain_flight(w), rel=1e-11)
    expected = (plain_flight(w + h) - plain_flight(w - h)) / (2 * h)
    assert gradient([w], steps) == pytest.approx([expected], rel=1e-7)


def test_saddle_point(answers):
    assert answers["saddle", "rr"] == pytest.approx([8.246324826140356e-06] * 4, rel=1e-9)


@pytest.mark.parametrize("outer, inner", descent.VARIANTS)
def test_gradient_through_a_maximisation(outer, inner):
    # Three steps of ascent: y <- y - 2 eta y, from (1, 2), independent of x
    _, value, gradient = saddle.programs(outer, inner)
    x, start, etas = [0.3, -0.7], [1.0, 2.0], np.array([0.1, 0.2, 0.05])
    shrunk = 0.8 * 0.6 * 0.9
    assert value(x, start, etas) == pytest.approx(0.09 + 0.49 - 5 * shrunk**2, rel=1e-12)
    assert gradient(x, start, etas) == pytest.approx([0.6, -1.4], rel=1e-12)


# ---- The protocol ------------------------------------------------------------------------------------------


def test_session_answers_every_message_and_reports_unknown_names():
    got = session(
        [
            {"kind": "start", "eval": "hello"},
            {"kind": "define", "module": "hello"},
            {"kind": "evaluate", "module": "hello", "function": "square", "input": 4.0, "description": "4"},
            {"kind": "analysis", "of": 2, "valid": True},
            {"kind": "define", "module": "goodbye"},
            {"kind": "evaluate", "module": "goodbye", "function": "square", "input": 4.0},
            {"kind": "evaluate", "module": "hello", "function": "cube", "input": 4.0},
            {"kind": "end"},
        ]
    )
    assert got[0]["tool"] == "gpt2"
    assert got[1] == {"id": 1, "success": True}
    assert (got[2]["success"], got[2]["output"]) == (True, 16.0)
    assert got[3] == {"id": 3}
    for answer, message in zip(got[4:7], ("goodbye", "goodbye", "no function 'cube'")):
        assert not answer["success"] and message in answer["error"]
    assert got[7] == {"id": 7}


def without_times(answer):
    """An answer without what depends on the run and the machine."""
    answer.pop("config", None)
    return {**answer, "timings": [t["name"] for t in answer.get("timings", [])]}


def test_session_on_the_documentation_page():
    lines = [line.strip() for line in (ROOT / "docs" / "gradbench.md").read_text().splitlines()]
    messages = [json.loads(line[2:]) for line in lines if line.startswith("> {")]
    replies = [json.loads(line[2:]) for line in lines if line.startswith("< {")]
    assert len(replies) == len(messages) == 6
    for message, expected in zip(messages, replies):
        got = without_times(protocol.answer(message))
        expected = without_times(expected)
        assert got.pop("output", 0.0) == pytest.approx(expected.pop("output", 0.0), rel=1e-14)
        assert got == expected


def test_evaluation_honours_min_runs_and_min_seconds():
    run = partial(ask, kind="evaluate", module="lse", function="gradient")
    names = [t["name"] for t in run(input={"x": [1.0, 2.0], "min_runs": 5})["timings"]]
    assert names == ["prepare", "compile"] + ["evaluate"] * 5
    timings = run(input={"x": [1.0, 2.0], "min_runs": 2, "min_seconds": 0.01})["timings"]
    spent = [t["nanoseconds"] for t in timings if t["name"] == "evaluate"]
    assert sum(spent) >= 0.01e9 > sum(spent[:-1])
    assert all(isinstance(t["nanoseconds"], int) for t in timings)


@pytest.mark.parametrize(
    "inp, message",
    [
        ({"x": [1.0], "min_runs": 0}, "min_runs is 0"),
        ({"x": [1.0], "min_seconds": -1}, "min_seconds is -1"),
        ({"y": [1.0]}, "KeyError: 'x'"),
        ({"x": ["a"]}, "could not convert"),
        (None, "input does not fit"),
        ({"x": [float("inf")]}, "not JSON compliant"),
    ],
)
def test_invalid_input_is_reported_as_a_failure(inp, message):
    answer = ask(kind="evaluate", module="lse", function="primal", input=inp)
    assert not answer["success"] and message in answer["error"]


@pytest.mark.parametrize("line", ["not json\n", "[1]\n", "{}\n"])
def test_invalid_message_ends_the_program_with_one_line(line):
    done = small_run.module("bench.gradbench", input=line)
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.startswith("error: line 1 of the input") and done.stderr.count("\n") == 1
