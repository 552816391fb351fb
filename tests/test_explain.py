"""python -m gpt2 explain: page and text are complete, the HTML is whole, colours change no source."""

import dataclasses
import inspect
import re
import sys
from html import unescape
from html.parser import HTMLParser

import pytest

from gpt2.commands.explain import __main__ as command
from gpt2.commands.explain.highlight import graph, python
from gpt2.commands.explain.page import page
from gpt2.commands.explain.parts import explain
from gpt2.commands.explain.text import text
from gpt2.layers import LAYERS


class Reader(HTMLParser):
    """Checks that tags are closed in the order in which they were opened; collects the text of each pre."""

    VOID = {"meta", "br", "link", "img"}

    def __init__(self, source):
        super().__init__()
        self.open, self.blocks, self.fetched = [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href") and value[0] != "#"]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "pre":
            self.blocks.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "pre" in self.open:
            self.blocks[-1] += data


@pytest.fixture(scope="module")
def layernorm():
    return explain("layernorm")


def plain(html):
    return unescape(re.sub("<[^>]*>", "", html))


@pytest.mark.parametrize("name", LAYERS)
def test_colours_change_no_character(name):
    others = "a < b  # 'c' & d\n", "", "x = f'{{a}} {b!r:>{c}} {{'\n", "if a:\n    '''b\n  c'''"
    for source in (inspect.getsource(sys.modules[LAYERS[name].forward.__module__]), *others):
        assert plain(python(source)) == source
    assert plain(python("def broken(:\n  '''")) == "def broken(:\n  '''"
    assert python("this is ( no < program") == "this is ( no &lt; program"


def test_colours():
    assert python("def f(x):\n    return 1.5 * x  # why\n") == (
        '<span class="k">def</span> <span class="f">f</span>(x):\n    <span class="k">return</span> '
        '<span class="n">1.5</span> * x  <span class="c"># why</span>\n'
    )
    line = "f(x: f32[4])\n  t1: f32[4] = multiply(x, 2.0)\n  return t1"
    assert plain(graph(line)) == line
    op, number = '<span class="f">multiply</span>', '<span class="n">2.0</span>'
    assert graph(line).split("\n")[1] == f'  t1: <span class="t">f32[4]</span> = {op}(x, {number})'


def test_the_page_of_all_layers_is_whole(tmp_path, capsys):
    file = tmp_path / "layers.html"
    assert command.main(["all", "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    source = file.read_text(encoding="utf-8")
    found = Reader(source)
    assert found.fetched == [] and "<script" not in source  # opens from disk
    for name, layer in LAYERS.items():
        assert f'<h2 id="{name}">' in source
        for part in (layer.forward, layer.backward):
            assert inspect.getsource(part).rstrip() in found.blocks
        assert any(f"def {name}_backward(" in block and "import numpy" in block for block in found.blocks)
    assert "DOES NOT HOLD" not in source
    assert source.count("<details>") == 8 * len(LAYERS)


def test_the_stages_are_those_of_the_output(layernorm):
    titles = [title for title, _ in layernorm.stages]
    assert titles == [
        "recorded",
        "simplified",
        "differentiated",
        "simplified again",
        "forward",
        "backward",
        "forward, emitted",
        "backward, emitted",
    ]
    stages = dict(layernorm.stages)
    first, last = stages["recorded"].split("\n")[0], stages["recorded"].split("\n")[-1]
    assert first == "layernorm_forward(inp: f32[4,64,768], weight: f32[768], bias: f32[768])"
    assert last == "  return out"
    assert "run_blocks(" in stages["backward, emitted"]


def test_what_is_kept(layernorm):
    """Mean and rstd of 256 rows in float32 by hand; gelu keeps nothing but its input."""
    assert layernorm.kept[0] == 2 * 256 * 4
    assert explain("gelu").kept[0] == 0


def test_a_gradient_that_is_wrong_is_said_so(layernorm):
    wrong = dataclasses.replace(layernorm, errors={"manual~auto": (float("nan"), 1e-10)})
    assert "DOES NOT HOLD" in page([wrong]) and "DOES NOT HOLD" in text(wrong, 180)


def test_text_fits_the_terminal(layernorm):
    head = text(layernorm, 180).split("# recorded")[0].split("compiled for")[0]
    assert all(len(line) <= 180 for line in head.split("\n"))
    assert "backward, by hand" in head and " | def layernorm_backward(dout: Array, saved: tuple)" in head
    narrow = text(layernorm, 80)
    assert "---- derived by the compiler" in narrow and " | " not in narrow.split("compiled for")[0]


def test_command(capsys, tmp_path):
    assert command.main(["residual", "--emitted"]) == 0
    text = capsys.readouterr().out
    assert (
        text.startswith("residual: ")
        and "def residual_forward(a: Array, b: Array)" in text
        and "out=" in text
    )
    assert command.main(["residual", "--out", str(tmp_path / "page.txt")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert command.main(["residual", "--out", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err and not (tmp_path / "nowhere").exists()
    assert command.main(["pear"]) == 2
    assert "'pear' is none of encoder, " in capsys.readouterr().err


def test_the_whole_model_on_a_page(capsys, monkeypatch):
    """A block stands once in the forward and once in the backward, under llm.c's names."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert command.main(["model"]) == 0
    text = capsys.readouterr().out
    derived = text.split("---- derived by the compiler\n")[1]
    assert derived.count("def loss_stretch(") == derived.count("def loss_stretch_backward(") == 1
    assert derived.count("= loss_stretch(") == derived.count("= loss_stretch_backward(") == 1
    assert "for k in range(12):" in derived and "for k in reversed(range(12)):" in derived
    assert "def block_backward(" in text and "dfcprojw[k:k + 1]" in derived and "arrays_" not in derived
    assert len(derived.splitlines()) < 200 and max(map(len, derived.splitlines())) < 125
    compile(derived, "derived", "exec")  # tests/autodiff/show/test_readable.py runs it, at a smaller size
    monkeypatch.setenv("COLUMNS", "80")
    assert command.main(["model"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 80
    assert command.main(["model", "gelu"]) == 2 and "stands alone" in capsys.readouterr().err
