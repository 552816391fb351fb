"""Computes maximum flow and minimum cut. Dinic 1970, "Algorithm for solution of a problem of maximum flow".

Capacities are whole numbers, so that the answer does not depend on rounding. Nodes are numbered from 0.
"""

from __future__ import annotations

UNLIMITED = 1 << 60


class Network:
    """A network with capacities. What flows along edge i may be sent back along i ^ 1, its twin."""

    def __init__(self, n: int):
        self.n = n
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
        while (level := self._levels(source, sink)) is not None:
            self._saturate(source, sink, level)
        return set(range(self.n)) - self._leading_to(sink)

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """Each node's distance from the source along edges with room; None if the sink is out of reach."""
        level = [-1] * self.n
        level[source] = 0
        front = [source]
        target, capacity, edges = self.target, self.capacity, self.edges
        while front:
            following = []
            for v in front:
                for e in edges[v]:
                    w = target[e]
                    if level[w] < 0 and capacity[e]:
                        level[w] = level[v] + 1
                        following.append(w)
            if level[sink] >= 0:
                return level
            front = following
        return None

    def _saturate(self, source: int, sink: int, level: list[int]) -> None:
        """Send flow along shortest paths until none is left."""
        target, capacity, edges = self.target, self.capacity, self.edges
        at = [0] * self.n  # the edge of each node to try next; those before it lead nowhere any more
        path: list[int] = []
        v = source
        while True:
            if v == sink:
                sent = min([capacity[e] for e in path])
                first = 0
                for k in range(len(path) - 1, -1, -1):
                    e = path[k]
                    capacity[e] -= sent
                    capacity[e ^ 1] += sent
                    if not capacity[e]:
                        first = k
                v = target[path[first] ^ 1]
                del path[first:]
                continue
            out, k, further = edges[v], at[v], level[v] + 1
            end = len(out)
            while k < end and not (capacity[e := out[k]] and level[target[e]] == further):
                k += 1
            at[v] = k
            if k < end:
                path.append(e)
                v = target[e]
            elif v == source:
                return
            else:
                v = target[path.pop() ^ 1]
                at[v] += 1

    def _leading_to(self, sink: int) -> set[int]:
        """The nodes from which there is still a way with room."""
        seen, stack = {sink}, [sink]
        while stack:
            v = stack.pop()
            for e in self.edges[v]:
                w = self.target[e]
                if self.capacity[e ^ 1] and w not in seen:
                    seen.add(w)
                    stack.append(w)
        return seen
