"""The one exception that means: the user can put this right.

Programs (train.py, python -m gpt2.sample, ...) print its text as a single line and leave with status 2.
Anything else that escapes is a fault of this project and keeps its traceback.
"""


class UserError(ValueError):
    """Bad input. The text names what was wrong, what was expected and what to do, in one line."""
