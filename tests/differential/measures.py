"""Every public measure beside its naive definition: ``MEASURES[name](case)`` gives two functions to compare.

Each returns numbers by name, {name: tensor}; NaN on the naive side says that nothing real stands there.
"""

import contextlib
import copy
import itertools
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from transformers import PreTrainedTokenizerFast

import headtools as ht
from headtools import geometry
from headtools.heads import _attention
from headtools.importance.statistics import entropy, offset
from headtools.roles import induction as back

from ..heads.zoo import VOCAB
from ..sparse.ridges import ridge
from . import naive
from .combinations import Case
from .naive import NotRunnable

Numbers = dict  # {name: tensor}
Pair = tuple[Callable[[], Numbers], Callable[[], Numbers]]

# --- seeing ---------------------------------------------------------------------------------------------------------


def _recorded(case: Case, want: tuple, part: str) -> Numbers:
    found = {}
    for number, batch in enumerate(case.batches):
        with torch.no_grad(), case.setting(), ht.record(case.model, want, training=True) as seen:
            case.call(batch)
        found |= {f"batch {number} {key}": getattr(seen[key], part) for key in seen}
    return found


def maps(case: Case) -> Pair:
    if case.combination.mode == "train" and case.combination.attention == "sdpa":
        raise NotRunnable("eager attention and sdpa draw their dropout unlike each other")
    return lambda: _recorded(case, ("maps",), "maps"), lambda: naive.maps(case, case.exposed())


def z(case: Case) -> Pair:
    return lambda: _recorded(case, ("z",), "z"), lambda: naive.z(case, case.exposed())


def _groups(case: Case, key: tuple, values: torch.Tensor) -> torch.Tensor:
    """Give every query head its keys or values (B, kv_head, S, width)."""
    return values.float().repeat_interleave(case.layers[key].heads // values.shape[1], 1)


def values(case: Case) -> Pair:
    """Maps times values are the heads' outputs: with recorded maps and values, against the outputs that are read."""
    if case.combination.mode == "train":
        raise NotRunnable("maps and values are those of another draw of dropout")

    def ours() -> Numbers:
        found = {}
        for number, batch in enumerate(case.batches):
            with torch.no_grad(), case.setting(), ht.record(case.model, ("maps", "v")) as seen:
                case.call(batch)
            for key in seen:
                mixed = seen[key].maps @ _groups(case, key, seen[key].v)
                found[f"batch {number} {key}"] = mixed.transpose(1, 2)
        return found

    return ours, lambda: naive.z(case, case.units)


def scores(case: Case) -> Pair:
    """The softmax of queries times keys is the map: with recorded queries and keys, against the model's own maps."""
    plain = {*naive.BILINEAR, "gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "phi3"}
    if case.combination.architecture not in plain or case.combination.mode == "train":
        raise NotRunnable("something else takes part in this model's scores")

    def ours() -> Numbers:
        found = {}
        for number, batch in enumerate(case.batches):
            with torch.no_grad(), case.setting(), ht.record(case.model, ("q", "k")) as seen:
                case.call(batch)
            for key in seen:
                q, k = seen[key].q.float(), _groups(case, key, seen[key].k)
                scaling = getattr(ht.sites(case.model)[key].module, "scaling", q.shape[-1] ** -0.5)
                scaled = case.combination.architecture in ("opt", "whisper")  # their queries come divided
                score = q @ k.transpose(-1, -2) * (1.0 if scaled else scaling)
                for row in range(case.size(batch)):
                    places = case._places(batch, row)[case.sides(key)[1]]
                    if isinstance(places, torch.Tensor):
                        hidden = torch.ones(score.shape[-1], dtype=torch.bool)
                        hidden[places] = False
                        score[row, :, :, hidden] = -torch.inf
                if key[-2] == "decoder":
                    score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
                found[f"batch {number} {key}"] = score.softmax(-1)
        return found

    return ours, lambda: naive.maps(case, case.units)


def contributions(case: Case) -> Pair:
    model = naive.quiet(case)
    layers = naive.layers(case.combination.architecture, model)
    seen = naive.outputs_of_heads(case, model, case.batches[0])

    def ours() -> Numbers:
        sites = ht.sites(model)
        with torch.no_grad(), case.setting():
            return {f"{key}": ht.contributions(sites[key], seen[key]) for key in layers}

    def slow() -> Numbers:
        found = {}
        for key, layer in layers.items():
            with torch.no_grad(), case.setting():
                parts = [naive.contribution(layer, seen[key], head) for head in range(layer.heads)]
            parts = [part.transpose(0, 1) if layer.tokens_first else part for part in parts]
            found[f"{key}"] = torch.stack(parts, 2)
        return found

    return ours, slow


# --- switching ------------------------------------------------------------------------------------------------------


def _answers(case: Case, context: Callable) -> Numbers:
    """What the model says inside ``context(batch number)``."""
    found = {}
    for number, batch in enumerate(case.batches):
        with torch.no_grad(), case.setting(), context(number):
            found[f"batch {number}"] = naive.answer(case.call(batch))
    return found


def gates(case: Case) -> Pair:
    shape = case.luck("shape").choice(("head", "example", "token"))

    model = naive.quiet(case)
    seen = [naive.outputs_of_heads(case, model, batch) for batch in case.batches]

    def values(number: int, key: tuple) -> torch.Tensor:
        rows, tokens, heads, _ = seen[number][key].shape
        size = {"head": (heads,), "example": (rows, heads), "token": (rows, tokens, heads)}[shape]
        return 2 * case.noise(*size, purpose=f"gates {number} {key}") - 0.5

    def ours() -> Numbers:
        return _answers(case, lambda number: ht.gates(case.model, {key: values(number, key) for key in case.chosen}))

    def changes(number: int, unit) -> dict:
        def change(outputs: torch.Tensor, key: tuple) -> torch.Tensor:
            gate = values(number, key)
            if gate.dim() == 1:
                return outputs * gate[:, None].to(outputs)
            gate = gate[unit.rows][:, None] if gate.dim() == 2 else gate[unit.rows]
            if gate.shape[1] not in (1, outputs.shape[1]):
                gate = gate[:, unit.place[0][case.sides(key)[0]]]
            return outputs * gate[..., None].to(outputs)

        return {key: lambda outputs, key=key: change(outputs, key) for key in case.chosen}

    return ours, lambda: naive.answers(case, case.exposed(), changes)


def ablate_zero(case: Case) -> Pair:
    return (
        lambda: _answers(case, lambda number: ht.ablate(case.model, case.chosen)),
        lambda: naive.answers(
            case, case.exposed(), lambda number, unit: {key: naive.off(heads) for key, heads in case.chosen.items()}
        ),
    )


def ablate_mean(case: Case) -> Pair:
    def slow() -> Numbers:
        means = {key: naive.pool(case, key).mean(0) for key in case.chosen}
        changes = {key: naive.put(heads, means[key]) for key, heads in case.chosen.items()}
        return naive.answers(case, case.exposed(), lambda number, unit: changes)

    return lambda: _answers(case, lambda number: ht.ablate(case.model, case.chosen, "mean", case.batches)), slow


def ablate_resample(case: Case) -> Pair:
    """What stands in for a head is an output that it had at a real token, of the same token for a layer's heads.

    And of more tokens than one: a draw that is always the same token would be an ablation of another kind.
    """
    if case.combination.precision != "float32":
        raise NotRunnable("rounding hides which token an output is from")
    if case.combination.wrapping == "compiled":
        raise NotRunnable("what a compiled model draws is not seen")
    key = next(iter(case.chosen))
    heads, taken = case.chosen[key], {}

    def ours() -> Numbers:
        off = ht.ablate(case.model, {key: heads}, "resample", case.batches)
        seen = naive.changed(case.layers, {key: lambda z: taken.__setitem__("z", z.detach()) or z})
        with torch.no_grad(), case.setting(), off, seen:
            case.call(case.batches[0])
        drawn = taken["z"][:, :, heads].flatten(0, 1)
        return {"drawn": drawn, "varied": varied(drawn)}

    def slow() -> Numbers:
        pool, drawn = naive.pool(case, key)[:, heads], taken["z"][:, :, heads].flatten(0, 1)
        nearest = torch.cdist(drawn.flatten(1), pool.flatten(1)).argmin(1)
        return {"drawn": pool[nearest], "varied": varied(pool)}

    def varied(outputs: torch.Tensor) -> torch.Tensor:
        return torch.tensor(float(len(outputs.unique(dim=0)) > 1))

    return ours, slow


def ablate_uniform(case: Case) -> Pair:
    if case.combination.architecture not in naive.SEPARATE:
        raise NotRunnable("this model's values are no module's output")
    if case.combination.mode == "train":
        raise NotRunnable("dropout falls on even weights, too")

    def slow() -> Numbers:
        handles = []

        def changes(number: int, unit) -> dict:
            found = {}
            for key, heads in case.chosen.items():
                change, handle = naive.even(case, case.model, key, heads, unit)
                found |= change
                handles.append(handle)
            return found

        try:
            return naive.answers(case, case.units, changes)
        finally:
            for handle in handles:
                handle.remove()

    return lambda: _answers(case, lambda number: ht.ablate(case.model, case.chosen, "uniform")), slow


def patch(case: Case) -> Pair:
    """A batch with the outputs that its heads had in the same batch read backwards."""
    name = next(name for name in ("input_ids", "pixel_values", "input_features") if name in case.batches[0])
    others = [{**batch, name: batch[name].flip(0)} for batch in case.batches]
    positions = case.luck("positions").choice((None, [0, 1] if case.two_sided else [0, 2]))
    if case.kind in ("image", "speech", "image+text"):
        positions = None

    def context(number: int):
        stack = contextlib.ExitStack()
        with torch.no_grad(), ht.record(case.model, "z", training=True) as source:
            torch.manual_seed(case.combination.seed)
            case.model(**others[number])
        stack.enter_context(ht.patch(case.model, case.chosen, source, positions))
        return stack

    def slow() -> Numbers:
        def changes(number: int, unit) -> dict:
            source = naive.outputs_of_heads(case, case.model, others[number])

            def change(outputs: torch.Tensor, key: tuple) -> torch.Tensor:
                new = naive.put(case.chosen[key], source[key])(outputs)
                if positions is not None:
                    kept = [t for t in range(outputs.shape[1]) if t not in positions]
                    new[:, kept] = outputs[:, kept]
                return new

            return {key: lambda outputs, key=key: change(outputs, key) for key in case.chosen}

        return naive.answers(case, case.together, changes)

    return lambda: _answers(case, context), slow


def prune(case: Case) -> Pair:
    """A model without some heads says what it says with those heads off; also with another attention function."""
    luck = case.luck("prune")
    switch, heads = luck.random() < 0.5, case.chosen
    if luck.random() < 0.25:
        key = next(iter(heads))
        heads = heads | {key: list(range(case.layers[key].heads))}  # a whole layer
    other = {"eager": "sdpa", "sdpa": "eager"}[case.combination.attention]
    if case.combination.mode == "train":
        raise NotRunnable("fewer heads draw another dropout")

    def ours() -> Numbers:
        model = case.model
        case.model = copy.deepcopy(model)
        try:
            ht.prune(case.model, heads)
            if switch:
                with contextlib.suppress(ValueError):  # some models have one attention function only
                    case.model.set_attn_implementation(other)
            return _answers(case, lambda number: contextlib.nullcontext())
        finally:
            case.model = model

    changes = {key: naive.off(some) for key, some in heads.items()}
    return ours, lambda: naive.answers(case, case.units, lambda number, unit: changes)


def save_load(case: Case) -> Pair:
    """A pruned model that was written and read says what it says with those heads off."""
    if case.combination.mode == "train" or case.combination.wrapping == "compiled":
        raise NotRunnable("the model is read in eval mode")
    cut = case.luck("cut").random() < 0.75

    def ours() -> Numbers:
        model = copy.deepcopy(case.model)
        if cut:
            ht.prune(model, case.chosen)
        kept, found = case.model, {}
        with tempfile.TemporaryDirectory() as folder:
            ht.save(model, Path(folder) / "model")
            wide = torch.bfloat16 if case.combination.precision == "bfloat16" else torch.float32
            case.model, _ = ht.load(str(Path(folder) / "model"), dtype=wide)
        try:
            found = _answers(case, lambda number: contextlib.nullcontext())
        finally:
            case.model = kept
        return found

    changes = {key: naive.off(some) for key, some in case.chosen.items()} if cut else {}
    return ours, lambda: naive.answers(case, case.units, lambda number, unit: changes)


# --- importance -----------------------------------------------------------------------------------------------------


def _alike(outputs: object, batch: dict) -> torch.Tensor:
    """CLIP's loss for an example by itself: how alike its text and its image are."""
    return (outputs.text_embeds * outputs.image_embeds).sum(-1)


def _loss(case: Case) -> dict:
    return {"loss": _alike} if case.kind == "image+text" else {}


def _sites(case: Case) -> tuple:
    """Return the argument ``sites`` of a measure and the keys it names."""
    luck = case.luck("sites")
    if luck.random() < 0.4:
        return None, list(case.layers)
    keys = luck.sample(sorted(case.layers), min(2, len(case.layers)))
    return keys, keys


def _dict(found: dict) -> Numbers:
    return {str(key): value for key, value in found.items()}


def _gradient(per: str) -> Callable:
    def measure(case: Case) -> Pair:
        given, keys = _sites(case)
        how = {"signed": True} if per in ("signed", "rows") else {"per": per}

        def ours() -> Numbers:
            with case.setting():
                scores = ht.gradient(case.prepared, case.batches, sites=given, **how, **_loss(case))
            return _dict(scores.rows if per == "rows" else scores.values)

        return ours, lambda: _dict(naive.slopes(case, keys) if per == "rows" else naive.gradient(case, keys, per))

    return measure


def gradient_secant(case: Case) -> Pair:
    """Also sdpa's, which is taken apart, against the secant of eager attention."""
    given, keys = _sites(case)

    def ours() -> Numbers:
        with case.setting():
            how = {"signed": True, "softmax": "secant"}
            return _dict(ht.gradient(case.prepared, case.batches, sites=given, **how, **_loss(case)).rows)

    return ours, lambda: _dict(naive.slopes(case, keys, softmax=naive.by_secant))


def confidence(case: Case) -> Pair:
    given, keys = _sites(case)
    exclude = [] if case.kind not in ("text", "causal") else case.luck("exclude").choice(([], [0, 5, 6, 7, 8]))
    if exclude:  # every sentence keeps a token that counts
        for batch in case.batches:
            last = batch["attention_mask"].shape[1] - 1 - batch["attention_mask"].flip(1).argmax(1)
            batch["input_ids"].scatter_(1, last[:, None], 9)

    def ours() -> Numbers:
        with case.setting():
            return _dict(ht.confidence(case.prepared, case.batches, exclude=exclude, sites=given).values)

    def slow() -> Numbers:
        kept, case.model = case.model, naive.quiet(case)
        try:
            return _dict(naive.confidence(case, keys, exclude))
        finally:
            case.model = kept

    return ours, slow


def statistics(case: Case) -> Pair:
    """Rows in blocks of two or three queries, with masks by block, against whole maps."""
    given, keys = _sites(case)
    own = [key for key in keys if key[-2] != "cross"]

    def ours() -> Numbers:
        found: Numbers = {}
        size = case.luck("block").choice((2, 3))
        blocks = mock.patch.multiple(_attention, WHOLE=size, N_QUERIES=size, LAZY_FROM=1)
        with blocks, case.setting():
            seen = ht.statistics(case.prepared, case.batches, {"entropy": entropy}, given)
            seen |= ht.statistics(case.prepared, case.batches, {"previous": offset(-1)}, own) if own else {}
        for name in seen:
            found |= {f"{name} {key}": values for key, values in seen[name].values.items()}
        return found

    def slow() -> Numbers:
        kept, case.model = case.model, naive.quiet(case)
        try:
            return naive.statistics(case, keys)
        finally:
            case.model = kept

    return ours, slow


def _ablation(by: str, means: bool = False) -> Callable:
    def measure(case: Case) -> Pair:
        keys = case.luck("layers").sample(sorted(case.layers), min(2, len(case.layers)))

        def ours() -> Numbers:
            how = {"replacement": by, "sites": keys, "progress": False}
            with case.setting():
                scores = ht.ablation(case.prepared, case.batches, **how, **_loss(case))
            return _dict(scores.values if means else scores.rows)

        def slow() -> Numbers:
            return {str(key): rise.mean(0) if means else rise for key, rise in naive.ablation(case, keys, by).items()}

        return ours, slow

    return measure


def _interaction(column: str, definition: Callable) -> Callable:
    """The interaction of a pair, or the second derivative that it is predicted from."""

    def measure(case: Case) -> Pair:
        heads = [(*key, head) for key, layer in case.layers.items() for head in range(layer.heads)]
        pairs = [tuple(sorted(case.luck("pairs").sample(heads, 2)))]

        def ours() -> Numbers:
            how = {"predict": column == "predicted", "progress": False}
            with case.setting():
                frame = ht.interaction(case.prepared, case.batches, pairs, **how, **_loss(case))
            return {column: torch.tensor(frame[column].tolist())}

        return ours, lambda: {column: definition(case, pairs)}

    return measure


def _score(case: Case) -> dict:
    if case.combination.precision != "float32" and case.kind != "image+text":
        return {"score": lambda outputs, _batch: outputs.logits[..., naive.WORD]}
    return {"score": _alike} if case.kind == "image+text" else {}


def _relevance(rules: str) -> Callable:
    """Under no rule the gradient times the output; under "cp" that of the model with its bends taken as constants."""
    # not roberta, whose last activation is a function
    plain = {*naive.BILINEAR, "gpt2", "gpt_neox", "llama", "qwen2", "mistral"} - {
        "roberta",
        "albert",
        "whisper",
        "clip",
    }

    def measure(case: Case) -> Pair:
        if rules == "cp" and case.combination.architecture not in plain:
            raise NotRunnable("this model is not made of the modules that are taken as linear")
        given, keys = _sites(case)

        def ours() -> Numbers:
            with case.setting():
                return _dict(ht.relevance(case.prepared, case.batches, rules=rules, sites=given, **_score(case)).values)

        return ours, lambda: _dict(naive.gradient_times_output(case, keys, rules))

    return measure


def relevance_conserved(case: Case) -> Pair:
    """With attention held constant what is explained arrives in full: at the input, or in biases."""
    rules = case.luck("rules").choice(("cp", "epsilon", "zplus", "voita", "alphabeta"))

    def ours() -> Numbers:
        with case.setting():
            notes = ht.relevance(case.prepared, case.batches, rules=rules, **_score(case)).notes
        return {f"share, {rules}": torch.tensor(notes["conserved"] + notes["absorbed"])}

    return ours, lambda: {f"share, {rules}": torch.tensor(1.0)}


# --- weights --------------------------------------------------------------------------------------------------------


def _circuit(which: str) -> Callable:
    def measure(case: Case) -> Pair:
        if case.combination.architecture not in (naive.SEPARATE if which == "ov" else (*naive.BILINEAR, "t5")):
            raise NotRunnable("this model's values are no module's output, or no one matrix gives its scores")
        heads = [(*key, head) for key, some in case.chosen.items() for head in some]

        def ours() -> Numbers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # T5's position bias
                found = getattr(geometry, which)(naive.quiet(case))
            return {f"{head}": found[head].left @ found[head].right for head in heads}

        return ours, lambda: {f"{head}": naive.circuit(case, head[:-1], head[-1], which) for head in heads}

    return measure


def edit(case: Case) -> Pair:
    """A head whose directions are taken out of what it writes: its contribution, less its part along them."""
    key = next(iter(case.chosen))
    head, several = case.chosen[key][0], case.luck("directions").choice((1, 2))

    def directions(width: int) -> torch.Tensor:
        return case.noise(several, width, purpose="directions") - 0.5

    with torch.no_grad(), case.setting():
        seen = naive.outputs_of_heads(case, naive.quiet(case), case.batches[0])[key]
        width = naive.contribution(case.layers[key], seen, 0).shape[-1]

    def ours() -> Numbers:
        return _answers(case, lambda number: ht.edit(case.model, (*key, head), remove=directions(width)))

    def slow() -> Numbers:
        layer, seen = case.layers[key], {}
        pre = layer.out.register_forward_pre_hook(lambda _module, read: seen.__setitem__("read", read[0]))

        def less(_module, _read, given: torch.Tensor) -> torch.Tensor | None:
            if busy:
                return None
            busy.append(True)
            written = naive.contribution(layer, layer.split(seen["read"]), head)
            busy.clear()
            basis = torch.linalg.qr(directions(given.shape[-1]).T)[0]
            return given - (written.float() @ basis @ basis.T).to(given)

        busy: list = []
        post = layer.out.register_forward_hook(less)
        try:
            return naive.answers(case, case.exposed(), lambda number, unit: {})
        finally:
            pre.remove()
            post.remove()

    return ours, slow


# --- roles ----------------------------------------------------------------------------------------------------------


def _tokenizer(marks: bool, side: str) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words w3, w4, ..., the ids of the zoo's vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["[PAD]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(3, VOCAB))]
    plain = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="w3"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {}
    if marks:
        template = [("[CLS]", 1), ("[SEP]", 2)]
        plain.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=template)
        special = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", padding_side=side, **special)


def taxonomy(case: Case) -> Pair:
    """Statistics of heads over sentences of words, against loops over the maps of single sentences."""
    if case.kind not in ("text", "causal", "seq2seq"):
        raise NotRunnable("no sentences go in")
    luck, marks = case.luck("sentences"), case.kind == "text"
    tokenizer = _tokenizer(marks, case.combination.padding)
    texts = [tuple(f"w{luck.randint(3, VOCAB - 1)}" for _ in range(luck.randint(3, 6))) for _ in range(6)]
    sentences = [
        ht.Sentence(words, (0,) * len(words), ("root",) * len(words), ("_",) * len(words), (0,) * len(words))
        for words in texts
    ]
    kind = {"text": "encoder", "causal": "decoder", "seq2seq": "encoder"}[case.kind]
    names = [key for key in case.layers if key[0] == kind]
    wanted = [f"offset {shift:+d}" for shift in (-1, 0, 1)] + ["previous", "next", "self", "first"]
    wanted += ["confidence", "entropy", "distance"]

    def ours() -> Numbers:
        with case.setting():
            how = {"roles": wanted, "kinds": [kind], "times": 10, "batch_size": luck.choice((1, 3, 32))}
            frame = ht.taxonomy(case.prepared, tokenizer, sentences, **how)
        return {
            f"{role} {layer}": torch.tensor(part.sort_values("head").score.tolist())
            for (role, layer), part in frame.groupby(["role", "layer"])
        }

    def slow() -> Numbers:
        case.kind, case.model = {"seq2seq": "text"}.get(case.kind, case.kind), naive.quiet(case)
        found: dict = {}
        for words in texts:
            batch = dict(tokenizer([" ".join(words)], return_tensors="pt"))
            batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
            model = case.model.get_encoder() if kind == "encoder" and names[0] in case.layers and two else case.model
            for number, maps in enumerate(_attentions(case, model, batch)):
                for head, weights in enumerate(maps[0].float()):
                    if kind == "decoder":
                        later = torch.ones(weights.shape, dtype=torch.bool).triu(1)
                        weights = weights.masked_fill(later, naive.NAN)
                    for role, some in naive.roles(weights, int(marks), len(words)).items():
                        found.setdefault((role, number), {}).setdefault(head, []).extend(some)
        shared = case.combination.architecture == "albert"
        if shared:  # its one layer runs three times, and counts as their mean
            merged: dict = {}
            for (role, _), heads in found.items():
                for head, some in heads.items():
                    merged.setdefault((role, 0), {}).setdefault(head, []).extend(some)
            found = merged
        return {
            f"{role} {number}": torch.tensor([sum(some) / len(some) for _, some in sorted(heads.items())])
            for (role, number), heads in found.items()
            if role in wanted
        }

    two = case.two_sided
    return ours, slow


def _attentions(case: Case, model: object, batch: dict) -> tuple:
    """The maps of all layers of a model, or of an encoder, that is run under eager attention."""
    naive.attend(case.model, "eager")
    with torch.no_grad(), case.setting():
        given = model(**batch, output_attentions=True).attentions
    if not given:
        raise NotRunnable("the model itself gives no maps")
    return given


def induction(case: Case) -> Pair:
    """Scores of looking back, of the model's own maps over a segment that repeats."""
    if case.kind != "causal":
        raise NotRunnable("only decoders look back")
    n, length, repeats, seed = 5, 5, 3, case.combination.seed

    def ours() -> Numbers:
        frame = ht.induction_scores(case.prepared, n=n, length=length, repeats=repeats, seed=seed)
        frame = frame[frame.role != back.COPYING]
        return {name: torch.tensor(group.score.to_numpy()) for name, group in frame.groupby(["layer", "role"])}

    def slow() -> Numbers:
        case.model = naive.quiet(case)
        found: dict = {}
        for ids in back.segments(n, length, repeats, back.ordinary_tokens(case.model), seed=seed):
            for number, maps in enumerate(_attentions(case, case.model, {"input_ids": ids[None]})):
                scores = [naive.looking_back(weights, ids.tolist(), length) for weights in maps[0].float()]
                for name in scores[0]:
                    found.setdefault((number, name), []).append(torch.stack([score[name] for score in scores]))
        return {name: torch.stack(some).mean(0) for name, some in found.items()}

    return ours, slow


# --- sparse ---------------------------------------------------------------------------------------------------------


def hard_concrete(case: Case) -> Pair:
    """Expected number of open gates, shares of 0 and 1 and mean gate, against 200,000 draws."""
    sizes = {key: layer.heads for key, layer in case.layers.items()}
    alpha = {key: 6 * case.noise(size, purpose=f"alpha {key}") - 3 for key, size in sizes.items()}
    gates = ht.HardConcrete(ht.sites(case.model), start=alpha)

    def ours() -> Numbers:
        with torch.no_grad():
            return {"l0": gates.expected_l0(), "zero": gates.p_zero(), "one": gates.p_one(), "mean": gates.mean()}

    def slow() -> Numbers:
        flat = torch.cat([alpha[key] for key in gates.sizes])
        noise = case.noise(200_000, len(flat), purpose="draws").clamp(1e-7, 1 - 1e-7)
        drawn = naive.hard_concrete(flat, 0.33, (-0.1, 1.1), noise)
        shares = {"zero": drawn == 0, "one": drawn == 1, "mean": drawn}
        return {"l0": (drawn > 0).sum(1).float().mean()} | {n: part.float().mean(0) for n, part in shares.items()}

    return ours, slow


def curve(case: Case) -> Pair:
    """The mean loss with the first heads of an order off, for each number of heads that stay."""
    order = [(*key, head) for key, layer in case.layers.items() for head in range(layer.heads)]
    case.luck("order").shuffle(order)
    keep = [len(order), len(order) // 2, 1]

    def evaluate(model: object) -> torch.Tensor:
        units = itertools.chain.from_iterable(case.units)
        return torch.stack([naive.loss(case, model(**unit.inputs), unit.inputs) for unit in units])

    def ours() -> Numbers:
        with case.setting():
            frame = ht.curve(case.model, order, evaluate, keep)
        return {"metric": torch.tensor(frame.metric.tolist())}

    def slow() -> Numbers:
        model, rows = naive.quiet(case), []
        for kept in keep:
            gone: dict = {}
            for *key, head in order[: len(order) - kept]:
                gone.setdefault(tuple(key), []).append(head)
            rows.append(naive.losses(case, {key: naive.off(heads) for key, heads in gone.items()}, model).mean())
        return {"metric": torch.stack(rows)}

    return ours, slow


def refit(case: Case) -> Pair:
    """The output maps of the heads that stay, by least squares: what the layer writes, against torch's lstsq."""
    if case.combination.precision != "float32":
        raise NotRunnable("a least-squares fit of rounded numbers is another fit")
    key = next(iter(case.chosen))
    layer, gone = case.layers[key], case.chosen[key]
    stay = [head for head in range(layer.heads) if head not in gone]
    rows = naive.pool(case, key)  # (n, head, width)
    biased = getattr(layer.out, "bias", None) is not None
    outputs = layer.out(layer.join(rows[None])).detach()[0]

    def ours() -> Numbers:
        model = copy.deepcopy(case.model)
        with ridge(0.0):
            ht.refit(model, {key: gone}, case.batches)
        new = naive.layers(case.combination.architecture, model)[key].out
        with torch.no_grad():
            return {"written": new(rows[:, stay].flatten(1))}

    def slow() -> Numbers:
        features, wanted = rows[:, stay].flatten(1).double(), outputs.double()
        mean = wanted.mean(0) if biased else 0.0  # what is constant goes into the bias
        features = features - features.mean(0) if biased else features
        # Directions that hardly vary count as none: their share of the greatest, squared, is below 1e-9.
        fitted = torch.linalg.lstsq(features, wanted - mean, rcond=1e-9**0.5, driver="gelsd").solution
        return {"written": features @ fitted + mean}

    return ours, slow


def merge(case: Case) -> Pair:
    """Two heads that are copies of each other become one, and nothing is lost."""
    if case.combination.architecture not in {*naive.BILINEAR} - {"albert"} or case.combination.precision != "float32":
        raise NotRunnable("copies are made where queries, keys and values are modules of their own")
    if case.combination.mode == "train":
        raise NotRunnable("copies that differ by dropout are none")
    key = next(iter(case.chosen))
    model = copy.deepcopy(case.model)
    layer = naive.layers(case.combination.architecture, model)[key]
    with torch.no_grad():
        for module in naive.projections(case, model, key)[:3]:
            for weight in module.parameters():
                parts = weight.unflatten(0, (layer.heads, -1))
                parts[1] = parts[0]

    def ours() -> Numbers:
        smaller, kept = copy.deepcopy(model), case.model
        with ridge(1e-9):
            frame = ht.merge(smaller, [((*key, 0), (*key, 1))], case.batches)
        case.model = smaller
        try:
            answers = _answers(case, lambda number: contextlib.nullcontext())
            return answers | {"error": torch.tensor(frame.relative_error[0])}
        finally:
            case.model = kept

    def slow() -> Numbers:
        return naive.answers(case, case.units, lambda number, unit: {}, model) | {"error": torch.tensor(0.0)}

    return ours, slow


MEASURES = {
    "maps": maps,
    "z": z,
    "values": values,
    "scores": scores,
    "contributions": contributions,
    "gates": gates,
    "ablate_zero": ablate_zero,
    "ablate_mean": ablate_mean,
    "ablate_resample": ablate_resample,
    "ablate_uniform": ablate_uniform,
    "patch": patch,
    "prune": prune,
    "save_load": save_load,
    "gradient": _gradient("example"),
    "gradient_position": _gradient("position"),
    "gradient_batch": _gradient("batch"),
    "gradient_signed": _gradient("signed"),
    "gradient_rows": _gradient("rows"),
    "gradient_secant": gradient_secant,
    "confidence": confidence,
    "statistics": statistics,
    "ablation": _ablation("zero", means=True),
    "ablation_rows": _ablation("zero"),
    "ablation_mean": _ablation("mean"),
    "interaction": _interaction("interaction", naive.interaction),
    "curvature": _interaction("predicted", naive.second_derivative),
    "relevance_gradient": _relevance("gradient"),
    "relevance_cp": _relevance("cp"),
    "relevance_conserved": relevance_conserved,
    "ov": _circuit("ov"),
    "qk": _circuit("qk"),
    "edit": edit,
    "taxonomy": taxonomy,
    "induction": induction,
    "hard_concrete": hard_concrete,
    "curve": curve,
    "refit": refit,
    "merge": merge,
}
