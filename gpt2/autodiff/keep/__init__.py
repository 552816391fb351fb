"""From a joint graph to a forward and a backward one: which values are kept, and which computed again."""
