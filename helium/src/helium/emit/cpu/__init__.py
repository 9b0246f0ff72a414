"""The native emitter: from the tile IR to LLVM IR that runs on CPUs."""
