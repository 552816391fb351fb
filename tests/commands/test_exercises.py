"""gpt2 exercises: the files it writes, grades for right and wrong answers, hints."""

import json

import pytest

from gpt2.commands.exercises import __main__ as exercises
from gpt2.commands.exercises.sheets import ORDER


@pytest.fixture
def solved(tmp_path):
    exercises.write(tmp_path / "solved", solved=True)
    return tmp_path / "solved"


def test_new_exercises_have_no_solution_and_no_point(tmp_path, capsys):
    assert exercises.main([str(tmp_path / "mine")]) == 0
    for name in ORDER:
        text = exercises.file_of(tmp_path / "mine", name).read_text()
        static = ", *, num_heads" * (name == "attention")
        comment = f"    # gpt2's command exercises grades it with --grade, and helps with --hint {name}\n"
        assert text.endswith(f"saved{static}):\n{comment}    {exercises.TO_WRITE}\n")
        assert "HINTS" not in text and f"def {name}_forward(" in text and f"Write `{name}_backward`" in text
    assert exercises.main([str(tmp_path / "mine"), "--grade"]) == 1
    assert capsys.readouterr().out.endswith("0 of 7 right\n")


def test_solutions_are_right(solved, tmp_path, capsys):
    file = tmp_path / "grade.json"
    assert exercises.main([str(solved), "--grade", "--json", str(file)]) == 0
    grade = json.loads(file.read_text())
    assert grade["right"] == grade["of"] == 7 and [e["state"] for e in grade["exercises"]] == ["right"] * 7
    assert capsys.readouterr().out.splitlines()[-1] == "7 of 7 right"


# name, part of the solution, what replaces it, what the grade says of that
MISTAKES = [
    ("residual", "return dout, dout", "return dout, -dout", "the sign is wrong"),
    ("matmul", "rows.T @ inp.reshape(-1, C)", "inp.reshape(-1, C).T @ rows", "it is transposed"),
    ("gelu", "3.0 * CUBIC", "CUBIC", "the factor 3 is left out"),
    ("layernorm", " - norm * scale)", ")", "the path through variance"),
    ("crossentropy", "(p - is_target)", "p", "the path through at_target"),
    ("encoder", "np.add.at(dwte, tokens, dout)", "dwte[tokens] += dout", "adds once for each"),
    ("attention", "keepdims=True)) / np.sqrt(HS)", "keepdims=True))", "factor 0.5 is left out"),
    ("gelu", "du = ", "du = 1 / 0  #", "gelu_backward raises ZeroDivisionError at 3_gelu.py:26: "),
    ("gelu", "def gelu_backward", "def gelu_back", "has no function gelu_backward"),
    ("gelu", "    (inp,) = saved\n", "    raise SystemExit\n", "gelu_backward raises SystemExit"),
    (
        "gelu",
        "(inp,) = saved",
        'raise ValueError("\\x1b[31m")',
        r"raises ValueError at 3_gelu.py:24: \x1b[31m",
    ),
    ("gelu", "import numpy as np", "import numpy as np, no_such_module", "it cannot be run"),
]


@pytest.mark.parametrize("name, right, wrong, message", MISTAKES, ids=[f"{m[0]}: {m[3]}" for m in MISTAKES])
def test_grade_names_the_mistake(solved, capsys, monkeypatch, name, right, wrong, message):
    monkeypatch.setenv("COLUMNS", "110")
    path = exercises.file_of(solved, name)
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    assert exercises.main([str(solved), "--grade"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert message in out and out.endswith("6 of 7 right")


def test_grade_ignores_a_changed_forward(solved):
    path = exercises.file_of(solved, "residual")
    path.write_text(path.read_text().replace("a + b", "a - b").replace("dout, dout", "dout, -dout"))
    assert exercises.grade(path, "residual")["state"] == "wrong"


def test_messages_name_the_folder_of_the_exercises(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exercises.main(["class/anna"])
    assert capsys.readouterr().out.endswith(" exercises --hint residual\n")
    assert exercises.main(["class", "--grade", "--json", "grade.json"]) == 1
    assert json.loads((tmp_path / "grade.json").read_text())["right"] == 0
    assert "class/anna has: " in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.chdir(tmp_path / "class" / "anna")
    assert exercises.main(["--grade"]) == 2
    assert capsys.readouterr().err.endswith(" exercises . --grade\n")


def test_hint_by_file_name(capsys):
    assert exercises.main(["--hint", "work/3_gelu.py"]) == exercises.main(["--hint", "gelu"]) == 0
    one, same = capsys.readouterr().out.splitlines()
    assert one == same


@pytest.mark.parametrize("name", ORDER)
def test_more_gives_the_second_hint(name, capsys):
    assert exercises.main(["--hint", name]) == exercises.main(["--hint", name, "--more"]) == 0
    first, second = exercises.sheet(name).HINTS
    out = " ".join(capsys.readouterr().out.split())
    assert out == " ".join(f"{first} {second}".split()) and first != second


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "exercises/1_residual.py exists already; name another folder, or grade what is written: "),
        ("exercises/1_residual.py", "exercises/1_residual.py: File exists"),
        ("missing --grade", "missing: no such folder; write the exercises with: "),
        ("exercises/1_residual.py --grade", "exercises/1_residual.py: is a file; grade its folder with: "),
        ("grade", "grade: would be a folder; did you mean --grade?"),
        ("--hint 3_gelo", "argument --hint: 'gelo' is not one of"),
        ("--json x.json", "--json has no effect without --grade"),
        ("--more", "--more has no effect without --hint"),
        ("--grade --hint gelu", "argument --hint: not allowed with argument --grade"),
    ],
)
def test_invalid_arguments_are_one_line(tmp_path, refusal, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert exercises.main([]) == 0
    assert refusal(exercises.main, *words.split()).startswith(f"error: {message}")
