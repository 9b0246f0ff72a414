"""C out of the loop IR: expressions, loops, matrix products, and the module around them."""
