"""Answers to the exercises of lesson 12: right ones, and wrong ones with what their hint must say."""

import numpy as np
import pandas as pd
import torch
from edited import of

import headtools as ht
from headtools.course import my_heads

mine = ht.my_heads()
report, honest = map(of, ("report", "honest_choice"))

# --- the honest choice ------------------------------------------------------------------------------------------------


def choice_in_a_loop(choosing, measuring):
    best, promised = None, -np.inf
    for (kind, layer), rows in choosing.items():
        for head, mean in enumerate(rows.numpy().mean(0)):
            if mean > promised:
                best, promised = (kind, layer, head), float(mean)
    own = measuring[best[:2]][:, best[2]]
    low, high = ht.bootstrap(own)
    everyone = np.concatenate([rows.numpy() for rows in measuring.values()], 1)
    score = {"score": own.mean(), "low": low, "high": high, "any": everyone.mean()}
    return {"head": best, "promised": promised, **score}


# --- the report -------------------------------------------------------------------------------------------------------


the_course = my_heads.report  # under a name of its own, since no answer may call a report


def right_report(model, texts, roles):
    values = {
        "importance": {key: rows.abs() for key, rows in mine.gradient(model, texts).items()},
        "cost": mine.ablation(model, texts),
        "confidence": mine.confidence(model, texts),
    }
    for name, (batches, score) in roles.items():
        own, even = {}, {}
        for batch in batches:
            with torch.no_grad(), mine.record(model) as seen:
                model(**batch)
            for key, layer in seen.items():
                visible = layer.maps > 0
                flat = visible / visible.sum(-1, keepdim=True)
                own.setdefault(key, []).append(score(layer.maps))
                even.setdefault(key, []).append(score(flat))
        values[name] = {key: torch.cat(parts) for key, parts in own.items()}
        values[f"{name} even"] = {key: torch.cat(parts) for key, parts in even.items()}
        values[f"{name} gain"] = {key: values[name][key] - values[f"{name} even"][key] for key in own}
    lines = []
    for key, site in mine.sites(model).items():
        columns = {name: rows[key].mean(0) for name, rows in values.items()}
        for name, rows in values.items():
            columns[f"{name} low"], columns[f"{name} high"] = mine.bootstrap(rows[key])
        for head in range(site.heads):
            numbers = {name: column[head].item() for name, column in columns.items()}
            lines.append({"kind": key[0], "layer": key[1], "head": head, **numbers})
    return pd.DataFrame(lines).sort_values("cost", ascending=False)


def of_lines(change):
    """The right report, each line changed."""
    return lambda model, texts, roles: [line | change(line) for line in the_course(model, texts, roles)]


def peeks(model, texts, roles):
    return ht.report(model, texts).tables["importance"]


COSTS, GAIN = "ablation(model, texts)", 'rows - plain[f"{name} even"][key]'
MEANS = "plain[name] = {key: torch.stack([part[key].mean(0) for part in own]) for key in plain[name]}"
SPREAD = "rows[key].double().quantile(torch.tensor([0.025, 0.975]).double(), 0)"
ANSWERS = {
    "12.report": {
        "right": [right_report, the_course],
        "wrong": [
            (report("rows.abs()", "rows"), "keep their sign"),
            (report("rows.abs()", "rows.mean(0).abs().expand_as(rows)"), "size of the mean slope"),
            (report("slopes.items()", "ablation(model, texts).items()"), "not the mean size of the slopes"),
            (report(COSTS, "{key: -rows for key, rows in ablation(model, texts).items()}"), "positive cost"),
            (report(COSTS, "{key: rows.abs() for key, rows in ablation(model, texts).items()}"), "Its sign says"),
            (of_lines(lambda line: {"confidence": 1.0}), "not the mean of mine.confidence"),
            (report("lines = []", f"{MEANS}\n    lines = []"), "means of batches"),
            (of_lines(lambda line: {"previous": line["previous even"]}), "score of the even map"),
            (of_lines(lambda line: {"previous": 0.5}), r"score\(maps\)"),
            (report("(layer.maps > 0).float()", "torch.ones_like(layer.maps)"), "also those that it may not see"),
            (of_lines(lambda line: {"previous even": line["previous"]}), "no preference"),
            (of_lines(lambda line: {"previous gain": -line["previous gain"]}), "beyond the even map"),
            (of_lines(lambda line: {"first gain": line["first"]}), "still to be taken off"),
            (report(GAIN, f"{GAIN}.mean(0)"), "text by text"),
            (report("bootstrap(rows[key])", SPREAD), "where the examples lie"),
            (report("(low, _)", "(_, low)"), "are exchanged"),
            (of_lines(lambda line: {"cost low": 0.0}), "end of the interval"),
            (
                report("sorted(lines", "sorted([line for line in lines if line['kind'] == 'encoder']"),
                r"12 of the 36 heads, of the kinds encoder",
            ),
            (report('-line["cost"]', 'line["cost"]'), "costliest head comes first"),
            (
                report("lines.append(line)", "lines.append(line)\n            del line['first even']"),
                "There is no 'first even'",
            ),
            (of_lines(lambda line: {"cost": "large"}), "A number is asked for, this is a str"),
            (peeks, "about to write"),
            (lambda m, t, r: "good", "A list of lines is asked for"),
            (lambda m, t, r: [1, 2], "A dict with 'kind', 'layer'"),
            (lambda m, t, r: t.missing, "stopped with AttributeError"),
            (3, "A function is asked for"),
        ],
    },
    "12.honest": {
        "right": [choice_in_a_loop, my_heads.honest_choice],
        "wrong": [
            (lambda a, b: my_heads.honest_choice(b, a), "best of the half that measures"),
            (honest("(*key, head)", "('encoder', 0, 0)"), "mean over the texts"),
            (honest("(*key, head)", "head"), "name has a kind, a layer"),
            (honest("(*key, head)", "(3,)"), "is no head"),
            (honest("means[key][head].item()", "rows.mean().item()"), "where it was not chosen"),
            (lambda a, b: my_heads.honest_choice(a, a), "which flatters it"),
            (honest("rows.mean().item()", "max(rows.mean(0).max() for rows in measuring.values())"), "by another head"),
            (honest("bootstrap(rows)", "bootstrap(choosing[key][:, [head]])"), "It belongs to the score"),
            (honest("low.item()", "high.item()"), "are exchanged"),
            (honest("list(measuring.values())", "list(choosing.values())"), "over heads of the half that chose"),
            (honest("everyone.mean().item()", "0.0"), "nothing else"),
            (lambda a, b: 3.5, "A dict with 'head', 'promised'"),
            (lambda a, b: {"head": ("encoder", 0, 1)}, "There is no 'promised'"),
            (lambda a: a, "stopped with TypeError"),
        ],
    },
}
