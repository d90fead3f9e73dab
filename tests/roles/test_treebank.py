"""Treebanks in UD's full format: nothing lost, nothing invented, and every damage told with its line."""

import re
import time

import conllu
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headtools.roles.conllu import COLUMNS, read
from headtools.roles.corpus import corpus
from headtools.roles.sentence import Sentence, is_tree

# Comments, documents, paragraphs, a range with SpaceAfter=No, empty nodes at the start and inside, an enhanced graph,
# subtypes, a form with a space in it, _ as a word, several keys in MISC.
FULL = """# newdoc id = weather
# newpar
# sent_id = weather-1
# text = Don't 10 000 _s get seen, and eaten?
# a comment without a value
0.1	You	you	PRON	PRP	Case=Nom|Person=2	_	_	6:nsubj:pass	CopyOf=3
1-2	Don't	_	_	_	_	_	_	_	SpaceAfter=No
1	Do	do	AUX	VBP	Mood=Ind|Tense=Pres	6	aux	6:aux	_
2	n't	not	PART	RB	Polarity=Neg	6	advmod	6:advmod	_
3	10 000	10 000	NUM	CD	NumType=Card	4	nummod	4:nummod	Entity=(e1-quantity
4	_	_	NOUN	NNS	Number=Plur	6	nsubj:pass	6:nsubj:pass|9.1:nsubj:pass	Entity=e1)|SpaceAfter=No
5	get	get	AUX	VB	_	6	aux:pass	6:aux:pass	_
6	seen	see	VERB	VBN	Tense=Past|VerbForm=Part	0	root	0:root	SpaceAfter=No
7	,	,	PUNCT	,	_	9	punct	9:punct	_
8	and	and	CCONJ	CC	_	9	cc	9:cc|9.1:cc	_
9	eaten	eat	VERB	VBN	_	6	conj	4:nsubj|6:conj:and|9.1:conj:and	Coref=6|SpaceAfter=No
9.1	eaten	eat	VERB	VBN	_	_	_	6:conj:and	_
9.2	too	too	ADV	RB	_	_	_	9.1:advmod	_
10	?	?	PUNCT	.	_	6	punct	6:punct	_

# newpar id = p2
# sent_id = weather-2
# text = Dámelo
1-3	Dámelo	_	_	_	_	_	_	_	SpaceAfter=No
1	Dá	dar	VERB	_	Mood=Imp	0	root	_	_
2	me	yo	PRON	_	Case=Dat	1	iobj	_	_
3	lo	él	PRON	_	Case=Acc	1	obj	_	_

"""
WORDS = [("Do", "n't", "10 000", "_", "get", "seen", ",", "and", "eaten", "?"), ("Dá", "me", "lo")]


def file(tmp_path, text, name="bank.conllu"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_full_format(tmp_path):
    first, second = corpus(file(tmp_path, FULL))
    assert [first.words, second.words] == WORDS
    assert first.heads == (6, 6, 4, 6, 6, 0, 9, 9, 6, 6)
    assert first.relations[3:6] == ("nsubj:pass", "aux:pass", "root")
    assert first.universal[3:6] == ("nsubj", "aux", "root")
    assert first.upos == ("AUX", "PART", "NUM", "NOUN", "AUX", "VERB", "PUNCT", "CCONJ", "VERB", "PUNCT")
    assert first.coreference == (0, 0, 0, 0, 0, 0, 0, 0, 6, 0), "Entity= is left alone"
    assert (second.heads, second.relations) == ((0, 1, 1), ("root", "iobj", "obj"))


def test_another_reader_sees_the_same(tmp_path):
    for ours, theirs in zip(corpus(file(tmp_path, FULL)), conllu.parse(FULL), strict=True):
        words = [token for token in theirs if isinstance(token["id"], int)]
        assert ours.words == tuple(token["form"] for token in words)
        assert ours.heads == tuple(token["head"] for token in words)
        assert ours.relations == tuple(token["deprel"] for token in words)


@pytest.mark.parametrize(
    "same",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: text.rstrip("\n") + "\n",
        lambda text: "\n\n" + text.replace("\n\n", "\n\n\n\n"),
        lambda text: text.replace("\n\n", "\n  \n"),
        lambda text: text.replace("\n\n", "\n\n# a comment by itself\n\n"),
        lambda text: text.replace("\n4\t", "\n# a comment inside, with\ta tab\n4\t"),
        lambda text: text.replace("\n\n", "\n\n\ufeff", 1),  # two files put together
        lambda text: "\n".join(line for line in text.split("\n") if not line.startswith("#")),
    ],
    ids=["CRLF", "BOM", "ends", "ends once", "empty", "blank", "comment", "inside", "BOM inside", "no comments"],
)
def test_written_another_way(tmp_path, same):
    text = same(FULL)
    assert text != FULL
    assert corpus(file(tmp_path, text)) == corpus(file(tmp_path, FULL, "other.conllu"))


def test_signs_that_unicode_takes_for_line_ends_and_spaces_stay_in_their_word(tmp_path):
    for sign in ("\u2028", "\x85", "\x0b", "\u00a0", "  ", "\u3000"):
        assert corpus(file(tmp_path, FULL.replace("10 000", f"10{sign}000")))[0].words[2] == f"10{sign}000"


def test_a_very_long_sentence_takes_no_longer_than_its_length(tmp_path):
    n = 20_000
    text = "".join(f"{i}\tw{i}\t_\tX\t_\t_\t{i - 1}\tdep\t_\t_\n" for i in range(1, n + 1))  # one chain
    start = time.process_time()
    (sentence,) = corpus(file(tmp_path, text.replace("\t0\tdep", "\t0\troot")))
    assert sentence.words[-1] == f"w{n}"
    assert len(sentence.words) == n
    assert time.process_time() - start < 5, "a walk to the root from every word would take a minute"


def test_conllu_plus(tmp_path):
    head = "# global.columns = ID FORM UPOS HEAD DEPREL PARSEME:MWE\n"
    text = head + "1\tIt\tPRON\t2\tnsubj\t*\n2\trained\tVERB\t0\troot\t1:IRV\n\n1\tIt\tPRON\t0\troot\t*\n"
    first, second = corpus(file(tmp_path, text, "bank.conllup"))
    assert first == Sentence(("It", "rained"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    assert second.words == ("It",), "the columns hold for the whole file"
    full = "# global.columns = " + " ".join(COLUMNS) + "\n" + FULL
    assert corpus(file(tmp_path, full)) == corpus(file(tmp_path, FULL, "other.conllu"))
    for names in ("ID FORM UPOS HEAD", "ID FORM HEAD DEPREL HEAD", ""):
        with pytest.raises(ValueError, match=r"line 1: columns .*; expected ID, FORM, HEAD, DEPREL"):
            corpus(file(tmp_path, text.replace("ID FORM UPOS HEAD DEPREL PARSEME:MWE", names)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\n4\t_", "\nx\t_", "line 11: not CoNLL-U: number 'x'"),
        ("\n4\t_", "\n²\t_", "line 11: not CoNLL-U: number '²'"),
        ("\n4\t_", "\n" + "9" * 5000 + "\t_", "line 11: not CoNLL-U: number"),
        ("\n4\t_", "\n5\t_", r"line 11: words are numbered \[1, 2, 3, 5\]"),
        ("\n10\t?", "\n10.1\t?", "line 19: empty node 10.1 after word 9; expected 9.1"),
        ("\n10\t?", "\n10-11\t?", "line 19: a range up to word 11 in a sentence of 9"),
        ("\n10\t?", "\n#0\t?", "line 19: a comment with the columns of a word"),
        ("\n1-2\t", "\n2-3\t", "line 7: range 2-3 after word 0; expected 1-2"),
        ("\n1-2\t", "\n1-1\t", "line 7: range 1-1"),
        ("\n2\tn't", "\n2-3\tno\t_\t_\t_\t_\t_\t_\t_\t_\n2\tn't", "line 9: range 2-3"),
        ("\n0.1\t", "\n1.1\t", "line 6: empty node 1.1 after word 0"),
        ("\tseen\t", "\t\t", "line 13: word 6 has no form"),
        ("\tseen\t", "\t \t", "line 13: word 6 has no form"),
        ("\tseen\tsee", "\tseen see", "line 13: 9 columns"),
        ("\t0:root\t", "\t0:root\t_\t", "line 13: 11 columns"),
        ("\t9\tpunct", "\t11\tpunct", r"line 14: heads \(6, 6, 4, 6, 6, 0, 11"),
        ("\t9\tpunct", "\t-9\tpunct", "line 14: not CoNLL-U: head '-9'"),
        ("\t9\tpunct", "\t٩\tpunct", "line 14: not CoNLL-U: head"),
        ("\t9\tpunct", "\t_\tpunct", r"line 14: heads \(6, 6, 4, 6, 6, 0, None"),
        ("\t6\tconj", "\t7\tconj", "line 1: heads .* are no tree"),
        ("Coref=6", "Coref=11", "line 16: Coref=11"),
        ("Coref=6", "Coref=²", "line 16: Coref=²"),
        ("Coref=6", "Coref=6|Coref=4", "line 16: Coref=6|Coref=4"),
        (
            "10\t?\t?\tPUNCT\t.\t_\t6\tpunct\t6:punct\t_\n\n",
            "10\t?\t?\tPUNCT\t.\t_\t6\tpunct\t6:punct\t_\n",
            "line 23: range 1-3 after word 10",
        ),
    ],
)
def test_damage_is_told_with_its_line(tmp_path, old, new, message):
    assert FULL.count(old) == 1 or old == "\n1-2\t"
    text = FULL.replace(old, new, 1)
    assert text != FULL
    with pytest.raises(ValueError, match=message):
        corpus(file(tmp_path, text))


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path):
    with pytest.raises(ValueError, match="line 24: not UTF-8"):
        corpus(file(tmp_path, FULL.replace("D\u00e1melo\t", "D@melo\t").encode().replace(b"@", b"\xe1")))
    with pytest.raises(ValueError, match="line 1: not UTF-8"):
        corpus(file(tmp_path, FULL.encode("utf-16")))


def test_only_no_words(tmp_path):
    with pytest.raises(ValueError, match="line 1: a sentence without words"):
        corpus(file(tmp_path, "0.1\tyou\t_\t_\t_\t_\t_\t_\t_\t_\n"))


def test_a_treebank_without_its_words(tmp_path):
    """Some treebanks may not be given away with their text, and have _ for each word."""
    hidden = "1\t_\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\t_\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    with pytest.raises(ValueError, match="line 28: every word is written _"):
        corpus(file(tmp_path, hidden * 50))
    assert len(corpus(file(tmp_path, FULL + hidden * 50))) == 52, "_ is a word like others"


def test_it_streams(tmp_path):
    sentences = read(file(tmp_path, FULL + "broken\n"))
    assert next(sentences).words == WORDS[0]
    assert next(sentences).words == WORDS[1]
    with pytest.raises(ValueError, match="line 29: 1 columns"):
        next(sentences)


# Any sound sentence comes back as it was; any damage is either harmless or told with its line.

signs = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff")
forms = st.text(signs, min_size=1, max_size=8).filter(str.strip) | st.sampled_from(["_", "#", "1-2", "10 000", "a  b"])
names = st.sampled_from(["nsubj", "nsubj:pass", "obl:tmod", "acl:relcl", "_"])


@st.composite
def trees(draw):
    """(words, heads, relations, antecedents, text) of a random tree."""
    n = draw(st.integers(1, 9))
    order = draw(st.permutations(range(1, n + 1)))
    heads = [0] * (n + 1)
    for i in range(1, n):
        heads[order[i]] = order[draw(st.integers(0, i - 1))]
    words = [draw(forms) for _ in range(n)]
    relations = [draw(names) for _ in range(n)]
    antecedents = [draw(st.integers(0, n)) for _ in range(n)]
    lines, covered = [f"# text = {draw(st.text(signs, max_size=9))}"], 0
    for i in range(n + 1):
        if i:
            misc = "SpaceAfter=No|" * draw(st.booleans()) + f"Coref={antecedents[i - 1]}"
            fields = [i, words[i - 1], "_", "X", draw(forms), "_", heads[i], relations[i - 1], "4:a|5.1:b:c", misc]
            lines.append("\t".join(map(str, fields)))
        if draw(st.integers(0, 4)) == 0:
            lines.append(f"{i}.1\t{draw(forms)}" + "\t_" * 8)
        if i < n - 1 and i >= covered and draw(st.integers(0, 3)) == 0:
            covered = draw(st.integers(i + 2, n))
            lines.append(f"{i + 1}-{covered}\t{draw(forms)}" + "\t_" * 8)
    text = draw(st.sampled_from(["\n", "\r\n"])).join([*lines, "", ""])
    return tuple(words), tuple(heads[1:]), tuple(relations), tuple(antecedents), text


fuzz = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(some=st.lists(trees(), min_size=1, max_size=3))
def test_any_sound_sentence_comes_back(tmp_path, some):
    path = file(tmp_path, "".join(text for *_, text in some))
    for sentence, (words, heads, relations, antecedents, _) in zip(corpus(path), some, strict=True):
        assert sentence.words == words
        assert sentence.heads == heads
        assert sentence.relations == relations
        assert sentence.coreference == antecedents
        assert is_tree(sentence.heads)


@settings(parent=fuzz, max_examples=200)
@given(place=st.integers(0, len(FULL.encode()) - 1), new=st.binary(max_size=2), length=st.integers(0, 3))
@example(place=FULL.encode().index(b"\n10\t?") + 1, new=b"#", length=1)
@example(place=FULL.encode().index(b"\n10\t?") + 3, new=b".1", length=0)
def test_any_damage_is_harmless_or_told_with_its_line(tmp_path, place, new, length):
    whole = FULL.encode()
    path = file(tmp_path, whole[:place] + new + whole[place + length :])
    found, told = [], r"bank\.conllu, line \d+: "
    try:
        found = corpus(path)
    except ValueError as error:
        told = str(error) if re.search(told, str(error)) else ""
    assert told, "an error names the line"
    assert not found or [len(sentence.words) for sentence in found] == [10, 3], "no word is lost"
    for sentence in found:
        n = len(sentence.words)
        assert is_tree(sentence.heads)
        assert all(0 <= number <= n for number in sentence.coreference)


@fuzz
@given(rubbish=st.binary(max_size=60))
def test_rubbish_is_refused(tmp_path, rubbish):
    with pytest.raises(ValueError, match=r"line \d+|holds no sentences"):
        corpus(file(tmp_path, rubbish))
