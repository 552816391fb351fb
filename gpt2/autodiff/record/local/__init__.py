"""Plain arrays that a function makes while it is recorded, and what becomes of them when recorded values are
written into them.
"""
