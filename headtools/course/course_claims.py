"""What others write about heads, from the catalogues of all lessons: one table with filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from headtools.course import catalogue
from headtools.course.claims import VERDICTS
from headtools.course.live import show_live
from headtools.course.plain import escape, plain

TOPICS = {
    "00": "switching heads off",
    "01": "what a head computes",
    "02": "weights and geometry",
    "03": "what heads attend to",
    "04": "names of heads",
    "05": "probes",
    "06": "how heads develop",
    "07": "importance",
    "08": "relevance",
    "09": "gates",
    "10": "pruning",
    "11": "merging and editing",
    "12": "reports",
}
ALL = "all"
_CELL = "text-align:left;vertical-align:top;padding:.35em .7em"
_ADVICE = "Run this cell to filter the claims by verdict, topic and word."


@dataclass(frozen=True)
class CourseClaim:
    """A claim of others: the verdict on its source (``cited``, with the reason ``why``) and that of a ``lesson``."""

    claim: str
    source: str
    cited: str
    why: str
    here: str
    topic: str
    lesson: str


class CourseClaims(Sequence):
    """The claims that lessons weighed, as a table; a notebook shows filters above it.

    Without a kernel, all claims stand there, folded by topic. ``filtered`` gives those that pass.
    """

    def __init__(self, claims: Sequence[CourseClaim]) -> None:
        self.claims = tuple(claims)

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, index: Any) -> Any:
        return self.claims[index]

    def filtered(self, verdict: str = ALL, topic: str = ALL, word: str = "") -> CourseClaims:
        """Return the claims with this verdict (on the source, or here), of this topic, that contain ``word``.

        Raises ValueError for a verdict or a topic that does not exist.

        >>> claims = course_claims()
        >>> {claim.topic for claim in claims.filtered(topic="gates")}
        {'gates'}
        >>> len(claims.filtered(word="no claim contains this"))
        0
        """
        for what, given, allowed in (("verdict", verdict, VERDICTS), ("topic", topic, TOPICS.values())):
            if given != ALL and given not in allowed:
                raise ValueError(f"got {what} {given!r}; expected {ALL!r} or one of {', '.join(map(repr, allowed))}")
        return CourseClaims(
            [
                claim
                for claim in self.claims
                if verdict in (ALL, claim.cited, claim.here)
                and topic in (ALL, claim.topic)
                and word.casefold() in f"{claim.claim} {claim.source} {claim.why}".casefold()
            ]
        )

    @property
    def topics(self) -> list[str]:
        """The topics, in the order of the lessons."""
        return list(dict.fromkeys(claim.topic for claim in self.claims))

    def __repr__(self) -> str:
        lines = [f"{c.claim} ({c.source}) As cited: {c.cited}. Here: {c.here}, lesson {c.lesson}." for c in self.claims]
        return "\n".join([f"{len(self)} claims", *lines])

    def counts(self) -> str:
        """Return the number of claims by topic and verdict on the source, as an HTML table."""
        count = Counter((claim.topic, claim.cited) for claim in self.claims)
        rows = [[topic, *(count[topic, verdict] for verdict in VERDICTS)] for topic in self.topics]
        rows.append(["all topics", *(sum(row[i] for row in rows) for i in range(1, len(VERDICTS) + 1))])
        return _table(["Topic", *VERDICTS], rows, "Claims by topic and by the verdict on their source")

    def table(self) -> str:
        """Return the claims as an HTML table."""
        if not self.claims:
            return "<p>No claim passes these filters.</p>"
        rows = [
            [f"{c.claim} ({c.source})", f"{_mark(c.cited)}. {c.why}", f"{_mark(c.here)}, lesson {c.lesson}"]
            for c in self.claims
        ]
        return _table(["What others write", "As cited", "In our models"], rows, f"{len(self)} claims")

    def by_topic(self) -> str:
        """Return the claims as HTML, folded by topic."""
        parts = (self.filtered(topic=topic) for topic in self.topics)
        return "".join(
            f"<details><summary>{escape(part.topics[0])} ({len(part)} claims)</summary>{part.table()}</details>"
            for part in parts
        )

    def widget(self) -> Any:
        """Return the filters above the table, as a widget: two menus and a line to type in, all usable by keyboard."""
        import ipywidgets as widgets

        style = {"description_width": "initial"}
        verdict = widgets.Dropdown(options=[ALL, *VERDICTS], description="verdict", style=style)
        topic = widgets.Dropdown(options=[ALL, *self.topics], description="topic", style=style)
        word = widgets.Text(description="contains", continuous_update=False, style=style)
        shown = widgets.HTML(self.counts() + self.table())

        def update(_change: Any) -> None:
            passing = self.filtered(verdict.value, topic.value, word.value)
            shown.value = f'<div aria-live="polite">{passing.counts() if passing else ""}{passing.table()}</div>'

        for control in (verdict, topic, word):
            control.observe(update, "value")
        return widgets.VBox([verdict, topic, word, shown])

    def _ipython_display_(self) -> None:
        # The marks let tests leave this output out: it changes whenever a lesson's catalogue does.
        html = f"<!--course claims-->{self.counts()}{self.by_topic()}<!--end of course claims-->"
        text = "What others write about heads: the claims of all lessons, with filters."
        show_live(html, text, self.widget(), "headtools-course-claims", _ADVICE)


def course_claims() -> CourseClaims:
    """Return the claims of others that the lessons weigh, from their catalogues, in the order of the lessons.

    >>> claims = course_claims()
    >>> len(claims) > 50, claims.topics[0]
    (True, 'switching heads off')
    """
    numbers = sorted(file.name[:2] for file in files(catalogue).iterdir() if file.name.endswith(".toml"))
    return CourseClaims(
        [
            CourseClaim(row["claim"], row["source"], *row["cited"], row["here"][0], TOPICS[number], number)
            for number in numbers
            for row in catalogue.lesson(number).get("others", [])
        ]
    )


def _mark(verdict: str) -> str:
    return f"{VERDICTS[verdict][1]} {verdict}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> str:
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(plain(cell))}</td>' for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse;max-width:72em">'
        f'<caption style="{_CELL}">{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )
