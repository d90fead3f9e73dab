"""Attention written here, with any names for its sizes, that calls transformers' interface as transformers does."""

from types import SimpleNamespace

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

HEADS, KV_HEADS, WIDTH, D_MODEL = 4, 2, 3, 10

SOURCE = '''
class HomeAttention(nn.Module):
    """Reads its sizes from attributes of these names."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.is_causal = False
        self.{heads}, self.{kv_heads}, self.{width} = HEADS, KV_HEADS, HEADS * WIDTH
        self.kv_dim = KV_HEADS * WIDTH
        self.untold, self.odd = HEADS * WIDTH, HEADS
        self.head_dim, self.num_key_value_groups = WIDTH, HEADS // KV_HEADS
        self.q_proj, self.o_proj = nn.Linear(D_MODEL, HEADS * WIDTH), nn.Linear(HEADS * WIDTH, D_MODEL)
        self.k_proj, self.v_proj = (nn.Linear(D_MODEL, KV_HEADS * WIDTH) for _ in range(2))

    def forward(self, x):
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
        q = self.q_proj(x).view(*x.shape[:2], self.{heads}, -1).transpose(1, 2)
        k, v = (p(x).split(self.kv_dim, -1)[0].unflatten(-1, (self.{kv_heads}, -1)).transpose(1, 2)
                for p in (self.k_proj, self.v_proj))
        z, _ = attend(self, q, k, v, None, scaling=1.0)
        return self.o_proj(z.reshape(*x.shape[:2], self.{width}))
'''


def attention(heads="num_heads", kv_heads="num_key_value_heads", width="embed_dim"):
    """A model of one such layer, and what it reads (B, T, d_model)."""
    room = {
        "nn": nn,
        "ALL_ATTENTION_FUNCTIONS": ALL_ATTENTION_FUNCTIONS,
        "HEADS": HEADS,
        "KV_HEADS": KV_HEADS,
        "WIDTH": WIDTH,
        "D_MODEL": D_MODEL,
    }
    exec(SOURCE.format(heads=heads, kv_heads=kv_heads, width=width), room)  # names can be chosen in no other way
    torch.manual_seed(0)
    return nn.Sequential(room["HomeAttention"](SimpleNamespace())).eval(), torch.randn(2, 5, D_MODEL)
