"""What the front end refuses, and how it says so: code, caret, cause and fix."""

import pytest
import torch

import helium
import helium.language as hl
from helium import exc

X, Y = torch.empty(6, 7), torch.empty(7, 6)


@helium.kernel()
def unpacks_three(x):
    for a, b, c in hl.tile(x.size()):
        x[a, b] = c
    return x


@helium.kernel()
def mixes_axes(x, y):
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] + y[tile_n, tile_m]
    return out


@helium.kernel()
def counts_wrong(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile]
    return out


@helium.kernel()
def uses_whole(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x + 1
    return out


@helium.kernel()
def reads_outside(x):
    return x[0, 0] + 1


@helium.kernel()
def misspells(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.exp(xx[tile])  # noqa: F821
    return out


@helium.kernel()
def wants_fft(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.fft.fft(x[tile])
    return out


@helium.kernel()
def changes_carried(x):
    out = torch.empty_like(x)
    for tile_m in hl.tile(x.size(0)):
        total = hl.zeros([tile_m])
        for tile_n in hl.tile(x.size(1)):
            total = total[:, None] + x[tile_m, tile_n]
        out[tile_m, :] = total
    return out


@helium.kernel()
def branches(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        if x[tile] > 0:
            out[tile] = x[tile]
    return out


@helium.kernel()
def loops_while(x):
    while True:
        x = x
    return x


@helium.kernel()
def makes_inside(x):
    for tile in hl.tile(x.size()):
        out = torch.empty_like(x)
        out[tile] = x[tile]
    return x


@helium.kernel()
def divides_by_zero(x):
    n = 1 // 0
    return torch.empty([n])


@helium.kernel()
def returns_a_number(x):
    return 3


@helium.kernel()
def float_bits(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] & x[tile]
    return out


@helium.kernel()
def sums_wrongly(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile].sum(-1, keep=True)
    return out


@helium.kernel()
def takes_index_of_max(x):
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].max(dim=-1)[1] + 1
    return out


CASES = [
    (unpacks_three, (X,), exc.UnpackMismatch, "3 names for 2 tiles"),
    (mixes_axes, (X, Y), exc.ShapeMismatch, "tile_m against tile_n"),
    (counts_wrong, (X,), exc.IndexMismatch, "2 dimensions and is indexed with 1"),
    (uses_whole, (X,), exc.HostOnly, "x is a whole tensor"),
    (reads_outside, (X,), exc.TileOnly, "outside a tile loop"),
    (misspells, (X,), exc.UnknownName, "'xx' has no value"),
    (wants_fft, (X,), exc.UnknownOperation, "fft_fft is not known"),
    (changes_carried, (X,), exc.CarriedChange, "'total' enters the loop as"),
    (branches, (X,), exc.UnsupportedSyntax, "a branch on data"),
    (loops_while, (X,), exc.UnsupportedSyntax, "While in a kernel"),
    (makes_inside, (X,), exc.HostOnly, "an output made inside"),
    (divides_by_zero, (X,), exc.EvaluationFailed, "ZeroDivisionError"),
    (returns_a_number, (X,), exc.UnsupportedSyntax, "no tensor"),
    (float_bits, (X,), exc.DTypeMismatch, "`and` of float32"),
    (sums_wrongly, (X,), exc.WrongArguments, "keep"),
    (takes_index_of_max, (X,), exc.UnknownOperation, "indices of max"),
]


@pytest.mark.unit
@pytest.mark.parametrize(("kernel", "args", "error", "words"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_mistake_is_named_placed_and_remedied(kernel, args, error, words):
    with pytest.raises(error) as caught:
        kernel(*args)
    text = str(caught.value)
    assert words in text
    assert text.startswith(f"{error.code} {error.__name__}: ")
    assert "\n  fix: " in text
    place = caught.value.location
    assert place.file == __file__
    with open(__file__) as file:
        assert place.text.strip() == file.readlines()[place.line - 1].strip()
    assert "^" in text.splitlines()[3]


@pytest.mark.unit
def test_the_caret_is_under_the_expression():
    with pytest.raises(exc.UnknownName) as caught:
        misspells(X)
    lines = str(caught.value).splitlines()
    start = lines[3].index("^")
    assert lines[2][start : start + lines[3].count("^")] == "xx"


@pytest.mark.unit
@pytest.mark.parametrize("word", ["dot", "full", "load", "static_range", "store", "tile", "zeros"])
def test_words_of_the_language_raise_outside_kernels(word):
    arguments = {"full": ([1], 0), "load": (X, []), "store": (X, [], X), "dot": (X, X)}.get(word, ([1],))
    with pytest.raises(exc.OutsideKernel, match=f"hl.{word} means something only inside a kernel"):
        getattr(hl, word)(*arguments)


@pytest.mark.unit
def test_source_may_be_given_as_text():
    text = "def double(x):\n    out = torch.empty_like(x)\n    for tile in hl.tile(x.size()):\n"
    text += "        out[tile] = x[tile] * 2\n    return out\n"
    space = {"torch": torch, "hl": hl, "__name__": "made"}
    exec(text, space)
    without = helium.kernel(space["double"])
    with pytest.raises(exc.SourceUnavailable, match="source=text"):
        without(X)
    double = helium.kernel(source=text)(space["double"])
    x = torch.randn(3, 4)
    assert torch.equal(double(x), 2 * x)


@pytest.mark.unit
def test_calls_that_do_not_fit():
    from helium.library import add, matmul, softmax

    with pytest.raises(exc.ArgumentMismatch, match="missing a required argument"):
        add(X)
    with pytest.raises(exc.ArgumentMismatch, match="argument x is a list"):
        softmax([1.0])
    with pytest.raises(exc.SizeMismatch, match=r"needs y.shape\[0\] == x.shape\[1\], but they are 6 and 7"):
        matmul(X, X)
    with pytest.raises(exc.ArgumentMismatch, match="complex64"):
        softmax(torch.empty(2, 2, dtype=torch.complex64))


@pytest.mark.unit
def test_a_config_must_name_loops():
    @helium.kernel(config=helium.Config(tile_q=8))
    def double(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * 2
        return out

    with pytest.raises(exc.ConfigError, match="'tile_q', which is no loop of it; its loops are tile"):
        double(torch.empty(4))
