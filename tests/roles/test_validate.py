"""Every rule of validate() accepts a sound sentence and refuses a broken one, and names its line."""

import pytest

from headtools.roles.validate import CHILDREN, RELATIONS, RIGHTWARD, UPOS, validate

# A range, an empty node, a fixed expression, a coordination, an adverb on a determiner, coreference.
SOUND = """# sent_id = one
# text = Almost all boys and girls didn't lose their hats because of it.
1\tAlmost\talmost\tADV\t_\t_\t2\tadvmod\t_\t_
2\tall\tall\tDET\t_\t_\t3\tdet\t_\t_
3\tboys\tboy\tNOUN\t_\t_\t8\tnsubj\t_\t_
4\tand\tand\tCCONJ\t_\t_\t5\tcc\t_\t_
5\tgirls\tgirl\tNOUN\t_\t_\t3\tconj\t_\t_
6-7\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
6\tdid\tdo\tAUX\t_\t_\t8\taux\t_\t_
7\tn't\tnot\tPART\t_\t_\t8\tadvmod\t_\t_
8\tlose\tlose\tVERB\t_\t_\t0\troot\t_\t_
8.1\tlose\tlose\tVERB\t_\t_\t_\t_\t_\t_
9\ttheir\ttheir\tPRON\t_\t_\t10\tnmod:poss\t_\tCoref=3
10\thats\that\tNOUN\t_\t_\t8\tobj\t_\t_
11\tbecause\tbecause\tSCONJ\t_\t_\t13\tcase\t_\t_
12\tof\tof\tADP\t_\t_\t11\tfixed\t_\t_
13\tit\tit\tPRON\t_\t_\t8\tobl\t_\tSpaceAfter=No
14\t.\t.\tPUNCT\t_\t_\t8\tpunct\t_\t_

"""


def complaints(tmp_path, text):
    path = tmp_path / "bank.conllu"
    path.write_text(text, encoding="utf-8")
    return validate(path)


def test_a_sound_sentence(tmp_path):
    assert complaints(tmp_path, SOUND) == []
    assert complaints(tmp_path, SOUND.rstrip("\n")) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("1\tAlmost\talmost\tADV\t_", "1\tAlmost\talmost\tADV", "line 3: 9 columns"),
        ("5\tgirls", "6\tgirls", "line 1: words are numbered 1 2 3 4 6 6"),
        ("5\tgirls", "V\tgirls", "line 7: id 'V'"),
        ("8.1\tlose", "8.x\tlose", "line 12: id '8.x'"),
        ("6-7\tdid", "5-7\tdid", "line 8: range 5-7"),
        ("6-7\tdid", "6-20\tdid", "line 8: range 6-20"),
        ("8.1\tlose\tlose\tVERB", "7-9\tlose\t_\t_", "line 12: range 7-9"),
        ("3\tboys\tboy\tNOUN", "3\tboys\tboy\tNN", "line 5: boys: no part of speech 'NN'"),
        ("10\tnmod:poss", "10\tposs", "line 13: their: no relation 'poss'"),
        ("10\tnmod:poss", "10\tnmod:gen", "line 13: their: no relation 'nmod:gen'"),
        ("8\tobj\t", "80\tobj\t", "line 14: head '80'; needed: 0 to 14"),
        ("8\tobj\t", "_\tobj\t", "line 14: head '_'"),
        ("8\tobj\t", "0\tobj\t", "line 1: the heads are no tree"),
        ("8\tobj\t", "9\tobj\t", "line 1: the heads are no tree"),
        ("8\tobj\t", "8\troot\t", "line 14: hats: relation root with head 8"),
        ("0\troot", "0\tccomp", "line 11: lose: relation ccomp with head 0"),
        ("VERB\t_\t_\t0", "PUNCT\t_\t_\t0", "line 11: lose: punctuation cannot be the root"),
        ("14\t.\t.\tPUNCT\t_\t_\t8\tpunct", "14\t.\t.\tPUNCT\t_\t_\t8\tobl", "line 18: .: punctuation cannot be obl"),
        ("14\t.\t.\tPUNCT", "14\t.\t.\tSYM", "line 18: .: a SYM cannot be punct"),
        ("did\tdo\tAUX", "did\tdo\tVERB", "line 9: did: a VERB cannot be aux"),
        ("all\tall\tDET", "all\tall\tADJ", "line 4: all: a ADJ cannot be det"),
        ("and\tand\tCCONJ", "and\tand\tSCONJ", "line 6: and: a SCONJ cannot be cc"),
        ("3\tconj", "13\tconj", "line 7: girls: conj must stand to the right"),
        ("11\tfixed", "13\tfixed", "line 16: of: fixed must stand to the right"),
        ("8\tobj\t", "8\tnsubj\t", "line 14: hats: 'lose' has a subject already"),
        ("8\tobl\t", "8\tobj\t", "line 17: it: 'lose' has a obj already"),
        ("8\tobl\t", "6\tobl\t", "line 17: it: obl cannot hang on 'did', which is aux"),
        ("8\tadvmod", "4\tadvmod", None),
        ("8\tobl\t", "4\tobl\t", "line 17: it: obl cannot hang on 'and', which is cc"),
        ("8\tobj\t", "14\tobj\t", "line 14: hats: obj cannot hang on '.', which is punct"),
        ("8\tobj\t", "12\tobj\t", "line 14: hats: obj cannot hang on 'of', which is fixed"),
        ("8\tpunct", "3\tpunct", "line 18: .: the arc of a punctuation mark crosses another"),
        ("Coref=3", "Coref=9", "line 13: their: Coref=9"),
        ("Coref=3", "Coref=12", "line 13: their: Coref=12"),
        ("Coref=3", "Coref=0", "line 13: their: Coref=0"),
        ("Coref=3", "Coref=boys", "line 13: their: Coref=boys"),
        ("SpaceAfter=No", "_", "line 1: text is "),
        ("6-7\tdidn't", "6-7\tdid", "line 1: text is "),
        ("# sent_id = one\n", "", "line 1: no '# sent_id = ...'"),
        ("# text = A", "# txt = A", "line 1: no '# text = ...'"),
    ],
)
def test_broken_sentences(tmp_path, old, new, complaint):
    assert SOUND.count(old) == 1
    found = complaints(tmp_path, SOUND.replace(old, new))
    if complaint is None:  # a conjunction may have an adverb of its own
        assert found == []
    else:
        assert any(line.startswith(complaint) for line in found), found


GAP = """# sent_id = {}
# text = {}
1\tWhat\twhat\tPRON\t_\t_\t{}\tobj\t_\t_
2\tdid\tdo\tAUX\t_\t_\t5\taux\t_\t_
3\the\the\tPRON\t_\t_\t5\tnsubj\t_\tSpaceAfter=No
4\t,\t,\tPUNCT\t_\t_\t{}\tpunct\t_\t_
5\twant\twant\tVERB\t_\t_\t0\troot\t_\t_
6\tto\tto\tPART\t_\t_\t7\tmark\t_\t_
7\tsay\tsay\tVERB\t_\t_\t5\txcomp\t_\t_

"""


def test_punctuation_in_a_gap(tmp_path):
    """A word may leave a gap, and a mark may hang inside it; a mark that makes one may not."""
    text = "What did he, want to say"
    assert complaints(tmp_path, GAP.format("one", text, 7, 5)) == []
    found = complaints(tmp_path, GAP.format("one", text, 5, 7))
    assert [line[:9] for line in found] == ["line 6: ,"]
    outside = SOUND.replace("4\tand\tand\tCCONJ\t_\t_\t5\tcc", "4\t,\t,\tPUNCT\t_\t_\t8\tpunct")
    assert "line 6: ,: stands between 'girls' and its head without hanging there" in complaints(tmp_path, outside)


def test_sentences_that_stand_twice(tmp_path):
    again = SOUND + SOUND.replace("= one", "= two")
    assert complaints(tmp_path, again) == [
        'line 20: text "Almost all boys and girls didn\'t lose their hats because of it." stands already in line 1'
    ]
    assert complaints(tmp_path, SOUND + GAP.format("one", "What did he, want to say", 7, 5)) == [
        "line 20: sent_id 'one' stands already in line 1"
    ]


def test_several_complaints_come_in_order(tmp_path):
    text = SOUND.replace("Coref=3", "Coref=12").replace("10\tnmod:poss", "10\tposs").replace("all\tDET", "all\tADJ")
    assert [line.split(":")[0] for line in complaints(tmp_path, text)] == ["line 4", "line 13", "line 13"]


def test_the_label_sets():
    assert len(UPOS) == 17
    assert len({relation.split(":")[0] for relation in RELATIONS}) == 37
    assert {relation.split(":")[0] for relation in RELATIONS} <= RELATIONS
    assert set(CHILDREN) | RIGHTWARD <= RELATIONS


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        validate(tmp_path / "none.conllu")
