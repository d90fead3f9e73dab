"""Ablation by the mean and by resampling, against the same thing done by hand."""

import pytest
import torch

import headtools as ht

from .batches import random_ids
from .reference import some_heads, watch
from .zoo import BUILDERS, error, run, zoo_model


def real_outputs(model, sites, name, batches):
    """z of every real token of some batches, all calls of a site together: {site.key: (n, H, Dv)}."""
    pools = {site.key: [] for site in sites}
    for batch in batches:
        with watch(sites) as recorded:
            run(model, batch)
        mask = batch.get("attention_mask")
        for site in sites:
            masked = BUILDERS[name][1] in ("text", "causal") or site.stack == "text_model"
            masked = masked or (BUILDERS[name][1] == "seq2seq" and site.kind == "encoder")
            for flat, _ in recorded[site.key]:
                z = flat.reshape(*flat.shape[:2], site.heads, site.value_dim)
                pools[site.key].append(z[mask.bool()] if masked else z.flatten(0, 1))
    return {key: torch.cat(pool) for key, pool in pools.items()}


def test_decoder_tokens_are_not_masked_by_the_source_padding():
    """The trap: source and target of the same length, where the source mask would fit the decoder's z."""
    model, batch = zoo_model("marian")
    generator = torch.Generator().manual_seed(8)
    batch = batch | {"decoder_input_ids": random_ids(generator, batch["input_ids"].shape[1])}
    sites = list(ht.sites(model))
    pools = real_outputs(model, sites, "marian", [batch])
    for kind in ("decoder", "cross"):
        with ht.ablate(model, {(kind, 1): [3]}, replacement="mean", reference=batch), watch(sites) as recorded:
            run(model, batch)
        z = recorded[kind, 1][0][0].reshape(3, 7, 4, 8)
        assert error(z[0, 0, 3], pools[kind, 1][:, 3].mean(0)) <= 1e-6
    masked = batch | {"decoder_attention_mask": batch["attention_mask"]}
    with ht.ablate(model, {("decoder", 0): [3]}, replacement="mean", reference=masked), watch(sites) as recorded:
        run(model, masked)
    with watch(sites) as plain:
        run(model, masked)
    real = plain["decoder", 0][0][0].reshape(3, 7, 4, 8)[masked["decoder_attention_mask"].bool()]
    assert error(recorded["decoder", 0][0][0].reshape(3, 7, 4, 8)[0, 0, 3], real[:, 3].mean(0)) <= 1e-6


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "marian", "t5", "vit"])
def test_resampling_gives_outputs_the_head_had_at_real_tokens(name):
    model, batch = zoo_model(name)
    sites = list(ht.sites(model))
    heads = some_heads(sites)
    pools = real_outputs(model, sites, name, [batch])
    site = sites[0]  # the first site's other heads do not depend on what happens elsewhere
    with watch(sites) as plain:
        run(model, batch)
    with ht.ablate(model, heads, replacement="resample", reference=batch), watch(sites) as recorded:
        run(model, batch)
    shape = (*recorded[site.key][0][0].shape[:2], site.heads, site.value_dim)
    z, was = recorded[site.key][0][0].reshape(shape), plain[site.key][0][0].reshape(shape)
    selected = heads[site.key]
    kept = [head for head in range(site.heads) if head not in selected]
    assert torch.equal(z[:, :, kept], was[:, :, kept])
    drawn, pool = z[:, :, selected].flatten(0, 1), pools[site.key][:, selected]
    distance = (drawn[:, None] - pool[None]).abs().amax((-1, -2))  # all heads of a token from one and the same token
    assert distance.amin(1).max() <= 1e-6
    assert len(distance.argmin(1).unique()) > 1, "every token got the same draw"
