"""Simulated groups: the algorithms' own generators over a model of a cluster, or over real tensors with random delays."""
