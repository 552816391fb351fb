"""Writes in place do what NumPy does, or raise where it raises, at the first call and later ones."""

import numpy as np
import pytest

from gpt2 import autodiff as ad

ARRAYS = {
    "F": np.array([1.0, -2.0, 3.0, 4.0]),
    "I": np.array([1, 2, 3]),
    "B": np.array([1, 2, 3], np.int8),
    "C": np.array([1j, 2 + 1j]),
    "M": np.arange(6.0).reshape(2, 3),
}
# Array and statements; the result is r, or what y is afterwards
CASES = """
F v = y.flat[0:2]; v *= 10.0 | F v = y.flat[0:2]; y *= 10.0; r = v | F y.flat[:] = y | F y.flat[::2] = [7, 8]
F y.flat[1] = [7, 8] | F y.flat[[0, 3]] = 5 | F y.flat[:] = [] | M y.flat[1:5] = [1, 2] | M y.flat = [1, 2]
M y.flat[y.flat > 2] = 9 | M r = [a * 1 for a in y.flat] | M r = y.T.flat[1:3] | M r = y.flat == 2
M i = y.flat; a = next(i); b = next(i); r = [a, b, i.index, *i.coords, len(i)] | M r = y.flat.base is y
M i = y.flat; a = next(i); b = i[3]; r = [a, b, next(i)] | M r = np.sum(y.flat) + np.add(y.flat, 1).sum()
M r = np.asarray(y.flat) | M r = y.flat.copy() | I np.add.at(y, [0, 1, 0], [1.5, 2.5, -1.5])
I np.subtract.at(y, [0, 1, 0], [1.5, 2.5, -1.5]) | I np.add.at(y, [0, 1, 0], 2) | F np.add.at(y, [0], 1j)
I np.add.at(y, [0, 0], np.array([1.5, 2.5])) | B np.add.at(y, [0, 0], np.array([100, 100]))
C r = np.nan_to_num(y * np.array([np.nan, np.inf])) | C y.real[0] = 5 | C v = y.imag; y *= 2; r = v
C y.imag = [np.inf, np.nan] | C y.real = [-0.0, np.inf] | C y.imag[1:] = -0.0
I r = np.prod(y, initial=0.5) | I r = np.prod(y, initial=4.9) | I r = np.sum(y * 2**53 + 1, initial=1.0)
I r = np.max(y, initial=4.9) | F r = np.sum(y, initial=1j) | B r = np.sum(y, initial=300)
I np.put(y, 0, np.nan) | I np.put(y, 0, 2.5) | I np.put(y, 0, np.array([2.5])) | F np.put(y, 0, 1j)
I np.put(y, [0, 5], [7, 8], mode="wrap") | I np.put(y, [0, 5], [7, 8], mode="clip") | I np.put(y, [5], 1)
I np.putmask(y, y > 1, np.nan) | I np.putmask(y, y > 1, 2.5) | I np.putmask(y, y > 1, [5, 6])
F np.putmask(y, y > 1, [5, 6]) | F np.putmask(y, y > 1, 1j) | F y[0] = 1j | F y[y > 0] = 1j
M z = y.astype(int); np.fill_diagonal(z, np.nan); r = z | M z = y.astype(int); np.fill_diagonal(z, 2.7); r = z
I y.fill(np.nan) | I y[0] = np.nan | I y[y > 1] = np.nan | B y[0] = 300 | B y[0] = 300.0
B y[:] = [300.0, 1, 2] | M z = np.fmax.accumulate(y.T, 0); v = z.reshape(-1); v += 1; r = [z, v]
M z = np.fmax.accumulate(np.broadcast_to(y[0], (2, 3)), 0); v = z.reshape(-1); v += 1; r = [z, v]
F y[0] = y[:1] | F y[0] = [2.0] | M y[0, 1] = y[:1, :1] | F y[0, ...] = y[:1] | F y[[0]] = y[:1]
F y.flat[0] = y[:1]
I z = np.zeros(3, int); z[0] = y[:1]; r = z | F z = np.zeros(3); z[0] = y[:1]; r = z
F y[np.array(0)] = y[:1]
F y[0] = y[1:2].reshape(()) | F y[:1] = y[None, 1:2] | F y.fill(y[:1])
F np.copyto(y, y[None] * 2) | F np.copyto(y, [[1, 2, 3, y[0]]]) | F np.place(y, y > 2, [1, y[0]])
F np.put(y, [0, 1], [y[3], 1.0]) | F r = np.insert(y, y.astype(int)[0], 9)
B y[:] = np.array([300.0, 1, 2]) | I np.copyto(y, 2.5) | I np.copyto(y, 2.5, casting="unsafe")
I np.copyto(y, np.nan, casting="unsafe") | I np.copyto(y, np.array([1.5] * 3), casting="unsafe")
I np.copyto(y, np.array([1.5] * 3)) | I np.copyto(y, 5, where=[True, False, True])
F np.copyto(y[1:], y[:-1])
I r = np.full_like(y, 1e300) | I r = np.full_like(y, np.inf) | F r = np.full_like(y, 1j)
B r = np.full_like(y, 300)
F z = y[0] * 1.0; np.place(z, True, 2.0) | F np.place(y, y > 0, y[::-1])
F y[:] = y[::-1] | F y[1:] = y[:-1] | F y[[0, 1, 2, 3]] = y[::-1] | F np.put(y, [0, 1, 2, 3], y[::-1])
F np.place(y, y > 0, [9, 8]) | F np.place(y, y > 0, []) | I np.place(y, y > 0, np.nan)
I np.place(y, y > 0, 2.5)
F z = y[:1].reshape(()).copy(); np.put(z, 0, 5.0); r = z | F z = y[:1].reshape(()).copy(); z[...] = 3; r = z
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [c for line in CASES.strip().splitlines() for c in line.split(" | ")])
def test_a_write(case):
    names = {"np": np}
    exec(f"def f(y):\n y = r = np.array(y)\n {case[2:]}\n return r", names)
    f, x = names["f"], ARRAYS[case[0]]
    g = ad.compile(f)
    try:
        wanted = f(x)
    except Exception as error:
        for _ in range(2):
            with pytest.raises(type(error)):
                g(x)
        return
    for _ in range(2):
        for found, value in zip(ad.tree.leaves(g(x)), ad.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(found, value, strict=type(value) is np.ndarray)
            np.testing.assert_array_equal(np.signbit(np.real(found)), np.signbit(np.real(value)))


@pytest.mark.parametrize("case", [
    "y.flat[:] = y[::-1]", "y[y > -9] = y[::-1]", "y[y > 0] = y[::-1][:3]", "np.place(y, y > 0, y)",
    "y.flat[::2] = y",
])  # fmt: skip
def test_a_write_that_reads_what_it_has_written_is_refused(case):
    names = {"np": np}
    exec(f"def f(y):\n y = np.array(y)\n {case}\n return y", names)
    with pytest.raises(ad.AutodiffError, match="Write a copy"):
        ad.compile(names["f"])(ARRAYS["F"])


# A first and a later argument, and statements that write x; NumPy refuses the later one, or casts it
NUMBERS = """
2.0 200.0 t[i] = x * 1.5 | 2.0 np.nan t[i] = x | SINGLE(2) SINGLE(np.inf) t[i] = x | 2.0 np.nan t.fill(x)
SINGLE(2) SINGLE(np.nan) t.flat[0] = x | SINGLE(2) SINGLE(np.nan) t.flat = x
SINGLE(2) SINGLE(np.nan) t[[0]] = x
2.0 np.nan t[[0]] = x | 2.0 np.nan t[t > 0] = [x, x] | 2.0 np.nan t = np.array(x, np.int8)
2.0 np.nan t = np.asarray([x, 1], dtype=int) | 2.0 np.nan t = np.insert(t, 1, x)
2.0 np.nan t = np.pad(t, 1, constant_values=x)
2.0 np.nan np.put(t, [0, 1], [x, 1.0]) | 2.0 np.nan t = np.insert(t, 1, [x, 1.0])
2.0 np.nan np.put(t, 0, x) | SINGLE(2) SINGLE(np.nan) np.put(t, 0, x) | 2.0 np.nan np.place(t, t > 0, x)
np.ones(3,int) np.full(3,90) t[:] = np.sum(x)
np.ones(3,int) np.full(3,90) t[[1]] = np.sum(x)
np.ones(3,int) np.full(3,90) t[:] = np.max(x) * 1.5
SINGLE(2) SINGLE(np.nan) np.copyto(t, [x, x], casting="unsafe")
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", ["t.copy()", "np.ones(2, np.int8)"])
@pytest.mark.parametrize("case", [c for line in NUMBERS.strip().splitlines() for c in line.split(" | ")])
def test_a_number_that_integers_cannot_hold_is_what_numpy_makes_of_it_at_later_calls(case, made):
    *numbers, statement = case.split(" ", 2)
    names = {"np": np, "SINGLE": np.float32}
    exec(f"def f(x, t, i):\n t = {made}\n {statement}\n return t", names)
    f, t = names["f"], np.array([1, 2], np.int8)
    g = ad.compile(f)
    for x in (eval(number, names) for number in numbers):
        try:
            wanted = f(x, t, 0)
        except Exception as error:
            with pytest.raises(type(error)):
                g(x, t, 0)
        else:
            np.testing.assert_array_equal(g(x, t, 0), wanted, strict=True)


def test_flat_takes_a_copy_of_itself():
    def f(x):
        y = np.arange(6) - 2
        y.flat = y[::-1]
        return y * x

    np.testing.assert_array_equal(ad.compile(f)(2), f(2))


def test_an_out_that_does_not_fit_is_an_error():
    def f(x):
        y = x.reshape(3, 2)
        np.take(y, [0, 1], out=y[:2])
        return y

    with pytest.raises(ValueError, match="out= has the shape"):
        ad.compile(f)(np.arange(6.0))
