"""ba: bundle adjustment, the errors of points projected by cameras (ADBench).

    camera   3 rotation (axis times angle), 3 centre, focal length, 2 principal point, 2 radial distortion
    errors   of an observation: weight * (projection - feature), 2 numbers; of a weight: 1 - weight**2

A row of the Jacobian has 11 + 3 + 1 entries, for its camera, point and weight.
"""

from functools import partial

import numpy as np

from bench.gradbench import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad

CAMERA = 11  # parameters


def errors(cameras, points, weights, observed, features):
    """cameras (n, 11), points (m, 3), weights (P,), observed (P, 2): camera and point, features (P, 2)."""
    of_points = formulas.ba(NUMPY, cameras[observed[:, 0]], points[observed[:, 1]], weights, features)
    return of_points, 1.0 - weights * weights


_blocks = ad.compile(partial(formulas.ba_blocks, NUMPY), pure=True)


def jacobian(cameras, points, weights, observed, features):
    """The Jacobian, (3 P, 11 n + 3 m + P), in CSR format: two rows an observation, then one a weight."""
    of_points, of_weights = _blocks(cameras[observed[:, 0]], points[observed[:, 1]], weights, features)
    n, m, P = len(cameras), len(points), len(weights)
    w = CAMERA * n + 3 * m + np.arange(P)
    of_camera = CAMERA * observed[:, :1] + np.arange(CAMERA)
    of_point = CAMERA * n + 3 * observed[:, 1:] + np.arange(3)
    columns = np.concatenate([of_camera, of_point, w[:, None]], axis=1)  # (P, 15)
    lengths = np.concatenate([np.full(2 * P, columns.shape[1]), np.ones(P, int)])
    return {
        "rows": np.concatenate([[0], np.cumsum(lengths)]),
        "cols": np.concatenate([np.repeat(columns, 2, axis=0).ravel(), w]),
        "vals": np.concatenate([of_points.ravel(), of_weights]),
    }


def _read(data):
    """The input has one camera, point, weight and feature, which are repeated."""
    n, m, P = (int(data[name]) for name in "nmp")
    number = np.arange(P)
    return (
        np.tile(array(data["cam"]), (n, 1)),
        np.tile(array(data["x"]), (m, 1)),
        np.full(P, float(data["w"])),
        np.stack([number % n, number % m], axis=1),
        np.tile(array(data["feat"]), (P, 1)),
    )


def _write_errors(result):
    of_points, of_weights = result
    return {
        "reproj_error": {"elements": of_points[0].tolist(), "repeated": len(of_points)},
        "w_err": {"element": float(of_weights[0]), "repeated": len(of_weights)},
    }


def _write_jacobian(sparse):
    """The first observation's two rows, and the last entry; all observations are equal."""
    shown = 2 * (CAMERA + 3 + 1)
    return {name: [*values[:shown].tolist(), values[-1].item()] for name, values in sparse.items()}


FUNCTIONS = {
    "objective": Function(ad.compile(errors, pure=True), _read, _write_errors),
    "jacobian": Function(jacobian, _read, _write_jacobian),
}
