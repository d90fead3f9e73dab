"""The structural rules of Universal Dependencies that the course's English treebank keeps (levels 2 and 3, basic tree).

What makes a sentence readable at all (columns, numbering, one root, a tree) ``corpus`` checks itself.
"""

from collections import Counter
from collections.abc import Iterator

_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
_RELATIONS = """
    acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det discourse dislocated expl fixed
    flat goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis punct reparandum root vocative xcomp
    acl:relcl advcl:relcl aux:pass cc:preconj compound:prt csubj:outer csubj:pass det:predet flat:foreign nmod:desc
    nmod:poss nmod:unmarked nsubj:outer nsubj:pass obl:agent obl:unmarked"""
UPOS, RELATIONS = frozenset(_UPOS.split()), frozenset(_RELATIONS.split())
RIGHTWARD = frozenset({"conj", "fixed", "flat", "goeswith", "appos"})  # the dependent stands after its head
# What may hang on a function word; on punctuation, nothing.
ANYWHERE = frozenset({"goeswith", "reparandum", "punct", "conj", "cc"})
MODIFIED = ANYWHERE | {"fixed", "advmod", "obl", "nmod"}
CHILDREN = {
    "punct": frozenset(),
    "fixed": frozenset({"goeswith", "reparandum"}),
    "cc": ANYWHERE | {"fixed", "advmod"},
    "aux": ANYWHERE,
    "cop": ANYWHERE,
    "case": MODIFIED,
    "mark": MODIFIED,
    "det": MODIFIED,
}
# Parts of speech that a relation admits; a word with a fixed dependent stands for a whole phrase and may be anything.
ADMITS = {
    "punct": {"PUNCT"},
    "aux": {"AUX"},
    "cop": {"AUX"},
    "cc": {"CCONJ"},
    "mark": {"SCONJ", "ADP", "PART"},
    "case": {"ADP", "PART"},
    "det": {"DET"},
    "nummod": {"NUM"},
    "expl": {"PRON"},
    "advmod": {"ADV", "ADJ", "PART", "CCONJ", "DET"},
}
SINGLE = {"nsubj": "subject", "csubj": "subject", "obj": "obj", "iobj": "iobj", "cop": "cop"}  # one to a clause


def complaints(tree) -> Iterator[str]:
    """Give what is wrong with a sentence that the conllu library has read."""
    words = [token for token in tree if isinstance(token["id"], int)]
    heads = [0, *(word["head"] for word in words)]
    base = ["", *(word["deprel"].split(":")[0] for word in words)]
    with_fixed = {word["head"] for word in words if word["deprel"] == "fixed"}
    clauses = Counter()
    for word in words:
        number, form, relation, head, upos = (word[name] for name in ("id", "form", "deprel", "head", "upos"))
        if upos not in UPOS or relation not in RELATIONS:
            yield f"{form}: {upos} or {relation} is not of UD for English"
        if (relation == "root") != (head == 0) or (relation == "root" and upos == "PUNCT"):
            yield f"{form}: root and head 0 go together, and punctuation is no root"
        if number not in with_fixed and relation != "det:predet" and upos not in ADMITS.get(base[number], UPOS):
            yield f"{form}: a {upos} cannot be {relation}"
        if upos == "PUNCT" and base[number] not in ("punct", "root"):
            yield f"{form}: punctuation cannot be {relation}"
        if base[number] in RIGHTWARD and head > number:
            yield f"{form}: {relation} must stand to the right of its head"
        if base[head] in CHILDREN and base[number] not in CHILDREN[base[head]]:
            yield f"{form}: {relation} cannot hang on a word that is {base[head]}"
        if base[number] in SINGLE and not relation.endswith(":outer"):
            clauses[head, SINGLE[base[number]]] += 1
        if base[number] == "punct":
            yield from (f"{form}: {problem}" for problem in _crossings(heads, number))
        coreference = (word["misc"] or {}).get("Coref")
        if coreference is not None and not (coreference.isdigit() and 1 <= int(coreference) < number):
            yield f"{form}: Coref={coreference} is no earlier word"
    yield from (f"{words[head - 1]['form']}: has two of {role}" for (head, role), n in clauses.items() if n > 1)
    if tree.metadata["text"] != _spelled(tree):
        yield f"text is {tree.metadata['text']!r}, but the forms give {_spelled(tree)!r}"


def _crossings(heads: list[int], mark: int) -> Iterator[str]:
    """Give how the arc of a punctuation mark crosses another, or how the mark stands in a gap that it makes."""

    def under(number: int, ancestor: int) -> bool:
        while number not in (0, ancestor):
            number = heads[number]
        return number == ancestor

    low, high = sorted((mark, heads[mark]))
    if not all(under(between, heads[mark]) for between in range(low + 1, high)):
        yield "the arc of a punctuation mark crosses another"
    for number, head in enumerate(heads[1:], 1):
        low, high = sorted((number, head))
        # A mark that hangs on a word of the same gap does not cause the gap.
        if head and low < mark < high and not low < heads[mark] < high and not under(mark, head):
            yield f"stands between word {number} and its head without hanging there"


def _spelled(tree) -> str:
    """Return the sentence as its forms spell it: a range (3-4) stands for its words."""
    text, covered = "", 0
    for token in tree:
        number = token["id"]
        if isinstance(number, tuple) and number[1] == "-":
            covered = number[2]
        elif isinstance(number, tuple) or number <= covered:
            continue
        text += token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ")
    return text.rstrip(" ")
