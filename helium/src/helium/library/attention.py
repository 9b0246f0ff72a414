"""Scaled dot-product attention in one pass over the keys (Milakov and Gimelshein, 2018; Dao et al., 2022)."""

import torch

import helium.language as hl
from helium.decorator import kernel


def _meaning(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    wide = torch.promote_types(query.dtype, torch.float32)
    groups = query.size(0) // key.size(0)
    k, v = (one.to(wide).repeat_interleave(groups, 0) for one in (key, value))
    scores = query.to(wide) @ k.transpose(1, 2) * scale
    rows = torch.arange(query.size(1), device=query.device)[:, None] + (key.size(1) - query.size(1))
    seen = (torch.arange(key.size(1), device=query.device)[None, :] <= rows) | (not causal)
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v).to(query.dtype)


@kernel(name="helium::attention", meaning=_meaning)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """softmax(q · kᵀ · scale) · v, of q[h, m, d], k[g, n, d] and v[g, n, e], without writing the scores.

    Query heads share keys and values in groups of h/g, a whole number. `causal`: query i sees keys up to i + n - m.
    Computed in float32; no gradient.
    """
    h, m, _ = q.size()
    g, n, e = v.size()
    assert k.size(0) == g
    assert k.size(1) == n
    out = torch.empty([h, m, e], dtype=q.dtype, device=q.device)
    for head, tile_m in hl.tile([h, m], block_size=[1, None]):
        shared = head.begin // (h // g)
        last = (n - 1) + causal * (tile_m.index - (m - 1))
        top = hl.full([tile_m], float("-inf"))
        total = hl.zeros([tile_m])
        acc = hl.zeros([tile_m, e])
        for tile_n in hl.tile(n):
            scores = (q[head.begin, tile_m, :] @ k[shared, tile_n, :].T).to(torch.float32) * scale
            scores = torch.where(tile_n.index[None, :] <= last[:, None], scores, float("-inf"))
            new = torch.maximum(top, scores.amax(-1))
            shift = torch.where(new == float("-inf"), 0.0, new)
            powers = torch.exp(scores - shift[:, None])
            fade = torch.exp(top - shift)
            total = total * fade + powers.sum(-1)
            acc = torch.addmm(acc * fade[:, None], powers.to(q.dtype), v[shared, tile_n, :])
            top = new
        out[head.begin, tile_m, :] = acc / total[:, None]
    return out
