"""hello: the square of a number, and its derivative."""

from bench.gradbench.function import Function
from gpt2 import autodiff as ad


def square(x):
    return x * x


def _number(given):
    return (float(given),)


FUNCTIONS = {
    "square": Function(ad.compile(square, pure=True), _number),
    "double": Function(ad.grad(square, pure=True), _number),
}
