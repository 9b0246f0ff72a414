"""The local engine: processes forked from a zygote, Unix sockets, shared memory. Internal."""
