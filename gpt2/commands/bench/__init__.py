"""Time a training step on this machine (__main__.py), and the machine itself (machine.py)."""
