"""python -m gpt2 explain: page and text are complete, the HTML is whole, colours change no source."""

import dataclasses
import inspect
import re
import sys
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from gpt2.commands.explain import __main__ as command
from gpt2.commands.explain.highlight import graph, lines, python
from gpt2.commands.explain.page import page
from gpt2.commands.explain.panels import panels, value_text
from gpt2.commands.explain.parts import explain
from gpt2.commands.explain.text import text
from gpt2.layers import LAYERS


class Reader(HTMLParser):
    """Checks that tags are closed in the order in which they were opened; collects each source's lines."""

    VOID = {"meta", "br", "link", "img", "input"}

    def __init__(self, source):
        super().__init__()
        self.open, self.blocks, self.fetched, self.folded = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        of = dict(attrs)
        self.fetched += [of[name] for name in ("src", "href") if of.get(name, "#")[0] != "#"]
        if tag not in self.VOID:
            self.open.append((tag, of.get("class", "")))
        if of.get("class") == "code":
            self.blocks.append([])
        if of.get("class", "").startswith("ln"):
            self.blocks[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if any(kind.startswith("ln") for _, kind in self.open):
            self.blocks[-1][-1] += data
            if ("details", "fold") in self.open and not any(tag == "summary" for tag, _ in self.open):
                self.folded.append(data)


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
    blocks = ["\n".join(lines) for lines in found.blocks]
    assert found.fetched == [] and "<script src" not in source  # opens from disk
    assert "url(" not in source and "@import" not in source and "fetch(" not in source
    for name, layer in LAYERS.items():
        assert f'<section class="layer" id="{name}">' in source
        for part in (layer.forward, layer.backward):
            assert inspect.getsource(part).rstrip() in blocks
        derived = [block for block in blocks if f"def {name}_backward(" in block and "import numpy" in block]
        assert len(derived) == 1 and f"def {name}_forward(" in derived[0]
        compile(derived[0], "derived", "exec")
    assert "DOES NOT HOLD" not in source
    assert source.count('<div class="stage">') == 8 * len(LAYERS)
    folded = "\n".join(found.folded)
    assert "raise" in folded and "Returns out" in folded and "np.add.at" not in folded


def test_lines_of_coloured_source():
    """Each is whole by itself: a span over several lines is closed and opened again."""
    source = 'def f():\n    """a\n    b < c\n\n    d"""\n    return 1'
    found = lines(python(source))
    assert [plain(line) for line in found] == source.split("\n")
    assert all(line.count("<span") == line.count("</span>") for line in found)
    assert found[2] == '<span class="s">    b &lt; c</span>'


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


@pytest.fixture(scope="module")
def shown():
    return panels("layernorm")


def about(statements, text):
    (found,) = [s for s in statements if s.source.strip().startswith(text)]
    return found


def test_statements_and_what_they_computed(shown):
    """Numbers of one run: those of the three sources are of the same layer on the same example."""
    assert [s.source.split("\n")[0].strip() for s in shown.forward if s.folded] == [
        '"""Normalise each row of inp, then scale and shift it.',
        'for name, vector in (("weight", weight), ("bias", bias)):',
    ]
    assert about(shown.forward, "C = ").values == "C = 12"
    assert about(shown.forward, "rstd =").values.startswith("rstd: float64 (2, 5, 1)\n[[1.42 ")
    assert about(shown.manual, "dweight =").values == about(shown.derived, "dweight =").values != ""
    assert shown.shapes == "inp (2, 5, 12), weight (12,), bias (12,)"
    returned = about(panels("residual").forward, "return").values
    assert returned.startswith("a + b: float64 (2, 5, 12)\n")


def test_values_as_text():
    rows = np.arange(36.0).reshape(3, 1, 12)
    assert value_text("x", rows) == (
        "x: float64 (3, 1, 12)\n[[ 0.  1. ... 10. 11.]\n [12. 13. ... 22. 23.]]\n... 1 more row"
    )
    assert value_text("n", 3) == "n = 3" and value_text("f", len) == ""


def test_lines_lead_to_lines_in_both_backwards(shown):
    variance = about(shown.forward, "variance =").line
    for statements, start in ((shown.manual, "dinp ="), (shown.derived, "dcentred =")):
        assert variance in about(statements, start).origins
    assert about(shown.manual, "dbias =").origins == (about(shown.forward, "out =").line,)
    known = {s.line for s in shown.forward}
    assert all({*s.origins} <= known for s in [*shown.manual, *shown.derived])


LOOP = """
import numpy as np
from gpt2 import autodiff as ad

def smooth(inp):
    def step(carry, x):
        carry = 0.5 * carry + x
        return carry, carry
    ys = ad.scan(step, np.zeros(inp.shape[:-1], inp.dtype), np.moveaxis(inp, -1, 0))[1]
    return np.tanh(np.moveaxis(ys, 0, -1))

LAYERS = {"gelu": smooth}
"""


def test_a_layer_with_a_loop_of_the_compilers(tmp_path):
    """Its derived text cannot be run: it is shown without numbers."""
    file = tmp_path / "smooth.py"
    file.write_text(LOOP)
    found = panels("gelu", str(file))
    assert about(found.forward, "return np.tanh").line in about(found.derived, "out = np.tanh").origins
    assert not any(s.values for s in found.derived) and any(s.values for s in found.forward)
    assert found.manual[0].source.startswith("# None: ")


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
    assert "no such folder" in capsys.readouterr().err and not (tmp_path / "nowhere").exists()
    assert command.main(["pear"]) == 2
    assert "'pear' is not one of encoder, " in capsys.readouterr().err
    assert command.main(["pear.py"]) == 2
    assert "; a file of own layers is named by --layers pear.py\n" in capsys.readouterr().err
    assert command.main([]) == 2
    assert re.search(r"required: LAYER; for example: .* explain layernorm\n$", capsys.readouterr().err)


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
    assert command.main(["model", "gelu"]) == 2 and "only by itself" in capsys.readouterr().err
