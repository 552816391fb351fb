"""Computes maximum flow and minimum cut. Dinic 1970, "Algorithm for solution of a problem of maximum flow".

Capacities are whole numbers, so that the answer does not depend on rounding. Nodes are numbered from 0.
"""

from __future__ import annotations

UNLIMITED = 1 << 60


class Network:
    """A network with capacities. What flows along edge i may be sent back along i ^ 1, its twin."""

    def __init__(self, n: int):
        self.edges: list[list[int]] = [[] for _ in range(n)]  # of each node: edges that leave it
        self.target: list[int] = []
        self.capacity: list[int] = []

    def edge(self, a: int, b: int, capacity: int) -> None:
        if capacity <= 0:
            return
        self.edges[a].append(len(self.target))
        self.edges[b].append(len(self.target) + 1)
        self.target += (b, a)
        self.capacity += (capacity, 0)

    def cut(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of the minimum cut; of several, of the one nearest the sink."""
        while source in (distance := self._distances(sink)):
            self._saturate(source, sink, distance)
        return set(range(len(self.edges))) - distance.keys()

    def _distances(self, sink: int) -> dict[int, int]:
        """The distance to the sink along edges with room, of each node from which there is a way."""
        distance = {sink: 0}
        front = [sink]
        for v in front:  # which grows
            for e in self.edges[v]:
                w = self.target[e]
                if w not in distance and self.capacity[e ^ 1]:
                    distance[w] = distance[v] + 1
                    front.append(w)
        return distance

    def _saturate(self, source: int, sink: int, distance: dict[int, int]) -> None:
        """Send flow along shortest paths until none is left."""
        target, capacity, edges = self.target, self.capacity, self.edges
        at = [0] * len(edges)  # the edge of each node to try next; those before it lead nowhere any more
        while True:
            path: list[int] = []
            v = source
            while v != sink:
                out, k, nearer = edges[v], at[v], distance[v] - 1
                while k < len(out) and not (capacity[out[k]] and distance.get(target[out[k]]) == nearer):
                    k += 1
                at[v] = k
                if k < len(out):
                    path.append(out[k])
                    v = target[out[k]]
                elif path:
                    v = target[path.pop() ^ 1]
                    at[v] += 1
                else:
                    return
            sent = min([capacity[e] for e in path])
            for e in path:
                capacity[e] -= sent
                capacity[e ^ 1] += sent
