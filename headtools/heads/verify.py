"""Look whether what headtools takes a model's heads to be is what they do: ``verify``.

Kinds, heads and projections are read off a model's modules (``sites``), by names and shapes. Here they are tried: a
short text runs once through the model, and each attention module is called again, alone, with what it was given and one
thing changed. What moves, and what does not, shows which queries see which keys and whose rows are whose.
"""

from __future__ import annotations

import datetime
import inspect
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

import headtools
from headtools.heads._checks import check_batch, check_not_compiled
from headtools.heads._devices import device_of
from headtools.heads._hooks import hook_input, intervention, is_held, without_dropout
from headtools.heads._layout import Projection, obstacle
from headtools.heads._tokens import is_encoder_decoder, model_inputs
from headtools.heads.gates import gates
from headtools.heads.record import record
from headtools.heads.sites import Site, Sites, sites

TOKENS = 8  # of the text that is tried
_SOURCE = ("input_ids", "inputs_embeds", "attention_mask", "token_type_ids", "position_ids")  # a column a token
_OTHERS = ("decoder_input_ids", "decoder_attention_mask", "labels", "use_cache")  # what else a batch of text may have
LONG = 512  # tokens of a text beyond which no measure tries all of it
CHECKS = {
    "kind": "which keys a query sees; everything that uses labels, masks or padding",
    "queries": "which rows of the query projection are a head's; qk, edit, prune",
    "keys": "which rows of the key projection are a head's; qk, prune",
    "values": "which rows of the value projection are a head's; ov, edit, prune, merge",
    "sum": "the layer writes the sum of what its heads write, and a bias; contributions, direct logit attribution",
    "gate": "a head whose gate is 0 writes nothing, and all others what they wrote; gates, ablate, gradient",
    "maps": "recording maps leaves z as it was; record(want='maps'), scores of maps, roles",
    "gradient": "every run of the layer can have a gradient; gradient, relevance, fit_gates",
    "padding": "a text gives the same beside a longer one; every measure on a padded batch",
}
_VERIFIED: weakref.WeakKeyDictionary[Sites, Verification] = weakref.WeakKeyDictionary()
_IN_VAIN: weakref.WeakKeyDictionary[Sites, int] = weakref.WeakKeyDictionary()  # trials that ended in an error
ATTEMPTS = 3  # of measures to try a model: a batch at fault says nothing of the next one, a model that fails does


@dataclass(frozen=True, repr=False)
class Verification:
    """What was tried of a model, and what came of it.

    ``found`` has (site's label, check) -> '' where the check holds, a sentence where it does not; what could not be
    tried is not there. ``unseen`` names modules that compute attention and are no sites. ``when`` and ``versions`` say
    with what; ``skipped``: nothing was tried, as was asked for.
    """

    found: Mapping[tuple[str, str], str]
    unseen: tuple[str, ...]
    when: str
    versions: Mapping[str, str]
    skipped: bool = False

    @property
    def failed(self) -> dict[tuple[str, str], str]:
        """What does not hold: {(site, check): sentence}."""
        return {key: reason for key, reason in self.found.items() if reason}

    @property
    def ok(self) -> bool:
        """Whether everything that was tried holds, and no attention is unseen."""
        return not self.failed and not self.unseen

    def _repr_html_(self) -> str | None:
        return headtools.draw("verified_html", self)

    def __repr__(self) -> str:
        if self.skipped:
            return "not tried, as skip=True asked for"
        labels = list(dict.fromkeys(label for label, _ in self.found))
        width = max(map(len, [*labels, "site"]))
        lines = ["  ".join(["site".ljust(width), *(name.ljust(8) for name in CHECKS)]).rstrip()]
        for label in labels:
            marks = [{None: "-", "": "ok"}.get(self.found.get((label, name)), "FAILS") for name in CHECKS]
            lines.append("  ".join([label.ljust(width), *(mark.ljust(8) for mark in marks)]).rstrip())
        reasons: dict[str, list[str]] = {}  # what fails in every layer is said once
        for (label, name), reason in self.failed.items():
            reasons.setdefault(f"{name}: {reason} (it decides {CHECKS[name]})", []).append(label)
        for what, where in reasons.items():
            lines.append(f"{', '.join(where[:3])}{' and others' * (len(where) > 3)}, {what}")
        if self.unseen:
            lines.append(f"attention that is no site: {', '.join(self.unseen)}")
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return "\n".join([*lines, f"tried {self.when} with {versions}"])


@dataclass
class _Run:
    """What one site was given and gave in the pass that is tried: its last call, and of all calls how many.

    ``unit`` is what is called again: the attention module, or what holds it and its output projection (BERT).
    """

    unit: nn.Module
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    z: Tensor | None = None  # (B, T, H, W)
    written: Tensor | None = None
    others: Tensor | None = None  # what it should write without the head that is tried
    calls: int = 0
    without_gradient: int = 0

    @property
    def given(self) -> dict[int | str, Any]:
        """The arguments of the call, by place or name."""
        return {**dict(enumerate(self.args)), **self.kwargs}


def verify(model: nn.Module, batch: Mapping[str, Any] | None = None, *, skip: bool = False) -> Verification:
    """Try whether a model's sites are what ``sites`` says, on a short text; costs less than five passes over it.

    ``batch``: the model's arguments, of which the first row and eight tokens are taken; left out, random tokens for a
    model of text. Each attention module runs again alone, with the last token changed (kind), with one head's rows of
    each projection changed (queries, keys, values), with one gate at 0; what it writes is compared with the sum of its
    heads; and the text runs once more, beside padding and while maps are recorded. Printed as a table: ``ok``,
    ``FAILS`` with a sentence and what depends on it, or ``-`` where there is nothing to try. ``sites(model).verified``
    keeps the result: measures then refuse a kind, padding or maps that do not hold, and ``prune`` rows and gates. Every
    measure does this first to a model that was not tried before; with ``skip`` nothing is tried, now or by a measure.
    The model is left bit for bit as it was.

    Raises ``ValueError`` for a model that needs a batch and got none, for outputs that are NaN, and as ``sites`` does.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    >>> tried = verify(BertModel(tiny))
    >>> tried.ok, tried.found["encoder 0", "sum"]
    (True, '')
    """
    check_not_compiled(model)
    found: dict[tuple[str, str], str] = {}
    every_site = sites(model)
    if skip:
        return _keep(every_site, {}, skipped=True)
    inputs = _short(model, batch)
    device = device_of(model)
    accelerator = [device] if device.type == "cuda" else []
    claim = intervention(model, "verify()", every_site)
    with claim, without_dropout(model), torch.random.fork_rng(devices=accelerator):
        _seed(device)
        runs = {site: _Run(_unit(model, site)) for site in every_site}
        with torch.enable_grad(), _watched(runs):
            model(**inputs)
        for site, run in runs.items():
            if run.z is not None and not run.z.isfinite().all():
                raise ValueError(f"{site.label} gives NaN or infinity on this batch, so that nothing can be compared")
            if run.calls and not site.empty:
                results = _try_site(site, run)
                lost = f"the model runs {run.without_gradient} of {run.calls} calls under torch.no_grad"
                results["gradient"] = lost if run.without_gradient else ""
                found |= {(site.label, name): reason for name, reason in results.items()}
        found |= _try_gates(model, runs)
        found |= _try_text(model, inputs, runs)
    unseen = [*every_site.skipped]
    unseen += [f"{n} (MultiheadAttention)" for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)]
    found = {(site.label, n): found[site.label, n] for site in runs for n in CHECKS if (site.label, n) in found}
    return _keep(every_site, found, tuple(unseen))


def verify_once(model: nn.Module, batches: Any = None, chosen: Iterable[Site] = ()) -> None:
    """Run ``verify`` on a model that nobody has tried yet, with the first of ``batches`` where it can be looked at.

    Inside ``gates``, ``ablate`` or their like nothing is tried, as the model is not itself there. An error is left for
    the measure to raise, which knows more of the batch, or does without what the trial needs. Raises ``ValueError``
    where one of the ``chosen`` sites is known not to be of its kind.
    """
    _try_once(model, sites(model), batches)
    check_verified(model, chosen, "kind")


def _try_once(model: nn.Module, every_site: Sites, batches: Any) -> None:
    tried = every_site.verified is not None or _IN_VAIN.get(every_site, 0) >= ATTEMPTS
    if tried or is_held(model) or torch.is_inference_mode_enabled():
        return
    first = batches[0] if isinstance(batches, Sequence) and batches else batches
    batch = first if isinstance(first, Mapping) else None  # a generator keeps its batches for the measure
    ids = batch.get("input_ids") if batch is not None else None
    if isinstance(ids, Tensor) and ids.shape[-1] > LONG and not _is_text(model_inputs(model, batch)):
        batch = None  # it could not be cut, and a measure that keeps no maps must not begin with all of them
    if batch is None and getattr(model, "main_input_name", "") != "input_ids":
        return  # there is a batch next time, perhaps
    try:
        verify(model, batch)
    except Exception:  # the measure says what is wrong, or does without
        _IN_VAIN[every_site] = _IN_VAIN.get(every_site, 0) + 1


def _keep(
    every_site: Sites, found: dict[tuple[str, str], str], unseen: tuple[str, ...] = (), skipped: bool = False
) -> Verification:
    """Keep what was found of a model, with the date and the versions, and return it."""
    versions = {name: version(name) for name in ("headtools", "torch", "transformers")}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    _VERIFIED[every_site] = result = Verification(found, unseen, now, versions, skipped)
    return result


def check_verified(model: nn.Module, chosen: Iterable[Site], *names: str) -> None:
    """Raise ``ValueError`` where ``verify`` has found that one of these checks does not hold for one of these sites."""
    known = _VERIFIED.get(sites(model))
    for site in chosen if known is not None else ():
        for name in names:
            if reason := known.found.get((site.label, name)):
                raise ValueError(f"{site.label}: verify(model) found: {reason}; leave the site out with sites=[...]")


def check_padding_verified(model: nn.Module, batch: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a padded batch where ``verify`` has found that padding changes real tokens."""
    mask = batch.get("attention_mask")
    known = _VERIFIED.get(sites(model)) if isinstance(mask, Tensor) and mask.dim() == 2 else None
    reasons = [(label, reason) for (label, name), reason in known.failed.items() if name == "padding"] if known else []
    if reasons and not mask.all():
        label, reason = reasons[0]
        raise ValueError(f"{label}: verify(model) found: {reason}; give batches of texts of equal length, unpadded")


# --- the text and the pass --------------------------------------------------------------------------------------------


def _seed(device: torch.device) -> None:
    """Seed the generators that this model draws from, and no other device's."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(0)


def _unit(model: nn.Module, site: Site) -> nn.Module:
    """Return the smallest module that holds a site's attention and its output projection."""
    path = site.name.split(".")
    for depth in range(len(path), -1, -1):
        unit = model.get_submodule(".".join(path[:depth]))
        if any(part is site.out for part in unit.modules()):
            return unit
    return site.module


def _short(model: nn.Module, batch: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the row with least padding, eight tokens of it where it is text; random tokens where there is no batch."""
    if batch is None:
        size = getattr(getattr(model, "config", None), "vocab_size", None)
        if size is None or getattr(model, "main_input_name", "") != "input_ids":
            raise ValueError(f"{type(model).__name__} needs a batch to be tried on: verify(model, batch)")
        ids = torch.randint(min(5, size - 1), size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if is_encoder_decoder(model):
            batch["decoder_input_ids"] = ids.flip(1)[:, : TOKENS - 1]
    check_batch(batch)
    inputs = model_inputs(model, batch)
    places, ids = inputs.get("position_ids"), inputs.get("input_ids")
    if isinstance(places, Tensor) and isinstance(ids, Tensor) and places.dim() == ids.dim() and len(places) == 1:
        inputs["position_ids"] = places.expand(len(ids), -1)  # the same for all rows
    rows = {len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim()}
    if len(rows) == 1:  # several pictures of one text are not its rows
        mask = inputs.get("attention_mask")
        row = int(mask.sum(1).argmax()) if isinstance(mask, Tensor) and mask.dim() == 2 else 0
        inputs = {
            n: value[row : row + 1] if isinstance(value, Tensor) and value.dim() else value
            for n, value in inputs.items()
        }
        mask = inputs.get("attention_mask")
        if _is_text(inputs):
            if mask is not None:  # without padding, on whichever side it is
                real = mask[0].bool()
                inputs |= {name: inputs[name][:, real] for name in _SOURCE if name in inputs}
            inputs = _without_decoder_padding(model, inputs)
            inputs = {n: value[:, :TOKENS] if isinstance(value, Tensor) else value for n, value in inputs.items()}
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False  # a cache would grow with every call
    device = device_of(model)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def _without_decoder_padding(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return one row of text whose decoder reads another token where it had padding.

    A query that may see no key (FSMT hides padding from itself as well) gets the mean of all of them, later ones too.
    """
    ids, pad = inputs.get("decoder_input_ids"), getattr(getattr(model, "config", None), "pad_token_id", None)
    if not isinstance(ids, Tensor) or not isinstance(pad, int) or (ids == pad).all():
        return inputs
    filled = {"decoder_input_ids": torch.where(ids == pad, ids[ids != pad][0], ids)}
    mask = inputs.get("decoder_attention_mask")
    return inputs | filled | ({"decoder_attention_mask": torch.ones_like(mask)} if isinstance(mask, Tensor) else {})


def _is_text(inputs: Mapping[str, Any]) -> bool:
    """Whether all of a batch can be cut to its first tokens."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    flat = all(value.dim() == (3 if name == "inputs_embeds" else 2) for name, value in tensors.items())
    return inputs.keys() <= {*_SOURCE, *_OTHERS} and flat


@contextmanager
def _watched(runs: Mapping[Site, _Run]) -> Iterator[None]:
    """Keep what every site is given and gives while the context lasts."""
    with ExitStack() as stack:
        for site, run in runs.items():

            def before(_module: nn.Module, args: tuple, kwargs: dict, run: _Run = run) -> None:
                run.args, run.kwargs = args, kwargs
                run.calls += 1
                run.without_gradient += not torch.is_grad_enabled()

            def after(_module: nn.Module, _args: tuple, output: Any, run: _Run = run) -> None:
                first = _first(output)
                run.written = first.detach().clone() if isinstance(first, Tensor) else None

            def keep_z(flat: Tensor, site: Site = site, run: _Run = run) -> None:
                run.z = site.split(flat).detach().clone()

            # outside the attention module (BERT) what the projection gives is added to the stream with the rest
            writes = run.unit if run.unit is site.module else site.out
            stack.callback(run.unit.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(writes.register_forward_hook(after).remove)
            stack.callback(hook_input(site.out, keep_z).remove)
        yield


# --- one site ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _try_site(site: Site, run: _Run) -> dict[str, str]:
    """Call the attention of one site again with one thing changed each time; {check: '' or what is wrong}."""
    if run.z is None:
        return {"gate": "the output projection is not called as a module, so nothing reaches its heads"}
    if run.z.dim() != 4 or not run.z.any():  # of zeros everything holds
        return {}
    again, _ = _again(site, run)
    if again is None or not torch.allclose(again, run.z, rtol=1e-3, atol=1e-5):
        return {}  # it depends on more than it is given: nothing can be tried alone
    head = _tried_head(site)
    group = site.heads // site.kv_heads
    shared = head // group  # its key and value head
    readers = set(range(shared * group, (shared + 1) * group))
    results = {
        "kind": _try_kind(site, run),
        "queries": _try_rows(site, run, site.q, head, {head}),
        "keys": _try_rows(site, run, site.k, shared, readers),
        "values": _try_rows(site, run, site.v, shared, readers, all_move=True),
    }
    if obstacle(site.out) is None:
        added = torch.einsum("bthw,hwd->bthd", run.z.double(), site.w_o.double())
        bias = getattr(site.out, "bias", None)
        bias = 0 if bias is None else bias.double()
        gives = any(_close(candidate, run.written) for candidate in _may_write(run, added.sum(2) + bias))
        results["sum"] = "" if gives else "the layer writes something else than the sum of its heads and a bias"
        run.others = added.sum(2) - added[:, :, head] + bias
    return {name: reason for name, reason in results.items() if reason is not None}


def _tried_head(site: Site) -> int:
    return site.layer % site.heads


def _again(
    site: Site, run: _Run, changed: Mapping[int | str, Any] | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Call a site's attention again, with some arguments changed; return z and what its output projection gives.

    Both are None where the call is an error, or runs the projection more than once.
    """
    given = {key: None if isinstance(value, Cache) else value for key, value in run.given.items()}  # a cache would grow
    given |= changed or {}
    seen: list[Tensor] = []
    written: list[Tensor] = []
    hooks = [
        hook_input(site.out, lambda flat: seen.append(site.split(flat).clone())),
        site.out.register_forward_hook(lambda _module, _args, output: written.append(_first(output))),
    ]
    args = [given.pop(place) for place in range(len(run.args))]
    try:
        run.unit(*args, **given)
    except Exception:
        return None, None
    finally:
        for hook in hooks:
            hook.remove()
    return (seen[0], written[0]) if len(seen) == len(written) == 1 else (None, None)


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple | list) else output


def _moved(run: _Run, z: Tensor | None) -> Tensor | None:
    """Return which entries of z (B, T, H) moved; None where none did, or none could be computed."""
    if z is None or z.shape != run.z.shape:
        return None
    scale = run.z.float().abs().amax().clamp_min(1e-12)
    moved = (z.float() - run.z.float()).abs().amax(-1) > 1e-5 * scale
    return moved if moved.any() else None


def _length(stream: Tensor) -> int:
    return stream.shape[0] if stream.shape[1] == 1 else stream.shape[1]


def _places(n_tokens: int) -> list[int]:
    """Return late places first, ever further from the end, 1 and 0 at last.

    >>> _places(8), _places(2), _places(1)
    ([6, 5, 3, 1, 0], [1, 0], [0])
    """
    last = max(n_tokens - 2, min(1, n_tokens - 1))
    far = [last - 2**step + 1 for step in range(n_tokens.bit_length())]
    return sorted({place for place in [*far, 1, 0] if 0 <= place <= last}, reverse=True)


def _changed(value: Tensor, place: int) -> Tensor:
    """Return a stream (B, T, d), or (T, 1, d), with the vector of the token at ``place``, or of its last, changed."""
    new = value.clone()
    place = min(place, _length(value) - 1)
    token = new[place] if new.shape[1] == 1 else new[:, place]
    noise = torch.randn(token.shape, generator=torch.Generator().manual_seed(1)).to(value)
    token += noise * value.float().std().clamp_min(1e-3).to(value)
    return new


def _try_kind(site: Site, run: _Run) -> str | None:
    """Change a late token of the stream: whose z moves? None where it cannot be told.

    A token that moves itself alone is the last one of a text that is read from left to right, or padding, which nobody
    sees: then one before it is changed. Of an encoder, one token that others before it see is proof; that it is none,
    is said where three tokens or more are seen by all later tokens, and by none before them.
    """
    streams = {
        key: value
        for key, value in run.given.items()
        if isinstance(value, Tensor) and value.dim() == 3 and "mask" not in str(key)
    }
    usual = ("hidden_states", "query", "x", "query_states", "inputs")
    keys = sorted(streams, key=lambda key: isinstance(key, str) and key not in usual)  # by place first
    if not keys:
        return None
    if site.kind != "cross":  # MobileBERT is given queries, keys and values apart; across, queries alone are its stream
        width = streams[keys[0]].shape[-1]
        keys = [key for key in keys if streams[key].shape[-1] == width]
    else:
        keys = keys[:1]
    n_tokens = _length(streams[keys[0]])
    read: list[bool] = []  # of each place, from the last that another token sees: whether all later tokens see it
    for place in _places(n_tokens):
        moved = _moved(run, _again(site, run, {key: _changed(streams[key], place) for key in keys})[0])
        if moved is not None and moved.shape[1] == 1 < moved.shape[0] == streams[keys[0]].shape[1]:
            return "its output projection reads (token, example), which is taken for (example, token)"
        if moved is None:
            continue
        if moved.shape[1] != n_tokens or n_tokens < 2:
            return None
        which = moved.any(0).any(-1)  # (T,)
        if which[:place].any():
            reason = f"earlier tokens see a later one, so it is not '{site.kind}' attention"
            return "" if site.kind == "encoder" else reason
        if site.kind != "encoder":
            if which[place + 1 :].any() or site.kind == "cross":
                return ""
        elif read or which.sum() > 1:
            read.append(bool(which[place + 1 :].all()))
    # Where the softmax is sharp, tokens see few keys, perhaps the same: an encoder may look causal at one place or two.
    if site.kind != "encoder" or len(read) < 3 or not all(read):
        return None
    remedy = "; write model.is_causal = True" if site.guessed else ""
    return f"earlier tokens do not see a later one, so it is 'decoder' and not 'encoder' attention{remedy}"


def _try_rows(
    site: Site, run: _Run, part: Projection | None, own: int, heads: set[int], all_move: bool = False
) -> str | None:
    """Change what one head's rows of a projection give: do these heads move, and no others? None where none moves.

    Values move all heads that read them. Queries and keys move nothing where one key is visible, or the softmax is
    saturated.
    """
    if part is None:
        return None
    rows = part.rows[own].to(run.z.device)

    def change(_module: nn.Module, _args: tuple, output: Any) -> Any:
        if isinstance(output, tuple):  # I-BERT gives a scale beside it
            return change(_module, _args, output[0]), *output[1:]
        output = output.clone()
        # another change for each token: what all keys share, the softmax does not see
        noise = torch.randn(*output.shape[:-1], len(rows), generator=torch.Generator().manual_seed(2)).to(output)
        output[..., rows] += noise * output.float().std().clamp_min(1e-3).to(output)
        return output

    hook = part.module.register_forward_hook(change)
    try:
        moved = _moved(run, _again(site, run)[0])
    finally:
        hook.remove()
    if moved is None:
        return None
    which = set(moved.any(0).any(0).nonzero().flatten().tolist())
    if which == heads or (which < heads and not all_move):
        return ""
    return f"the rows of head {own} move z of heads {sorted(which)}, and not of {sorted(heads)} alone"


@torch.no_grad()
def _try_gates(model: nn.Module, runs: Mapping[Site, _Run]) -> dict[tuple[str, str], str]:
    """Set the gate of one head of each site to 0: does the layer, called again, write the sum of its others?"""
    known = {site: run for site, run in runs.items() if run.others is not None}
    values = {site.key: torch.arange(site.heads).ne(_tried_head(site)).float() for site in known}
    found = {}
    with gates(model, values):  # of all sites at once: each is called alone
        for site, run in known.items():
            _, written = _again(site, run)
            if written is not None:
                reason = f"without head {_tried_head(site)} the layer does not write the others' sum"
                found[site.label, "gate"] = "" if _close(run.others, written) else reason
    return found


def _may_write(run: _Run, total: Tensor) -> Iterator[Tensor]:
    """Yield what a layer may write: the sum; the stream with it, where it adds that itself; a norm of that (ALBERT)."""
    yield total
    for given in (*run.args, *run.kwargs.values()):
        if isinstance(given, Tensor) and given.shape == total.shape and given.is_floating_point():
            yield total + given
            for norm in run.unit.children():
                if isinstance(norm, nn.LayerNorm):
                    yield norm((total + given).to(given.dtype))


def _close(total: Tensor, written: Tensor | None) -> bool:
    """Whether a layer writes this, in whichever order of axes."""
    if written is None:
        return False
    total = total.reshape(-1).float()
    written = written.reshape(-1).float()
    # two percent: rounding in half precision is one, a gate, a norm or a factor changes far more
    return total.shape == written.shape and bool((total - written).abs().max() <= 0.02 * total.abs().max() + 1e-6)


# --- the whole model --------------------------------------------------------------------------------------------------


def _try_text(model: nn.Module, inputs: dict[str, Any], runs: Mapping[Site, _Run]) -> dict[tuple[str, str], str]:
    """Run the text beside padding and while maps are recorded: is z of its tokens what it was?

    Both at once, and one by one only where z is another: that saves a pass.
    """
    # Rounding alone moves bfloat16 (eps 1/128) by 1.2 % over 60 layers, and T5, whose scores are not divided by a root
    # of the width, by 12 % over three. So in half precision nothing is said between the two bounds.
    eps = max((torch.finfo(run.z.dtype).eps for run in runs.values() if run.z is not None), default=0)
    bound, fails = max(0.01, 8 * eps), 0.01 if eps < 1e-4 else 0.3
    padded = _padded(model, inputs)
    n_tokens = inputs["input_ids"].shape[1] if padded else None
    off = _distances(model, padded, runs, n_tokens, maps=True) if padded else {}
    if off and max(off.values()) < bound:
        together = {(site.label, "padding"): "" for site in off}
        return together | {(site.label, "maps"): "" for site in off if site.interface}
    reasons = {
        "maps": "with the eager attention that maps come from, z is another",
        "padding": "padding changes what the real tokens' heads give",
    }
    found = {}
    for check, given in (("maps", inputs), ("padding", padded)):
        off = _distances(model, given, runs, n_tokens, maps=check == "maps") if given else {}
        for site, distance in off.items():
            if (check == "padding" or site.interface) and (distance < bound or distance >= fails):
                found[site.label, check] = "" if distance < bound else reasons[check]
    return found


def _padded(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the text with padding on its right; nothing where that is no text, or its mask is another."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.shape != ids.shape or "labels" in inputs:
        return {}
    pad = getattr(getattr(model, "config", None), "pad_token_id", None) or 0
    tail = torch.full((1, 3), pad if isinstance(pad, int) else 0, dtype=ids.dtype, device=ids.device)
    added = {"input_ids": tail, "attention_mask": tail * 0, "token_type_ids": tail * 0}
    return inputs | {n: torch.cat([inputs[n], more], 1) for n, more in added.items() if n in inputs}


@torch.no_grad()
def _distances(
    model: nn.Module, inputs: dict[str, Any], runs: Mapping[Site, _Run], n_tokens: int | None, maps: bool
) -> dict[Site, float]:
    """Run these inputs; return how far z of the first ``n_tokens`` is from what it was, as a part of its largest entry.

    ``maps``: while they are recorded. Nothing where that is not possible, or the model does not take the inputs.
    """
    others = {site: _Run(run.unit) for site, run in runs.items()}
    with_maps = [site.key for site in runs if site.interface]
    if maps and not with_maps:
        return {}
    try:
        # nothing of the maps is kept: those of a long sound take gigabytes
        recorded = record(model, "maps", only=with_maps, accumulate=lambda *_: None) if maps else nullcontext()
        with recorded, _watched(others):
            _seed(device_of(model))  # as in the first pass: ViT-MAE hides other patches each time
            model(**inputs)
    except Exception:  # of a text that is too long; record says what it refuses to whom asks for maps
        return {}
    off, mask = {}, inputs.get("attention_mask")
    for site, run in runs.items():
        other = others[site]
        if run.calls != other.calls or run.z is None or run.z.dim() != 4:
            continue
        # as long as before: padded inside to whole blocks (PEGASUS-X), or the tokens of a decoder
        tokens = n_tokens if run.z.shape == other.z.shape else run.z.shape[1]
        one, same = run.z[:, :tokens].float(), other.z[:, :tokens].float()
        if one.shape == same.shape:
            own = site.kind == "encoder" or not is_encoder_decoder(model)  # the mask is that of the source
            real = mask[:, : one.shape[1]].bool() if own and isinstance(mask, Tensor) and mask.dim() == 2 else None
            if real is not None and real.shape == one.shape[:2] and real.any():
                real = real.to(one.device)
                one, same = one[real], same[real]  # a row of padding sees no key, and may hold anything
            off[site] = ((same - one).abs().amax() / one.abs().amax().clamp_min(1e-12)).item()
    return off
