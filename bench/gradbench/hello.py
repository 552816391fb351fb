"""hello: the square of a number, and its derivative."""

from bench.gradbench.function import Function
from gpt2 import autodiff as ad


def square(x):
    return x * x


def _number(data):
    return (float(data),)


FUNCTIONS = {
    "square": Function(ad.compile(square, pure=True), _number),
    "double": Function(ad.grad(square, pure=True), _number),
}
