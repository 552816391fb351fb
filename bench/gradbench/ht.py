"""ht: hand tracking, the distance of measured points from a posed model of a hand (ADBench).

    theta   (26,)     of the hand, see bench.programs.formulas.hand
    us      (N, 2)    barycentric coordinates of each point in its triangle; empty if it belongs to a vertex

The Jacobian has 3 N rows and a column for each entry of theta. With us there are two columns before these: a
row depends on the two coordinates of its own point only, so two tangents give the columns for all points.
"""

import numpy as np

from bench.gradbench import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad


def errors(theta, us, points, places, model):
    """Measured points (N, 3) minus those of the hand: (N, 3).

    places   (N,) the vertex of each point, or with us (N, 3), the vertices of its triangle
    """
    hand = formulas.hand(NUMPY, theta, *model)
    if places.ndim == 1:
        return points - hand[places]
    u, v = us[:, :1], us[:, 1:]
    a, b, c = (hand[places[:, k]] for k in range(3))
    return points - (u * a + v * b + (1.0 - u - v) * c)


def jacobian(theta, us, points, places, model):
    """(3 N, 26), or with us (3 N, 2 + 26)."""
    by_theta = ad.jacobian(errors)(theta, us, points, places, model).reshape(-1, len(theta))
    if places.ndim == 1:
        return by_theta
    of_us = lambda us: errors(theta, us, points, places, model)  # noqa: E731
    by_us = [ad.jvp(of_us, (us,), (np.tile(unit, (len(us), 1)),))[1] for unit in np.eye(2)]
    return np.concatenate([*(d.reshape(-1, 1) for d in by_us), by_theta], axis=1)


def hand_constants(bones, mirrored=False):
    """The index of each bone's angles, among 20 angles and a zero after them, and constant matrices."""
    x, z = np.full(bones, 20), np.full(bones, 20)
    for finger in range(5):
        first = 2 + 4 * finger
        x[first : first + 3] = 4 * finger + np.array([0, 2, 3])
        z[first] = 4 * finger + 1
    return {
        "zero": np.zeros(bones),
        "one": np.ones(bones),
        "x": x,
        "z": z,
        "eye": np.eye(3),
        "column": np.zeros((bones, 3, 1)),
        "last": np.tile([0.0, 0.0, 0.0, 1.0], (bones, 1, 1)),
        "mirror": np.array([-1.0 if mirrored else 1.0, 1.0, 1.0]),
    }


def _read(message):
    data, us = message["data"], message["us"]
    model = data["model"]
    places = array(data["correspondences"], int)
    if len(us):
        places = array(model["triangles"], int)[places]
    names = "base_relatives", "inverse_base_absolutes", "base_positions", "weights"
    parents = tuple(int(p) for p in model["parents"])
    fixed = hand_constants(len(parents), bool(model["is_mirrored"]))
    parts = (*(array(model[name]) for name in names), fixed, parents)
    return array(message["theta"]), array(us).reshape(-1, 2), array(data["points"]), places, parts


FUNCTIONS = {
    "objective": Function(ad.compile(errors, pure=True), _read, lambda e: e.ravel().tolist()),
    "jacobian": Function(ad.compile(jacobian, pure=True), _read),
}
