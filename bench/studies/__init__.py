"""The studies: the questions this project exists to answer, each one command.

A study is a module with a STUDY. Modules are imported on demand, so that one that cannot be imported does
not affect the others.
"""

import importlib

from gpt2.errors import UserError

# Name on the command line -> module, in the order of the report.
STUDIES = {
    "layers": "layers",
    "optimise-first": "optimise_first",
    "scalar": "scalar",
    "roots": "roots",
    "eam": "eam",
    "programs": "program_times",
    "textbook": "textbook",
    "parallel": "parallel",
    "memory": "memory",
    "loops": "loops",
    "rooms": "rooms",
    "enzyme": "llvm",
}


def load(name):
    """The Study of this name. Raises UserError for an unknown one."""
    find([name])
    return importlib.import_module(f"bench.studies.{STUDIES[name]}").STUDY


def find(names):
    """The names, checked, or those of all studies if there are none. Raises UserError for an unknown one."""
    for name in names:
        if name not in STUDIES:
            raise UserError(f"no study {name!r}, expected some of {', '.join(STUDIES)}")
    return list(names) or list(STUDIES)
