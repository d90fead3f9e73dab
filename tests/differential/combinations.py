"""Which model, mode, precision, padding and wrapping a measure is tried on, drawn at random from a seed.

A ``Combination`` names the choices; ``Case`` is the model and the batches that they make, and the same sentences one at
a time. The seed determines everything, so a combination can be run again by its seed alone.
"""

import contextlib
import copy
import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from ..heads.zoo import ALL, BUILDERS, VOCAB, zoo_model
from . import naive
from .naive import NotRunnable

CHOICES = {
    "mode": ("eval", "train"),
    "precision": ("float32", "bfloat16", "autocast"),
    "padding": ("left", "right"),
    "attention": ("eager", "sdpa"),
    "wrapping": ("plain", "checkpointing", "compiled"),
}
WEIGHTS = {"precision": (2, 1, 1), "wrapping": (30, 10, 1)}  # a compiled model takes ten seconds, others a tenth
# What a measure asks of a model: without it most of its draws could not be run.
NEEDS = {
    "merge": {
        "architecture": tuple(name for name in naive.BILINEAR if name != "albert"),
        "mode": ("eval",),
        "precision": ("float32",),
    },
    "refit": {"precision": ("float32",)},
}
DROPOUT = 0.2
MIXTURES = ("deepseek_v3", "gpt_oss")  # of experts


@dataclass(frozen=True)
class Combination:
    """One measure on one model in one setting."""

    measure: str
    architecture: str
    seed: int
    mode: str
    precision: str
    padding: str
    attention: str
    wrapping: str

    def __str__(self) -> str:
        setting = ", ".join(getattr(self, name) for name in CHOICES)
        return f"{self.measure} of {self.architecture} ({setting})"

    @property
    def command(self) -> str:
        """Return the line that runs this combination again."""
        names = ("measure", "architecture", *CHOICES)
        given = " ".join(f"--{name} {getattr(self, name)}" for name in names)
        return f"python -m tests.differential --seed {self.seed} --count 1 {given}"


def draw(measure: str, seed: int, **given: str) -> Combination:
    """Draw every choice from the seed; what is ``given`` is taken in place of what was drawn."""
    luck = random.Random(f"{measure} {seed}")
    drawn = {"architecture": luck.choice(ALL)}
    for name, options in CHOICES.items():
        drawn[name] = luck.choices(options, WEIGHTS.get(name))[0]
    for name, options in NEEDS.get(measure, {}).items():
        drawn[name] = luck.choice(options)
    drawn |= {name: value for name, value in given.items() if value}
    if drawn["architecture"] in ("gemma2", "gpt_oss"):  # have no other
        drawn["attention"] = "eager"
    return Combination(measure, seed=seed, **drawn)


@dataclass
class Unit:
    """Rows of a padded batch that the naive side runs together: one sentence, or a whole batch where dropout draws.

    ``inputs`` is what the model takes. ``own[i][side]`` tells where the real tokens of row ``rows[i]`` stand in it, and
    ``place[i][side]`` where they stand in the padded batch; a side is "source" or "target".
    """

    inputs: dict
    rows: list
    own: list
    place: list


@dataclass
class Case:
    """The model and batches of a combination. Whatever is drawn is drawn again alike each time it is asked for."""

    combination: Combination
    model: nn.Module = field(init=False)
    batches: list = field(init=False)

    def __post_init__(self):
        if self.combination.wrapping == "compiled":
            torch._dynamo.reset()
        self.kind = BUILDERS[self.combination.architecture][1]
        self.batches = [self._batch(number) for number in range(2)]
        self.model = self._model()

    # --- what is drawn ----------------------------------------------------------------------------------------------

    def luck(self, purpose: str = "") -> random.Random:
        """Return a fresh source of numbers, the same for the same purpose."""
        return random.Random(f"{self.combination.measure} {self.combination.seed} {purpose}")

    def noise(self, *shape: int, purpose: str = "") -> torch.Tensor:
        """Return random numbers from 0 to 1, the same for the same purpose and shape."""
        generator = torch.Generator().manual_seed(self.luck(purpose).getrandbits(31))
        return torch.rand(shape, generator=generator)

    @cached_property
    def layers(self) -> dict:
        """Return the attention layers of the model, {key: naive.Layer}, by a table of our own."""
        return naive.layers(self.combination.architecture, self.model)

    @cached_property
    def chosen(self) -> dict:
        """Return some heads, {key: [head, ...]}: at least one, and of at most two layers."""
        luck = self.luck("heads")
        keys = luck.sample(sorted(self.layers), min(len(self.layers), luck.choice((1, 2))))
        return {
            key: sorted(luck.sample(range(self.layers[key].heads), luck.randint(1, self.layers[key].heads - 1)))
            for key in sorted(keys)
        }

    # --- how the model is run ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def setting(self) -> Iterator[None]:
        """Enter the precision of the combination."""
        with contextlib.ExitStack() as stack:
            if self.combination.precision == "autocast":
                stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            yield

    def call(self, inputs: dict) -> object:
        """Run the model as a user would inside a context, with dropout that draws the same each time."""
        model = self.model
        if self.combination.wrapping == "compiled":
            model = torch.compile(model, backend="eager")
        torch.manual_seed(self.combination.seed)
        return model(**inputs)

    @property
    def prepared(self) -> nn.Module:
        """Return the model as a measure gets it that runs the model itself: compiled already, if it is to be so."""
        return torch.compile(self.model, backend="eager") if self.combination.wrapping == "compiled" else self.model

    @property
    def two_sided(self) -> bool:
        """Tell whether the model reads one sequence and writes another."""
        return self.kind in ("seq2seq", "speech")

    def sides(self, key: tuple) -> tuple:
        """Return which side a layer's queries are on, and which its keys."""
        if "vision_model" in key:
            return "image", "image"
        own = "target" if self.two_sided else "source"
        return {"encoder": ("source", "source"), "decoder": (own, own), "cross": ("target", "source")}[key[-2]]

    # --- the same sentences, one at a time --------------------------------------------------------------------------

    @cached_property
    def units(self) -> list:
        """Return, for every batch, its sentences one by one, without padding where the model itself does not mind."""
        return [[self._unit(batch, row) for row in range(self.size(batch))] for batch in self.batches]

    @cached_property
    def together(self) -> list:
        """Return every batch as a single unit: where dropout is on, rows drawn together cannot be run alone."""
        out = []
        for batch in self.batches:
            places = [self._places(batch, row) for row in range(self.size(batch))]
            out.append([Unit(batch, list(range(len(places))), places, places)])
        return out

    def exposed(self) -> list:
        """Return the units for what the user runs: whole batches in training mode, single sentences otherwise."""
        return self.together if self.combination.mode == "train" else self.units

    def size(self, batch: dict) -> int:
        """Return the number of examples in a batch."""
        return len(next(iter(batch.values())))

    @cached_property
    def minds_padding(self) -> bool:
        """Tell whether the plain model itself says something else of a sentence whose padding is taken away."""
        rows = [(batch, row) for batch in self.batches for row in range(self.size(batch))]
        for batch, row in rows:
            unit, side = self._cut(batch, row), "target" if self.two_sided else "source"
            with torch.no_grad():
                padded = naive.answer(self._plain(**_floats(batch, torch.float32)))[row]
                alone = naive.answer(self._plain(**_floats(unit.inputs, torch.float32)))[0]
            if padded.dim() == 2:
                alone, padded = alone[unit.own[0][side]], padded[unit.place[0][side]]
            if not torch.allclose(alone, padded, rtol=1e-3, atol=1e-3):
                return True
        return False

    def _unit(self, batch: dict, row: int) -> Unit:
        if not self.minds_padding:
            return self._cut(batch, row)
        places = self._places(batch, row)
        return Unit({name: value[row : row + 1] for name, value in batch.items()}, [row], [places], [places])

    def _cut(self, batch: dict, row: int) -> Unit:
        """Return a row without its padding."""
        places, inputs = self._places(batch, row), {}
        for name, value in batch.items():
            side = "target" if self.two_sided and (name == "labels" or name.startswith("decoder")) else "source"
            follows = value.dim() == 2 and isinstance(places[side], torch.Tensor)
            inputs[name] = value[row : row + 1, places[side]] if follows else value[row : row + 1]
        own = {side: torch.arange(len(p)) if isinstance(p, torch.Tensor) else p for side, p in places.items()}
        return Unit(inputs, [row], [own], [places])

    def _places(self, batch: dict, row: int) -> dict:
        """Return where a row's real tokens stand, {side: numbers}, or every place where nothing is padded."""
        places = {"source": slice(None), "target": slice(None), "image": slice(None)}
        if "attention_mask" in batch:
            places["source"] = batch["attention_mask"][row].nonzero().flatten()
        if self.two_sided:
            counted = batch["labels"][row] != -100
            counted = batch["decoder_attention_mask"][row].bool() if "decoder_attention_mask" in batch else counted
            places["target"] = torch.arange(int(counted.nonzero().max()) + 1)
        return places

    # --- making them ------------------------------------------------------------------------------------------------

    def _batch(self, number: int) -> dict:
        """Return a padded batch of random sentences with labels, some of which do not count."""
        luck, left = self.luck(f"batch {number}"), self.combination.padding == "left"
        generator = torch.Generator().manual_seed(luck.getrandbits(31))
        rows = luck.choice((1, 2, 3, 4))
        lengths = torch.tensor([luck.randint(3, 7) for _ in range(rows)])

        def ids(width: int) -> torch.Tensor:
            return torch.randint(3, VOCAB, (rows, width), generator=generator)

        def labels(mask: torch.Tensor) -> torch.Tensor:
            some = ids(mask.shape[1]).masked_fill(torch.rand(mask.shape, generator=generator) < 0.3, -100)
            last = mask.shape[1] - 1 - mask.flip(1).long().argmax(1)
            some.scatter_(1, last[:, None], 5)  # every sentence has a label, and its last token has one
            return some.masked_fill(~mask.bool(), -100)

        def padded(lengths: torch.Tensor, left: bool) -> torch.Tensor:
            place = torch.arange(int(lengths.max())).expand(rows, -1)
            return (place >= lengths.max() - lengths[:, None] if left else place < lengths[:, None]).long()

        batch = {}
        if self.kind in ("text", "causal", "seq2seq", "image+text"):
            mask = padded(lengths, left and self.kind != "image+text")
            batch = {"input_ids": ids(mask.shape[1]) * mask, "attention_mask": mask}
            if self.kind in ("text", "causal"):
                batch["labels"] = labels(mask)
        if self.kind == "image+text":
            batch["input_ids"].scatter_(1, lengths[:, None] - 1, 2)  # CLIP pools the text at its end mark
        if self.kind in ("image", "image+text"):
            batch["pixel_values"] = torch.randn(rows, 3, 16, 16, generator=generator)
        if self.kind == "image":
            batch["labels"] = torch.randint(0, 5, (rows,), generator=generator)
        if self.kind == "speech":
            batch["input_features"] = torch.randn(rows, 8, 20, generator=generator)
        if self.two_sided:
            mask = padded(torch.tensor([luck.randint(2, 5) for _ in range(rows)]), left=False)
            batch["labels"] = labels(mask)
            if luck.random() < 0.5 or self.combination.architecture == "fsmt":  # which else continues its source
                batch["decoder_input_ids"] = ids(mask.shape[1]) * mask
                batch["decoder_attention_mask"] = mask
        takes = inspect.signature(zoo_model(self.combination.architecture)[0].forward).parameters
        takes = takes if self.kind in ("text", "causal") and self.combination.architecture != "roberta" else ()
        if "position_ids" in takes and luck.random() < 0.5:
            batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        wide = torch.bfloat16 if self.combination.precision == "bfloat16" else torch.float32
        return _floats(batch, wide)

    @cached_property
    def _plain(self) -> nn.Module:
        """Return a copy of the model of the zoo, with the attention function of the combination."""
        model = copy.deepcopy(zoo_model(self.combination.architecture)[0])
        return attending(model, self.combination.attention)

    def _model(self) -> nn.Module:
        chosen, model = self.combination, copy.deepcopy(self._plain)
        if chosen.architecture in MIXTURES and chosen.precision != "float32":
            raise NotRunnable("rounding sends tokens to other experts")
        if chosen.precision == "bfloat16":
            model = model.to(torch.bfloat16)
        if chosen.mode == "train":
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = DROPOUT
                for name, value in vars(module).items():
                    if isinstance(value, float) and "dropout" in name:
                        setattr(module, name, DROPOUT)
            model.train()
        if chosen.wrapping == "checkpointing":
            try:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            except (ValueError, AttributeError) as error:
                raise NotRunnable(f"{chosen.architecture} knows no gradient checkpointing") from error
            if self.luck("inputs need gradients").random() < 0.5:
                model.enable_input_require_grads()
        return model


def attending(model: nn.Module, how: str) -> nn.Module:
    """Let a model use an attention function, or raise ``NotRunnable``."""
    try:
        return naive.attend(model, how)
    except Exception as error:
        raise NotRunnable(f"{type(model).__name__} has no {how} attention: {error}") from error


def _floats(batch: dict, dtype: torch.dtype) -> dict:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}
