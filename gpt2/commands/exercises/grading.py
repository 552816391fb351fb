"""Grades the file of an exercise, in a process of its own with a time limit.

A student's file is a program: it may loop forever, end Python, print, or take all memory. Its process gets
MEMORY more than it has, no standard input, and is killed after the time limit. That is no sandbox: it may
still write files.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from gpt2 import machine
from gpt2.commands.check import cases_of, mistakes, raised, run_file
from gpt2.commands.exercises.sheets import set_of, sheet, task_of, text_of
from gpt2.errors import UserError, reason, suggestion
from gpt2.parallel.cores import thread_variables

MEMORY = 1 << 30  # bytes that a file may allocate, where the system can limit them (Linux)
LARGEST = 1 << 20  # bytes of a file; the longest solution has 2,000
ROOT = Path(__file__).parents[3]


def result(name: str, state: str, message: str = "", cause: str = "") -> dict[str, Any]:
    """What is known of one exercise; state is `right`, `wrong`, or `open` if nothing is written yet.

    cause   the mistake in one line that two students with the same mistake share: it names no line of theirs
    """
    return {"name": name, "state": state, "message": message, "cause": cause or _cause(message)}


def grade(path: Path, name: str) -> dict[str, Any]:
    """The `result` of one exercise, run in this process.

    A backward is compared with the derivative of the sheet's forward, not of the file's.
    """
    task = task_of(name)
    try:
        names = run_file(path)
    except UserError as error:
        return result(name, "wrong", str(error))
    if names.get(task) is None:
        near = suggestion(task, [key for key, value in names.items() if callable(value)])
        return result(name, "wrong", f"{path}: has no function {task}{near}")
    try:
        if set_of(name) == "layers":
            lines = mistakes(getattr(sheet(name), f"{name}_forward"), names[task], cases_of(name))[1:]
            wrong = "\n".join([f"{task} is not the derivative of its forward:", *lines]) if lines else None
        else:
            wrong = sheet(name).judge(names)
    except NotImplementedError:
        return result(name, "open", "not written yet")
    except (Exception, SystemExit) as error:
        return result(name, "wrong", f"{task} raises {raised(error, path)}")
    if not wrong:
        return result(name, "right")
    return result(name, "wrong", re.sub(rf"(?<!\w){name}\.py:", f"{path.name}:", wrong))


def _cause(message: str) -> str:
    """The likely cause in a message, or its first line, without what differs from student to student."""
    message, found, cause = message.partition("likely cause: ")
    if found:
        line = cause.partition("\n")[0]
    else:
        first, *details = message.split("\n")
        line = details[0] if details else first
        line = re.sub("wrong at .*", "wrong, with no known cause", line).replace("case 0, ", "")
    place = r" \((the gradient of )?\S+\.py(:|, line )\d+\)| at \S+\.py:\d+|\S+\.py:(\d+:)? "
    line = re.sub(place, "", line)
    return " ".join(line.split())


class Grader:
    """Grades files in processes of their own, one for each core. Files with the same text are run once.

    timeout   seconds for a file, of which starting Python takes half a second
    prints    show what the files print, on standard error
    """

    def __init__(self, timeout: float, prints: bool = False):
        self.timeout, self.prints = timeout, prints
        self.pool = ThreadPoolExecutor(machine.cores())
        self.running: set[subprocess.Popen] = set()
        self.futures: dict[tuple[str, bytes], Future] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in [*self.running]:
            _end(process)

    def submit(self, path: Path, name: str) -> Future:
        """The Future of a file's `result`."""
        answer = self._without_running(path, name)
        if isinstance(answer, dict):
            return self.pool.submit(lambda: answer)
        if (name, answer) not in self.futures:
            self.futures[name, answer] = self.pool.submit(self._run, path.absolute(), name)
        return self.futures[name, answer]

    def _without_running(self, path: Path, name: str) -> dict[str, Any] | bytes:
        """The result of a file that need not be run, or its content."""
        try:
            if not path.exists():
                others = [other.name for other in sorted(path.parent.iterdir()) if name in other.name.lower()]
                meant = f"; is it {others[0]}?" if others else ""
                return result(name, "open", f"{path.name} is missing{meant}", "missing")
            if not path.is_file():
                return result(name, "wrong", f"{path.name}: it is not a file")
            if path.stat().st_size > LARGEST:
                text = f"{path.name}: it has {machine.size(path.stat().st_size)}, which is no exercise"
                return result(name, "wrong", text, "too large a file")
            content = path.read_bytes()
        except OSError as error:
            return result(name, "wrong", f"{path.name}: {reason(error)}")
        unwritten = content.replace(b"\r\n", b"\n") == text_of(name, solved=False).encode()
        return result(name, "open", "not written yet") if unwritten else content

    def _run(self, path, name):
        environment = {
            **os.environ,
            **thread_variables(1),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpt2.commands.exercises.grading", path.name, name],
            cwd=path.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if self.prints else subprocess.DEVNULL,
            start_new_session=True,
        )
        self.running.add(process)
        try:
            answer = process.communicate(timeout=self.timeout)[0]
            return json.loads(answer.splitlines()[-1])
        except subprocess.TimeoutExpired:
            return result(name, "wrong", f"{path.name}: it takes more than {self.timeout:g} seconds")
        except (ValueError, IndexError):
            status = process.wait()
            how = f"exits (status {status})" if status >= 0 else f"crashes (signal {-status})"
            return result(name, "wrong", f"{path.name}: it {how}")
        finally:
            _end(process)
            self.running.discard(process)


def _end(process):
    """Kill a process and those that it has started."""
    with suppress(OSError):  # it has ended
        if os.name == "posix":
            os.killpg(process.pid, 9)
        else:
            process.kill()
    process.wait()
    process.stdout.close()


def main(path: str, name: str) -> None:
    """Grade a file, and write the result as a line of JSON to what was standard output."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the file prints
    with suppress(ImportError, OSError, ValueError):  # another system than Linux
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    try:
        answer = grade(Path(path), name)
    except BaseException as error:  # such as KeyboardInterrupt, raised by the file
        answer = result(name, "wrong", f"{path}: it raises {type(error).__name__}")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the file may have closed or replaced it
            stream.flush()
    os.write(answers, json.dumps(answer).encode() + b"\n")
    os._exit(0)  # threads and exit handlers of the file are not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
