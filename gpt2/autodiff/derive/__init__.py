"""From a graph to the graph of its derivative, forward or reverse."""
