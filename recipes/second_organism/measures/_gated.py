"""One run of Hard Concrete gates on a trained model: which heads stay open, what they do, and how well they translate.

The settings are those of the first organism's sweep (``recipes.sweep``) but for the gate rate, which ``rates`` chooses.
"""

from pathlib import Path

from torch import nn

import headtools as ht
from headtools.organism.evaluate import bleu
from headtools.organism.second.language import corpus
from recipes._results import interval, name_of, read, write
from recipes.second_organism.batches import unseen
from recipes.second_organism.measures._words import by_sentence, right_words
from recipes.second_organism.measures.roles import family, held_roles

STEPS, TOKENS, START, WEIGHT_RATE, DECAY = 400, 448, 1.5, 8e-4, 0.3
GATE_RATE = 0.05  # see rates
LONG = {"steps": 1_000, "tokens": 1_024, "weight_rate": 3e-4}  # of the runs that show how far a longer training gets
SENTENCES = 300  # test sentences translated
SEEN = 500  # validation and test sentences of the roles


def function(held: list[str]) -> str:
    """What a head with these roles counts as: the family of its roles, "several" families, or "none".

    >>> function(["obj up", "nsubj up"]), function(["name", "obj up"]), function([])
    ('relation', 'several', 'none')
    """
    families = {family(role) for role in held}
    return "several" if len(families) > 1 else families.pop() if families else "none"


def before(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """BLEU of a model before any gate, on the sentences that the runs translate, and the roles of its heads."""
    test = corpus("test", min(SENTENCES, limit or SENTENCES))
    head_roles = held_roles(model, tokenizer, min(SEEN, limit or SEEN))
    return {"bleu": [round(x, 2) for x in bleu(model, tokenizer, test)], "roles": head_roles}


def one_run(
    model: nn.Module,
    tokenizer: object,
    over: str,
    penalty: float,
    rate: float = GATE_RATE,
    seed: int = 0,
    limit: int | None = None,
    steps: int = STEPS,
    runs: Path | None = None,
    long: bool = False,
) -> dict:
    """Train gates, cut the heads whose gates closed, and translate.

    ``over``: "encoder", with a frozen decoder, or "all" heads and weights. ``cost``: the word accuracy that the model
    loses if the same heads are switched off without any training. ``roles``: of the encoder heads that stay, measured
    in the trained model. ``long``: with the settings of LONG. With ``runs`` a finished run is kept there, and read from
    there the next time.
    """
    tokens, weight_rate = TOKENS, WEIGHT_RATE
    if long:
        steps, tokens, weight_rate = LONG["steps"], LONG["tokens"], LONG["weight_rate"]
    setting = {"over": over, "penalty": penalty, "rate": rate, "seed": seed, "steps": steps, "limit": limit}
    file = runs and runs / f"{over}-{penalty:g}-{rate:g}-{seed}{'-long' if long else ''}.json"
    if file and (stored := read(file)):
        if stored["setting"] != setting:
            raise ValueError(f"{file} was made with {stored['setting']}, not {setting}; use another folder: --runs NEW")
        return stored["row"]
    fit = ht.fit_gates(
        model,
        unseen(seed, tokens, steps),
        penalty,
        steps=steps,
        sites=None if over == "all" else over,
        weights=over,
        gate_rate=rate,
        weight_rate=weight_rate,
        start=START,
        decay=DECAY,
        seed=seed,
        progress=False,
    )
    test = corpus("test", min(SENTENCES, limit or SENTENCES))
    cut = fit.cut().eval()
    correct = right_words(model, test)
    with ht.ablate(model, fit.closed_heads):
        cost = (correct.float() - right_words(model, test).float()).mean().item()
    fit.model.eval()
    with ht.gates(fit.model, fit.values()):
        held = held_roles(fit.model, tokenizer, min(SEEN, limit or SEEN))
    kept = [name_of(head) for head in fit.open_heads]
    row = {
        "over": over,
        "penalty": penalty,
        "rate": rate,
        "seed": seed,
        "steps": steps,
        "kept": kept,
        "bleu": [round(x, 2) for x in bleu(cut, tokenizer, test)],
        "accuracy": interval(by_sentence(right_words(cut, test), test)),
        "cost": round(cost, 4),
        "undecided": int((~fit.gates.saturated(0.9)).sum()),
        "roles": {head: own_roles for head, own_roles in held.items() if f"encoder {head}" in kept},
        "log_alpha": [round(x, 2) for x in fit.gates.log_alpha.tolist()],
    }
    if file:
        write({"setting": setting, "row": row}, file)
    return row
