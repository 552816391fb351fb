"""GradBench's protocol: messages and answers, one JSON object a line.

    {"id": 0, "kind": "start", "eval": "hello"}
    {"id": 0, "tool": "gpt2", "config": {...}}
    {"id": 1, "kind": "define", "module": "hello"}
    {"id": 1, "success": true}
    {"id": 2, "kind": "evaluate", "module": "hello", "function": "double", "input": 3.0}
    {"id": 2, "success": true, "output": 6.0, "timings": [{"name": "compile", "nanoseconds": 5086412}, ...]}
    {"id": 3, "kind": "analysis", "of": 2, "valid": true}
    {"id": 3}

An input may ask for repetition: at least `min_runs` runs (`runs` in older evaluations) and `min_seconds` in
all. Each run is a timing named "evaluate". The first call, in which the function is recorded and compiled, is
timed apart as "compile", since tools that are compiled beforehand spend that time before the first message.
Reading the input is "prepare"; writing the output is not timed.
"""

import contextlib
import importlib
import json
import sys
import time
import traceback

import numpy as np

from bench.gradbench import MODULES
from bench.gradbench.gradients import EVALUATIONS
from bench.harness import machine
from gpt2.autodiff import get_threads
from gpt2.errors import UserError


def serve(lines, write):
    """Answer each line by write(text), a line of JSON. Raises UserError for a line that is not a message."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            write(json.dumps(answer(_parsed(line, number))))


def _parsed(line, number):
    try:
        message = json.loads(line)
    except ValueError as error:
        raise UserError(f"line {number} of the input is not JSON: {error}") from None
    if not isinstance(message, dict) or "id" not in message:
        raise UserError(f"line {number} of the input has no id, expected an object with id and kind")
    return message


def answer(message):
    """The answer to a message, as a dict; errors are part of it."""
    answers = {"start": start, "define": define, "evaluate": evaluate}
    respond = answers.get(message.get("kind"), lambda message: {})
    # Standard output is for the protocol alone
    with contextlib.redirect_stdout(sys.stderr):
        return {"id": message["id"], **respond(message)}


def start(message):
    packages = machine.describe()["packages"]
    return {"tool": "gpt2", "config": {"threads": get_threads(), "numpy": packages["numpy"]}}


def define(message):
    try:
        functions_of(message.get("module"))
    except UserError as error:
        return failure(str(error))
    return {"success": True}


def evaluate(message):
    try:
        function = function_of(message.get("module"), message.get("function"))
        output, timings = timed(function, message.get("input"))
        json.dumps(output, allow_nan=False)
    except UserError as error:
        return failure(str(error))
    except Exception:
        return failure(traceback.format_exc())
    return {"success": True, "output": output, "timings": timings}


def failure(text):
    return {"success": False, "error": text}


def functions_of(module):
    """Name -> Function of an evaluation's module. Raises UserError if the module is unknown."""
    if module not in MODULES:
        raise UserError(f"no module {module!r}, expected one of {', '.join(MODULES)}")
    if module in EVALUATIONS:
        return EVALUATIONS[module]
    return importlib.import_module(f"bench.gradbench.{module}").FUNCTIONS


def function_of(module, name):
    functions = functions_of(module)
    if name not in functions:
        raise UserError(f"module {module} has no function {name!r}, expected one of {', '.join(functions)}")
    return functions[name]


# ---- Time --------------------------------------------------------------------------------------------------


def timed(function, message_input):
    """(output, timings) of the runs that the input asks for."""
    begin = time.perf_counter_ns()
    try:
        arguments = function.read(message_input)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"input does not fit: {type(error).__name__}: {error}") from None
    timings = [timing("prepare", begin)]
    begin = time.perf_counter_ns()
    with np.errstate(all="ignore"):  # non-finite values show in the result
        result = function.run(*arguments)
        timings.append(timing("compile", begin))
        runs, seconds = repetitions(message_input)
        spent = 0
        while runs > 0 or spent < seconds * 1e9:
            begin = time.perf_counter_ns()
            result = function.run(*arguments)
            timings.append(timing("evaluate", begin))
            spent += timings[-1]["nanoseconds"]
            runs -= 1
    return function.write(result), timings


def repetitions(message_input):
    """The least number of runs and the least seconds that an input asks for."""
    if not isinstance(message_input, dict):
        return 1, 0.0
    runs = message_input.get("min_runs", message_input.get("runs", 1))
    seconds = message_input.get("min_seconds", 0)
    if not isinstance(runs, int) or runs < 1:
        raise UserError(f"min_runs is {runs!r}, expected an integer of at least 1")
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise UserError(f"min_seconds is {seconds!r}, expected a number of seconds")
    return runs, seconds


def timing(name, begin):
    return {"name": name, "nanoseconds": time.perf_counter_ns() - begin}
