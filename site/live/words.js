/* A translation, word by word, beside the right one. */

import { html } from "./dom.js";
import { alignWords, spelling } from "./lexicon.js";

/* How many words of the right translation are wrong, and how many there are beyond it. A sentence of one's own (`gold` is
   false) has no right translation: what the whole model writes can be changed, and need not be right. */
export function verdict(mistakes, sentence) {
  const extra = mistakes.filter(({ right }) => right < 0).length, wrong = mistakes.length - extra;
  if (sentence.gold === false) return mistakes.length ? `${wrong} of ${sentence.right.length} changed${extra ? `, ${extra} more` : ""}` : "Nothing changed";
  if (!mistakes.length) return "All right";
  return `${wrong} of ${sentence.right.length} wrong${extra ? `, ${extra} too many` : ""}`;
}

/* said: numbers of the words written; sentence: { words, right, from, needs }, where `needs` is null for a sentence without
   a translation by the grammar; cards: whether each word is a button that has a card, with what it says below it.
   Gives { items, pairs, mistakes }: list items, { said, right, missed } for each item, and those of the wrong ones. */
export function translated({ said, sentence, lexicon, cards = false }) {
  const mistakes = [], pairs = alignWords(said, sentence.right, lexicon);
  const items = pairs.map((pair, number) => {
    const { said: i, right: j } = pair, at = j >= 0 ? sentence.from[j] : undefined;
    const from = html("span", { class: "from" }, at ? sentence.words[at - 1] : "\u00a0");
    const properties = { "data-at": at, title: i >= 0 && !cards ? lexicon.gloss(said[i]) : null };
    const mark = i >= 0 && /^[.,]$/.test(lexicon.word(said[i])) ? "mark" : null;
    const item = (wrong, ...parts) => html("li", { ...properties, class: [wrong, mark].filter(Boolean).join(" ") || null }, cards ? html("button", { type: "button", "data-card": number }, parts) : parts);
    if (i >= 0 && j >= 0 && said[i] === sentence.right[j]) return item(null, from, html("span", { class: "said" }, lexicon.word(said[i])), cards && html("span", { class: "says" }, lexicon.features(said[i])));
    const missed = i < 0 ? ["missing"] : j < 0 ? ["one too many"] : lexicon.missed(said[i], sentence.right[j], sentence.needs?.[j]);
    pair.missed = missed;
    mistakes.push(pair);
    const text = i >= 0 ? lexicon.word(said[i]) : "–";
    const right = j >= 0 ? spelling(i >= 0 ? text : "", lexicon.word(sentence.right[j])).map(({ text: part, lacking }) => (lacking ? html("b", {}, part) : part)) : "–";
    return item("wrong", from, html("span", { class: "said" }, text),
      html("span", { class: "right" }, html("span", { class: "hidden" }, "should be "), right), html("span", { class: "missed" }, missed.join(", ")));
  });
  return { items, pairs, mistakes };
}
