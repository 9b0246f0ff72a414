"""Generated micro-kernels for matrix products: a tile of sums in registers, over operands where they lie.

`edge_rows` takes both operands with their summed axis in memory order, `edge_columns` the right one with its columns in
memory order. Both write the sums for m rows and n columns to `d`. A tile's sums, a register for each of its columns and
one more fit into sixteen; what remains at the edges is done by smaller tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

_TILES = ((6, 2), (4, 3), (2, 4), (1, 4))
"""(rows, columns) of the tiles, the larger first; a column of edge_columns is a register wide."""

_ROWS = "const float *a, int64_t lda, const float *b, int64_t ldb"
_COLUMNS = "const float *a, int64_t lda, int64_t sa, const float *b, int64_t ldb"


def micro_kernels(names: frozenset[str]) -> str:
    """The C of the micro-kernels called for, of "edge_rows" and "edge_columns"."""
    makers = {"edge_rows": _rows, "edge_columns": _columns}
    return "\n".join("\n".join(makers[name]()) for name in sorted(names))


def _rows() -> Iterator[str]:
    for rows, columns in _TILES:
        yield from _row_tile(rows, columns)
        yield from _row_tile(rows, 1)
    yield f"EDGE_SHARED void edge_rows(int64_t m, int64_t n, int64_t k, {_ROWS}, float *d, int64_t ldd)"
    yield "{"
    yield "    int64_t i = 0;"
    for rows, columns in _TILES:
        rest = "k, a + i * lda, lda, b + j * ldb, ldb, d + i * ldd + j, ldd"
        yield f"    for (; i + {rows} <= m; i += {rows}) {{"
        yield "        int64_t j = 0;"
        yield f"        for (; j + {columns} <= n; j += {columns}) edge_rows_{rows}x{columns}({rest});"
        yield f"        for (; j < n; j++) edge_rows_{rows}x1({rest});"
        yield "    }"
    yield "}"


def _row_tile(rows: int, columns: int) -> Iterator[str]:
    """Sums of `rows` by `columns` products along memory; what fills no register is added one by one."""
    grid = [(i, j) for i in range(rows) for j in range(columns)]
    # Additions wait for the one before: a thin tile keeps two chains for each sum.
    chains = 2 if len(grid) <= 4 else 1
    yield f"EDGE_INLINE void edge_rows_{rows}x{columns}(int64_t k, {_ROWS}, float *d, int64_t ldd)"
    yield "{"
    yield "    edge_vector " + ", ".join(f"s{i}_{j}_{c} = {{0}}" for i, j in grid for c in range(chains)) + ";"
    yield "    int64_t p = 0;"
    yield f"    for (; p + {chains} * LANES <= k; p += {chains} * LANES) {{"
    for chain in range(chains):
        at = f"p + {chain} * LANES"
        yield from (
            f"        const edge_vector y{j}_{chain} = edge_load(b + {j} * ldb + {at});" for j in range(columns)
        )
        for i in range(rows):
            yield f"        const edge_vector x{i}_{chain} = edge_load(a + {i} * lda + {at});"
            yield from (f"        s{i}_{j}_{chain} += x{i}_{chain} * y{j}_{chain};" for j in range(columns))
    yield "    }"
    for i, j in grid:
        yield f"    float t{i}_{j} = edge_sum({' + '.join(f's{i}_{j}_{chain}' for chain in range(chains))});"
    yield "    for (; p < k; p++) {"
    yield from (f"        t{i}_{j} += a[{i} * lda + p] * b[{j} * ldb + p];" for i, j in grid)
    yield "    }"
    yield from (f"    d[{i} * ldd + {j}] = t{i}_{j};" for i, j in grid)
    yield "}"


def _columns() -> Iterator[str]:
    for rows, columns in _TILES:
        yield from _column_tile(rows, columns)
        yield from _column_tile(rows, 1)
    yield from _last_columns()
    yield f"EDGE_SHARED void edge_columns(int64_t m, int64_t n, int64_t k, {_COLUMNS}, float *d, int64_t ldd)"
    yield "{"
    yield "    int64_t i = 0;"
    for rows, columns in _TILES:
        rest, wide = "a + i * lda, lda, sa, b + j, ldb, d + i * ldd + j, ldd", f"{columns} * LANES"
        yield f"    for (; i + {rows} <= m; i += {rows}) {{"
        yield "        int64_t j = 0;"
        yield f"        for (; j + {wide} <= n; j += {wide}) edge_columns_{rows}x{columns}(k, {rest});"
        yield f"        for (; j + LANES <= n; j += LANES) edge_columns_{rows}x1(k, {rest});"
        yield f"        if (j < n) edge_columns_last({rows}, n - j, k, {rest});"
        yield "    }"
    yield "}"


def _column_tile(rows: int, columns: int) -> Iterator[str]:
    """Sums of `rows` by `columns` registers: a row of the right operand times one number of the left, over and over."""
    grid = [(i, j) for i in range(rows) for j in range(columns)]
    yield f"EDGE_INLINE void edge_columns_{rows}x{columns}(int64_t k, {_COLUMNS}, float *d, int64_t ldd)"
    yield "{"
    yield "    edge_vector " + ", ".join(f"s{i}_{j} = {{0}}" for i, j in grid) + ";"
    yield "    for (int64_t p = 0; p < k; p++) {"
    yield from (f"        const edge_vector y{j} = edge_load(b + p * ldb + {j} * LANES);" for j in range(columns))
    for i in range(rows):
        yield f"        const float x{i} = a[{i} * lda + p * sa];"
        yield from (f"        s{i}_{j} += x{i} * y{j};" for j in range(columns))
    yield "    }"
    yield from (f"    edge_store(d + {i} * ldd + {j} * LANES, s{i}_{j});" for i, j in grid)
    yield "}"


def _last_columns() -> Iterator[str]:
    """The last columns, fewer than a register holds."""
    yield f"EDGE_SHARED void edge_columns_last(int64_t m, int64_t n, int64_t k, {_COLUMNS}, float *d, int64_t ldd)"
    yield "{"
    yield "    for (int64_t i = 0; i < m; i++) {"
    yield "        float s[LANES] = {0};"
    yield "        for (int64_t p = 0; p < k; p++)"
    yield "            for (int64_t j = 0; j < n; j++) s[j] += a[i * lda + p * sa] * b[p * ldb + j];"
    yield "        for (int64_t j = 0; j < n; j++) d[i * ldd + j] = s[j];"
    yield "    }"
    yield "}"
