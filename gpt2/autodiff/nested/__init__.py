"""The ops that carry a graph of their own: call, scan and map."""
