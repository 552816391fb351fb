"""gpt2 exercises: the files it writes, grades for right and wrong answers, hints."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest

from gpt2.commands.exercises import __main__ as exercises
from gpt2.commands.exercises import classes
from gpt2.commands.exercises.grading import Grader, grade
from gpt2.commands.exercises.sheets import ALL, SETS, TO_WRITE, file_of, sheet, task_of
from gpt2.errors import printable


@pytest.fixture
def solved(tmp_path):
    exercises.write(tmp_path / "solved", solved=True)
    return tmp_path / "solved"


def test_new_exercises_have_no_solution_and_no_point(tmp_path, capsys):
    assert exercises.main([str(tmp_path / "mine")]) == 0
    for name in SETS["layers"]:
        text = file_of(tmp_path / "mine", name).read_text()
        static = ", *, num_heads" * (name == "attention")
        comment = f"    # gpt2's command exercises grades it with --grade, and helps with --hint {name}\n"
        assert text.endswith(f"saved{static}):\n{comment}    {TO_WRITE}\n")
        assert "HINTS" not in text and f"def {name}_forward(" in text and f"Write `{name}_backward`" in text
    assert exercises.main([str(tmp_path / "mine"), "--grade"]) == 1
    assert capsys.readouterr().out.endswith("0 of 7 right\n")


def test_solutions_are_right(solved):
    assert [grade(file_of(solved, name), name)["state"] for name in SETS["layers"]] == ["right"] * 7


def test_the_compiler_is_a_set_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exercises.main(["--set", "compiler"]) == 0 and Path("compiler/1_order.py").exists()
    assert exercises.main(["compiler", "--grade"]) == 1
    assert capsys.readouterr().out.endswith("0 of 5 right\n")
    for name in SETS["compiler"]:
        text = file_of(Path("compiler"), name).read_text()
        assert text.endswith(f"    {TO_WRITE}\n") and f"Write `{task_of(name)}(" in text
        assert "judge" not in text
    assert exercises.main(["--set", "compiler", "--solutions", "class/eva"]) == 0
    assert exercises.main(["class/eva", "--grade"]) == 0
    assert exercises.main(["class", "--grade", "--csv", "grades.csv"]) == 0
    assert Path("grades.csv").read_text().split() == [
        "student,order,record,rules,derive,emit,right",
        "eva,right,right,right,right,right,5",
    ]


# name, part of the solution, what replaces it, what the grade says of that
MISTAKES = [
    ("order", "            order[node] = None", "            pass", "x stands there 0 times, expected once"),
    ("order", "if node not in order", "if True", "asked for again and again"),
    ("order", "return list(order)", "return list(order)[::-1]", "stands before its argument"),
    ("record", "a.node if", 'Node("input", value=a.node.value) if', "is another node than x's"),
    ("record", 'Node("constant"', 'Node("input"', "expected a 'constant'"),
    ("record", "return Array(Node(op, *nodes, value=value))", "return value", "expected an Array"),
    ("record", "[node.value for node in nodes]", "[nodes[0].value] * len(nodes)", "has the value"),
    ("rules", '        "tanh"', '        "tan"', "there is no rule for tanh"),
    ("rules", "-g * out / b", "g * out / b", "the rule of divide: the gradient of argument 1 is"),
    ("rules", "g @ np.matrix_transpose(b)", "g @ b", "rules raises ValueError"),
    ("rules", "(g * out,)", "g * out", "no tuple of 1"),
    ("derive", "reversed(in_order([out.node]))", "in_order([out.node])", "the gradient of x is 0 at [0, 0]"),
    ("derive", "grads[arg.node] + share if arg.node in grads else share", "share", "x is used twice"),
    ("derive", "                share = shaped(share, arg)\n", "", "has shape (2, 3), expected (3,)"),
    ("derive", "shaped(zero, x)", "None", "the gradient of y is a NoneType"),
    ("emit", "node.value.item()", "1.0", "has a wrong gradient 0"),
    ("emit", '{call_of(node.op)}({arguments})"', '{node.value.tolist()}"', "wrong gradient 0"),
    ("emit", 'f"t{len(lines)}"', '"t"', "wrong gradient 0"),
    ("residual", "return dout, dout", "return dout, -dout", "the sign is wrong"),
    ("matmul", "rows.T @ inp.reshape(-1, C)", "inp.reshape(-1, C).T @ rows", "it is transposed"),
    ("gelu", "3.0 * CUBIC", "CUBIC", "lacks the factor 3: the derivative of inp**3 is 3 * inp**2"),
    ("layernorm", " - norm * scale)", ")", "the path through variance"),
    ("crossentropy", "(p - is_target)", "p", "the path through at_target"),
    ("encoder", "np.add.at(dwte, tokens, dout)", "dwte[tokens] += dout", "adds once for each"),
    ("attention", "keepdims=True)) / np.sqrt(HS)", "keepdims=True))", "lacks the factor 0.5"),
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
def test_grade_names_the_mistake(tmp_path, name, right, wrong, message):
    (of,) = [each for each, names in SETS.items() if name in names]
    exercises.write(tmp_path, True, of)
    path = change(tmp_path, name, right, wrong)
    result = grade(path, name)
    assert result["state"] == "wrong" and message in printable(result["message"])
    if of == "layers":
        assert message.partition(" at ")[0] in result["cause"] and path.name not in result["cause"]


def change(folder, name, right, wrong):
    """The file of an exercise, after a change."""
    path = file_of(folder, name)
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    return path


def test_grade_ignores_a_changed_forward(solved):
    change(solved, "residual", "a + b", "a - b")
    assert grade(change(solved, "residual", "dout, dout", "dout, -dout"), "residual")["state"] == "wrong"


# ---- A class ---------------------------------------------------------------------------------------------

TOP, INSIDE = "import numpy as np\n", "    (inp,) = saved\n"  # where the file of gelu is broken
# name, where, what is added, the start of the cause: "" if the file is right after all
BROKEN = [
    ("loops", TOP, "while True: pass", "it takes more than 10 seconds"),
    ("loops inside", INSIDE, "while True: pass", "it takes more than 10 seconds"),
    ("waits", INSIDE, "import time; time.sleep(9999)", "it takes more than 10 seconds"),
    ("starts another", INSIDE, "import subprocess; subprocess.run(['sleep', '9999'])", "it takes more than"),
    ("syntax error", TOP, "def (", "it cannot be run: SyntaxError: invalid syntax"),
    ("tab", INSIDE, "\tx = 1", "it cannot be run: TabError"),
    ("exits", TOP, "raise SystemExit", "it cannot be run: SystemExit"),
    ("exits inside", INSIDE, "exit()", "gelu_backward raises SystemExit"),
    ("exits at once", INSIDE, "import os; os._exit(0)", "it exits (status 0)"),
    ("crashes", INSIDE, "import os; os.abort()", "it crashes (signal 6)"),
    ("interrupts", INSIDE, "raise KeyboardInterrupt", "it raises KeyboardInterrupt"),
    ("recursion", TOP, "f = lambda: f()\nf()", "it cannot be run: RecursionError"),
    ("memory", INSIDE, "np.ones(1 << 32)", "gelu_backward raises MemoryError"),
    ("more memory", INSIDE, "x = [0]\n    while True: x += x", "gelu_backward raises MemoryError"),
    ("asks", INSIDE, "input('why? ')", "gelu_backward raises EOFError"),
    ("imports", TOP, "import tensorflow_of_mine", "it cannot be run: ModuleNotFoundError"),
    ("wrong name", "def gelu_backward", "def gelu_backwards", "has no function gelu_backward; did you mean"),
    ("fewer", "return (dout *", "return (1, dout *", "gradients returned: 2, inputs: 1"),
    ("prints", TOP, 'print(\'{"state": "right"}\' * 10000)', ""),
    ("closes", TOP, "import sys; sys.stdout.close(); sys.stderr.close()", ""),
    ("thread", TOP, "import threading, time; threading.Thread(target=time.sleep, args=(9999,)).start()", ""),
    ("shadows", TOP, "open('random.py', 'w').write('1 / 0')", ""),
]


def made_class(folder, solved):
    """Thirty students' folders: BROKEN, one whose gelu.py is missing, and files that are no programs."""
    text = file_of(solved, "gelu").read_text()
    files = {}
    for name, where, added, _ in BROKEN:
        assert where in text
        if where in (TOP, INSIDE):  # these stay, with a line below them
            added = where + "    " * (where == INSIDE and added[0] != "\t") + added + "\n"
        files[name] = text.replace(where, added)
    files |= {"empty": "", "binary": bytes(range(256)), "latin": f"{text}x = '\xfc'".encode("latin-1")}
    files |= {"large": text + "#" * (1 << 21), "missing": None, "folder": None}
    files |= {"good": text, "unpacked": text}
    for name, content in files.items():
        own = folder / name / ("archive" if name == "unpacked" else "")
        shutil.copytree(solved, own)
        file_of(own, "gelu").unlink()
        if content is not None:
            file_of(own, "gelu").write_bytes(content if isinstance(content, bytes) else content.encode())
    file_of(folder / "folder", "gelu").mkdir()
    (folder / "missing" / "my gelu.py").write_text(text)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_a_class_of_thirty_with_every_kind_of_broken_file(solved, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    made_class(tmp_path / "class", solved)
    line = "--grade class --timeout 10 --json g.json --csv g.csv --worksheets sheets"
    assert exercises.main(line.split()) == 1
    out, err = capsys.readouterr()
    assert not err and max(map(len, out.splitlines())) <= 95
    results = json.loads(Path("g.json").read_text())
    students = {student["name"]: student for student in results["students"]}
    assert len(students) == 30
    causes = {name: student["exercises"][2] for name, student in students.items()}
    expected = {name: cause for name, _, _, cause in BROKEN} | {
        "empty": "has no function gelu_backward",
        "binary": "it cannot be run: SyntaxError",
        "latin": "it cannot be run: SyntaxError",
        "large": "too large a file",
        "missing": "missing",
        "folder": "it is not a file",
        "good": "",
        "unpacked": "",
    }
    assert {name: result["cause"][: len(expected[name])] for name, result in causes.items()} == expected
    for name, student in students.items():
        state = {"missing": "open"}.get(name, "wrong" if expected[name] else "right")
        assert [result["state"] for result in student["exercises"]] == ["right"] * 2 + [state] + ["right"] * 4
        assert f"# {name}: {student['right']} of 7 right" in Path(f"sheets/{name}.md").read_text()
    with open("g.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["student"] for row in rows] == sorted(students) and rows[0]["residual"] == "right"
    assert "is it my gelu.py?" in Path("sheets/missing.md").read_text()
    first = out[out.index("mistakes, with the number of students:") :].splitlines()[1]
    assert first.startswith("  4  gelu: it takes more than 10 seconds (loops, loops inside,")


def test_a_file_that_loops_and_one_that_exits_are_wrong_and_the_others_graded(solved, capfd):
    change(solved, "residual", "return", "while True: pass #")
    change(solved, "matmul", "import", "import os; os._exit(3) #")
    change(solved, "gelu", "import", "print('seen'); import")
    with Grader(1.0) as grader:
        loops = grader.submit(file_of(solved, "residual"), "residual")
        assert "more than 1 second" in loops.result()["message"]
    with Grader(60.0, prints=True) as grader:
        both = [grader.submit(file_of(solved, name), name) for name in ("matmul", "gelu")]
        assert [job.result()["state"] for job in both] == ["wrong", "right"]
        assert both[0].result()["cause"] == "it exits (status 3)"
    out, err = capfd.readouterr()
    assert not out and err == "seen\n"


def test_folders_of_students(tmp_path):
    for name in ("a/anna", "a/ben/archive", "b/anna", "b/.git", "b/__MACOSX/anna", "alone"):
        exercises.write(tmp_path / name, solved=False)
    (tmp_path / "a" / "zoe").mkdir()
    a, b = tmp_path / "a", tmp_path / "b"
    assert classes.folders_of([a]) == {"anna": a / "anna", "ben": a / "ben" / "archive", "zoe": a / "zoe"}
    assert classes.folders_of([a / "ben", a / "zoe"]) == {"ben": a / "ben" / "archive", "zoe": a / "zoe"}
    assert classes.folders_of([a, a.parent / "alone", b / "anna"]).keys() == {
        str(a / "anna"), "ben", "zoe", "alone", str(b / "anna")}  # fmt: skip


def test_messages_name_the_folder_of_the_exercises(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exercises.main(["class/anna"])
    assert capsys.readouterr().out.endswith(" exercises --hint residual\n")
    (tmp_path / "class" / "names.txt").touch()
    assert exercises.main(["--grade", "class/anna", "class/names.txt", "--json", "grade.json"]) == 1
    assert json.loads((tmp_path / "grade.json").read_text())["right"] == 0
    assert capsys.readouterr().err == "note: class/names.txt is a file and is not graded\n"
    monkeypatch.chdir(tmp_path / "class" / "anna")
    assert exercises.main(["--grade"]) == 2
    assert capsys.readouterr().err.endswith(" exercises . --grade\n")


def test_hint_by_file_name(capsys):
    assert exercises.main(["--hint", "work/3_gelu.py"]) == exercises.main(["--hint", "gelu"]) == 0
    one, same = capsys.readouterr().out.splitlines()
    assert one == same


@pytest.mark.parametrize("name", ALL)
def test_more_gives_the_second_hint(name, capsys):
    assert exercises.main(["--hint", name]) == exercises.main(["--hint", name, "--more"]) == 0
    first, second = sheet(name).HINTS
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
        ("--csv x.csv", "--csv has no effect without --grade"),
        ("--grade --timeout 0", "argument --timeout: invalid seconds value: '0'"),
        ("a b", "several folders are for --grade: a b"),
        ("--more", "--more has no effect without --hint"),
        ("--grade --hint gelu", "argument --hint: not allowed with argument --grade"),
    ],
)
def test_invalid_arguments_are_one_line(tmp_path, refusal, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert exercises.main([]) == 0
    assert refusal(exercises.main, *words.split()).startswith(f"error: {message}")
