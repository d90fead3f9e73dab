"""Reading treebanks: every word kept, ranges and empty nodes passed over, broken files refused with their line."""

import dataclasses

import pytest

from headtools.roles.corpus import corpus
from headtools.roles.sentence import Sentence

GOOD = """# sent_id = 1
# text = Don't sleep, it said.
1-2	Don't	_	_	_	_	_	_	_	_
1	Do	do	AUX	VB	_	3	aux	3:aux	_
2	n't	not	PART	RB	Polarity=Neg	3	advmod	3:advmod	_
3	sleep	sleep	VERB	VB	_	6	ccomp	6:ccomp	SpaceAfter=No
4	,	,	PUNCT	,	_	6	punct	6:punct	_
5	it	it	PRON	PRP	_	6	nsubj	6:nsubj|6.1:nsubj	Coref=3
6	said	say	VERB	VBD	_	0	root	0:root	SpaceAfter=No
6.1	said	say	VERB	VBD	_	_	_	0:exroot	_
7	.	.	PUNCT	.	_	6	punct	6:punct	_

# sent_id = 2
1	Go	go	VERB	VB	_	0	root	_	_

"""


def write(tmp_path, text, name="bank.conllu"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_ranges_and_empty_nodes_are_no_words(tmp_path):
    first, second = corpus(write(tmp_path, GOOD))
    assert first.words == ("Do", "n't", "sleep", ",", "it", "said", ".")
    assert first.heads == (3, 3, 6, 6, 6, 0, 6)
    assert first.relations == ("aux", "advmod", "ccomp", "punct", "nsubj", "root", "punct")
    assert first.upos[:3] == ("AUX", "PART", "VERB")
    assert first.coreference == (0, 0, 0, 0, 3, 0, 0)
    assert first.target is first.alignment is first.topic is None
    assert second.words == ("Go",)


def test_no_last_empty_line_windows_line_ends_and_a_string_path(tmp_path):
    path = tmp_path / "bank.conllu"
    path.write_bytes(GOOD.rstrip("\n").replace("\n", "\r\n").encode())
    assert corpus(str(path)) == corpus(write(tmp_path, GOOD, "other.conllu"))


def test_limit(tmp_path):
    path = write(tmp_path, GOOD)
    assert len(corpus(path, limit=1)) == 1
    with pytest.raises(ValueError, match="limit=0"):
        corpus(path, limit=0)


LINE = "1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no sentences"),
        ("# only a comment\n\n", "holds no sentences"),
        ("\n\n1 Go go VERB VB _ 0 root _ _\n", "line 3: 1 columns"),
        (LINE + "2\tnow\tnow\tADV\n", "line 2: 4 columns"),
        (LINE.replace("\t0\t", "\t5\t"), r"line 1: heads \(5,\)"),
        (LINE.replace("\t0\t", "\t_\t"), r"line 1: heads \(None,\)"),
        (LINE.replace("\t0\t", "\tx\t"), "line 1: not CoNLL-U"),
        (LINE.replace("\t0\t", "\t1\t"), "line 1: .* no tree"),
        (LINE + LINE.replace("1\t", "2\t", 1), "no tree"),
        (LINE.replace("1\t", "2\t", 1), "words are numbered"),
        (LINE.replace("_\n", "Coref=9\n"), "Coref=9"),
    ],
)
def test_broken_files_are_refused_with_their_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        corpus(write(tmp_path, text))


def test_not_utf8(tmp_path):
    path = tmp_path / "bank.conllu"
    path.write_bytes(GOOD.replace("Go", "Gö").encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        corpus(path)


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match="there is organism, organism2, english, or the path"):
        corpus("french")
    with pytest.raises(FileNotFoundError, match=r"none\.conllu is not there"):
        corpus(tmp_path / "none.conllu")
    with pytest.raises(ValueError, match="one split"):
        corpus(write(tmp_path, GOOD), split="train")
    with pytest.raises(ValueError, match="no split 'dev'"):
        corpus("organism", split="dev")


def test_a_sentence_cannot_be_changed():
    sentence = corpus("organism", limit=1)[0]
    assert isinstance(sentence, Sentence)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sentence.words = ()
