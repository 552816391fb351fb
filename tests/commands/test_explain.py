"""gpt2 explain: its page and text are complete, the HTML is well formed, highlighting keeps the source."""

import ast
import dataclasses
import inspect
import re
import sys
from html import unescape
from html.parser import HTMLParser

import pytest

from gpt2.autodiff.show.highlight import lines, python
from gpt2.cli import wrapped_code
from gpt2.commands.explain import __main__ as command
from gpt2.commands.explain.page import explanation, page, text
from gpt2.commands.explain.parts import explain
from gpt2.commands.explain.sources import whole_source, written_source
from gpt2.layers import ALL_LAYERS as LAYERS


class Reader(HTMLParser):
    """Checks that tags are closed in the order in which they were opened.

    blocks    the lines of each source
    fetched   the addresses of other files
    folded    the text that is folded away
    """

    VOID = {"meta", "br", "link", "img", "input"}

    def __init__(self, source):
        super().__init__()
        self.open, self.blocks, self.fetched, self.folded = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        kind = attrs.get("class", "")
        self.fetched += [attrs[name] for name in ("src", "href") if attrs.get(name, "#")[0] != "#"]
        if tag not in self.VOID:
            self.open.append((tag, kind))
        if kind == "code":
            self.blocks.append([])
        if kind.startswith("ln"):
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


def text_of(html):
    return unescape(re.sub("<[^>]*>", "", html))


SOURCES = {name: inspect.getsource(sys.modules[LAYERS[name].forward.__module__]) for name in LAYERS}
SOURCES["comparison"] = "a < b  # 'c' & d\n"
SOURCES["empty"] = ""
SOURCES["f-string"] = "x = f'{{a}} {b!r:>{c}} {{'\n"
SOURCES["no end of line"] = "if a:\n    '''b\n  c'''"
SOURCES["syntax error"] = "def broken(:\n  '''"


@pytest.mark.parametrize("name", SOURCES)
def test_highlighting_changes_no_character(name):
    assert text_of(python(SOURCES[name])) == SOURCES[name]


def test_page_of_all_layers_is_complete_and_one_file(tmp_path, capsys):
    file = tmp_path / "layers.html"
    assert command.main(["all", "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    source = file.read_text(encoding="utf-8")
    reader = Reader(source)
    blocks = ["\n".join(lines) for lines in reader.blocks]
    assert reader.fetched == [] and "<script src" not in source
    assert "url(" not in source and "@import" not in source and "fetch(" not in source
    for name, layer in LAYERS.items():
        assert f'<section class="layer" id="{name}">' in source
        for part in (layer.forward, layer.backward):
            assert inspect.getsource(part).rstrip() in blocks
        halves = f"import numpy as np\n\n\ndef {name}_forward(", f"def {name}_backward("
        derived = [block for block in blocks if all(half in block for half in halves)]
        assert len(derived) == 1
        compile(derived[0], "derived", "exec")
    assert "DOES NOT HOLD" not in source
    assert source.count('<div class="stage">') == 8 * len(LAYERS)
    folded = "\n".join(reader.folded)
    assert "raise" in folded and "Returns out" in folded and "np.add.at" not in folded


def test_lines_of_highlighted_source_are_well_formed():
    """A span over several lines is closed and opened again in each."""
    source = 'def f():\n    """a\n    b < c\n\n    d"""\n    return 1'
    parts = lines(python(source))
    assert [text_of(line) for line in parts] == source.split("\n")
    assert all(line.count("<span") == line.count("</span>") for line in parts)
    assert parts[2] == '<span class="s">    b &lt; c</span>'


def test_stages_of_a_layer(layernorm):
    stages = dict(layernorm.stages)
    titles = "recorded|simplified|differentiated|simplified again|forward|backward"
    assert list(stages) == [*titles.split("|"), "forward, emitted", "backward, emitted"]
    first, last = stages["recorded"].split("\n")[0], stages["recorded"].split("\n")[-1]
    assert first == "layernorm(inp: f32[4,64,768], weight: f32[768], bias: f32[768])"
    assert last == "  return out, inp, weight, mean, rstd"
    assert "run_blocks(" in stages["backward, emitted"]


@pytest.fixture(scope="module")
def layernorm_panels():
    return explanation("layernorm").sections[0].panels


def statement(statements, start):
    """The one that starts with these characters."""
    (match,) = [s for s in statements if s.source.strip().startswith(start)]
    return match


def test_statements_have_the_values_of_one_example(layernorm_panels):
    """Forward, manual and derived backward are run on the same arrays."""
    forward, manual, derived = layernorm_panels.forward, layernorm_panels.manual, layernorm_panels.derived
    assert [s.source.split("\n")[0].strip() for s in forward if s.folded] == [
        '"""Normalise each row of inp, then scale and shift it.',
        'for name, vector in (("weight", weight), ("bias", bias)):',
    ]
    assert statement(forward, "C = ").values == "C = 12"
    assert statement(forward, "rstd =").values.startswith("rstd: float64 (2, 5, 1)\n[[1.42 ")
    assert statement(manual, "dweight =").values == statement(derived, "dweight =").values != ""
    assert layernorm_panels.shapes == "inp (2, 5, 12), weight (12,), bias (12,)"
    returned = statement(explanation("residual").sections[0].panels.forward, "return").values
    assert returned.startswith("a + b: float64 (2, 5, 12)\n")


def test_backward_statements_name_their_forward_lines(layernorm_panels):
    forward, manual, derived = layernorm_panels.forward, layernorm_panels.manual, layernorm_panels.derived
    variance = statement(forward, "variance =").line
    for statements, start in ((manual, "dinp ="), (derived, "dcentred =")):
        assert variance in statement(statements, start).origins
    assert statement(manual, "dbias =").origins == (statement(forward, "out =").line,)
    lines = {s.line for s in forward}
    assert all({*s.origins} <= lines for s in [*manual, *derived])


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


def test_derived_backward_of_a_scan_is_shown_without_values(tmp_path):
    """Its source cannot be run alone."""
    file = tmp_path / "smooth.py"
    file.write_text(LOOP)
    smooth = explanation("gelu", str(file)).sections[0].panels
    line = statement(smooth.forward, "return np.tanh").line
    assert line in statement(smooth.derived, "out = np.tanh").origins
    assert not any(s.values for s in smooth.derived) and any(s.values for s in smooth.forward)
    assert smooth.manual == []  # there is none


def test_wrong_gradient_is_marked(layernorm):
    wrong = dataclasses.replace(layernorm, errors={"manual~auto": (float("nan"), 1e-10)})
    assert "DOES NOT HOLD" in page([wrong]) and "DOES NOT HOLD" in text(wrong, 180)


def test_text_fits_the_terminal_s_width(layernorm):
    head = text(layernorm, 180).split("# recorded")[0].split("compiled for")[0]
    assert all(len(line) <= 180 for line in head.split("\n"))
    assert "backward, by hand" in head and " | def layernorm_backward(" in head
    narrow = text(layernorm, 80)
    assert "---- derived by the compiler" in narrow and " | " not in narrow.split("compiled for")[0]


@pytest.mark.parametrize("columns", [40, 79, 100])
def test_wrapped_code_still_runs(columns):
    """All layers and the model. Texts are cut at blanks, also between the fields of an f-string."""
    texts = [text for layer in LAYERS.values() for text in written_source(layer)] + [*whole_source()]
    texts.append("x = 1  # a comment that is much too long for a line of forty characters, and says so\n")
    for source in texts:
        code = wrapped_code(source, columns)
        compile("\n".join(code), "wrapped", "exec")
        assert all(len(line) <= columns for line in code) or columns == 40, code


def test_wrapped_text_is_the_same_text():
    first = """f"the first of {f'{a} b'} and {b + ' c d'} {{x y}}, the second {c:>4}\""""
    source = f"""say({first}, 'it is "so" and so', r"a\\ b")"""
    for columns in range(30, 100, 7):
        code = "\n".join(wrapped_code(source, columns))
        assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(source)), code
    assert max(map(len, wrapped_code(source, 50))) <= 50


def test_command_prints_forward_and_both_backwards(capsys):
    assert command.main(["layernorm"]) == 0
    text = capsys.readouterr().out
    assert "def layernorm_forward(inp, weight, bias):" in text and "dinp = (dnorm - shift" in text
    assert "def layernorm_backward(inp, weight, mean, rstd, dout):" in text
    assert command.main(["residual", "--emitted"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("residual: ") and "out=" in text
    assert "def residual_forward(a: Array, b: Array)" in text


@pytest.mark.parametrize(
    "words, message",
    [
        ("residual --out page.txt", "expected a name that ends in .html"),
        ("residual --out nowhere/page.html", "no such folder"),
        ("pear", "'pear' is not one of encoder, "),
        ("pear.py", "; a file of own layers is named by --layers pear.py\n"),
        ("", r"required: LAYER; for example: .* explain layernorm\n$"),
        ("model gelu", "only by itself"),
    ],
)
def test_invalid_arguments_are_one_line(words, message, refusal, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert re.search(message, refusal(command.main, *words.split()))
    assert not list(tmp_path.iterdir())


def test_whole_model_has_each_block_once(capsys, monkeypatch):
    """Once in the forward and once in the backward, under llm.c's names."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert command.main(["model"]) == 0
    text = capsys.readouterr().out
    derived = text.split("---- derived by the compiler\n")[1]
    assert derived.count("def loss_outlined(") == derived.count("def loss_outlined_backward(") == 1
    assert derived.count("= loss_outlined(") == derived.count("= loss_outlined_backward(") == 1
    assert "for k in range(12):" in derived and "for k in reversed(range(12)):" in derived
    assert "def block_backward(" in text and "dfcprojw[k:k + 1]" in derived and "arrays_" not in derived
    assert len(derived.splitlines()) < 200 and max(map(len, derived.splitlines())) < 125
    compile(derived, "derived", "exec")  # tests/autodiff/show/test_readable.py runs it, at a smaller size
    monkeypatch.setenv("COLUMNS", "80")
    assert command.main(["model"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 80
