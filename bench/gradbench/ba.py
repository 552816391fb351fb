"""ba: bundle adjustment, the errors of points projected by cameras (ADBench).

    camera   3 rotation (axis times angle), 3 centre, focal length, 2 principal point, 2 radial distortion
    errors   of an observation: weight * (projection - feature), 2 numbers; of a weight: 1 - weight**2

A row of the Jacobian has 11 + 3 + 1 entries, for its camera, point and weight. Observations are independent,
so two pullbacks, one for each coordinate of all observations, give all rows.
"""

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad

CAMERA = 11  # parameters


def rotated(axis, points):
    """points (P, 3) rotated around axis (P, 3) by its length in radians: Rodrigues' formula."""
    squared = np.sum(axis * axis, axis=1, keepdims=True)
    turns = squared > 0
    angle = np.sqrt(np.where(turns, squared, 1.0))  # sqrt has no derivative at 0
    unit = axis / angle
    along = np.sum(unit * points, axis=1, keepdims=True) * (1.0 - np.cos(angle))
    full = points * np.cos(angle) + np.cross(unit, points) * np.sin(angle) + unit * along
    return np.where(turns, full, points + np.cross(axis, points))


def projected(cameras, points):
    """Each point in the image of its camera: (P, 11), (P, 3) -> (P, 2)."""
    relative = rotated(cameras[:, :3], points - cameras[:, 3:6])
    image = relative[:, :2] / relative[:, 2:]
    squared = np.sum(image * image, axis=1, keepdims=True)
    distorted = image * (1.0 + cameras[:, 9:10] * squared + cameras[:, 10:11] * squared * squared)
    return distorted * cameras[:, 6:7] + cameras[:, 7:9]


def reprojection_errors(cameras, points, weights, features):
    """One camera, point, weight and feature an observation -> (P, 2)."""
    return weights[:, None] * (projected(cameras, points) - features)


def weight_errors(weights):
    return 1.0 - weights * weights


def errors(cameras, points, weights, observed, features):
    """cameras (n, 11), points (m, 3), weights (P,), observed (P, 2): camera and point, features (P, 2)."""
    of_points = reprojection_errors(cameras[observed[:, 0]], points[observed[:, 1]], weights, features)
    return of_points, weight_errors(weights)


def blocks(cameras, points, weights, observed, features):
    """The nonzeros of the Jacobian: (P, 2, 15) for observations, (P,) for weights."""
    arguments = cameras[observed[:, 0]], points[observed[:, 1]], weights
    _, pullback = ad.vjp(lambda c, p, w: reprojection_errors(c, p, w, features), *arguments)
    rows = []
    for coordinate in np.eye(2):
        dcameras, dpoints, dweights = pullback(np.tile(coordinate, (len(weights), 1)))
        rows.append(np.concatenate([dcameras, dpoints, dweights[:, None]], axis=1))
    return np.stack(rows, axis=1), ad.grad(lambda w: np.sum(weight_errors(w)))(weights)


_blocks = ad.compile(blocks, pure=True)


def jacobian(cameras, points, weights, observed, features):
    """The Jacobian, (3 P, 11 n + 3 m + P), in CSR format: two rows an observation, then one a weight."""
    of_points, of_weights = _blocks(cameras, points, weights, observed, features)
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
