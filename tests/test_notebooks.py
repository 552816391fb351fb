"""The notebooks of examples/ run from top to bottom, and their outputs are those of the code beside them."""

import ast
import json
import linecache
import re

import pytest

from docs import notebooks, slides

NOTEBOOKS = pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda path: path.stem)


def test_there_are_notebooks():
    names = [path.stem for path in notebooks.notebooks()]
    assert names == ["check", "finetune", "inside", "lesson", "programs", "tour"]


@pytest.mark.slow
@NOTEBOOKS
def test_a_notebook_runs(path, tmp_path, monkeypatch, quick_peak):
    """In this process, which starts no kernel; what ends a cell is shown as a notebook would."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    try:
        for number, source in enumerate(notebooks.code_of(json.loads(path.read_text(encoding="utf-8")))):
            run_cell(source, f"{path.stem}, cell {number}.py", names)
            pyplot.close("all")
    finally:
        pyplot.close("all")


def run_cell(source, file, names):
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), file, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), file, "eval"), names)
        assert value is None or len(getattr(value, "_repr_html_", value.__repr__)()) > 10


@NOTEBOOKS
def test_the_outputs_are_of_this_code(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    stale = f"run: python -m docs.notebooks {path.stem}"
    assert content["metadata"]["code"] == notebooks.fingerprint(content), stale
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), stale
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output["output_type"] in ("stream", "execute_result", "display_data") for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert content == notebooks.cleaned(content), stale
    assert path.stat().st_size < 300_000


@NOTEBOOKS
def test_no_output_is_of_this_run_alone(path):
    """No address in memory, no folder that is gone, no object that a statement happened to return."""
    content = json.loads(path.read_text(encoding="utf-8"))
    shown = [output for cell in content["cells"] for output in cell.get("outputs", [])]
    for output in shown:
        data = {"text/plain": output.get("text", "")} | output.get("data", {})
        if "image/png" not in data:
            text = "".join("".join(part) for part in data.values())
            assert not re.search(
                r"/tmp|/var/folders|\\Temp\\| at 0x[0-9a-f]|&?lt;matplotlib|<matplotlib", text
            )


def test_outputs_of_other_code_are_noticed():
    content = json.loads(notebooks.notebooks()[0].read_text(encoding="utf-8"))
    cell = next(cell for cell in content["cells"] if cell["cell_type"] == "code")
    before = notebooks.fingerprint(content)
    cell["source"] = ["x = 1"]
    assert notebooks.fingerprint(content) != before


def test_the_slides_are_those_of_the_lesson():
    pytest.importorskip("markdown", reason="the slides need Python-Markdown: pip install mkdocs")
    assert slides.PAGE.read_text(encoding="utf-8") == slides.made(), "run: python -m docs.slides"


def test_every_slide_begins_with_text_and_shows_its_outputs():
    content = json.loads(slides.NOTEBOOK.read_text(encoding="utf-8"))
    page = slides.PAGE.read_text(encoding="utf-8")
    count = len(slides.slides(content))
    assert count == page.count("<section") == page.count("<h1>") + page.count("<h2>") + page.count("<h3>")
    assert page.count("<img ") == 2 and page.count("likely cause: ") == 3
    assert "http" not in page.replace("http-equiv", "")
