"""Answers to the exercises of lesson 12: right ones, and wrong ones with what their hint must say."""

import numpy as np
import pandas as pd
import torch

import headtools as ht
from headtools.course import my_heads

mine = ht.my_heads()

# --- the honest choice ------------------------------------------------------------------------------------------------


def right_choice(choosing, measuring):
    heads = [(*key, head) for key, rows in choosing.items() for head in range(rows.shape[1])]
    one, two = (torch.cat([*half.values()], 1) for half in (choosing, measuring))
    best = one.mean(0).argmax().item()
    low, high = mine.bootstrap(two[:, [best]])
    return {
        "head": heads[best],
        "promised": one[:, best].mean(),
        "score": two[:, best].mean(),
        "low": low.item(),
        "high": high.item(),
        "any": two.mean(),
    }


def choice_in_a_loop(choosing, measuring):
    best, promised = None, -np.inf
    for (kind, layer), rows in choosing.items():
        for head, mean in enumerate(rows.numpy().mean(0)):
            if mean > promised:
                best, promised = (kind, layer, head), float(mean)
    own = measuring[best[:2]][:, best[2]]
    low, high = ht.bootstrap(own)
    everyone = np.concatenate([rows.numpy() for rows in measuring.values()], 1)
    score = {"score": own.mean().item(), "low": low, "high": high, "any": everyone.mean()}
    return {"head": best, "promised": promised, **score}


def changed(**new):
    """The right choice with other entries, each computed from (choosing, measuring)."""
    return lambda a, b: my_heads.honest_choice(a, b) | {name: change(a, b) for name, change in new.items()}


def on_the_first(name):
    return lambda a, b: my_heads.honest_choice(a, a)[name]


def number_alone(a, b):
    return my_heads.honest_choice(a, b)["head"][-1]


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
    return sorted(lines, key=lambda line: line["cost"], reverse=True)


def report_as_a_frame(model, texts, roles):
    lines = the_course(model, texts, roles)
    return pd.DataFrame(lines[::-1]).sort_values("cost", ascending=False)


def of_lines(change):
    """The right report, each line changed."""
    return lambda model, texts, roles: [line | change(line) for line in the_course(model, texts, roles)]


def with_means(name, rows_of):
    """The right report with the means of other rows {key: (n, H)} in one column."""

    def answer(model, texts, roles):
        rows = rows_of(model, texts, roles)
        lines = the_course(model, texts, roles)
        return [line | {name: rows[line["kind"], line["layer"]][:, line["head"]].mean().item()} for line in lines]

    return answer


def signed(model, texts, _):
    return mine.gradient(model, texts)


def size_of_the_mean(model, texts, _):
    return {key: rows.mean(0, keepdim=True).abs() for key, rows in mine.gradient(model, texts).items()}


def turned(model, texts, _):
    return {key: -rows for key, rows in mine.ablation(model, texts).items()}


def sizes_of_costs(model, texts, _):
    return {key: rows.abs() for key, rows in mine.ablation(model, texts).items()}


def over_batches(change, join=torch.cat):
    """Rows of the first role, from ``change(maps)`` of each batch."""

    def rows(model, _, roles):
        batches, score = roles["previous"]
        parts = []
        for batch in batches:
            with torch.no_grad(), mine.record(model) as seen:
                model(**batch)
            parts.append({key: score(change(layer.maps)) for key, layer in seen.items()})
        return {key: join([part[key] for part in parts]) for key in parts[0]}

    return rows


def everywhere(maps):
    return torch.full_like(maps, 1 / maps.shape[-1])


def mean_of_means(parts):
    return torch.stack([part.mean(0) for part in parts])


def unpaired(model, texts, roles):
    own, even = (
        over_batches(lambda maps: maps),
        over_batches(lambda maps: (maps > 0) / (maps > 0).sum(-1, keepdim=True)),
    )
    own, even = own(model, texts, roles), even(model, texts, roles)
    lines = the_course(model, texts, roles)
    for line in lines:
        key, head = (line["kind"], line["layer"]), line["head"]
        low, high = mine.bootstrap(own[key][:, [head]])
        line["previous gain low"], line["previous gain high"] = (
            x.item() - even[key][:, head].mean().item() for x in (low, high)
        )
    return lines


def spread_of_examples(model, texts, roles):
    cost = mine.ablation(model, texts)
    lines = the_course(model, texts, roles)
    for line in lines:
        own = cost[line["kind"], line["layer"]][:, line["head"]].double()
        line["cost low"], line["cost high"] = own.quantile(0.025).item(), own.quantile(0.975).item()
    return lines


def encoder_only(model, texts, roles):
    return [line for line in the_course(model, texts, roles) if line["kind"] == "encoder"]


def least_first(model, texts, roles):
    return the_course(model, texts, roles)[::-1]


def peeks(model, texts, roles):
    return ht.report(model, texts).tables["importance"]


def without_baseline(model, texts, roles):
    lines = the_course(model, texts, roles)
    return [{name: value for name, value in line.items() if name != "first even"} for line in lines]


ANSWERS = {
    "12.report": {
        "right": [right_report, report_as_a_frame, the_course],
        "wrong": [
            (with_means("importance", signed), "keep their sign"),
            (with_means("importance", size_of_the_mean), "size of the mean slope"),
            (with_means("importance", sizes_of_costs), "not the mean size of the slopes"),
            (with_means("cost", turned), "positive cost"),
            (with_means("cost", sizes_of_costs), "Its sign says"),
            (of_lines(lambda line: {"confidence": 1.0}), "not the mean of mine.confidence"),
            (with_means("previous", over_batches(lambda maps: maps, mean_of_means)), "means of batches"),
            (of_lines(lambda line: {"previous": line["previous even"]}), "score of the even map"),
            (of_lines(lambda line: {"previous": 0.5}), r"score\(maps\)"),
            (with_means("previous even", over_batches(everywhere)), "also those that it may not see"),
            (of_lines(lambda line: {"previous even": line["previous"]}), "no preference"),
            (of_lines(lambda line: {"previous gain": -line["previous gain"]}), "beyond the even map"),
            (of_lines(lambda line: {"first gain": line["first"]}), "still to be taken off"),
            (unpaired, "text by text"),
            (spread_of_examples, "where the examples lie"),
            (of_lines(lambda line: {"cost low": line["cost high"], "cost high": line["cost low"]}), "are exchanged"),
            (of_lines(lambda line: {"cost low": 0.0}), "end of the interval"),
            (encoder_only, r"12 of the 36 heads, of the kinds encoder"),
            (least_first, "costliest head comes first"),
            (without_baseline, "There is no 'first even'"),
            (of_lines(lambda line: {"cost": "large"}), "A number is asked for, this is a str"),
            (peeks, "about to write"),
            (lambda m, t, r: "good", "A list of lines is asked for"),
            (lambda m, t, r: [1, 2], "A dict with 'kind', 'layer'"),
            (lambda m, t, r: t.missing, "stopped with AttributeError"),
            (3, "A function is asked for"),
        ],
    },
    "12.honest": {
        "right": [right_choice, choice_in_a_loop, my_heads.honest_choice],
        "wrong": [
            (lambda a, b: my_heads.honest_choice(b, a), "best of the half that measures"),
            (changed(head=lambda a, b: ("encoder", 0, 0)), "mean over the texts"),
            (changed(head=number_alone), "name has a kind, a layer"),
            (changed(head=lambda a, b: (3,)), "is no head"),
            (changed(promised=lambda a, b: my_heads.honest_choice(a, b)["score"]), "where it was not chosen"),
            (lambda a, b: my_heads.honest_choice(a, a), "which flatters it"),
            (changed(score=lambda a, b: my_heads.honest_choice(b, b)["score"]), "by another head"),
            (changed(low=on_the_first("low"), high=on_the_first("high")), "It belongs to the score"),
            (changed(low=lambda a, b: my_heads.honest_choice(a, b)["high"]), "are exchanged"),
            (changed(any=on_the_first("any")), "over heads of the half that chose"),
            (changed(any=lambda a, b: 0.0), "nothing else"),
            (lambda a, b: 3.5, "A dict with 'head', 'promised'"),
            (lambda a, b: {"head": ("encoder", 0, 1)}, "There is no 'promised'"),
            (lambda a: a, "stopped with TypeError"),
        ],
    },
}
