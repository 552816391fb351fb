"""Turns a graph into NumPy source, and into the program that runs it."""
