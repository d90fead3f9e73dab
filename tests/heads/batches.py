"""Padded batches for the models of the zoo: sentences of different lengths, so that a lost mask shows."""

import torch

VOCAB, BATCH, TOKENS = 96, 3, 7
LENGTHS = (7, 5, 3)


def random_ids(generator, tokens=TOKENS):
    """Words at random, (3, tokens), none of them special."""
    return torch.randint(3, VOCAB, (BATCH, tokens), generator=generator)


def padding(side, tokens=TOKENS, lengths=LENGTHS):
    """A mask (3, tokens) of sentences of three lengths, filled up on one side."""
    place = torch.arange(tokens).expand(len(lengths), tokens)
    size = torch.tensor(lengths)[:, None]
    return (place < size if side == "right" else place >= tokens - size).long()


def by_pairs(real, causal, kind=torch.bool):
    """A mask (B, 1, T, T) that lets real keys through, of the kind that a user would write."""
    size = real.shape[1]
    through = real[:, None, None].expand(-1, 1, size, size)
    through = through & torch.ones(size, size).tril().bool() if causal else through
    return through if kind == torch.bool else torch.where(through, 0.0, torch.finfo(kind).min).to(kind)


def make_batch(kind, side):
    """A batch for models that read `kind`: text, causal, seq2seq, speech, image, image+text or image in text."""
    generator = torch.Generator().manual_seed(2)
    if kind in ("image", "speech"):
        shape = (BATCH, 3, 16, 16) if kind == "image" else (BATCH, 8, 20)
        name = "pixel_values" if kind == "image" else "input_features"
        batch = {name: torch.randn(shape, generator=generator)}
        return batch | ({"decoder_input_ids": random_ids(generator, 5)} if kind == "speech" else {})
    mask = padding(side)
    batch = {"input_ids": random_ids(generator) * mask, "attention_mask": mask}
    if kind == "image+text":
        batch["pixel_values"] = torch.randn(BATCH, 3, 16, 16, generator=generator)
        batch["input_ids"][:, 0] = 2
    if kind == "image in text":  # the last word stands for one of the image's four patches
        batch["pixel_values"] = torch.randn(BATCH, 3, 16, 16, generator=generator)
        patches = torch.full((BATCH, 4), VOCAB - 1)
        words = batch["input_ids"].clamp(max=VOCAB - 2)
        batch["input_ids"] = torch.cat([patches, words], 1)
        batch["attention_mask"] = torch.cat([torch.ones_like(patches), mask], 1)
    if kind == "seq2seq":
        batch["decoder_input_ids"] = random_ids(generator, 5)
    return batch
