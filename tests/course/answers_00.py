"""Answers to the exercises of lesson 00: right ones, and wrong ones with what their hint must say."""

import torch

import headtools as ht


def right(model, batch, heads):
    with ht.ablate(model, heads):
        return model(**batch).logits


def whole_output(model, batch, heads):
    with torch.no_grad(), ht.ablate(model, [(*site, h) for site, numbers in heads.items() for h in numbers]):
        return model(**batch)


def by_gates(model, batch, heads):
    gate = {site: torch.ones(4).index_fill(0, torch.tensor(numbers), 0) for site, numbers in heads.items()}
    with ht.gates(model, gate):
        return model(**batch).logits


def encoder_output_when_it_can(model, batch, heads):
    with ht.ablate(model, heads):
        out = model(**batch)
    return out.logits if ("decoder", 1) in heads else out.encoder_last_hidden_state


def head_mask(model, batch, heads):
    return model(**batch, head_mask=torch.zeros(3, 4)).logits


def after_the_block(model, batch, heads):
    with ht.ablate(model, heads):
        pass
    return model(**batch).logits


def layers_from_one(model, batch, heads):
    with ht.ablate(model, {(kind, layer - 1): numbers for (kind, layer), numbers in heads.items()}):
        return model(**batch).logits


def heads_from_one(model, batch, heads):
    with ht.ablate(model, {site: [h + 1 for h in numbers] for site, numbers in heads.items()}):
        return model(**batch).logits


def the_others(model, batch, heads):
    with ht.ablate(model, {site: [h for h in range(4) if h not in numbers] for site, numbers in heads.items()}):
        return model(**batch).logits


def whole_layer(model, batch, heads):
    with ht.ablate(model, {site: [0, 1, 2, 3] for site in heads}):
        return model(**batch).logits


def first_head_only(model, batch, heads):
    site, numbers = next(iter(heads.items()))
    with ht.ablate(model, {site: numbers[:1]}):
        return model(**batch).logits


def zeroed_for_good(model, batch, heads):
    for (kind, layer), numbers in heads.items():
        block = (model.model.encoder if kind == "encoder" else model.model.decoder).layers[layer]
        attention = block.encoder_attn if kind == "cross" else block.self_attn
        for h in numbers:
            attention.out_proj.weight.data[:, 4 * h : 4 * h + 4] = 0
    return model(**batch).logits


def left_open(model, batch, heads):
    context = ht.ablate(model, heads)
    context.__enter__()
    vars(model)["left open"] = context  # it ends with the model, and not with this function
    return model(**batch).logits


def raises(model, batch, heads):
    return model(**batch, heads=heads["cross", 7]).logits


COUNT = {"encoder": 48, "decoder": 48, "cross": 48}

ANSWERS = {
    "00.ablate": {
        "right": [right, whole_output, by_gates, encoder_output_when_it_can],
        "wrong": [
            (head_mask, "took head_mask= without a word"),
            (after_the_block, "run inside the with block"),
            (layers_from_one, "Layers count from 0"),
            (heads_from_one, "Another head is off. Heads count from 0"),
            (the_others, "wrong way round"),
            (whole_layer, "Whole layers are off"),
            (first_head_only, "Only the first of the heads"),
            (zeroed_for_good, "no longer what it was"),
            (left_open, "no longer what it was"),
            (raises, r"KeyError.*heads = \{\('encoder', 1\): \[0\]\}"),
            (lambda model, batch, heads: model.model.encoder(batch["input_ids"])[0] * 0 + 1, "This is not the output"),
            (lambda model, batch, heads: model.generate(**batch, max_new_tokens=4), r"Return the logits.*is shape"),
            (lambda model: model, "stopped with TypeError"),
            (3, "A function is asked for, this is an int"),
        ],
    },
    "00.count": {
        "right": [COUNT, dict(reversed(COUNT.items())), {k: float(v) for k, v in COUNT.items()}],
        "blank": [None, ..., COUNT | {"cross": None}, COUNT | {"cross": ...}],
        "wrong": [
            (COUNT | {"decoder": 96}, "decoder: 96.*Two kinds are taken for one"),
            (dict.fromkeys(COUNT, 144), "encoder: 144.*three kinds together"),
            (dict.fromkeys(COUNT, 6), "number of layers"),
            (dict.fromkeys(COUNT, 8), "heads in one layer"),
            (dict.fromkeys(COUNT, 128), "d_model"),
            (dict.fromkeys(COUNT, 16), "d_head"),
            (dict.fromkeys(COUNT, 768), "layers times width"),
            (COUNT | {"cross": 47}, "cross: 47"),
            (COUNT | {"cross": "48"}, "cross: a number is asked for"),
            (144, "kinds apart"),
            ({"encoder": 48}, "keys should be"),
            ([48, 48, 48], "A dict is asked for.*a list"),
        ],
    },
}
