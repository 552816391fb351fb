"""The cost model of a cluster, and the table of docs/parallel.md that is computed with it."""

import re

import pytest

from bench.harness import cluster
from gpt2.model import GPT2Config
from tests import ROOT


@pytest.fixture(scope="module")
def rows():
    return cluster.rows()


@pytest.mark.slow
def test_documented_efficiencies_are_the_computed_ones(rows):
    rows = {(row["network"], row["model"], row["nodes"]): row for row in rows}
    shown, network, nodes = set(), None, None
    for line in (ROOT / "docs" / "parallel.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("Efficiency, "):
            network = line.removeprefix("Efficiency, ").rstrip(":")
        elif cells[0] == "nodes":
            nodes = [int(cell) for cell in cells[1:]]
        elif network and cells[0].startswith("gpt2"):
            model = cells[0].split(",")[0]
            assert cells[1:] == [f"{rows[network, model, n]['efficiency']:.0%}" for n in nodes]
            shown.add((network, model))
    assert len(shown) == 4


@pytest.mark.slow
def test_documented_least_efficiencies_are_the_computed_ones(rows):
    (line,) = re.findall(
        "With 100 Gb/s InfiniBand it is at least .*", (ROOT / "docs" / "parallel.md").read_text()
    )
    fast = [row for row in rows if row["network"] == "100 Gb/s InfiniBand"]
    for percent, model in re.findall(r"(\d+) % for (gpt2[\w-]*)", line):
        least = min(row["efficiency"] for row in fast if row["model"] == model)
        assert f"{least:.0%}" == f"{percent}%", model


def test_cluster_step_costs():
    slow, fast = cluster.CLUSTERS
    config = GPT2Config.preset("gpt2")
    alone = cluster.step(config, 1, slow)
    assert alone["exposed"] == alone["reduce"] == 0 and alone["step"] == alone["compute"] + alone["update"]
    # By hand: between two nodes, each sends and receives one buffer of 124 million float32 gradients in all
    assert cluster.all_reduce(4 * config.num_parameters, 2, slow) == pytest.approx(
        4 * config.num_parameters / 1.125e9 + 2 * 30e-6
    )
    for n in (2, 64, 1024):
        part, whole = cluster.step(config, n, fast), cluster.step(config, n, slow)
        assert 0 < part["exposed"] < part["reduce"] and part["exposed"] < whole["exposed"]
        assert cluster.efficiency(config, n, slow) < cluster.efficiency(config, n, fast) < 1
        assert cluster.efficiency(config, n, slow, B=64) > cluster.efficiency(config, n, slow)
