"""The notebooks of examples/ run, and their stored outputs belong to their code; the slides of the lesson."""

import ast
import json
import linecache
import re

import pytest

from docs import compiler_lesson, notebooks, slides

each_notebook = pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda path: path.stem)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
@each_notebook
def test_notebook_runs(path, tmp_path, monkeypatch, quick_peak):
    """In this process, without a kernel; the last expression of a cell is shown as a notebook would."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    try:
        for number, source in enumerate(notebooks.code_of(read(path))):
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


@each_notebook
def test_outputs_belong_to_the_code(path):
    content = read(path)
    stale = f"run: python -m docs.notebooks {path.stem}"
    assert content["metadata"]["code"] == notebooks.fingerprint(content), stale
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), stale
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output["output_type"] in ("stream", "execute_result", "display_data") for output in outputs)
    drawn = [cell for cell in cells if "image/png" in json.dumps(cell["outputs"])]
    assert drawn and all(len(cell["metadata"].get("alt", "")) > 40 for cell in drawn), "no alternative text"
    assert content == notebooks.cleaned(content), stale
    assert path.stat().st_size < 300_000
    # no temporary files, no addresses, and no object that a call of matplotlib happened to return
    unwanted = r"/tmp|/var/folders|\\Temp\\| at 0x[0-9a-f]|&?lt;matplotlib|<matplotlib"
    for output in outputs:
        data = {"text/plain": output.get("text", "")} | output.get("data", {})
        if "image/png" not in data:
            assert not re.search(unwanted, "".join("".join(part) for part in data.values()))


def test_changed_code_changes_the_fingerprint():
    content = read(notebooks.notebooks()[0])
    cell = next(cell for cell in content["cells"] if cell["cell_type"] == "code")
    before = notebooks.fingerprint(content)
    cell["source"] = ["x = 1"]
    assert notebooks.fingerprint(content) != before


def test_slides_are_up_to_date():
    pytest.importorskip("markdown", reason="the slides need Python-Markdown: pip install mkdocs")
    assert slides.PAGE.read_text(encoding="utf-8") == slides.made(), "run: python -m docs.slides"


def test_the_compilers_lesson_has_the_exercises():
    content = read(notebooks.FOLDER / "compiler_lesson.ipynb")
    written = [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]
    assert written == compiler_lesson.cells(), "run: python -m docs.notebooks compiler_lesson"
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", ())]
    answers = ["".join(output.get("text", "")) for output in outputs]
    for step in compiler_lesson.SETS["compiler"]:
        empty = f"{step}: {compiler_lesson.task_of(step)} is not written yet\n"
        assert answers.index(empty) < answers.index(f"{step}: right\n")
