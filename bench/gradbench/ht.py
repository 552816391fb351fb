"""ht: hand tracking, the distance of measured points from a posed model of a hand (ADBench).

    theta   (26,)     3 rotation of the hand (axis times angle), 3 translation, 4 angles a finger
    us      (N, 2)    barycentric coordinates of each point in its triangle; empty if points belong to
    vertices

The Jacobian has 3 N rows and a column for each entry of theta. With us there are two columns before these: a
row depends on the two coordinates of its own point only, so two tangents give the columns for all points.
"""

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad

FINGERS = 5
SMALL = 1e-4  # radians; smaller rotations are the identity


def turned_by(axis):
    """The rotation matrix (3, 3) around axis (3,) by its length."""
    squared = np.sum(axis * axis)
    turns = squared >= SMALL**2
    angle = np.sqrt(np.where(turns, squared, 1.0))
    unit = axis / angle
    x, y, z = unit
    zero = np.zeros(())
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)
    outer = unit[:, None] * unit
    full = outer + (np.eye(3) - outer) * np.cos(angle) + cross * np.sin(angle)
    return np.where(turns, full, np.eye(3))


def bend(theta, bones):
    """The rotations of the bones, (bones, 3, 3): around x, then around z.

    A finger has 4 angles: three of its four bones bend, and the first of them moves sideways too.
    """
    angles = theta[6:].reshape(FINGERS, 4)
    first = 2 + 4 * np.arange(FINGERS)
    x, z = np.zeros(bones, like=theta), np.zeros(bones, like=theta)
    x[first], x[first + 1], x[first + 2] = angles[:, 0], angles[:, 2], angles[:, 3]
    z[first] = angles[:, 1]
    zero, one = np.zeros(bones), np.ones(bones)
    about_x = np.stack([one, zero, zero, zero, np.cos(x), -np.sin(x), zero, np.sin(x), np.cos(x)], axis=1)
    about_z = np.stack([np.cos(z), -np.sin(z), zero, np.sin(z), np.cos(z), zero, zero, zero, one], axis=1)
    return about_z.reshape(bones, 3, 3) @ about_x.reshape(bones, 3, 3)


def vertices(theta, model):
    """The posed hand's vertices, (M, 3)."""
    parents, base_relatives, inverse_base_absolutes, base_positions, weights, mirrored = model
    bones = len(parents)
    local = np.zeros((bones, 4, 4), like=theta)
    local[:, :3, :3] = bend(theta, bones)
    local[:, 3, 3] = 1.0
    relatives = base_relatives @ local
    absolutes = []
    for i, parent in enumerate(parents):  # a parent comes before its children
        absolutes.append(relatives[i] if parent < 0 else absolutes[parent] @ relatives[i])
    transforms = np.stack(absolutes) @ inverse_base_absolutes
    # A vertex is moved by the weighted sum of the bones' transforms
    of_vertex = (weights @ transforms[:, :3].reshape(bones, 12)).reshape(-1, 3, 4)  # (M, 3, 4)
    positions = np.sum(of_vertex * base_positions[:, None], axis=2)
    if mirrored:
        positions = positions * np.array([-1.0, 1.0, 1.0])
    return positions @ turned_by(theta[:3]).T + theta[3:6]


def errors(theta, us, points, places, model):
    """Measured points (N, 3) minus those of the hand: (N, 3).

    places   (N,) the vertex of each point, or with us (N, 3), the vertices of its triangle
    """
    hand = vertices(theta, model)
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


def _read(message):
    data, us = message["data"], message["us"]
    model = data["model"]
    places = array(data["correspondences"], int)
    if len(us):
        places = array(model["triangles"], int)[places]
    parts = (
        tuple(int(p) for p in model["parents"]),
        array(model["base_relatives"]),
        array(model["inverse_base_absolutes"]),
        array(model["base_positions"]),
        array(model["weights"]),
        bool(model["is_mirrored"]),
    )
    return array(message["theta"]), array(us).reshape(-1, 2), array(data["points"]), places, parts


FUNCTIONS = {
    "objective": Function(ad.compile(errors, pure=True), _read, lambda e: e.ravel().tolist()),
    "jacobian": Function(ad.compile(jacobian, pure=True), _read),
}
