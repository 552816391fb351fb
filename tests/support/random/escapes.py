"""Random functions in which plain numbers are taken out of recorded values, and what becomes of them.

    check(write(seed))      "refused", or "right": the gradient is the slope of the function as it is written

The function computes a number of x. On the way it takes plain ones (float(x), int(x), complex(x, 1.0)),
passes them through variables, containers, branches, loops, handlers and functions, decides by some and
computes with others. Where a taken number reached the result, the derivative that the compiler knows lacks a
part of the slope: so a function must either be refused or have the slope that differences give.
"""

import math
import random

import numpy as np

from gpt2 import autodiff as ad

AT = 2.618  # no threshold and no step lies near, nor near its multiples
STEP = 1e-6
HEAD = ["def helper(v):", "    return float(v)", "def steps(v):", "    return int(v)"]
TAKEN = """
float({y})
int({y})
float(x)
int(x)
float({y} * 0.5)
helper({y})
steps(x)
x.__float__()
complex({y}, 1.0).real
abs(float({y}))
-float({y})
float({y}) if x > 1 else 0.5
({y} and float({y}))
min(int({y}), 3)
float(ad.stop_gradient({y}) * 0 + 2)
math.floor({y})
round(x)
int(np.floor({y}))
""".strip().splitlines()
# {n} is a plain number that was taken, {y} and {z} are recorded ones, {c} is a constant, and | ends a line
DECIDING = """
if {n} > {c}:|    {y} = {y} * {c}
while {n} < {c} and {y} < 50:|    {y} = {y} + {c}|    {n} = float({y})
for k in range(int({n}) % 4):|    {y} = {y} + k * {c}
{y} = {y} * len(f'{{{n}:.1f}}')
{y} = {y} * [1.0, 2.0, 3.0][int({n}) % 3]
{y} = {y} * (2.0 if {n} in (1, 2.0, {c}) else 3.0)
print({n}, end='')
{y} = {y} * np.ones(int(abs({n})) % 5).size
{y} = {y} + ({n} > {c})
{y} = {y} * len([k for k in range(9) if k < {n}])
if not {c} < {n} < 40:|    {n} = {c}
try:|    if {n} > {c}:|        raise KeyError|except KeyError:|    {y} = {y} * 2.0
{y} = sorted([{y}, {c} * x], key=lambda v: float(v))[0]
{y} = {y} * (3.0 if math.isfinite({n}) else 1.0)
assert {n} == {n}, f'{{{n}}}'
{y} = {y} * len('%.2f' % {n})
{n} = {n} + 1
{n} = {n} * {c}
""".strip().splitlines()
COMPUTING = """
{y} = {y} * {n}
{y} = {y} + {n}
{y} = np.sin({n}) + {y}
{y} += {n} * {c}
{y} = {y} * max({n}, {c})
kept = [{c}, {n}]|{y} = {y} * kept[1]
kept = {{'n': {n}}}|{y} = {y} * kept['n']
pair = ({n}, {c})|{y} = {y} * pair[0]
a = np.ones(2)|b = a|a *= {n}|{y} = {y} * b[0]
table = {{}}|table[{n}] = 1|{y} = {y} * list(table)[0]
{y} = {y} * (lambda: {n})()
def inner(v):|    return v * {n}|{y} = inner({y})
def twice(n):|    return n * 2|{y} = {y} * twice({n})
{y} = {y} * sum(v for v in ({n}, {c}))
try:|    raise ValueError({n})|except ValueError as error:|    {y} = {y} * error.args[0]
class Box:|    n = {n}|{y} = {y} * Box.n
def inner(v, n={n}):|    return v * n|{y} = inner({y})
for m in [{n}, {c}]:|    {y} = {y} * m
first, *others = {n}, {c}, 1.0|{y} = {y} * first
{y} = {y} * (({n} or {c}))
{y} = {y} * locals()['{n}']
{y} = {y} - {n}
def numbers():|    yield {n}|{y} = {y} * next(numbers())
kept = []|kept.append({n})|{y} = {y} * kept.pop()
def outer():|    nonlocal {y}|    {y} = {y} * {n}|outer()
{y} = {y} * np.full(2, {n})[0]
try:|    raise KeyError|except KeyError:|    {y} = {y} * {n}
{y} = math.sin({n}) * {y}
{y} = {y} ** {n}
""".strip().splitlines()
PLAIN = """
{y} = {y} * {c}
{y} = np.sin({y}) + 2.0
{y} = {y} + x
{z} = {y} * x
{y} = {y} * {z}
""".strip().splitlines()
BLOCKS = """
if x > 1.1:
if y > 1e9:
for _ in range(2):
while True:
with np.errstate(all='ignore'):
""".strip().splitlines()


def write(seed: int) -> str:
    """The source of a function f."""
    rng = random.Random(seed)
    lines = ["y, z = x * 1.5, x + 0.25", "m, n = 2.0, 0.75"]
    for _ in range(rng.randint(2, 6)):
        lines += _statement(rng, 0)
    lines.append(f"return {rng.choice(('y', 'y * z', 'y + z', 'y', 'z * y'))}")
    return "\n".join([*HEAD, "def f(x):", *("    " + line for line in lines)])


def _statement(rng: random.Random, depth: int) -> list[str]:
    names = {
        "n": rng.choice("mn"),
        "y": rng.choice("yz"),
        "z": rng.choice("yz"),
        "c": rng.choice("0.7321 1.4427 3.1717".split()),
    }
    if depth < 2 and rng.random() < 0.2:
        head = rng.choice(BLOCKS)
        inner = [line for _ in range(rng.randint(1, 3)) for line in _statement(rng, depth + 1)]
        return [head, *("    " + line for line in inner), *(["    break"] if head == "while True:" else [])]
    if rng.random() < 0.4:
        return [f"{names['n']} = {rng.choice(TAKEN).format(**names)}"]
    kind = rng.choices((DECIDING, COMPUTING, PLAIN), (6, 2, 3))[0]
    return rng.choice(kind).format(**names).split("|")


def check(source: str) -> str:
    """Whether it is "refused", "right", or "undecided", where f does not run as it is or has no slope.

    Raises AssertionError where the gradient is wrong.
    """
    names = {"np": np, "math": math, "ad": ad}
    exec(compile(source, "<escape>", "exec"), names)
    f = names["f"]
    try:
        low, mid, high, further = (f(AT + k * STEP) for k in (-1, 0, 1, 2))
    except Exception:  # it does not run as it is
        return "undecided"
    slope, other = (high - low) / (2 * STEP), (further - mid) / (2 * STEP)
    if not np.isfinite(slope) or not abs(slope) < 1e6 or not np.isclose(slope, other, 1e-3, 1e-3):
        return "undecided"
    try:
        found = ad.grad(f)(AT)
    except ad.AutodiffError:
        return "refused"
    if not np.isfinite(found):  # 0 times the infinite slope of 0.0 ** 0.75
        return "undecided"
    assert np.isclose(found, slope, 1e-3, 1e-3 * (1 + abs(mid))), f"{found} for {slope} of\n{source}"
    return "right"
