"""From a graph to NumPy source, and to the program that runs it."""
