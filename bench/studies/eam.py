"""Study: gradient of an energy of many coordinates through one sum, as in the embedded-atom model."""

from functools import partial

import numpy as np

from bench.studies.measure import interleave, memory
from bench.studies.peers import gradients as gradients_of_peers
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad

SIZES = (100, 1000)
TOLERANCE = 1e-12  # relative to a gradient's largest entry: rounding of sums of a thousand numbers


def density(x, np=np):
    return np.sum(np.exp(-3.0 * (x + 1.0)))


def embedding(rho):
    return rho**2 + rho**3 + rho**4 / 4.0


def embedding_slope(rho):
    return 2.0 * rho + 3.0 * rho**2 + rho**3


def energy(x, np=np):
    """x (n,) -> a number. np: a library with NumPy's names."""
    return embedding(density(x, np))


def manual(x):
    e = np.exp(-3.0 * (x + 1.0))
    return -3.0 * embedding_slope(np.sum(e)) * e


@ad.custom_vjp
def density_with_rule(x):
    return density(x)


def _density_forward(x):
    e = np.exp(-3.0 * (x + 1.0))
    return np.sum(e), e


density_with_rule.defvjp(_density_forward, lambda e, drho: (-3.0 * drho * e,))


def gradients(n):
    """Title -> gradient(x), by hand and derived."""
    e, dx = np.empty(n), np.zeros(n)

    def preallocated(x):
        np.add(x, 1.0, out=e)
        np.multiply(e, -3.0, out=e)
        np.exp(e, out=e)
        return np.multiply(e, -3.0 * embedding_slope(float(e.sum())), out=e)

    def shadow(x):
        """In Enzyme's convention: added into a buffer that is zeroed before."""
        dx[:] = 0.0
        ad.autodiff(energy, ad.Duplicated(x, dx))
        return dx

    return {
        "gradient by hand": manual,
        "by hand, preallocated": preallocated,
        "derived": ad.grad(energy),
        "derived, into a buffer": partial(ad.grad(energy), out=np.zeros(n)),
        "derived, preallocated shadow": shadow,
        "derived, own rule for the sum": ad.grad(lambda x: embedding(density_with_rule(x))),
    }


def run(options):
    result = Result()
    sizes = SIZES[:1] if options.quick else SIZES
    for n in sizes:
        x = np.random.default_rng(n).random(n)
        gradient_of = {title: partial(gradient, x) for title, gradient in gradients(n).items()}
        for title, (xp, make) in gradients_of_peers(result).items():
            gradient_of[title] = make(partial(energy, np=xp), x)
        expected = manual(x)
        for title, f in gradient_of.items():
            error = np.max(np.abs(np.asarray(f()) - expected)) / np.max(np.abs(expected))
            assert error < TOLERANCE, f"{title}: the gradient is off by {error}"
        primal = {"function": partial(energy, x), "function, compiled": partial(ad.compile(energy), x)}
        functions = primal | gradient_of
        report(result, n, functions, interleave(functions, options.seconds / len(sizes) / 2))
    return result


def report(result, n, functions, times):
    table = result.table(
        f"{n} coordinates",
        "what | time [s] | by gradient by hand [x] | arrays | their bytes [B] | peak [B]",
        note="Arrays: allocations of NumPy for elements of arrays. Peak: bytes of Python and NumPy "
        "beyond those before the call. Neither counts memory that a compiled program holds "
        "between calls, recycled results, or what PyTorch and JAX allocate themselves.",
    )
    for title, f in functions.items():
        used = memory(f)
        ratio = times[title].over(times["gradient by hand"])
        table.add(title, times[title], ratio, used.arrays, used.array_bytes, used.peak_bytes)
    for one, other in (
        ("derived", "gradient by hand"),
        ("derived, into a buffer", "by hand, preallocated"),
        ("derived, own rule for the sum", "derived"),
    ):
        ratio = times[one].over(times[other])
        result.note(
            f"{n} coordinates: {one} takes {ratio.median:.2f} [{ratio.q1:.2f} {ratio.q3:.2f}] times "
            f"as long as {other}."
        )


STUDY = Study(
    "eam",
    "A function of many coordinates that goes through a single number: does the derived gradient keep up "
    "with one by hand, with one by hand in preallocated storage, and does a custom rule still help?",
    "E = rho^2 + rho^3 + rho^4 / 4 with rho the sum of exp(-3 (x + 1)) over 100 and over 1000 coordinates, "
    "in float64. Gradients are compared first, to 1e-12; then all take turns. Arrays and bytes are counted "
    "in separate calls.",
    run,
    seconds=12,
)
